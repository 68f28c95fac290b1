"""Results side by side: the numbers against SciPy and by hand, what is refused, and how it reads."""

import dataclasses
import re

import matplotlib.mathtext
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import twoclock as tc
from twoclock.comparison import compare, holm
from twoclock.result import Result


def result(values, *, steps=100, seeds=None, problem="P", diverged=(), metric="error"):
    """A result as ``solve`` makes them, with these values at its only mark."""
    seeds = list(range(len(values))) if seeds is None else list(seeds)
    lost = np.isin(seeds, list(diverged))
    history = pd.DataFrame({"seed": seeds, "step": steps, metric: np.asarray(values, float)})
    spec = {"problem": {"name": problem}, "method": {"name": "M"}, "steps": steps, "seeds": seeds}
    return Result(np.zeros(len(seeds)), np.zeros(len(seeds)), history, lost, np.where(lost, 1, steps), spec)


DRAW = np.random.default_rng(0)
BASE = DRAW.lognormal(size=14)
THREE = {
    "slow_β & 5%": result(3 * BASE * DRAW.lognormal(sigma=0.3, size=14)),
    "good": result(BASE),
    "same": result(1.01 * BASE * DRAW.lognormal(sigma=0.3, size=14)),
}


def test_the_numbers():
    table = tc.table(THREE)
    assert table.index.tolist()[0] in ("good", "same")
    assert table.index.tolist()[2] == "slow_β & 5%"
    assert table["rank"].tolist() == [1, 2, 3]
    for label, row in table.iterrows():
        values = THREE[label].history["error"].to_numpy()
        assert row["mean"] == pytest.approx(values.mean())
        assert row["low"] < row["mean"] < row["high"]
    best = THREE[table.index[0]].history["error"].to_numpy()
    slow = THREE["slow_β & 5%"].history["error"].to_numpy()
    assert table.loc["slow_β & 5%", "ratio"] == pytest.approx(slow.mean() / best.mean())
    assert table["ratio"].iloc[0] == 1


def test_the_tests_are_scipys_with_holms_correction():
    tests = tc.table(THREE).tests
    assert len(tests) == 3
    for row in tests.to_dict("records"):
        first, second = (THREE[row[name]].history["error"].to_numpy() for name in ("first", "second"))
        assert row["p_alone"] == pytest.approx(stats.wilcoxon(np.log(first / second)).pvalue)
        assert row["ratio"] == pytest.approx(np.median(first / second), rel=0.05)
        assert row["wins"] == np.mean(first < second)
    alone = np.sort(tests["p_alone"])
    by_hand = np.maximum.accumulate(np.minimum(alone * [3, 2, 1], 1))
    np.testing.assert_allclose(np.sort(tests["p"]), by_hand)


def test_holm_against_hand():
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_array_equal(holm(np.array([0.5, np.nan, 0.9])), [1.0, np.nan, 1.0])
    assert holm(np.array([])).size == 0


def test_under_no_difference_false_alarms_are_as_rare_as_promised():
    """Four alike, 400 times: in at most 5 % of tables (and their sampling error) any pair seems different."""
    draws = np.random.default_rng(1)
    alarms = 0
    for _ in range(400):
        values = draws.lognormal(size=(4, 12)) * draws.lognormal(size=12)
        p = [compare(values[i], values[j]).p for i in range(4) for j in range(i)]
        alarms += bool((holm(np.asarray(p)) < 0.05).any())
    assert alarms / 400 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_values_that_are_not_positive_are_compared_by_differences():
    a, b = np.array([-1.0, 0.0, 1.0, 2.0, 5.0, 3.0]), np.array([0.5, 1.0, 1.5, 4.0, 9.0, 3.0])
    pair = compare(a, b)
    assert np.isnan(pair.ratio)
    assert pair.p == pytest.approx(stats.wilcoxon((a - b)[:5]).pvalue)
    assert pair.wins == pytest.approx((5 + 0.5) / 6)
    assert compare(a, a).p == 1.0


def test_a_diverged_seed_is_the_worst_whatever_its_last_value():
    """It stopped at a small value; it loses all the same, in rank and in its pair."""
    fine, broken = result(BASE), result(0.9 * BASE, diverged=[3])
    table = tc.table({"broken": broken, "fine": fine})
    assert table.index.tolist() == ["fine", "broken"]
    assert table["diverged"].tolist() == [0, 1]
    assert table.tests["wins"].item() == pytest.approx(1 / 14)
    assert any("better than fine on most seeds" in note for note in table.notes)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_result_without_a_mean_ranks_last_with_a_note(first, largest):
    """A comparison with NaN is false either way: sorted by it, any order could come out."""
    fine, hole = {"a": result(BASE), "b": result(2 * BASE)}, {"hole": result(np.where(BASE[0] < BASE, np.nan, BASE))}
    table = tc.table(hole | fine if first else fine | hole, largest=largest)
    assert table.index.tolist() == (["b", "a", "hole"] if largest else ["a", "b", "hole"])
    assert np.isnan(table.loc["hole", ["mean", "low", "high", "ratio"]].astype(float)).all()
    assert "hole: some seeds have no value" in repr(table)


def test_the_mean_of_diverged_seeds_has_a_note():
    table = tc.table({"broken": result(0.9 * BASE, diverged=[3, 5]), "fine": result(BASE)})
    assert "broken: 2 of 14 seeds diverged; its mean has their last values" in repr(table)


def test_a_seed_that_diverges_later_has_not_diverged_yet():
    late = result(BASE, diverged=[3])
    early = pd.concat([late.history.assign(step=0), late.history], ignore_index=True)
    table = tc.table({"late": dataclasses.replace(late, history=early)}, step=0)
    assert table["diverged"].item() == 0


def test_the_largest_can_be_the_best():
    assert tc.table(THREE, largest=True).index[0] == "slow_β & 5%"
    assert tc.table(THREE, largest=True).tests["wins"].iloc[0] >= 0.5


def test_too_few_seeds_are_said_to_be():
    table = tc.table({"a": result([1.0, 2.0, 3.0]), "b": result([2.0, 3.0, 4.0])})
    assert table["p"].iloc[1] == 0.25
    assert "3 shared seeds are too few" in repr(table)
    assert "no p can be below 0.25" in repr(table)
    one = tc.table({"a": result([1.0])})
    assert np.isnan(one["low"].item())
    assert "one seed has no interval" in repr(one)


def test_what_differs_is_compared_only_if_allowed():
    there, other = result(BASE), result(2 * BASE[4:], seeds=range(4, 14))
    shared = tc.table({"a": there, "b": other}, allow="seeds")
    assert shared.tests["seeds"].item() == 10
    assert shared.loc["b", "ratio"] == pytest.approx(2)
    assert shared["seeds"].tolist() == [14, 10]
    longer = result(BASE / 2, steps=200)
    table = tc.table({"a": there, "b": longer}, allow=["steps", "problems"])
    assert table.index.tolist() == ["b", "a"]
    assert table.metric == "error at the end"
    apart = tc.table({"a": there, "b": result(BASE, seeds=range(50, 64))}, allow="seeds")
    assert np.isnan(apart["p"].iloc[1])
    assert "share fewer than two seeds" in repr(apart)


CASES = {
    "seeds": (lambda: tc.table({"a": result(BASE), "b": result(BASE[1:])}), "have the same seeds, .* allow='seeds'"),
    "steps": (lambda: tc.table({"a": result(BASE), "b": result(BASE, steps=9)}), "must have the same steps"),
    "problems": (lambda: tc.table({"a": result(BASE), "b": result(BASE, problem="Q")}), "must have the same problems"),
    "metric": (lambda: tc.table(THREE, "gap"), r"`metric` must be one that all results have \(error\), got 'gap'"),
    "step": (lambda: tc.table(THREE, step=7), "`step` must be a mark of every result, .* at 7; the nearest is 100"),
    "nothing": (lambda: tc.table({}), "`results` must map labels to results"),
    "a result": (lambda: tc.table(result(BASE)), "`results` must map labels to results"),
    "no results": (lambda: tc.table({"a": 3}), "`results` must map labels to results"),
    "allow": (lambda: tc.table(THREE, allow="all"), "`allow` may name seeds, steps and problems, got 'all'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case):
    make, words = CASES[case]
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_latex_is_a_tabular_whose_parts_parse():
    text = tc.table(THREE | {"boom": result(np.full(14, np.inf), diverged=range(14))}).to_latex()
    lines = text.splitlines()
    assert lines[0] == r"\begin{tabular}{rlrlrrr}"
    assert lines[-1] == r"\end{tabular}"
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) == 5
    assert all(len(re.findall(r"(?<!\\)&", row)) == 6 for row in rows)
    assert r"slow\_$\beta$ \& 5\%" in text
    assert r"$\infty$" in text
    bare = re.sub(r"\\[\\{}$%&_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"[^\x00-\x7f]", text)
    parser = matplotlib.mathtext.MathTextParser("path")
    for piece in re.findall(r"\$[^$]+\$", text):
        parser.parse(piece)
    assert r"\times10^{-5}" in tc.table({"a": result(1e-5 * BASE / BASE.mean())}).to_latex()


def test_it_reads_well_here_and_in_a_notebook():
    table = tc.table(THREE)
    assert len(repr(table).splitlines()) == 5
    assert "Holm's correction for 3 comparisons" in repr(table)
    html = table._repr_html_()
    assert "slow_β &amp; 5%" in html
    assert "error after 100 steps" in html
    assert type(table[["mean"]]) is pd.DataFrame


def test_with_solve_at_a_mark():
    methods = {"fast": tc.Fast(), "slow": tc.Fast(alpha="0.1/(k+20)")}
    results = tc.solve(tc.problems.quadratic(dim=2), methods, 300, 12)
    assert tc.table(results).index.tolist() == ["fast", "slow"]
    early = tc.table(results, "gap", step=100)
    assert early.loc["slow", "p"] < 0.01
    expected = results["slow"].history.query("step == 100")["gap"].mean()
    assert early.loc["slow", "mean"] == pytest.approx(expected)


def test_latex_counts_diverged_seeds_and_sets_none_of_their_means_in_bold():
    text = tc.table({"broken": result(0.9 * BASE, diverged=[3, 5]), "fine": result(BASE)}).to_latex()
    rows = {line.split(" & ")[1]: line for line in text.splitlines() if " & " in line}
    assert rows["method"].endswith(r"& diverged \\")
    assert rows[r"\textbf{fine}"].endswith(r"& 0 of 14 \\")
    assert rows["broken"].endswith(r"& 2 of 14 \\"), "not bold, although Wilcoxon's test sees no clear difference"
    all_diverged = tc.table({"a": result(BASE, diverged=[1]), "b": result(2 * BASE, diverged=[1, 2])}).to_latex()
    assert "textbf" not in all_diverged
    assert "diverged" not in tc.table(THREE).to_latex()


def test_one_diverged_seed_does_not_set_the_axis():
    """Its last finite value, 1e65, is in the mean; the panel shows the seeds that came through."""
    steps = np.array([1, 10, 100, 1000])
    history = pd.concat(
        [pd.DataFrame({"seed": seed, "step": steps, "error": 1.0 / steps}) for seed in range(9)]
        + [pd.DataFrame({"seed": 9, "step": steps, "error": [1.0, 1e20, 1e65, 1e65]})]
    )
    lost = np.arange(10) == 9
    spec = {"problem": {"name": "P"}, "method": {"name": "M"}, "steps": 1000, "seeds": list(range(10)),
            "precision": "float64"}  # fmt: skip
    wild = Result(np.zeros(10), np.zeros(10), history, lost, np.where(lost, 100, 1000), spec)
    axis = tc.plot.compare({"wild": wild}, "error").axes[0]
    assert axis.get_ylim()[1] < 1e4
    assert "(1/10 diverged)" in axis.get_legend().get_texts()[0].get_text()
    tame = Result(
        np.zeros(9),
        np.zeros(9),
        history[history["seed"] < 9],
        lost[:9],
        np.full(9, 1000),
        {**spec, "seeds": list(range(9))},
    )
    assert 1.0 < tc.plot.compare({"tame": tame}, "error").axes[0].get_ylim()[1] < 10
    assert tc.plot.compare({"wild": wild, "tame": tame}, "error").axes[0].get_ylim()[0] > 1e-5
