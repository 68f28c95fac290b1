"""The loop of a single lane with many numbers: what the usual loop gives, with one copy of the state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.engine import engines, large_lane
from twoclock.engine.run_batch import Lanes, make_instances

MANY = large_lane.MANY_NUMBERS


def problem(force=lambda theta, x: theta - x):
    """θ tracks noise; ω follows θ."""
    return tc.problems.custom(
        F=lambda theta, omega, x: force(theta, x),
        G=lambda theta, omega, x: omega - theta.sum() / MANY,
        noise=lambda key: jax.random.normal(key),
        theta=np.linspace(-1, 1, MANY),
        omega=0.0,
        measure=lambda theta, omega: {"first": theta[0]},
    )


def walk(monkeypatch, large, problem, method, marks, **options):
    """A run in one of the two loops, and how often each of them was called."""
    calls = {"large": 0, "usual": 0}
    usual, loop = engines._advance, large_lane._loop

    def count(name, function):
        def counted(*args, **options):
            calls[name] += 1
            return function(*args, **options)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(engines, "_advance", count("usual", usual))
        patch.setattr(large_lane, "_loop", count("large", loop))
        if not large:
            patch.setattr(large_lane, "MANY_NUMBERS", np.inf)
        run = tc.solve(problem, method, marks[-1], 1, marks=marks, engine="xla", **options)
    return run, calls


METHODS = {"standard": tc.Standard(0.1, 0.2), "fast": tc.Fast("2/(k+20)", "4/(k+20)", "10/(k+20)")}
METHODS["polyak"] = tc.Fast(0.1, 0.2, 0.3, order="fresh")


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_result_is_that_of_the_usual_loop(method, precision, monkeypatch):
    ours, theirs = (
        walk(monkeypatch, large, problem(), method, [3, 40, 150], precision=precision) for large in (True, False)
    )
    assert ours[1]["usual"] == theirs[1]["large"] == 0 < ours[1]["large"]
    np.testing.assert_allclose(ours[0].theta, theirs[0].theta, rtol=1e-5 if precision == "float32" else 1e-12)
    assert ours[0].history.equals(theirs[0].history) or np.allclose(ours[0].history, theirs[0].history, rtol=1e-5)


def test_a_lane_that_diverges_stops_where_it_does_in_the_usual_loop(monkeypatch):
    """F overflows once the noise is large enough."""
    wild = problem(lambda theta, x: theta * jnp.exp(jnp.where(x > 2.0, 800.0, 0.0)))
    ours, theirs = (walk(monkeypatch, large, wild, METHODS["standard"], [10, 400]) for large in (True, False))
    assert ours[1]["usual"] > 0
    assert ours[0].diverged.all()
    assert 0 < ours[0].last_step[0] == theirs[0].last_step[0] < 400
    np.testing.assert_allclose(ours[0].theta, theirs[0].theta, rtol=1e-12)
    assert np.isfinite(ours[0].theta).all()


def test_a_late_divergence_is_run_again_from_the_state_that_was_kept(monkeypatch):
    monkeypatch.setattr(large_lane, "KEEP_SECONDS", 0.0)
    wild = problem(lambda theta, x: theta * jnp.exp(jnp.where(x > 3.0, 800.0, 0.0)))
    marks = [10, 500, 1000, 3000]
    ours, theirs = (walk(monkeypatch, large, wild, METHODS["standard"], marks) for large in (True, False))
    assert ours[1]["large"] > 4
    assert 10 < ours[0].last_step[0] == theirs[0].last_step[0] < 3000
    np.testing.assert_allclose(ours[0].theta, theirs[0].theta, rtol=1e-12)


def test_methods_that_change_directions_take_the_usual_loop(monkeypatch):
    inside = tc.Standard(0.1, 0.2, project_theta=lambda theta: jnp.clip(theta, -2, 2))
    assert walk(monkeypatch, True, problem(), inside, [40])[1]["large"] == 0
    assert walk(monkeypatch, True, problem(), METHODS["standard"], [40], bound=10.0)[1]["large"] == 0


def test_the_state_is_held_once():
    with jax.enable_x64(False):
        lanes = Lanes.of(make_instances(problem(), (0,)), [METHODS["fast"]], (0,), None)
        (group,) = engines.Xla().compile(lanes)
        carry = group.place(engines.start(lanes))
        before, large = carry.state.theta, carry.state.theta.nbytes
        bytes_ = sum(leaf.nbytes for leaf in jax.tree.leaves(carry.state))
        after = group.advance(carry, 0, 10)
        noise = group._drawn[1]
        span = np.asarray([0, 0, 10], np.int32)
        given = group.instances, group.methods, after.state, after.env, noise, span
        lowered = large_lane._loop.jitted.lower(*given, whole=True)
        memory = lowered.compile().memory_analysis()
    assert before.is_deleted()
    assert memory.alias_size_in_bytes >= bytes_
    assert memory.temp_size_in_bytes < 3.1 * large  # of the step itself


def test_whole_spans_and_the_steps_after_them_are_the_same_steps(monkeypatch):
    """On a GPU two programs share the steps; here this machine is taken for one."""
    with jax.enable_x64(True):
        lanes = Lanes.of(make_instances(problem(), (0,)), [METHODS["fast"]], (0,), None)
        carries = []
        for backend in ("cpu", "gpu"):
            (group,) = engines.Xla().compile(lanes)
            noise, span = group._block(0, 0)[0], np.asarray([0, 3, 70], np.int32)
            with monkeypatch.context() as patch:
                patch.setattr(large_lane.jax, "default_backend", lambda backend=backend: backend)
                carry, end = large_lane.advance(group.instances, group.methods, engines.start(lanes), noise, span)
            assert end == carry.last.item() == 70
            carries.append(carry)
    for ours, theirs in zip(*(jax.tree.leaves(carry.state) for carry in carries), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
