"""The rules that experiments share, from both sides: what is so passes, what is not does not; noise earns nothing."""

import numpy as np
import pandas as pd
import pytest

from reproduction.comparisons import Paired, at_least, last_ratio, like, rate_claim
from reproduction.experiment import Claim
from reproduction.verdicts import combine_verdicts, confirm_claims, decide_each, kind, only_for_steps, split
from twoclock.intervals import Estimate
from twoclock.result import Result

K = np.unique(np.geomspace(1, 10**6, 31).round().astype(int))


def record(values):
    """A record of the metric "error": [seed, mark]."""
    seeds = len(values)
    frame = pd.DataFrame({"seed": np.repeat(np.arange(seeds), len(K)), "step": np.tile(K, seeds)})
    frame["error"] = values.ravel()
    spec = {"seeds": list(range(seeds)), "steps": int(K[-1])}
    return Result(np.zeros(seeds), np.zeros(seeds), frame, np.zeros(seeds, bool), np.full(seeds, K[-1]), spec)


def simulated(exponent, seeds, rng, freedom=4):
    """Errors k^-exponent·χ²: each seed's noise forgets itself over about a decade, as steps 1/k do."""
    keep = 0.1 ** np.diff(np.log10(K))
    noise = np.empty((seeds, len(K), freedom))
    noise[:, 0] = rng.normal(size=(seeds, freedom))
    for i, rho in enumerate(keep, 1):
        noise[:, i] = rho * noise[:, i - 1] + np.sqrt(1 - rho**2) * rng.normal(size=(seeds, freedom))
    return record(K ** -float(exponent) * (noise**2).mean(axis=2))


def judged(result):
    return rate_claim(result, "error", 1.0, name="rate", statement="S", place="P", case="c")


def passes(exponent, seeds, freedom=4, runs=40):
    rng = np.random.default_rng(seeds)
    verdicts = [
        confirm_claims(lambda some: [judged(some["c"]["m"])], {"c": {"m": simulated(exponent, seeds, rng, freedom)}})[
            0
        ].verdict
        for _ in range(runs)
    ]
    return verdicts.count("reproduced") / runs


@pytest.mark.parametrize("seeds", [5, 20, 100])
def test_a_slower_rate_does_not_pass_however_few_the_seeds(seeds):
    assert passes(0.89, seeds) <= 0.05


@pytest.mark.parametrize(("seeds", "freedom"), [(100, 10), (600, 1)], ids=["Figure 1's", "Table 1's"])
def test_the_claimed_rate_passes_with_the_seeds_of_a_full_run(seeds, freedom):
    """Ten features, and one dimension."""
    assert passes(1.0, seeds, freedom) >= 0.9


def test_a_faster_rate_is_distinguished():
    assert passes(1.15, 100) <= 0.05


@pytest.mark.parametrize(
    ("low", "high", "found", "at_least_found"),
    [
        (-1.08, -0.92, True, True),
        (-0.95, -0.85, None, None),
        (-0.85, -0.75, False, False),
        (-1.3, -1.2, False, True),
        (-1.15, -1.05, None, True),
        (-1.3, -0.7, None, None),
        (-1.4, -1.05, None, None),
        (-0.8, -0.4, False, False),
    ],
)
def test_a_rate_has_a_band_with_two_sides_and_an_interval_of_bounded_width(low, high, found, at_least_found):
    slope = Estimate((low + high) / 2, low, high)
    assert like(slope, 1.0) is found
    assert at_least(slope, 1.0) is at_least_found


def test_a_few_instances_do_not_carry_a_ratio():
    """A tie on all instances but two, where the mean says twenty times."""
    rng = np.random.default_rng(0)
    base = 1 / K * np.ones((100, 1))
    ours = base * rng.lognormal(sigma=0.1, size=(100, 1))
    ours[:2] *= 1000
    ratio = last_ratio(record(ours), record(base), "error")
    assert ours[:, -1].mean() / base[:, -1].mean() > 20
    assert ratio.low < 1.05 < ratio.high < 1.5
    assert ratio.value == pytest.approx(np.exp(np.mean(np.log(ours[:, -1] / base[:, -1]))))
    assert not Paired.of(record(ours), record(base), "error").behind.any()
    assert Paired.of(record(0.9 * base), record(base), "error").ahead.all()
    assert Paired.of(record(1.1 * base), record(base), "error").at_the_end == "worse"


def test_a_seed_that_is_zero_or_lost_does_not_break_a_ratio():
    base = 1 / K * np.ones((10, 1))
    odd = base.copy()
    odd[0], odd[1] = 0.0, np.inf
    assert np.isfinite(last_ratio(record(odd), record(base), "error")).all()


def test_a_verdict_stands_only_where_both_halves_of_the_seeds_say_so():
    values = np.ones((20, len(K)))
    values[:10] = 2.0
    records = {"c": {"m": record(values)}}
    lower, upper = split(records)
    assert lower["c"]["m"].spec["seeds"] == list(range(10))
    assert set(upper["c"]["m"].history["seed"]) == set(range(10, 20))

    def judge(some):
        mean = some["c"]["m"].history["error"].mean()
        return [
            Claim("x", "X", "P", "mean above 1.2", {"mean": mean}, "reproduced" if mean > 1.2 else "not reproduced")
        ]

    (claim,) = confirm_claims(judge, records)
    assert claim.verdict == "not decided"
    words = "all seeds: reproduced; lower half: reproduced; upper half: not reproduced"
    assert claim.numbers["not confirmed"] == words
    values[10:] = 2.0
    (claim,) = confirm_claims(judge, {"c": {"m": record(values)}})
    assert claim.verdict == "reproduced"
    assert "not confirmed" not in claim.numbers


def test_one_seed_is_not_divided():
    one = {"c": {"m": record(np.ones((1, len(K))))}}
    assert split(one)[1]["c"]["m"] is one["c"]["m"]


@pytest.mark.parametrize(
    ("whole", "lower", "upper", "verdict"),
    [
        ((True, False), (True, False), (True, False), "reproduced only where it is a"),
        ((True, True), (True, True), (True, False), "reproduced only where it is a; not decided where it is b"),
        ((True, True), (True, True), (True, True), "reproduced"),
        ((False, True), (False, True), (False, None), "not decided where it is b, elsewhere not reproduced"),
        ((None, None), (True, True), (True, True), "not decided"),
    ],
)
def test_of_several_things_each_is_confirmed_by_itself(whole, lower, upper, verdict):
    three = [decide_each(dict(zip("ab", held, strict=True)), "it is {}") for held in (whole, lower, upper)]
    found = combine_verdicts(*three)
    assert found == verdict
    kind(found)


def test_ranges_of_steps_must_meet():
    verdicts = [only_for_steps(*steps) for steps in ((100, 1000), (500, 2000), (3000, 9000))]
    assert verdicts[0] == "reproduced only where k is about 100 to 1,000"
    assert combine_verdicts(*verdicts[:2], verdicts[0]) == verdicts[0]
    assert combine_verdicts(verdicts[0], verdicts[1], verdicts[2]) == "not decided"
