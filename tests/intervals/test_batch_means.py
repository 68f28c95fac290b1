"""Intervals by block scores: against Student's own, against a hand-made sum, and on a chain where steps are alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import twoclock as tc
from twoclock import prng
from twoclock.intervals import batch_means
from twoclock.methods import BatchMeans, Lstd
from twoclock.models import limit_law
from twoclock.problems.policy_evaluation.benchmarks import slow_walk_setting
from twoclock.protocols import InputError
from twoclock.solve import check_fit
from twoclock.storage.run_identity import RunSpec

WALK = slow_walk_setting()


def test_online_block_sums_equal_sums_of_the_stream():
    rows = np.arange(1.0, 700.0)

    def one(sums, row):
        sums = batch_means.add_row(sums, row, sums.count)
        return sums, batch_means.sums_in_order(sums)

    _, every = jax.jit(lambda: jax.lax.scan(one, batch_means.empty_sums(jnp.zeros(1)), jnp.asarray(rows)[:, None]))()
    for n, (got, sizes) in enumerate(zip(*map(np.asarray, every), strict=True), 1):
        length = 2 ** max(int(np.ceil(np.log2(n / 32))), 0)
        starts = np.arange(0, n, length)
        np.testing.assert_array_equal(got[: len(starts), 0], np.add.reduceat(rows[:n], starts))
        np.testing.assert_array_equal(sizes[: len(starts)], np.diff(starts, append=n))
        assert not sizes[len(starts) :].any()
        assert not got[len(starts) :].any()


def test_the_interval_of_a_mean_is_students():
    x = np.random.default_rng(1).normal(3.0, 2.0, size=(20, 50))
    found = batch_means.sandwich(np.full((20, 1, 1), 50.0), -x.sum(axis=1, keepdims=True), level=0.9)
    known = stats.ttest_1samp(x.mean(axis=1), 0).confidence_interval(0.9)
    np.testing.assert_allclose([found.low[0], found.high[0]], known, rtol=1e-10)
    assert found.note == [""]


@pytest.mark.parametrize("operator", ["td", "tdc"])
def test_run_intervals_equal_the_sandwich_of_its_samples(operator):
    """The run's intervals are those of plain arrays of Jacobians and offsets of the same samples."""
    problem, steps, seed = tc.problems.walk_tabular(operator, "markov"), 500, 3
    inner = Lstd() if operator == "td" else tc.Polyak(tc.Standard(0.1, 0.1), power=1.0)
    result = tc.solve(problem, BatchMeans(inner), steps, [seed], marks=[steps], engine="xla")
    d = problem.features.shape[1]
    start = problem.init(prng.start_key(seed))

    def both(z, x):
        omega = () if operator == "td" else z[d:]
        return jnp.concatenate(
            [problem.F(z[:d], omega, x), problem.G(z[:d], omega, x)] if z.size > d else [problem.F(z, omega, x)]
        )

    def one(env, k):
        x, env = problem.draw(problem.noise(jax.random.fold_in(prng.step_stream(seed), k)), None, env)
        z = jnp.zeros(d if operator == "td" else 2 * d)
        return env, (jax.jacobian(both)(z, x), both(z, x))

    J, c = jax.jit(lambda: jax.lax.scan(one, start[2], jnp.arange(steps))[1])()
    edges = np.arange(0, steps, 16)
    sums = [np.add.reduceat(np.asarray(part), edges) for part in (J, c)]
    estimate = np.concatenate([np.ravel(result.theta), *map(np.ravel, jax.tree.leaves(result.omega))])
    found = batch_means.sandwich(*sums, np.diff(edges, append=steps), estimate, directions=np.eye(d, len(estimate)))
    frame = result.interval(how="blocks")
    np.testing.assert_allclose(frame[["low", "high"]], np.stack([found.low, found.high], axis=1), rtol=1e-8)
    assert frame["note"].tolist() == found.note
    assert operator == "td" or all("half-lengths from the solution" in note for note in found.note)


def test_user_outputs_and_intervals_after_a_save(tmp_path):
    """A linear output has the interval of its direction; a product that of its derivative at the estimate."""

    def outputs(theta, omega):
        return {"sum": theta.sum(), "product": theta[0] * theta[1]}

    problem = tc.problems.walk_dependent("td")
    result = tc.solve(problem, BatchMeans(Lstd(), intervals=outputs), 2000, 2, marks=[1000, 2000])
    again = tc.load(result.save(tmp_path)).interval(0.8, how="blocks", step=1000)
    assert again["output"].tolist() == ["product", "sum"] * 2
    frame = result.interval(0.95, how="blocks")
    theta = result.theta
    np.testing.assert_allclose(frame["estimate"], np.stack([theta[:, 0] * theta[:, 1], theta.sum(axis=1)], 1).ravel())
    wider, narrower = (result.interval(level, how="blocks", step=1000) for level in (0.95, 0.8))
    assert (wider["high"] - wider["low"]).gt(narrower["high"] - narrower["low"]).all()
    pd.testing.assert_frame_equal(again, narrower)


def simulated(chains, steps, seed=0):
    """Jacobians and offsets of LSTD along many slow walks at once, in NumPy alone: chains × steps × d (× d)."""
    rng, Phi = np.random.default_rng(seed), WALK["features"]
    s, J, c = rng.integers(20, size=chains), [], []
    for _ in range(steps):
        a = rng.integers(2, size=chains)
        ahead = np.clip(s + 2 * a - 1, 0, 19)
        rho = WALK["target"][s, a] / WALK["behaviour"][s, a]
        J.append(rho[:, None, None] * Phi[s, :, None] * (Phi[s] - 0.5 * Phi[ahead])[:, None, :])
        c.append(-(rho * WALK["mdp"].r[s, a])[:, None] * Phi[s])
        s = ahead
    return np.stack(J, axis=1), np.stack(c, axis=1)


def test_blocks_cover_where_independence_is_wrong():
    """150 walks of 8,000 steps and their three values: coverage is known to ±.03 or so."""
    J, c = simulated(150, 8000)
    law = limit_law(**WALK, sampling="markov")

    def covers(count):
        hit = []
        for jacobian, offset in zip(J, c, strict=True):
            sums, sizes = batch_means.in_blocks(np.concatenate([jacobian.reshape(-1, 9), offset], axis=1), count)
            found = batch_means.sandwich(sums[:, :9].reshape(-1, 3, 3), sums[:, 9:], sizes, ordered=count == 32)
            hit.append((found.low < law.theta) & (law.theta < found.high))
        return np.mean(hit)

    predicted = law.coverage(np.eye(3)).mean()
    assert abs(covers(8000) - predicted) < 0.1 < 0.95 - predicted - 0.4
    assert 0.90 < covers(32) < 0.98


def test_random_scaling_covers_on_the_same_chain():
    """With the start left out and steps small against the chain's memory."""
    step = tc.Power(0.05 * 300**0.7, p=0.7, shift=300.0)
    method = tc.Polyak(tc.Standard(step, step), skip=20_000, intervals=True)
    problem = tc.problems.slow_walk("td")
    frame = tc.solve(problem, method, 100_000, 200, marks=range(0, 100_001, 10_000)).interval()
    truth = np.tile(problem.truth.theta_star, 200)
    assert ((frame["low"] < truth) & (truth < frame["high"])).mean() > 0.90


def test_notes_on_few_blocks_and_unseen_features():
    J, c = simulated(1, 40)
    few = batch_means.sandwich(
        *(batch_means.in_blocks(part[0][:, :1, :1] if part.ndim == 4 else part[0][:, :1], 5)[0] for part in (J, c))
    )
    assert few.note in (["only 5 blocks"], [batch_means.UNDETERMINED])
    unseen = tc.solve(tc.problems.slow_walk("td"), BatchMeans(Lstd()), 3, 1, marks=[3]).interval(how="blocks")
    assert (unseen["note"] == batch_means.UNDETERMINED).all()
    assert np.isinf(unseen["low"]).all()
    slow = np.linspace(-1, 1, 32)[:, None]
    assert "neighbouring blocks are alike" in batch_means.sandwich(np.full((32, 1, 1), 10.0), slow).note[0]
    assert batch_means.sandwich(np.full((32, 1, 1), 10.0), slow, ordered=False).note == [""]


@pytest.mark.parametrize("worth", [5, 20, np.inf])
def test_the_mean_of_a_slow_chain_is_covered(worth):
    """An AR(1) stream whose samples are worth 5, 20 or all independent ones; without correlation .5 and .8."""
    rng, streams, n = np.random.default_rng(0), 600, 32 * 30
    time = n / worth if np.isfinite(worth) else 1.0
    rho = (time - 1) / (time + 1)
    x = rng.normal(size=(streams, n))
    for i in range(1, n):
        x[:, i] = rho * x[:, i - 1] + np.sqrt(1 - rho**2) * x[:, i]
    found = [batch_means.sandwich(np.full((32, 1, 1), 30.0), -batch_means.in_blocks(row[:, None])[0]) for row in x]
    covered = np.mean([band.low[0] < 0 < band.high[0] for band in found])
    assert 0.91 < covered < 0.98
    half = np.median([(band.high[0] - band.low[0]) / 2 for band in found])
    assert half / (1.96 * np.sqrt(time / n)) < (1.9 if worth == 5 else 1.3)


def test_affine_operators_are_accepted_and_others_refused():
    for operator in ("gtd2", "tdrc"):
        check_fit(tc.problems.boyan(operator), BatchMeans(Lstd()), RunSpec.checked(1, 1, None))
    with pytest.raises(InputError, match="needs F and G that are affine"):
        tc.solve(tc.problems.forest(), BatchMeans(tc.Fast()), 10, 1)
    with pytest.raises(InputError, match="needs data that this run did not collect"):
        tc.solve(tc.problems.boyan("td"), Lstd(), 10, 1).interval(how="blocks")
    with pytest.raises(InputError, match="`sizes` must be positive"):
        batch_means.sandwich(np.ones((2, 1, 1)), np.ones((2, 1)), [1.0, 0.0])
