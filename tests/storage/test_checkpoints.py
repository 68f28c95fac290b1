"""A run killed at any moment resumes to the identical result."""

import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock import cli, storage
from twoclock.result import so_far

# It dawdles at every tick, so that it is at work for two seconds at least.
SCRIPT = """
import sys, time
import twoclock as tc
problem = tc.problems.quadratic(dim=2)
result = tc.solve(problem, tc.Polyak(tc.Fast()), steps=60_000, seeds=3, checkpoint=sys.argv[1], checkpoint_every=0.0,
                  progress=lambda tick: (print(tick.step, flush=True), time.sleep(0.02)), block=512)
"""
OPTIONS = {"steps": 60_000, "seeds": 3}


def problem():
    return tc.problems.quadratic(dim=2)


@pytest.fixture(scope="module")
def whole():
    with jax.enable_x64(True):
        return tc.solve(problem(), tc.Polyak(tc.Fast()), **OPTIONS)


def started(folder):
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    child.stdout.readline()  # it walks
    return child


@pytest.mark.parametrize("moment", np.random.default_rng(0).uniform(0, 1.0, 1).tolist())
def test_killed_at_a_random_moment(whole, tmp_path, moment, kill):
    child = started(tmp_path)
    time.sleep(moment)
    kill(child)
    again = tc.solve(problem(), tc.Polyak(tc.Fast()), **OPTIONS, checkpoint=tmp_path)
    assert np.array_equal(again.theta, whole.theta)
    assert np.array_equal(again.omega, whole.omega)
    assert again.history.equals(whole.history)


def test_killed_again_and_again(whole, tmp_path, kill):
    """Progress survives each kill."""
    reached = []
    for _ in range(2):
        child = started(tmp_path)
        reached.append([int(child.stdout.readline()) for _ in range(3)][-1])
        kill(child)
    assert reached == sorted(set(reached))
    again = tc.solve(problem(), tc.Polyak(tc.Fast()), **OPTIONS, checkpoint=tmp_path)
    assert np.array_equal(again.theta, whole.theta)


def test_ctrl_c_leaves_a_checkpoint_and_says_so(whole, tmp_path):
    def stop(tick):
        if tick.step > 1000:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"stopped at step [\d,]+ of 60,000; the same call .* resumes"):
        tc.solve(problem(), tc.Polyak(tc.Fast()), **OPTIONS, checkpoint=tmp_path, progress=stop)
    steps = []
    again = tc.solve(
        problem(), tc.Polyak(tc.Fast()), **OPTIONS, checkpoint=tmp_path, progress=lambda t: steps.append(t.step)
    )
    assert steps[0] > 1000
    assert again.history.equals(whole.history)


def test_a_finished_run_is_not_run_again(tmp_path):
    first = tc.solve(problem(), tc.Fast(), steps=500, seeds=2, checkpoint=tmp_path)
    steps = []
    again = tc.solve(
        problem(), tc.Fast(), steps=500, seeds=2, checkpoint=tmp_path, progress=lambda t: steps.append(t.step)
    )
    assert steps == [500]
    assert again.history.equals(first.history)


@pytest.mark.parametrize(
    ("says", "changed"),
    [
        ("its problem differs: sigma is 0.1 there and 0.2 here", {"problem": tc.problems.quadratic(dim=2, sigma=0.2)}),
        (r"its method differs: alpha is 2/\(k\+20\) there and 0.01 here", {"method": tc.Fast(alpha=0.01)}),
        ("its method differs: order is paper there and fresh here", {"method": tc.Fast(order="fresh")}),
        ("its steps differ: 500 there, 1,600 here; write `steps=500` to continue", {"steps": 1600}),
        (r"its seeds differ: \[0, 1\] there, \[0, 1, 2\] here; write `seeds=\[0, 1\]`", {"seeds": 3}),
        ("its precision differs: float64 there, float32 here", {"precision": "float32"}),
        ("its bound differs: None there, 10.0 here", {"bound": 10.0}),
    ],
)
def test_another_run_is_refused(tmp_path, says, changed):
    run = {"problem": problem(), "method": tc.Fast(), "steps": 500, "seeds": 2, "marks": [100], "checkpoint": tmp_path}
    tc.solve(**run)
    with pytest.raises(tc.InputError, match=f"belongs to another run: {says}") as error:
        tc.solve(**{**run, **changed})
    assert "\n" not in str(error.value)


def test_a_changed_constant_in_the_users_function_is_noticed(tmp_path):
    def made(shift):
        return tc.problems.custom(
            F=lambda t, w, x: w - shift, G=lambda t, w, x: w - t + x, noise=lambda key: jax.random.normal(key),
            theta=0.0, omega=0.0,
        )  # fmt: skip

    tc.solve(made(1.0), tc.Fast(), steps=50, seeds=2, checkpoint=tmp_path)
    tc.solve(made(1.0), tc.Fast(), steps=50, seeds=2, checkpoint=tmp_path)
    with pytest.raises(tc.InputError, match="its problem differs"):
        tc.solve(made(2.0), tc.Fast(), steps=50, seeds=2, checkpoint=tmp_path)


def test_several_methods_at_once(tmp_path):
    methods = {"a": tc.Fast(), "b": tc.Fast(alpha="2/(k+30)"), "c": tc.Standard()}
    first = tc.solve(problem(), methods, steps=300, seeds=2, checkpoint=tmp_path)
    again = tc.solve(problem(), methods, steps=300, seeds=2, checkpoint=tmp_path)
    assert all(again[label].history.equals(first[label].history) for label in methods)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run of two methods that Ctrl-C stopped at step 100 of 300, as ``twoclock run`` keeps one."""
    folder = tmp_path_factory.mktemp("stopped")
    methods = {"first": tc.Fast(), "second": tc.Fast(alpha="1/(k+20)")}

    def stop(tick):
        if tick.step >= 100:
            signal.raise_signal(signal.SIGINT)

    with jax.enable_x64(True), pytest.raises(KeyboardInterrupt):
        tc.solve(
            problem(), methods, steps=300, seeds=2, marks=[0, 10, 100], checkpoint=folder / "checkpoint", progress=stop
        )
    return folder


def test_status_of_an_interrupted_run(stopped, capsys):
    assert cli.main(["status", str(stopped)]) == 0
    output = capsys.readouterr().out
    assert output.count("100 of 300 (33%)") == 2
    assert "second" in output
    assert "no process is working on it" in output
    with storage.lock(stopped / "checkpoint"):
        cli.main(["status", str(stopped)])
    assert "it is running" in capsys.readouterr().out


def test_plot_of_an_interrupted_run(stopped, capsys):
    """What is drawn are the marks so far, to the numbers of the finished run."""
    assert cli.main(["plot", str(stopped)]) == 0
    output = capsys.readouterr().out
    assert "interrupted at step 100 of 300" in output
    assert (stopped / "error.png").stat().st_size > 5_000
    seen = so_far(stopped)["second"]
    whole = tc.solve(problem(), tc.Fast(alpha="1/(k+20)"), steps=100, seeds=2, marks=[0, 10, 100])
    np.testing.assert_allclose(seen.history["error"], whole.history["error"], rtol=1e-12)
    assert seen.summary("error")["seeds"].tolist() == [2, 2, 2]
    with pytest.raises(tc.InputError, match="has no state to continue from"):
        tc.solve(problem(), tc.Fast(), steps=300, seeds=2, start=seen)
