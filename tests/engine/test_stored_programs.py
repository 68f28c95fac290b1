"""What XLA compiled once is loaded by the next process: same numbers, same safety as for programs of C."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import prng
from twoclock.codegen import compiler
from twoclock.engine import stored_programs
from twoclock.engine.stored_programs import _LOADS_SILENTLY, StoredFunction

pytestmark = pytest.mark.skipif(jax.__version_info__ < _LOADS_SILENTLY, reason="stores nothing with this JAX")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty cache, in which every compilation is stored; JAX's own cache is off, as it is for most users."""
    monkeypatch.setenv("TWOCLOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored_programs, "_WORTH_STORING", 0.0)
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "cache" / "programs"
    jax.config.update("jax_compilation_cache_dir", before)


def wave(scale):
    return lambda x, *, times: {"y": jnp.sin(scale * x) * times, "n": x.size}


def test_a_stored_program_is_loaded_and_gives_the_same_bits(cache, compilations):
    x = np.linspace(0.0, 1.0, 7)
    first = StoredFunction(wave(3.0), static_argnames="times")(x, times=2)
    (stored,) = cache.glob("*.xla")
    assert stored.stat().st_mode & 0o077 == 0
    before = compilations()
    again = StoredFunction(wave(3.0), static_argnames="times")
    jax.tree.map(np.testing.assert_array_equal, again(x, times=2), first)
    assert compilations() == before


@pytest.mark.parametrize(
    "other",
    [
        lambda x: StoredFunction(wave(3.5), static_argnames="times")(x, times=2),
        lambda x: StoredFunction(wave(3.0), static_argnames="times")(x, times=3),
        lambda x: StoredFunction(wave(3.0), static_argnames="times")(x[:5], times=2),
        lambda x: StoredFunction(wave(3.0), static_argnames="times")(x.astype(np.float32), times=2),
    ],
)
def test_another_number_shape_or_type_is_another_program(cache, other):
    x = np.linspace(0.0, 1.0, 7)
    StoredFunction(wave(3.0), static_argnames="times")(x, times=2)
    other(x)
    assert len(list(cache.glob("*.xla"))) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b""])
def test_a_damaged_file_is_compiled_anew(cache, damage):
    x = np.linspace(0.0, 1.0, 7)
    first = StoredFunction(wave(3.0), static_argnames="times")(x, times=2)
    (stored,) = cache.glob("*.xla")
    whole = stored.read_bytes()
    stored.write_bytes(damage(whole))
    found = StoredFunction(wave(3.0), static_argnames="times")(x, times=2)
    np.testing.assert_array_equal(found["y"], first["y"])
    assert stored.stat().st_size == pytest.approx(len(whole), rel=0.01), "it is stored again"


def test_nothing_is_loaded_from_a_folder_that_is_open_to_others(cache, compilations):
    x = np.linspace(0.0, 1.0, 7)
    StoredFunction(wave(3.0), static_argnames="times")(x, times=2)
    cache.chmod(0o777)
    assert compiler.open_cache().trouble is not None
    before = compilations()
    StoredFunction(wave(3.0), static_argnames="times")(x, times=2)
    assert compilations() > before


def test_programs_that_call_python_or_take_our_keys_run_and_are_not_stored(cache):
    def asked(x):
        return jax.pure_callback(lambda v: v + 1, x, x, vmap_method="sequential")

    assert StoredFunction(asked)(np.float64(2.0)) == 3.0
    key = prng.start_key(3)
    np.testing.assert_array_equal(StoredFunction(jax.random.normal)(key), jax.random.normal(key))
    assert not list(cache.glob("*.xla"))


def test_programs_that_differ_in_arguments_without_effect_are_two(cache):
    function = StoredFunction(lambda used, unused: used + 1)
    for unused in (np.zeros(2), np.zeros(3), np.zeros(2, np.float32)):
        assert StoredFunction(lambda used, unused: used + 1)(1.0, unused) == function(1.0, unused) == 2.0


def test_inside_another_trace_it_is_an_ordinary_function():
    function = StoredFunction(lambda x: x**2)
    assert jax.grad(function)(3.0) == 6.0
    np.testing.assert_array_equal(jax.vmap(function)(np.arange(3.0)), np.arange(3.0) ** 2)


WITH_JAX_CACHE = """
import jax, sys
import twoclock as tc
from twoclock.engine import stored_programs
stored_programs._WORTH_STORING = 0.0
jax.config.update("jax_compilation_cache_dir", sys.argv[1] or None)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
problem = tc.problems.boyan()
print(tc.solve(problem, tc.Polyak(tc.Fast()), 200, 2, engine="xla").theta.tobytes().hex())
"""


def test_what_came_from_the_cache_of_jax_is_not_written_a_second_time(cache, tmp_path):
    """Loaded again, such a program lacks functions, and running it fails."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    found = []
    for folder in (tmp_path / "jax", tmp_path / "jax", ""):
        # After the first call only JAX's cache holds the programs.
        ours = surroundings if found else {**surroundings, "TWOCLOCK_CACHE": str(tmp_path / "other")}
        done = subprocess.run(
            [sys.executable, "-c", WITH_JAX_CACHE, str(folder)], env=ours, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found[0] == found[1] == found[2]


SECOND = """
import jax, sys
import twoclock as tc
def settings():
    return {name: value for name, value in jax.config.values.items()}
before, compiled = settings(), []
def count(event, seconds, **_):
    if event.endswith("backend_compile_duration"):
        compiled.append(event)
jax.monitoring.register_event_duration_secs_listener(count)
result = tc.solve(tc.problems.quadratic(dim=3), tc.Fast(), 200, 2, engine="xla")
assert settings() == before
print(len(compiled), result.theta.tobytes().hex())
"""


def test_a_second_process_compiles_nothing_and_changes_no_setting(cache):
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    (compiled, theta), (again, same) = (
        subprocess.run(
            [sys.executable, "-c", SECOND], env=surroundings, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    )
    assert int(compiled) >= 4
    assert int(again) == 0
    assert same == theta


def test_a_run_without_jit_is_refused_in_one_line():
    with jax.disable_jit(), pytest.raises(tc.InputError, match="`jax_disable_jit` is on"):
        tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 50, 2)
