"""Errors of arguments, files, the disk, memory and signals are one line."""

import inspect
import itertools
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import twoclock as tc
from twoclock import cli, validation
from twoclock.cli import ResumableError, resumable
from twoclock.engine.loop import deferred_interrupt

BOWL = tc.problems.quadratic(dim=2)
HUGE = 10**5000

SPEC = """
steps = 20
seeds = 2
[problems."$\\\\frac{$ [bold]"]
name = "quadratic"
dim = 2
[methods."_[/] <b>"]
name = "fast"
grid = { "alpha.c" = [0.5, 1] }
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)


def solve(**changed):
    return inspect.unwrap(tc.solve)(BOWL, tc.Fast(), **{"steps": 10, "seeds": 2, **changed})


def sweep(**changed):
    return inspect.unwrap(tc.sweep)({"a": BOWL}, {"b": tc.Fast()}, **{"steps": 10, "seeds": 2, **changed})


WRONG = {
    "seeds 1.7": (lambda: solve(seeds=[1.7]), "`seeds` must be a positive count or a sequence of integers"),
    "seeds text": (lambda: solve(seeds="123"), "`seeds` must be a positive count or a sequence of integers"),
    "seeds true": (lambda: solve(seeds=True), "`seeds` must be a positive count or a sequence of integers, got True"),
    "seeds huge": (lambda: solve(seeds=HUGE), "`seeds` must be a positive count .*, got an integer of 16610 bits"),
    "seeds for ever": (lambda: solve(steps=10, marks=itertools.count()), "`marks` must be a sequence of step numbers"),
    "steps huge": (lambda: solve(steps=HUGE), "`steps` must lie in 1 … 2³¹−1, got an integer of"),
    "steps array": (lambda: solve(steps=np.arange(90)), "`steps` must be a whole number, got array"),
    "marks 1.9": (lambda: solve(marks=[1.9]), "`marks` must be a sequence of step numbers"),
    "marks text": (lambda: solve(marks=["7"]), "`marks` must be a sequence of step numbers"),
    "marks huge": (lambda: solve(marks=[HUGE]), "`marks` must lie in 0 … steps=10"),
    "bound true": (lambda: solve(bound=True), "`bound` must be positive, got True"),
    "bound nan": (lambda: solve(bound=float("nan")), "`bound` must be positive, got nan"),
    "precision": (lambda: solve(precision=["float64"]), "`precision` must be"),
    "memory nan": (lambda: sweep(memory=float("nan")), "`memory` must be a number of bytes, got nan"),
    "lanes true": (lambda: sweep(lanes=True), "`lanes` must be a whole number"),
    "tries": (lambda: sweep(tries=0, on="ray"), "`tries` must be a whole number from 1"),
    "address": (lambda: sweep(address="here:1"), "`address` must be"),
    "label twice": (
        lambda: tc.sweep({"a": BOWL}, {"b alpha.c=1": tc.Fast(), "b": tc.grid(tc.Fast(), **{"alpha.c": [1.0]})}),
        "`methods` has 'b alpha.c=1' twice",
    ),
    "label no text": (
        lambda: inspect.unwrap(tc.sweep)({"a": BOWL}, {3: tc.Fast()}),
        "the label of a method must be text, got 3",
    ),
    "label surrogate": (lambda: tc.sweep({"\udcff": BOWL}, {"b": tc.Fast()}), "the label of a problem must be text"),
    "long name": (lambda: solve(checkpoint="x" * 300), "cannot be written .*name too long"),
    "null byte": (lambda: solve(checkpoint="a\0b"), "cannot be"),
    "load long": (lambda: tc.load("x" * 300), "`path`|cannot be"),
    "save long": (lambda: solve().save("x" * 300), "cannot be written"),
    "save file": (lambda: solve().save("spec.toml"), "cannot be written .it is a file"),
    "read-only": (lambda: sweep(out="/proc/1"), "must be an empty or new folder|cannot be written"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_one_line(case):
    make, words = WRONG[case]
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_whole_numbers_may_be_floats_or_arrays():
    result = solve(steps=10.0, seeds=np.asarray([3, 5]), marks=(step for step in (0, 5.0)))
    assert (result.spec["steps"], result.spec["seeds"], result.spec["marks"]) == (10, [3, 5], [0, 5, 10])


def test_memory_is_checked_before_the_run(monkeypatch):
    monkeypatch.setattr(validation, "available_memory", lambda: 40 << 20)
    words = r"`seeds`: 50,000 seeds at 19 marks takes about .* MiB of memory and there are 40 MiB; take seeds=range"
    with pytest.raises(tc.InputError, match=words):
        tc.solve(BOWL, tc.Fast(), 100, 50_000)
    with pytest.raises(tc.InputError, match=r"there are 40 MiB; take a smaller one"):
        tc.solve(lambda key: tc.problems.random_policy_evaluation(key, states=3000, actions=2), tc.Fast(), 100, 2)
    with pytest.raises(tc.InputError, match=r"`seeds`: 10,000,000 seeds takes about"):
        sweep(seeds=10**7)
    assert len(tc.solve(BOWL, tc.Fast(), 10, 1000).diverged) == 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("seeds = 2", "seeds = [1.7]"), "`seeds` must be"),
        (("seeds = 2", 'marks = [1.9, "7"]'), "`marks` must be"),
        (("seeds = 2", "memory = nan"), "`memory` must be a number of bytes, got nan"),
        (("seeds = 2", f"seeds = {10**30}"), "asks for an integer of 101 bits runs"),
        (("seeds = 2", f"seeds = {'9' * 5000}"), "is not valid TOML"),
        (("seeds = 2", f"x = {'[' * 5000}"), "is not valid TOML"),
        (("dim = 2", "dim = 2\x00"), "is not valid TOML"),
    ],
)
def test_a_wrong_spec_file_is_one_line(change, words, tmp_path, capsys):
    (tmp_path / "spec.toml").write_text(SPEC.replace(*change))
    assert cli.main(["sweep", "spec.toml"]) == 2
    output = capsys.readouterr().err.strip()
    assert words in output
    assert "\n" not in output
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_not_text_is_refused(tmp_path, capsys):
    (tmp_path / "latin.toml").write_bytes(b"steps = 1 # \xe9")
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("/dev/zero", "pipe.toml", "latin.toml", ".", "x" * 300, os.fsdecode(b"\xff.toml")):
        assert cli.main(["sweep", name]) == 2
        assert "cannot be read" in capsys.readouterr().err


def test_labels_are_not_read_as_markup(tmp_path, capsys):
    assert cli.main(["sweep", "spec.toml", "--out", "here"]) == 0
    output = capsys.readouterr().out
    assert "$\\frac{$ [bold]" in output
    assert "_[/] <b>" in output
    for i in range(2):
        assert cli.main(["run", "quadratic", "fast", "--steps", "20", "--seeds", "2", "--out", f"runs/[b]$_{i}$"]) == 0
    assert cli.main(["plot", "runs"]) == 0
    assert cli.main(["check", "runs"]) == 0


LIMITED = """
import resource, sys
from twoclock import cli
sys.dont_write_bytecode = True  # Python would leave half of a compiled module behind, for all who import it later
resource.setrlimit(resource.RLIMIT_FSIZE, [int(sys.argv[1])] * 2)
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("limit", "seeds"), [("3000", "50"), ("20000", "2")], ids=["the record", "its picture"])
def test_a_full_disk_says_how_to_resume(tmp_path, limit, seeds):
    args = ["run", "quadratic", "fast", "--steps", "2000", "--seeds", seeds, "--problem.dim", "2", "--out", "here"]
    child = subprocess.run([sys.executable, "-c", LIMITED, limit, *args], capture_output=True, text=True, check=False)
    assert child.returncode == 1, child.stderr
    assert "Traceback" not in child.stderr
    last = child.stderr.strip().splitlines()[-1]
    assert last.startswith("twoclock: the disk is full")
    command = last.partition("then resume: ")[2]
    assert command == f"twoclock {' '.join(args)} --resume"
    assert cli.main(shlex.split(command)[1:]) == 0
    assert cli.main(["check", "here"]) == 0


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def number(request):
    """A signal with its default handler: Ray leaves another behind."""
    others = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, others)


def test_a_signal_leaves_a_checkpoint(tmp_path, number):
    def stop(tick):
        if tick.step >= 5:
            signal.raise_signal(number)

    whole = solve(marks=range(10))
    with pytest.raises(KeyboardInterrupt, match=r"stopped at step 5 of 10; the same call"):
        solve(marks=range(10), checkpoint="kept", progress=stop)
    assert signal.getsignal(number) is signal.SIG_DFL
    assert solve(marks=range(10), checkpoint="kept").history.equals(whole.history)


COMPILING = """
import sys, time, twoclock as tc
def F(theta, omega, x):
    print("tracing", flush=True)
    time.sleep(60)
    return omega - 1
tc.solve(tc.problems.custom(F, lambda theta, omega, x: omega - theta, lambda key: 0.0, 0.0, 0.0), tc.Fast(), 5, 1)
"""


def test_sigterm_before_the_first_step_ends_the_process_at_once():
    """There is nothing to save, and Python's handlers would wait for the end of a compilation."""
    with subprocess.Popen([sys.executable, "-c", COMPILING], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "tracing\n"
        child.terminate()
        assert child.wait(timeout=20) == -signal.SIGTERM


def test_a_second_signal_interrupts_at_once():
    with deferred_interrupt() as came:
        signal.raise_signal(signal.SIGINT)
        assert came()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_interrupt_still_names_the_command():
    with (
        pytest.raises(KeyboardInterrupt, match="stopped; to resume: twoclock run again"),
        resumable("twoclock run again"),
    ):
        raise KeyboardInterrupt


def test_a_killed_process_is_one_line():
    with (
        pytest.raises(ResumableError, match=r"ended from outside.*to resume: twoclock run again"),
        resumable("twoclock run again"),
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        pool.submit(os.abort).result()


LOADING = """
import importlib.abc, signal, sys
class Press(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "jax":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Press())
sys.argv = ["/usr/bin/twoclock", "list"]
import twoclock_command
twoclock_command.program()
"""


def test_ctrl_c_while_loading_is_quiet():
    child = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stderr) == (130, "twoclock: stopped\n")


LOADED = """
import gc, importlib.abc, signal, sys
class Look(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "jax":
            enabled.append(gc.isenabled())
enabled = []
sys.meta_path.insert(0, Look())
sys.argv = ["/usr/bin/twoclock", "--version"]
import twoclock_command
try:
    twoclock_command.program()
finally:
    assert enabled == [False], "garbage is collected while the command loads"
    assert gc.isenabled(), "garbage is no longer collected"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def test_garbage_is_collected_again_once_the_command_is_loaded():
    child = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


IMPORTED = """
import gc, signal, sys
sys.argv, sys.orig_argv = {argv}, [sys.executable, "-m", "twoclock"]
import twoclock, twoclock.cli
assert gc.isenabled()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.parametrize("argv", [["-m"], ["/bin/twoclock", "--version"]])
def test_an_import_changes_nothing_in_the_process(argv):
    """Also in one that was started as the command, such as a child process of a sweep."""
    code = IMPORTED.format(argv=argv)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


def test_a_child_forked_too_late_is_refused():
    solve()  # JAX has started
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            solve()
        except tc.InputError as error:
            os._exit(7 if "spawn" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
