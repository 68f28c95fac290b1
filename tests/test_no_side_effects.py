"""A call leaves the process as it found it: settings, handlers, filters, caches; and a changed constant is seen."""

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats  # noqa: F401 (when loaded, SciPy adds a warning filter and threadpoolctl a variable)
import threadpoolctl  # noqa: F401

import logged
import twoclock as tc
from an_agent import Averager, plant

MDP = logged.random_mdp(end=0.1)
LOG = logged.read(MDP.draw(episodes=40, steps=20))


def state_of_process():
    return {
        "settings": dict(jax.config.values.items()),
        "here": jax.config.jax_enable_x64,
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        # The type checker of the tests adds a filter.
        "filters": [entry for entry in warnings.filters if "beartype" not in entry[2].__module__],
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "errors": np.geterr(),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "threads": {thread.name for thread in threading.enumerate() if not thread.daemon},
    }


@contextmanager
def unchanged():
    """Compares the process before and after; a user's jitted function is not traced again in between."""
    traces = []

    @jax.jit
    def own(x):
        traces.append(None)
        return jnp.linalg.norm(x) + jnp.asarray(np.ones(2)).sum()

    own(jnp.ones(2))
    before, frozen = state_of_process(), gc.get_freeze_count()
    yield
    after = state_of_process()
    assert gc.get_freeze_count() <= frozen  # what the tests froze may be freed
    for name, value in before.items():
        assert after[name] == value, name
    own(jnp.ones(2))
    assert len(traces) == 1


def bowl(F=lambda theta, omega, x: omega - 1, **changed):
    parts = {
        "G": lambda theta, omega, x: omega - theta + x, "noise": lambda key: jax.random.normal(key, (2,)),
        "theta": np.zeros(2), "omega": np.zeros(2), "measure": lambda theta, omega: {"error": jnp.sum(theta**2)},
    }  # fmt: skip
    return tc.problems.custom(F=F, **{**parts, **changed})


def solve(problem, **options):
    return tc.solve(problem, tc.Standard(1.0, 0.5), **{"steps": 1, "seeds": 2, **options})


CALLS = {
    "solve": lambda: solve(bowl(), steps=20),
    "solve on c": lambda: solve(bowl(), steps=20, engine="c"),
    "solve, single": lambda: solve(bowl(), steps=20, precision="float32"),
    "evaluate": lambda: tc.evaluate(LOG, MDP.pi, MDP.gamma, estimator="lstdq", bootstrap=20),
    "agents.run": lambda: tc.agents.run(Averager(), plant, steps=50, seeds=2, x0=np.zeros(1), processes=1),
    "sweep": lambda: tc.sweep({"a": bowl()}, {"b": tc.Standard(0.5, 0.5)}, 20, 2),
    "tune": lambda: tc.tune(tc.problems.quadratic(dim=2), tc.Fast(), {"alpha.c": (0.1, 1.0)}, steps=60, rungs=2),
}
WRONG = {
    "solve": lambda: solve(bowl(F=lambda theta, omega, x: omega[:1])),
    "evaluate": lambda: tc.evaluate(LOG, MDP.pi, 2.0),
    "agents.run": lambda: tc.agents.run(Averager(), plant, steps=0),
    "sweep": lambda: tc.sweep({"a": bowl(F=lambda theta, omega, x: omega[:1])}, {"b": tc.Standard()}, 4, 2),
    "tune": lambda: tc.tune(bowl(F=lambda theta, omega, x: omega[:1]), tc.Standard(), steps=20),
}


@pytest.mark.parametrize("call", CALLS)
@unchanged()
def test_a_call_leaves_the_process_as_it_was(call):
    CALLS[call]()


@pytest.mark.parametrize("call", WRONG)
@unchanged()
def test_a_call_that_fails_leaves_the_process_as_it_was(call):
    with pytest.raises(tc.InputError):
        WRONG[call]()


@unchanged()
def test_a_run_whose_progress_fails_leaves_the_process_as_it_was():
    def fail(event):
        raise RuntimeError("of the user's own")

    with pytest.raises(RuntimeError, match="own"):
        solve(bowl(), steps=20, progress=fail)


@pytest.mark.parametrize("engine", ["xla", "c"])
@pytest.mark.parametrize("jitted", [False, True])
@unchanged()
def test_a_changed_constant_compiles_this_problem_alone(jitted, engine):
    """Also if the user jitted the function, and again when the constant is restored."""
    target = [1.0]

    def F(theta, omega, x):
        return theta - target[0]

    problem = bowl(F=jax.jit(F) if jitted else F)
    for value in (1.0, 7.0, 1.0, 3.0):
        target[0] = value
        np.testing.assert_array_equal(solve(problem, engine=engine).theta, value)


@pytest.mark.parametrize("jitted", [False, True])
@unchanged()
def test_an_array_changed_in_place_is_seen_and_nothing_else_compiled(jitted):
    target = np.ones(2)

    def F(theta, omega, x):
        return theta - target

    problem = bowl(F=jax.jit(F) if jitted else F)
    for value in (1.0, 7.0, 1.0):
        target[:] = value
        np.testing.assert_array_equal(solve(problem).theta, value)


@unchanged()
def test_a_factory_is_drawn_anew_when_a_constant_in_it_has_changed():
    start = [1.0]

    def make(key):
        scale = start[0]
        return bowl(F=lambda theta, omega, x: theta - 2 * scale, theta=scale * jnp.ones(2))

    for value in (1.0, 7.0, 1.0):
        start[0] = value
        found = solve(make, marks=[0, 1])
        np.testing.assert_array_equal(found.theta, 2 * value)
        np.testing.assert_array_equal(found.history["error"][0], 2 * value**2)


@pytest.mark.parametrize("jitted", [False, True])
@unchanged()
def test_a_learner_sees_a_changed_constant(jitted):
    target = [1.0]

    def F(theta, omega, x):
        return theta - target[0]

    for value in (1.0, 7.0, 1.0):
        target[0] = value
        learner = tc.Learner(
            jax.jit(F) if jitted else F,
            lambda theta, omega, x: omega - x,
            tc.Standard(1.0, 0.5),
            0.0,
            0.0,
            engine="xla",
        )
        learner.update(1.0)
        assert learner.theta == value


@unchanged()
def test_a_changed_precision_leaves_the_rest_alone():
    rates = np.asarray([0.1, 0.3])
    problem = bowl(F=lambda theta, omega, x: theta - jnp.asarray(rates))
    for precision in ("float64", "float32", "float64"):
        found = solve(problem, precision=precision).theta
        np.testing.assert_array_equal(found[0], rates.astype(precision))


@unchanged()
def test_threads_with_their_own_constants_do_not_mix():
    wrong = []

    def work(own):
        target = [0.0]
        problem = bowl(F=lambda theta, omega, x: theta - target[0])
        for value in range(3):
            target[0] = 10.0 * own + value
            if (solve(problem).theta != target[0]).any():
                wrong.append((own, value))

    threads = [threading.Thread(target=work, args=(own,)) for own in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@unchanged()
def test_callbacks_in_two_threads_leave_the_precision_alone():
    """JAX calls Python on threads that know the global setting only, which here is single precision."""
    third = 1 / np.asarray([3.0, 7.0])

    def F(theta, omega, x):
        like = jax.ShapeDtypeStruct(theta.shape, theta.dtype)
        return theta - jax.pure_callback(lambda t: np.asarray(t) + third, like, theta, vmap_method="expand_dims")

    found, seen = [], []

    def work():
        with jax.enable_x64(False):
            found.append(solve(bowl(F=F), steps=3, progress=lambda event: seen.append(elsewhere())).theta)

    def elsewhere():
        kept = []
        other = threading.Thread(target=lambda: kept.append(jax.config.jax_enable_x64))
        other.start()
        other.join()
        return kept[0]

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for theta in found:
        np.testing.assert_array_equal(theta[0], third + third + third)
    assert not any(seen)


def test_a_handler_installed_during_a_run_stays():
    def handler(number, frame):
        """Of the user's own."""

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        pytest.skip("another handler is in charge here")
    try:
        solve(bowl(), steps=20, progress=lambda event: signal.signal(signal.SIGTERM, handler))
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_progress_bar_leaves_random_alone():
    """In a process that has not drawn a bar yet."""
    code = """if True:
        import random, twoclock as tc
        problem, before = tc.problems.quadratic(dim=2), random.getstate()
        tc.solve(problem, tc.Fast(), 20, 2, progress=True)
        assert random.getstate() == before"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
