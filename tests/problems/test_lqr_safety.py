"""The guard: no effect, bit for bit, where it is not needed; a rescue where it is."""

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock.problems.lqr.actor_critic import BOEING, PAPER

K0 = np.full((4, 5), 0.005)


def fast(alpha, beta, lam, shift):
    return tc.Fast(tc.Power(alpha, shift=shift), tc.Power(beta, shift=shift), tc.Power(lam, shift=shift))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_guard_changes_nothing_where_it_is_not_needed(ahead):
    method = fast(1.0, 1.0, 40.0, 400.0)
    bare, guarded = (
        tc.solve(tc.problems.paper_lqr(expected_action=ahead, guard=guard), method, 2000, 8, engine="xla")
        for guard in (False, True)
    )
    for a, b in zip(
        jax.tree.leaves((bare.theta, bare.omega)), jax.tree.leaves((guarded.theta, guarded.omega)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    columns = ["guard_trips", "guard_held", "guard_clipped"]
    assert guarded.history[columns].to_numpy().sum() == 0
    assert guarded.history.drop(columns=columns).equals(bare.history)


def test_a_guard_turns_divergence_into_progress_on_the_boeing():
    """The same steps on the same plant: without it every seed is lost at once, with it none is and the gap falls."""
    method = fast(1.0, 1.0, 100.0, 1000.0)
    bare = tc.solve(tc.problems.boeing_747(guard=False), method, 10_000, 8)
    assert bare.diverged.all()
    assert bare.last_step.max() < 100
    guarded = tc.solve(tc.problems.boeing_747(guard=True), method, 10_000, 8, marks=[0, 10_000])
    assert not guarded.diverged.any()
    gap = guarded.history.pivot(index="step", columns="seed", values="gap")
    np.testing.assert_allclose(gap.loc[0], 52498.62, rtol=1e-6)
    assert (gap.loc[10_000] < 0.5 * gap.loc[0]).all()


def test_a_guard_brings_back_runs_that_left_the_stabilising_gains():
    """Steps so bold that most seeds are lost: the guard loses none, says what it did, and they end below the start."""
    method = fast(4.0, 4.0, 40.0, 400.0)
    bare = tc.solve(tc.problems.paper_lqr(), method, 20_000, 16, marks=[20_000])
    assert bare.diverged.mean() > 0.5
    guarded = tc.solve(tc.problems.paper_lqr(guard=True), method, 20_000, 16, marks=[1000, 20_000])
    last = guarded.history[guarded.history.step == 20_000]
    assert not guarded.diverged.any()
    assert (last.guard_trips > 0).any()
    assert (last.guard_held >= last.guard_trips).all()
    assert (last.guard_clipped > 0).any()
    assert (last.spectral_radius < 1).mean() > 0.75  # some may be out, and held, at the moment when the run ends
    assert np.median(last.gap) < 0.418325  # that of K0


def test_a_guard_takes_the_plant_and_gives_it_back():
    """Step by step: a state beyond the edge trips it; K0 acts, F pulls back; near and half-way home it lets go."""
    with jax.enable_x64(True):
        bounds = tc.problems.paper_lqr(guard=True).bounds
        K, watch = 0.3 * np.ones((2, 3)), bounds.start()
        inside, outside = np.ones(3), np.array([0.0, 100.0, 0.0])
        gain, watch = bounds.supervise(K, inside, watch)
        np.testing.assert_array_equal(gain, K)
        gain, watch = bounds.supervise(K, outside, watch)
        np.testing.assert_array_equal(gain, 0 * K)
        assert (bool(watch["held"]), int(watch["trips"]), int(watch["steps"])) == (True, 1, 1)
        gain, watch = bounds.supervise(0.8 * K, inside, watch)  # the state is back, the gain is not
        assert bool(watch["held"])
        sample = {"held": watch["held"], "share": np.float64(1.0)}
        np.testing.assert_allclose(bounds.F(np.ones((2, 3)), K, sample), 10 * K)
        gain, watch = bounds.supervise(0.5 * K, inside, watch)
        np.testing.assert_array_equal(gain, 0.5 * K)
        assert (bool(watch["held"]), int(watch["trips"]), int(watch["steps"])) == (False, 1, 2)


def test_a_guard_never_sees_the_plant():
    """The bounds follow from K0 and a log alone."""
    x, u, c = BOEING.simulate(K0, 1.0, 10_000)
    bounds = tc.problems.Guard().measure(K0, x, u, c)
    used = tc.problems.lqr_actor_critic(BOEING, K0=K0, kappa=12.0, guard=True).bounds
    for a, b in zip(jax.tree.leaves(bounds), jax.tree.leaves(used), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(bounds.rms, np.sqrt(np.diag(BOEING.state_covariance(K0, 1.0))), rtol=0.15)
    assert tc.problems.Guard().measure(np.zeros((2, 3)), *PAPER.simulate(np.zeros((2, 3)), 1.0, 1000)).cost_unit is None


@pytest.mark.parametrize("name", ["limit", "reach", "span", "log"])
def test_bad_input_is_refused(name):
    with pytest.raises(tc.InputError, match=rf"`Guard\({name}=…\)` must be a (finite number of at least|whole number)"):
        tc.problems.Guard(**{name: 0.0})
