"""An engine that cannot run falls back to XLA with at most one line of warning, never an exception or a crash."""

import dataclasses
import errno
import os
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.codegen import build, compiler
from twoclock.engine import c_engine, cuda_engine, engines, lane_program
from twoclock.engine.run_batch import Lanes, make_instances
from twoclock.protocols import InputError

PROBLEM, METHOD = tc.problems.quadratic(dim=2), tc.Fast()
needs_compiler = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """A cache of the test's own, and nothing loaded yet."""
    monkeypatch.setenv("TWOCLOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "_builds", {})
    monkeypatch.setattr(lane_program, "_cache", {})
    monkeypatch.delenv("TWOCLOCK_ENGINE", raising=False)
    yield
    compiler.close_builds()


def solve(engine="c", **options):
    return tc.solve(PROBLEM, METHOD, steps=50, seeds=3, engine=engine, **options)


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def falls_back(words):
    """A run that was asked of c warns in one line, records why, and has the numbers of XLA."""
    with pytest.warns(UserWarning, match=words) as warned:
        result = solve()
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    assert result.spec["engine"] == "xla"
    assert words in result.spec["engine_reason"]
    np.testing.assert_array_equal(result.theta, solve("xla").theta)


def test_a_missing_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    falls_back("there is no C compiler")


VERSION = 'case "$*" in *--version*) echo fake 1.0; exit 0;; esac; '


@needs_compiler
def test_a_compiler_that_is_not_gcc_is_not_asked_for_options_of_gcc(monkeypatch, tmp_path):
    """Clang ends with an error at one that it does not know."""
    real = " ".join(compiler.find().command)
    refuse = 'case "$*" in *-fno-tree-pre*|*-fno-thread-jumps*) echo "error: unknown argument" >&2; exit 1;; esac; '
    monkeypatch.setenv("CC", script(tmp_path / "cc", VERSION + refuse + f'exec {real} "$@"'))
    assert solve().spec["engine"] == "c"


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", script(tmp_path / "cc", VERSION + "echo 'x.c:1: error: no' >&2; exit 1"))
    falls_back("the C compiler failed: x.c:1: error: no")


def test_a_compiler_that_hangs(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "TIME_LIMIT", 0.2)
    monkeypatch.setenv("CC", script(tmp_path / "cc", VERSION + "exec sleep 60"))
    falls_back("the C compiler took more than 0.2 s")


def test_a_compiler_that_hangs_behind_a_wrapper_is_killed_with_it(monkeypatch, tmp_path):
    """The wrapper's child holds its output open, and would be waited for."""
    monkeypatch.setattr(compiler, "TIME_LIMIT", 0.2)
    child = f"sleep 60 & echo $! > {tmp_path / 'child'}; wait"
    monkeypatch.setenv("CC", script(tmp_path / "cc", VERSION + child))
    began = time.monotonic()
    falls_back("the C compiler took more than 0.2 s")
    assert time.monotonic() - began < 30
    child_status = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not child_status.exists() or child_status.read_text().split()[2] == "Z"


def test_a_compiler_whose_version_hangs_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "VERSION_TIME_LIMIT", 0.2)
    monkeypatch.setenv("CC", script(tmp_path / "cc", "sleep 60 & wait"))
    falls_back("there is no C compiler")


@pytest.mark.parametrize(("asked", "words"), [("gcc '", "cannot be read"), ("''", "there is no C compiler")])
def test_a_compiler_whose_name_cannot_be_read(monkeypatch, asked, words):
    monkeypatch.setenv("CC", asked)
    falls_back(words)


def test_a_compiler_whose_words_are_not_utf_8(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", script(tmp_path / "cc", VERSION + r"printf 'x.c:1: error: caf\351\n' >&2; exit 1"))
    falls_back("the C compiler failed: x.c:1: error: caf\ufffd")
    monkeypatch.setenv("CC", script(tmp_path / "c2", r"printf '\377\n'; exit 1"))
    falls_back("there is no C compiler")


@pytest.mark.parametrize("call", ["write_text", "mkdir"])
def test_a_full_disk_of_the_cache_leaves_the_run_to_xla(monkeypatch, tmp_path, call):
    monkeypatch.setenv("CC", script(tmp_path / "cc", VERSION + "exit 1"))

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(compiler.Path, call, full)
    monkeypatch.setattr(compiler, "_temporary_folder", full)
    falls_back("No space left on device")


@needs_compiler
@pytest.mark.parametrize("options", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations"])
def test_options_for_fast_arithmetic_change_nothing(monkeypatch, options):
    want, tiny = solve().theta, np.float64(1e-310)
    monkeypatch.setenv("CC", " ".join((*compiler.find().command, options)))
    result = solve()
    assert result.spec["engine"] == "c"
    np.testing.assert_array_equal(result.theta, want)
    assert tiny / 2 > 0  # as before: numbers below the smallest normal one are not flushed in this process


def test_a_compiler_that_writes_garbage(monkeypatch, tmp_path):
    made = 'while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"'
    monkeypatch.setenv("CC", script(tmp_path / "cc", VERSION + made))
    with pytest.warns(UserWarning, match="engine 'c'"):
        assert solve().spec["engine"] == "xla"


@needs_compiler
def test_a_program_with_wrong_results_is_rejected(monkeypatch):
    right = lane_program.generate

    def wrong(*args):
        source = right(*args)
        return dataclasses.replace(source, text=source.text.replace("k=(int32_t)step", "k=(int32_t)step+1"))

    monkeypatch.setattr(lane_program, "generate", wrong)
    falls_back("fails its self-check")


@needs_compiler
def test_cached_programs_are_verified_before_they_are_loaded(monkeypatch, tmp_path):
    first = solve()
    assert first.spec["engine"] == "c"
    folder = tmp_path / "programs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (kept,) = folder.glob("*.so")
    store = compiler.open_cache()
    assert store.trouble is None
    assert store.holds(kept.stem)
    assert store.is_checked(kept.stem)

    started = []
    start = compiler.Compiler.start
    monkeypatch.setattr(compiler.Compiler, "start", lambda *args: started.append(1) or start(*args))
    monkeypatch.setattr(compiler, "_builds", {})
    np.testing.assert_array_equal(solve().theta, first.theta)
    assert not started

    kept.chmod(0o600)
    torn = kept.read_bytes()[:-100]  # as after a power cut; written again, because the old file is still mapped
    kept.unlink()
    kept.write_bytes(torn)
    monkeypatch.setattr(compiler, "_builds", {})
    np.testing.assert_array_equal(solve().theta, first.theta)
    assert started == [1]


def test_a_cache_of_someone_else_is_not_used(monkeypatch, tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir(0o700)
    assert compiler.open_cache().trouble is None
    folder.chmod(0o755)
    assert "open to others" in compiler.open_cache().trouble
    folder.chmod(0o700)
    someone = os.geteuid() + 1
    monkeypatch.setattr(compiler.os, "geteuid", lambda: someone)
    found = compiler.open_cache()
    assert "belongs to someone else" in found.trouble
    assert found.folder != folder
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    assert "is no folder" in compiler.open_cache().trouble


def test_a_cache_that_others_could_replace_is_not_used(monkeypatch, tmp_path):
    """Who may write to a folder above it can put another in its place while a program is compiled."""
    above = tmp_path / "shared"
    monkeypatch.setenv("TWOCLOCK_CACHE", str(above / "cache"))
    assert compiler.open_cache().trouble is None
    assert stat.S_IMODE((above / "cache").stat().st_mode) == 0o700
    above.chmod(0o777)
    found = compiler.open_cache()
    assert f"{above} is open to others" in found.trouble
    assert above not in found.folder.parents
    above.chmod(0o1777)  # as /tmp: only the owner renames
    assert compiler.open_cache().trouble is None
    if os.geteuid() == 0:
        os.chown(above, 65534, 65534)
        above.chmod(0o755)
        assert f"{above} belongs to someone else" in compiler.open_cache().trouble


def test_what_a_killed_process_left_in_the_cache_is_deleted_in_time(tmp_path):
    store = compiler.open_cache()
    left, others, new = (store.folder / f"making-{name}" for name in ("left", "others", "new"))
    for folder, file in ((left, "program.c"), (others, "thesis.tex"), (new, "program.c")):
        folder.mkdir()
        (folder / file).write_text("")
    for folder in (left, others):
        os.utime(folder, (0, 0))
    store.make_folder()
    assert [folder.exists() for folder in (left, others, new)] == [False, True, True]


def test_the_cache_does_not_grow_without_end(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "MAX_BYTES", 2_500)
    store = compiler.open_cache()
    for i in range(4):
        made = tmp_path / "made"
        made.write_bytes(bytes(1_000))
        store.add(f"{i}", made)
        os.utime(store.path(f"{i}"), (i, i))
    assert [store.holds(f"{i}") for i in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda t: jnp.sort(t), "sort"),
        (lambda t: jnp.linalg.solve(jnp.eye(3) + jnp.outer(t, t), t), "not generated"),
        (lambda t: jax.pure_callback(lambda x: x, t, t, vmap_method="sequential"), "pure_callback"),
        (lambda t: jnp.where(t > 0, 1e-308, 1.0).astype(bool).astype(t.dtype), "below the smallest normal number"),
    ],
)
def test_a_step_that_cannot_be_generated_falls_back_to_xla(monkeypatch, step, words):
    problem = tc.problems.custom(
        F=lambda t, w, x: step(t), G=lambda t, w, x: w, noise=lambda key: 0.0, theta=np.ones(3), omega=0.0
    )
    monkeypatch.setattr(engines, "WORTH_COMPILING", 0.0)
    result = tc.solve(problem, tc.Standard(0.1, 0.1), steps=5, seeds=2)  # warnings are errors here
    assert result.spec["engine"] == "xla"
    assert words in result.spec["engine_reason"]


def test_a_step_of_too_many_lines(monkeypatch):
    monkeypatch.setattr(build, "_TRIES", ((64, 20), (8, 50)))
    lanes = Lanes.of(make_instances(PROBLEM, (0,)), [METHOD], (0,), None)
    assert c_engine.CEngine().compile(lanes) == "one step takes more than 50 lines of C"


def test_short_runs_stay_with_xla():
    result = solve("auto")
    assert result.spec["engine"] == "xla"
    assert "too short" in result.spec["engine_reason"]
    assert solve("xla").spec["engine_reason"] is None


def test_a_large_state_is_worth_compiling_for_sooner_and_tables_of_items_do_not_count():
    def numbers(problem, method):
        lanes = Lanes.of(make_instances(problem, [0, 1]), [method], [0, 1], None)
        per_group, per_lane, per_number = engines._CPU_COST
        return (engines.predict_seconds(lanes, 1000, on_gpu=False) / 1000 - per_group - 2 * per_lane) / per_number

    small, large = (numbers(tc.problems.quadratic(dim=dim), tc.Fast()) for dim in (2, 50))
    assert large - small == pytest.approx(2 * 4 * 48)  # two seeds; θ, ω and the means of F and G
    few, many = (
        numbers(tc.problems.quadratic_bilevel(samples=n), tc.methods.SABA(0.1, 0.1, items=(n, n))) for n in (64, 128)
    )
    assert many - few == pytest.approx(2 * 2 * 64)  # which items were seen, of both levels


def test_without_a_gpu_cuda_falls_back():
    if cuda_engine.unavailable() is None:
        pytest.skip("there is a GPU")
    with pytest.warns(UserWarning, match="JAX sees no GPU|cupy is not installed"):
        assert solve("cuda").spec["engine"] == "xla"


def test_the_environment_sets_the_default(monkeypatch):
    monkeypatch.setenv("TWOCLOCK_ENGINE", "xla")
    assert solve("auto").spec["engine_reason"] is None
    monkeypatch.setenv("TWOCLOCK_ENGINE", "fortran")
    with pytest.raises(InputError, match="TWOCLOCK_ENGINE"):
        solve("auto")
    with pytest.raises(InputError, match="`engine` has no 'fortran'"):
        solve("fortran")


@needs_compiler
def test_progress_names_the_engine():
    engines = []
    solve(progress=lambda tick: engines.append(tick.engine))
    assert set(engines) == {"c"}
    engines.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve("auto", progress=lambda tick: engines.append(tick.engine))
    assert set(engines) == {"xla, because the run is too short to be worth compiling for"}


def test_sweeps_and_tuning_run_on_the_engine_that_is_named(monkeypatch, tmp_path):
    asked, real = [], engines.choose
    monkeypatch.setattr(
        "twoclock.engine.loop.choose", lambda engine, *rest: asked.append(engine) or real(engine, *rest)
    )
    problem = tc.problems.quadratic(dim=2)
    tc.sweep({"bowl": problem}, {"fast": tc.Fast()}, 50, 2, out=tmp_path, engine="xla")
    (shard,) = (tmp_path / "shards").glob("*.json")
    assert '"engine": "xla"' in shard.read_text()
    for metric in ("error", "residual"):
        tc.tune(problem, tc.Fast(), {"alpha.c": (0.5, 2)}, 40, metric=metric, rungs=1, engine="xla")
    assert len(asked) > 3
    assert set(asked) == {"xla"}


SLOW_TO_OPTIMISE = """
import jax, jax.numpy as jnp, numpy as np, twoclock as tc
table = np.linspace(0, 1, 20, dtype=np.float32)
problem = tc.problems.custom(
    F=lambda t, w, x: t - jnp.where(x[10] > 0, x, -x),
    G=lambda t, w, x: w,
    noise=lambda key: jnp.where(jax.random.uniform(key) > 0.5, table, 0.7),
    theta=np.zeros(20),
    omega=0.0,
)
print(tc.solve(problem, tc.Standard(0.1, 0.1), 50, 1, engine="c", precision="float32").spec["engine"])
"""


@needs_compiler
def test_the_self_check_is_quick_where_xla_optimises_for_ever(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    command = [sys.executable, "-c", SLOW_TO_OPTIMISE]
    assert subprocess.run(command, capture_output=True, text=True, check=False, timeout=100).stdout == "c\n"
