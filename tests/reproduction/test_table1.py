"""Table 1's verdicts follow from slopes and their intervals."""

import numpy as np
import pandas as pd
import pytest

import twoclock as tc
from reproduction.experiments import table1
from twoclock.result import Result

K = np.unique(np.geomspace(1, 10**6, 61).round().astype(int))


def made(exponent, seeds=200, seed=0):
    """A result whose every metric falls as k^-exponent, with noise between seeds and marks."""
    rng = np.random.default_rng(seed)
    values = K[None, :] ** -float(exponent) * rng.exponential(size=(seeds, len(K)))
    frame = pd.DataFrame({"seed": np.repeat(np.arange(seeds), len(K)), "step": np.tile(K, seeds)})
    for metric in ("error", "gap", "gradient"):
        frame[metric] = values.ravel()
    spec = {"seeds": list(range(seeds)), "steps": 10**6, "precision": "float64"}
    return Result(np.zeros(seeds), np.zeros(seeds), frame, np.zeros(seeds, bool), np.full(seeds, 10**6), spec)


def records(kinked, smooth):
    """Exponents of Fast, standard with two time scales and standard with Fast's exponents, for each coupling."""
    exponents = {"kinked": kinked, "smooth": smooth}
    labels = (table1.FAST, table1.TWO, table1.ONE)
    return {
        f"{h}-{coupling}-{dim}d": {
            label: made(row.fast * e) for label, e in zip(labels, exponents[coupling], strict=True)
        }
        for h, row in table1.ROWS.items()
        for coupling in table1.COUPLINGS
        for dim in (1, 4)
    }


def test_a_slope_is_found_with_its_interval():
    for metric, exponent in (("error", 1.0), ("gradient", 0.5)):
        row = next(row for row in table1.ROWS.values() if row.metric == metric)
        slope, low, high = table1.estimate(*table1.curve(made(exponent), row).slopes())
        assert low < -exponent < high
        assert low < slope < high
        assert high - low < 0.15


def test_the_least_mean_so_far_is_what_counts_for_non_convex_h():
    result = made(0.5)
    result.history.loc[result.history["step"] == 10**6, "gradient"] = 5.0
    curve = table1.curve(result, table1.ROWS["non-convex"])
    assert np.all(np.diff(curve.mean) <= 0)
    assert np.all(np.diff(curve.resampled, axis=1) <= 0)


@pytest.mark.parametrize(
    ("kinked", "smooth", "verdict", "averaging"),
    [
        ((1.0, 0.67, 1.0), (1.0, 1.0, 1.0), "reproduced only where the coupling is kinked", "not reproduced"),
        ((1.0, 0.67, 1.0), (1.0, 0.67, 1.0), "reproduced", "not reproduced"),
        ((1.0, 1.0, 0.5), (1.0, 1.2, 0.5), "not reproduced", "reproduced"),
        ((0.5, 0.3, 0.5), (0.5, 0.3, 0.5), "not reproduced", "not reproduced"),
    ],
)
def test_verdicts_are_computed_from_intervals(kinked, smooth, verdict, averaging):
    *rows, last = table1.claims(records(kinked, smooth))
    assert [claim.verdict for claim in rows] == [verdict] * 3
    assert last.verdict == averaging
    assert all(claim.numbers and claim.rule for claim in (*rows, last))


def test_all_methods_start_from_the_same_steps_in_the_theorys_order():
    for row in table1.ROWS.values():
        methods = table1.methods(row)
        alphas = {round(float(method.alpha(0)), 6) for method in methods.values()}
        betas = {round(float(method.beta(0)), 6) for method in methods.values()}
        assert len(alphas) == len(betas) == 1
        checked = tc.theory.check(methods[table1.FAST], "non-convex", L=1.45, mu_g=1.0)
        assert checked.leaves_order is None


def level_records(ratio):
    """Standard ends at ratio(λ/β) times Fast's error, the same for all seeds but for a little noise."""
    rng = np.random.default_rng(0)

    def made_up(level):
        seeds = 100
        noise = 0.05 * rng.standard_normal(seeds)
        values = level * np.exp(noise - noise.mean())  # so that the geometric mean is the level
        frame = pd.DataFrame({"seed": range(seeds), "step": 10**5, "error": values})
        spec = {"seeds": list(range(seeds)), "steps": 10**5, "precision": "float64"}
        return Result(np.zeros(seeds), np.zeros(seeds), frame, np.zeros(seeds, bool), np.full(seeds, 10**5), spec)

    fast = {table1.WEIGHTED[r]: made_up(1 / ratio(r)) for r in table1.RATIOS}
    return {
        f"levels-{coupling}-{noise}": {table1.ONE: made_up(1.0), **fast}
        for coupling in table1.COUPLINGS
        for noise in table1.NOISES
    }


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (lambda r: 1.0, "reproduced"),
        (lambda r: 0.5 if r < 16 else 1.0, "reproduced only where λ/β is 16, 32, 64"),
        (lambda r: 1.5, "not reproduced"),
        (lambda r: 1.1 if r == 2 else 0.5, "not decided where λ/β is 2, elsewhere not reproduced"),
    ],
)
def test_levels_are_judged_by_both_sides_of_a_band(ratio, verdict):
    found = level_records(ratio)
    claims = table1.level_claims(found)
    assert len(claims) == 6
    assert {claim.verdict for claim in claims} == {verdict}
    assert set(table1.draw(found)) == {"table1-levels"} < set(table1.ALT)
    assert f"smooth coupling, Fast ends at {1 / ratio(2):.2f}" in table1._level_ends(found)
    assert table1.level_claims({}) == []
    assert table1._level_ends({}) == ""


def test_levels_differ_in_the_weight_alone():
    made = table1.level_methods()
    for ratio in table1.RATIOS:
        fast = made[table1.WEIGHTED[ratio]]
        assert float(fast.lam(0)) == pytest.approx(0.25)
        assert float(fast.lam(10**9) / fast.beta(10**9)) == pytest.approx(ratio, rel=1e-4)
        assert str((fast.alpha, fast.beta)) == str((made[table1.ONE].alpha, made[table1.ONE].beta))


def test_sizes_and_figures():
    full, quick = table1.cases(quick=False), table1.cases(quick=True)
    assert quick.keys() == {key for key in full if key.endswith("-1d")}
    assert all(case.steps == 10**6 and case.seeds >= 100 for key, case in full.items() if key.endswith("-1d"))
    figures = table1.draw(records((1.0, 0.67, 1.0), (1.0, 1.0, 1.0)))
    assert set(figures) == {"table1-1d", "table1-4d"}
