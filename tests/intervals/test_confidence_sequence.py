"""Confidence sequences: the formula by hand, coverage at all looks of a simulated mean, and wrong inputs."""

import functools
import math

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock.intervals import batch_means
from twoclock.intervals.confidence_sequence import first_look, stretch
from twoclock.methods import BatchMeans, Lstd
from twoclock.protocols import InputError

LOOKS = [int(n) for n in np.geomspace(1000, 100_000, 31).round()]


def mean_of_a_chain(rho):
    """The mean, which is 0, of x ← ρx + noise, as the root of E[θ − X]."""

    def draw(u, theta, env):
        x = rho * env + u
        return x, x

    return tc.problems.custom(
        lambda theta, omega, x: theta - x, lambda theta, omega, x: (), jax.random.normal, 0.0, (), draw, 0.0
    )


@pytest.fixture(scope="module")
def chain():
    return tc.solve(mean_of_a_chain(0.5), BatchMeans(Lstd()), LOOKS[-1], 400, marks=LOOKS)


def test_the_formula_by_hand():
    alpha, n, first = 0.05, 20_000, 1_000
    rho2 = (-2 * math.log(alpha) + math.log(1 - 2 * math.log(alpha))) / first
    half = math.sqrt(2 * (n * rho2 + 1) / (n**2 * rho2) * math.log(math.sqrt(n * rho2 + 1) / alpha))
    np.testing.assert_allclose(stretch(n, first), half / (1.959963984540054 / math.sqrt(n)), rtol=1e-14)
    np.testing.assert_allclose(stretch([1e3, 10**4.5, 1e6], 1e3), [1.55, 1.74, 1.97], atol=0.005)
    np.testing.assert_allclose(stretch([1e2, 1e4, 1e6], 1e2), [1.55, 1.82, 2.12], atol=0.005)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_no_other_first_look_is_much_shorter_there(level):
    """The formula of ρ is a closed form near the best."""
    best = min(stretch(1000, other, level) for other in np.geomspace(100, 10_000, 200))
    assert stretch(1000, 1000, level) < 1.002 * best


def test_a_sequence_is_the_interval_of_blocks_stretched(chain):
    for step in (LOOKS[0], LOOKS[12], None):
        n = step or LOOKS[-1]
        fixed, anytime = (chain.interval(0.9, "blocks", step=step, anytime=a) for a in (False, True))
        longer = (anytime["high"] - anytime["low"]) / (fixed["high"] - fixed["low"])
        np.testing.assert_allclose(longer, stretch(n, 1000, 0.9), rtol=1e-10)
        assert anytime["estimate"].equals(fixed["estimate"])
        assert anytime["note"].equals(fixed["note"])
    first, asked = (chain.interval(anytime=anytime) for anytime in (1000, 5000))
    longer = (asked["high"] - asked["low"]) / (first["high"] - first["low"])
    np.testing.assert_allclose(longer, stretch(100_000, 5000) / stretch(100_000, 1000), rtol=1e-10)


def test_coverage_at_all_looks_and_length(chain):
    """400 chains, 31 looks: a share of .95 is known to ±.022 by two standard errors."""
    held = {False: np.ones(400, bool), True: np.ones(400, bool)}
    lengths = []
    for n in LOOKS:
        for anytime, held_so_far in held.items():
            at = chain.interval(how="blocks", step=n, anytime=anytime)
            held_so_far &= (at["low"] <= 0).to_numpy() & (at["high"] >= 0).to_numpy()
        oracle = 1.96 * 2 / math.sqrt(n)  # the long-run standard deviation is 1/(1 − ρ)
        lengths.append((at["high"] - at["low"]).mean() / 2 / oracle)
    assert held[False].mean() < 0.75
    assert held[True].mean() > 0.95 - 0.022
    assert max(lengths) < 2.2


def test_a_learner_may_be_looked_at_while_it_learns():
    learner = tc.Learner(lambda theta, omega, x: theta - x, lambda theta, omega, x: (), BatchMeans(Lstd()), 0.0, ())
    x = np.random.default_rng(0).normal(2.0, 3.0, size=3000)
    learner.update_many(x[:700])
    with pytest.raises(InputError, match="there is none yet; take more steps"):
        learner.interval(anytime=True)
    assert learner.interval(anytime=500)["output"].tolist() == ["theta"]
    learner.update_many(x[700:])
    (row,) = learner.interval(anytime=True).itertuples()
    (fixed,) = learner.interval(how="blocks").itertuples()
    np.testing.assert_allclose(row.high - row.low, (fixed.high - fixed.low) * stretch(3000, 1000), rtol=1e-10)
    sums, sizes = batch_means.in_blocks(x[:, None], 24)
    by_hand = batch_means.sandwich(sizes[:, None, None], -sums, sizes)
    np.testing.assert_allclose(fixed.estimate, by_hand.estimate)
    at = learner.interval(anytime=True, step=1000)
    assert (at["high"] - at["low"]).item() > row.high - row.low


@pytest.mark.parametrize("anytime", [0, 1, -5, 1.5, "yes", None, math.nan])
def test_a_first_look_must_be_a_number_of_samples(anytime):
    with pytest.raises(InputError, match="`anytime` must be True, False or the number of samples at the first look"):
        first_look(anytime, [1000])


def test_what_has_no_sequence_is_refused_in_one_line(chain):
    step = tc.Power(0.5, p=0.6)
    scaled = tc.solve(tc.problems.quadratic(dim=1), tc.Polyak(tc.Standard(step, step), intervals=True), 2000, 1)
    with pytest.raises(InputError, match=r"anytime=True.*run `tc.methods.BatchMeans\(method\)`"):
        scaled.interval(anytime=True)
    with pytest.raises(InputError, match="random scaling has not; take how='blocks'"):
        scaled.interval(how="random-scaling", anytime=True)
    with pytest.raises(InputError, match="nothing before its first look at 5,000 samples, and step 1,000 has 1,000"):
        chain.interval(anytime=5000, step=1000)
    with pytest.raises(InputError, match="`level`"):
        chain.interval(1.0, anytime=True)
    assert chain.interval(anytime=np.False_, how="blocks").equals(chain.interval(how="blocks"))


def test_a_run_stops_where_it_is_sure_and_can_be_replayed_and_resumed(tmp_path):
    problem, method = mean_of_a_chain(0.5), BatchMeans(Lstd())
    solve = functools.partial(tc.solve, problem, method, engine="xla")  # engines agree up to rounding only
    stopped = solve(1_000_000, 3, until=tc.Width(0.05), checkpoint=tmp_path / "c")
    n = stopped.spec["steps"]
    assert stopped.spec["until"] == {"width": 0.05, "level": 0.95, "first": None, "steps": 1_000_000, "reached": True}
    assert f"{n:,} steps (stopped of 1,000,000, known to ± 0.05)" in repr(stopped)
    half = (stopped.interval(anytime=True).eval("high - low") / 2).to_numpy()
    before = stopped.interval(anytime=True, step=stopped.spec["marks"][-2])
    assert half.max() <= 0.05 < (before["high"] - before["low"]).max() / 2
    assert solve(n, 3) == stopped
    assert solve(1_000_000, 3, until=tc.Width(0.05), checkpoint=tmp_path / "c") == stopped
    loaded = tc.load(stopped.save(tmp_path / "r"))
    assert loaded == stopped
    further = solve(1_000_000, 3, until=tc.Width(0.03), start=loaded)
    assert further == solve(1_000_000, 3, until=tc.Width(0.03))
    assert further.spec["steps"] > n
    short = solve(2000, 1, until=tc.Width(0.001))
    assert not short.spec["until"]["reached"]
    assert short.spec["steps"] == 2000


def test_rules_to_stop_are_checked_before_the_run():
    problem = mean_of_a_chain(0.5)
    for width in (0, -1, math.nan, "a"):
        with pytest.raises(InputError, match="`width`"):
            tc.Width(width)
    with pytest.raises(InputError, match="`anytime` must be"):
        tc.Width(0.1, first=1)
    assert tc.Width(np.float32(0.5), first=np.int64(500)) == tc.Width(0.5, first=500)
    with pytest.raises(InputError, match=r"`until` must be a rule such as tc.Width\(0.01\), got 0.1"):
        tc.solve(problem, BatchMeans(Lstd()), 100, 1, until=0.1)
    with pytest.raises(InputError, match="`until` is for one method"):
        tc.solve(problem, {"a": BatchMeans(Lstd())}, 100, 1, until=tc.Width(0.1))
    with pytest.raises(InputError, match=r"Lstd has none; run `tc\.methods\.BatchMeans"):
        tc.solve(problem, Lstd(), 2000, 1, until=tc.Width(0.1))
    with pytest.raises(InputError, match="there is none yet"):
        tc.solve(problem, BatchMeans(Lstd()), 100, 1, until=tc.Width(0.1))


def test_the_plot_shows_which_band_may_be_looked_at_when(chain):
    fig = chain.plot(intervals=True, seed=3)
    words = " ".join(t.get_text() for t in fig.findobj(lambda a: hasattr(a, "get_text")))
    assert "for one look at a step chosen beforehand" in words
    assert "95 % at all steps together:\nvalid at any stopping time" in words
    row = chain.interval(anytime=True).query("seed == 3").iloc[0]
    band = fig.axes[0].collections[1].get_paths()[0].vertices
    end = band[band[:, 0] == LOOKS[-1]][:, 1]
    np.testing.assert_allclose([end.min(), end.max()], [row["low"], row["high"]])


def test_an_evaluator_may_be_looked_at_while_it_learns():
    agent, plain = (
        tc.agents.Evaluator(1.0, np.eye(2), gamma=0.5, operator="td", intervals=i) for i in ("blocks", True)
    )
    s = np.random.default_rng(0).integers(2, size=5001)
    for here, after in zip(s[:-1].tolist(), s[1:].tolist(), strict=True):
        agent.observe(here, None, after, reward=float(here == 0))
    fixed, anytime = agent.interval(), agent.interval(anytime=True)
    np.testing.assert_allclose(anytime.eval("high - low") / fixed.eval("high - low"), stretch(5000, 1000), rtol=1e-9)
    assert ((anytime["low"] < [1.5, 0.5]) & (anytime["high"] > [1.5, 0.5])).all()
    with pytest.raises(InputError, match=r"Evaluator\(…, intervals='blocks'\)"):
        plain.interval(anytime=True)


def test_blocks_of_a_stream_are_those_of_a_run():
    x = np.random.default_rng(4).normal(2.0, 1.0, size=1500)
    mean = batch_means.BlockMean()
    for n, value in enumerate(x.tolist(), 1):
        mean.add(value)
        if n in (3, 32, 33, 1000, 1500):
            length = 2 ** max(math.ceil(math.log2(n / 32)), 0)
            starts = np.arange(0, n, length)
            sizes = np.diff(starts, append=n).astype(float)
            known = batch_means.sandwich(sizes[:, None, None], -np.add.reduceat(x[:n], starts)[:, None], sizes)
            found = batch_means.intervals(np.full(1, mean.estimate), mean.statistics())
            np.testing.assert_allclose([*found.low, *found.high], [*known.low, *known.high], rtol=1e-10)
            mean = batch_means.BlockMean(mean.numbers)


def plant(x, u, rng):
    return 0.9 * x + 0.5 * u + rng.normal(size=1)


def test_the_cost_of_a_regulator_may_be_looked_at_while_it_learns(tmp_path):
    agent, rng, x = tc.agents.Regulator(Q=[[1.0]], R=[[1.0]]), np.random.default_rng(0), np.zeros(1)
    costs = []
    for _ in range(1200):
        u = agent.act(x)
        after = plant(x, u, rng)
        agent.observe(x, u, after)
        costs.append(float(x @ x + u @ u))
        if len(costs) == 999:
            assert math.isnan(agent.cost(anytime=True).low)
        x = after
    looked = agent.cost(0.9, anytime=True)
    sums, sizes = (np.add.reduceat(part, np.arange(0, 1200, 64)) for part in (np.asarray(costs), np.ones(1200)))
    known = batch_means.sandwich(sizes[:, None, None], -sums[:, None], sizes, level=0.9)
    np.testing.assert_allclose(looked.high - looked.low, (known.high - known.low)[0] * stretch(1200, 1000, 0.9))
    np.testing.assert_allclose((looked.low + looked.high) / 2, np.mean(costs))
    agent.save(tmp_path)
    assert tc.agents.Regulator.load(tmp_path).cost(0.9, anytime=True) == looked
    with pytest.raises(InputError, match="`anytime` must be"):
        agent.cost(anytime=1)


def test_means_of_a_run_of_agents_may_be_looked_at_at_any_time(tmp_path):
    agent, x0 = tc.agents.Regulator(Q=[[1.0]], R=[[1.0]]), np.zeros(1)
    run = functools.partial(tc.agents.run, agent, plant, seeds=1, x0=x0, processes=1)
    result = run(steps=3000)
    fixed, anytime = result.interval(how="blocks"), result.interval(anytime=True)
    first = next(mark for mark in result.spec["marks"] if mark >= 2500) - 1500
    np.testing.assert_allclose(anytime.eval("high - low") / fixed.eval("high - low"), stretch(1500, first), rtol=1e-9)
    assert anytime["output"].tolist() == ["mean_cost from step 1,501 on"]
    np.testing.assert_allclose(anytime["estimate"], result.interval()["estimate"])
    run(steps=2000, checkpoint=tmp_path)
    longer = run(steps=3000, checkpoint=tmp_path).interval(anytime=True)
    assert longer["output"].tolist() == ["mean_cost from step 1,001 on"]
    assert np.isfinite(longer["low"]).all()
