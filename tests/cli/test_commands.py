"""The command line as a user meets it: one line for a mistake, exit status 2, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import twoclock as tc
from twoclock import cli

SMALL = ["--steps", "300", "--seeds", "3", "--problem.dim", "2"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_run_leaves_a_record_and_a_picture(tmp_path, capsys):
    assert cli.main(["run", "quadratic", "fast", *SMALL, "--method.alpha", "0.5/(k+9)", "--out", "here"]) == 0
    names = {p.name for p in (tmp_path / "here").iterdir()}
    assert names == {"spec.json", "history.parquet", "arrays.npz", "error.png", "error.svg"}
    spec = json.loads((tmp_path / "here" / "spec.json").read_text())
    assert spec["command"].startswith("twoclock run quadratic fast")
    assert spec["method"]["alpha"] == "0.5/(k+9)"
    assert "error" in capsys.readouterr().out


def test_the_record_replays(tmp_path):
    cli.main(["run", "quadratic", "polyak", *SMALL, "--method.method.beta", "0.3", "--out", "one"])
    command = json.loads((tmp_path / "one" / "spec.json").read_text())["command"]
    cli.main([*command.replace("--out one", "--out two").split()[1:]])
    assert tc.load("one").history.equals(tc.load("two").history)


def test_out_is_never_overwritten(capsys):
    cli.main(["run", "quadratic", "fast", *SMALL, "--out", "here"])
    assert cli.main(["run", "quadratic", "fast", *SMALL, "--out", "here"]) == 2
    assert "continue with --resume, or choose another folder" in capsys.readouterr().err
    assert cli.main(["run", "quadratic", "fast", *SMALL, "--out", "here", "--resume"]) == 0
    assert cli.main(["run", "quadratic", "standard", *SMALL, "--out", "here", "--resume"]) == 2


def test_runs_are_numbered(tmp_path):
    for _ in range(2):
        cli.main(["run", "quadratic", "fast", *SMALL])
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["quadratic-fast-001", "quadratic-fast-002"]
    assert cli.main(["plot", "runs", "--metric", "gap", "--statistic", "median"]) == 0
    assert (tmp_path / "runs" / "gap.png").read_bytes().startswith(b"\x89PNG")


def test_list_shows_commands_problems_methods_and_schedules(capsys):
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("quadratic", "fast", "standard", "polyak", "Power"))
    assert all(f"  {name} " in out for name in ("run", "sweep", "certify"))
    assert all(f"  {call}" in out for call in ("bilevel(outer, inner", "custom(F, G", "soba(", "averaged_tdc("))
    assert "``" not in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["runn"], "did you mean 'run'?"),
        (["run"], "takes a PROBLEM"),
        (["run", "quadratik", "fast"], "did you mean 'quadratic'?"),
        (["run", "quadratic", "fats"], "did you mean 'fast'?"),
        (["run", "quadratic", "fast", "--stepz", "3"], "did you mean --steps?"),
        (["run", "quadratic", "fast", "--steps", "0"], "`steps` must lie in 1"),
        (["run", "quadratic", "fast", "--steps", "many"], "--steps"),
        (["run", "quadratic", "fast", "--seeds", "0"], "`seeds` must be a positive count"),
        (["run", "quadratic", "fast", "--method.alpha", "1/(k+1)^2"], "must lie in [0, 1], got 2"),
        (["run", "quadratic", "fast", "--method.order", "new"], "invalid choice 'new'"),
        (["run", "quadratic", "fast", "--problem.dim", "0"], "`dim` must be at least 1"),
        (["run", "quadratic", "fast", "--out", "/proc/nowhere"], "cannot be written"),
        (["run", "quadratic", "fast", "--resume"], "name it with `--out DIR`"),
        (["plot", "nowhere"], "nowhere is none"),
    ],
)
def test_a_mistake_is_one_line(args, words, capsys, tmp_path):
    assert cli.main(args) == 2
    output = capsys.readouterr().err.strip()
    assert words in output
    assert output.startswith("twoclock: ")
    assert "\n" not in output
    assert not list(tmp_path.rglob("*.parquet"))
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_says_how_to_resume(tmp_path):
    """In a run that lasts for minutes on any engine: one of seconds may be over when the signal comes."""
    args = ["run", "quadratic", "fast", "--steps", "2000000000", "--seeds", "3", "--problem.dim", "2", "--out", "here"]
    child = subprocess.Popen(
        [sys.executable, "-m", "twoclock", *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "here" / "checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, output = child.communicate(timeout=60)
    assert child.returncode == 130, output
    assert "to resume: twoclock run quadratic fast" in output
    assert "Traceback" not in output
    assert output.strip().endswith("--out here --resume")


def test_help_is_quick_and_plain():
    out = subprocess.run(
        [sys.executable, "-m", "twoclock", "--help"], capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    assert "twoclock run PROBLEM [METHOD]" in out


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_the_installed_command_shows_its_help_without_the_library(arguments):
    code = (
        f"import sys; sys.argv = ['twoclock', *{arguments}]; import twoclock_command; twoclock_command.program(); "
        "assert not {'jax', 'numpy', 'rich', 'twoclock'} & set(sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for path in Path(cli.__file__).parent.glob("commands/[!_]*.py"):
        assert f"  twoclock {path.stem}" in out


def test_the_help_is_written_as_far_as_someone_reads_it():
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [sys.executable, "-m", "twoclock_command"], stdout=write, stderr=subprocess.PIPE, env=os.environ, check=False
    )
    os.close(write)
    assert (ran.returncode, ran.stderr) == (141, b"")


OWN = """
import jax, numpy as np, twoclock as tc
from beside import TARGET

def bowl(dim: int = 2, tilt=1.0):
    return tc.problems.custom(
        lambda theta, omega, x: omega - tilt, lambda theta, omega, x: omega - theta + x,
        lambda key: jax.random.normal(key, (dim,)), np.zeros(dim), np.zeros(dim),
        measure=lambda theta, omega: {"error": ((theta - TARGET) ** 2).sum()},
    )

ready = bowl()

def drawn(key, dim: int = 2):
    return tc.problems.custom(
        lambda theta, omega, x: omega - 1, lambda theta, omega, x: omega - theta + x,
        lambda key: jax.random.normal(key, (dim,)), jax.random.normal(key, (dim,)), np.zeros(dim),
        measure=lambda theta, omega: {"error": ((theta - 1) ** 2).sum()},
    )
"""


def test_a_user_problem_and_counts_written_as_floats(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("TARGET = 1.0")
    settings = ["--steps", "1e2", "--seeds", "3e0"]
    assert cli.main(["run", "own.py:bowl", "fast", *settings, "--problem.dim", "3e0", "--out", "made"]) == 0
    assert cli.main(["run", "own.py:ready", "fast", *settings]) == 0
    assert cli.main(["run", "./own.py:drawn", "fast", *settings, "--out", "drawn"]) == 0
    made, drawn = tc.load("made"), tc.load("drawn")
    assert (made.spec["steps"], made.spec["seeds"], made.theta.shape) == (100, [0, 1, 2], (3, 3))
    assert len(np.unique(drawn.history.query("step == 0")["error"])) == 3  # each seed has its own
    assert (tmp_path / "runs" / "ready-fast-001" / "spec.json").exists()


OWN_METHODS = """
import jax
import twoclock as tc

problem = tc.problems.custom(
    F=lambda theta, omega, x: omega - 1, G=lambda theta, omega, x: omega - theta + x,
    noise=jax.random.normal, theta=0.0, omega=0.0, measure=lambda theta, omega: {"error": (theta - 1) ** 2},
)
step = tc.Power(1.0, p=0.6, shift=3)
mine = tc.Standard(step, step)


def scaled(c: float = 1.0):
    return tc.Standard(tc.Power(c, p=0.6, shift=3), step)


def refuses(c: float = 1.0):
    raise ValueError("no")
"""


def test_run_takes_an_own_method_and_prints_theta(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN_METHODS)
    small = ["--steps", "300", "--seeds", "4"]
    assert cli.main(["run", "own.py:problem", "own.py:mine", *small, "--out", "one"]) == 0
    assert cli.main(["run", "own.py:problem", "own.py:scaled", "--method.c", "1", *small, "--out", "two"]) == 0
    one, two = tc.load("one"), tc.load("two")
    assert np.array_equal(one.theta, two.theta)
    half = 3.182446 * one.theta.std(ddof=1) / 2  # Student's t with three degrees of freedom
    shown = f"{one.theta.mean() - half:.5g} … {one.theta.mean() + half:.5g}"
    assert shown in capsys.readouterr().out
    for name, words in (
        ("gone", "has no 'gone'"),
        ("refuses", "fails, with ValueError: no"),
        ("step", "has no 'step'"),
    ):
        assert cli.main(["run", "own.py:problem", f"own.py:{name}", *small]) == 2
        assert words in capsys.readouterr().err


def test_a_seed_with_its_own_problem_shows_its_own_theta(capsys):
    assert cli.main(["run", "random_policy_evaluation", "fast", "--steps", "50", "--seeds", "3"]) == 0
    out = capsys.readouterr().out
    assert "θ of seed 0, the first 6 of" in out
    assert "unknown" in out
    assert "note: for intervals run several seeds" in " ".join(out.split())


def test_one_seed_without_a_method_shows_the_interval_of_its_own_samples(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN_METHODS)
    assert cli.main(["run", "own.py:problem", "--steps", "3000", "--seeds", "1", "--out", "one"]) == 0
    first = tc.load("one").interval().iloc[0]
    assert f"{first.low:.5g} … {first.high:.5g}" in capsys.readouterr().out


def test_a_sweep_takes_own_problems_and_methods_and_is_drawn_again(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "own.py").write_text(OWN_METHODS)
    (tmp_path / "there" / "spec.toml").write_text(
        'steps = 200\nseeds = 3\n[problems.p]\nname = "own.py:problem"\n'
        '[methods.a]\nname = "own.py:mine"\ngrid = { "alpha.c" = [0.5, 1.0] }\n'
        '[methods.b]\nname = "own.py:scaled"\nc = 1.0\n'
    )
    assert cli.main(["sweep", "there/spec.toml", "--out", "swept"]) == 0
    assert set(tc.Sweep.load("swept").history["method"]) == {"a alpha.c=0.5", "a alpha.c=1", "b"}
    picture = tmp_path / "swept" / "error-best.png"
    picture.unlink()
    assert cli.main(["plot", "swept"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_help_of_run_shows_its_options(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    out = capsys.readouterr().out
    assert "--steps INT" in out
    assert "twoclock list" in out


def test_doctor_tells_of_xlas_switch_for_small_loops(monkeypatch, capsys):
    """The setting is on one line as it is written in a shell, however narrow the terminal."""
    from twoclock.cli.commands import doctor

    monkeypatch.setattr(doctor, "_check_engines", lambda: 0)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert doctor.command([]) == 0
    setting = "XLA_FLAGS=--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000"
    assert any(setting in line for line in capsys.readouterr().out.splitlines())
    assert "xla_cpu_small_while_loop_byte_threshold=1000000" in doctor.describe_switch("")
    assert "is set" in doctor.describe_switch("--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=9")


def test_a_second_process_reads_what_xla_compiled_and_no_damaged_entry(tmp_path):
    def run():
        command = [sys.executable, "-m", "twoclock_command", "run", "quadratic", *SMALL]  # compiles for long enough
        environment = {**os.environ, "TWOCLOCK_CACHE": str(tmp_path / "cache")}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        return {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*.xla")}

    entries = run()
    assert entries
    assert all(path.parent.stat().st_mode & 0o077 == 0 for path in entries)
    # A program that compiles in about the least time that is worth a file may get one later; the largest has one.
    assert run().items() >= entries.items()
    damaged = max(entries, key=lambda path: len(entries[path]))
    damaged.write_bytes(entries[damaged][:-9] + b"\0" * 9)
    again = run()
    assert again.keys() >= entries.keys()
    assert again[damaged][-9:] != b"\0" * 9, "it is compiled again"


def test_a_second_ctrl_c_does_not_lose_how_to_resume(capsys):
    def command(args):
        try:
            with cli.resumable("twoclock run here"):
                raise KeyboardInterrupt
        finally:
            raise KeyboardInterrupt

    assert cli.guard("twoclock", command, []) >= 128
    assert capsys.readouterr().err == "twoclock: stopped; to resume: twoclock run here\n"
