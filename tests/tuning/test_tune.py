"""Tuning: the settings that are tried, their scores, and tuning without truth."""

import gc
import math
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import twoclock as tc
from twoclock.param_paths import with_settings
from twoclock.tuning.halving import Proposals, keeps_order
from twoclock.tuning.objective import ProblemObjective, marks_of
from twoclock.tuning.search_space import at_edge, default_box
from twoclock.tuning.tune_result import ScoreTable

FAST = tc.Fast(tc.Power(1.0, shift=50.0), tc.Power(4.0, shift=50.0), tc.Power(20.0, shift=50.0))
ONE = tc.problems.quadratic(dim=2)
SPACE = {"alpha.c": (0.05, 50.0)}


def at_end(problem, methods, metric, steps, seeds=60):
    results = tc.solve(problem, methods, steps, seeds, marks=[steps])
    return {label: float(result.history[metric].mean()) for label, result in results.items()}


@pytest.fixture(scope="module")
def found():
    with jax.enable_x64(True):
        return tc.tune(ONE, FAST, SPACE, steps=400, rungs=3)


def test_the_winner_is_as_good_as_the_best_of_a_fine_grid(found):
    tried = tc.grid(FAST, **{"alpha.c": np.geomspace(0.05, 20, 24)}) | {"found": found.method}
    errors = at_end(ONE, tried, "error", 400)
    assert errors["found"] <= 1.2 * min(errors.values())


def test_the_ranking_has_a_row_per_setting(found):
    table = found.ranking
    assert len(table) == 32 + 8  # and half of the second rung is new
    assert table.groupby("rung").size().tolist() == [24, 8, 8]
    assert not table["alpha.c"].duplicated().any()
    assert table["rung"].is_monotonic_decreasing
    assert table.groupby("rung")["steps"].first().tolist() == [200, 400, 400]
    assert table.groupby("rung")["seeds"].first().tolist() == [8, 8, 16]
    last = table[table["rung"] == 2]
    assert len(last) == 8
    assert last["score"].is_monotonic_increasing
    assert (last["low"] <= last["score"]).all()
    assert (last["score"] <= last["high"]).all()
    assert (last["ratio_low"] <= last["ratio"]).all()
    assert last["ratio"].iloc[0] == 1
    assert table["alpha.c"].between(0.05, 50).all()
    assert 1.0 in table["alpha.c"].tolist()  # the method as it came
    assert found.settings["alpha.c"] == last["alpha.c"].iloc[0] == found.method.alpha.c
    assert str(found.method.beta) == str(FAST.beta)


def test_scores_agree_with_solve(found):
    result = tc.solve(ONE, found.method, 400, range(1_000_016, 1_000_032), marks=[400])
    assert found.ranking["score"].iloc[0] == pytest.approx(result.history["error"].mean(), rel=1e-9)


def test_sensitivity_moves_one_setting_at_a_time(found):
    curve = found.sensitivity
    assert set(curve["setting"]) == {"alpha.c"}
    assert curve["value"].is_monotonic_increasing
    assert found.settings["alpha.c"] in curve["value"].tolist()
    assert curve.loc[curve["value"] == found.settings["alpha.c"], "ratio"].item() == 1
    assert len(curve) >= 3


def test_repr_and_picture(found):
    assert repr(found).startswith(f"Tuned(alpha.c={found.settings['alpha.c']:g}; error ")
    assert "\n" not in repr(found)
    assert len(repr(found)) < 400
    assert found._repr_html_().count("<tr>") == 1 + 8
    assert found.plot().axes[0].get_xlabel() == "alpha.c"


def test_the_same_call_gives_the_same_answer_and_compiles_nothing(found, compilations):
    tc.tune(ONE, FAST, SPACE, steps=400, rungs=3)
    before = compilations()
    again = tc.tune(ONE, FAST, SPACE, steps=400, rungs=3)
    assert compilations() == before
    assert again.ranking.equals(found.ranking)
    tc.tune(ONE, tc.Fast("0.5/(k+9)", "2/(k+9)", "9/(k+9)"), {"alpha.c": (0.1, 1.0)}, steps=300, rungs=4, seed=3)
    assert compilations() == before


def test_the_budget_is_used_and_not_exceeded():
    for metric in ("error", "residual"):
        spent = tc.tune(ONE, FAST, SPACE, steps=340, budget=200_000, metric=metric, rungs=2).spec["spent"]
        assert 0.5 * 200_000 < spent <= 200_000


def test_tuning_by_residuals_never_calls_measure():
    def forbidden(theta, omega):
        raise AssertionError("a look at the answer")

    found = tc.tune(guess(forbidden), FAST, SPACE, steps=340, metric="residual", rungs=1)
    assert {"F", "F_se", "G", "G_se"} <= set(found.ranking.columns)
    assert found.metric == "residual"


def test_a_problem_without_metrics_is_tuned_by_residuals():
    problem = tc.problems.custom(
        F=lambda t, w, x: w - 1, G=lambda t, w, x: w - t + x, noise=lambda key: jax.random.normal(key),
        theta=0.0, omega=0.0,
    )  # fmt: skip
    assert tc.tune(problem, FAST, SPACE, steps=340, rungs=1).metric == "residual"


SHIFTS = "alpha.shift,beta.shift,lam.shift"
WIDE = {"alpha.c": (0.1, 30.0), "beta.c": (0.1, 100.0)}
TRUTH_FREE = {
    "policy evaluation": (tc.problems.walk_dependent(), "error", WIDE, 3000, False),
    # Its samples follow θ, which the curvature leaves out: without truth the order is a help here.
    "regulator": (tc.problems.paper_lqr(), "gap", {"alpha.c": (0.1, 10.0), SHIFTS: (300.0, 10_000.0)}, 2000, True),
}


@pytest.mark.slow
@pytest.mark.usefixtures("long_walks")
@pytest.mark.parametrize(
    "name",
    [
        "policy evaluation",
        pytest.param("regulator", marks=pytest.mark.xfail(reason="its choice is at 1.9 times the best by truth")),
    ],
)
def test_the_winner_by_residuals_is_within_a_factor_1_5_of_the_winner_by_truth(name):
    problem, metric, space, steps, order = TRUTH_FREE[name]
    method = tc.Fast(tc.Power(1.0, shift=300.0), tc.Power(4.0, shift=300.0), tc.Power(100.0, shift=300.0))
    found = {
        kind: tc.tune(problem, method, space, steps, metric=kind, rungs=3, order=order) for kind in (metric, "residual")
    }
    assert ("the residual is a rough guide" in repr(found["residual"])) == (name == "regulator")  # its samples follow θ
    ends = at_end(problem, {kind: f.method for kind, f in found.items()}, metric, steps, seeds=100)
    assert ends["residual"] <= 1.5 * ends[metric]


def test_one_instance_per_seed_and_a_wrapped_method():
    problem = jax.tree_util.Partial(
        tc.problems.random_policy_evaluation, states=4, actions=2, features=2, operator="td"
    )
    method = tc.Polyak(tc.Standard(tc.Power(1.0, p=0.5, shift=50.0), 0.0))
    found = tc.tune(problem, method, {"method.alpha.c": (0.01, 1.0)}, steps=200, rungs=1)
    assert found.method.method.alpha.c == found.settings["method.alpha.c"]


def test_diverged_settings_rank_last():
    found = tc.tune(ONE, FAST, {"alpha.c": (0.1, 1e8)}, steps=400, rungs=2)
    assert found.ranking["diverged"].iloc[0] == 0
    for _, rung in found.ranking.groupby("rung"):
        assert rung["diverged"].is_monotonic_increasing
    assert found.ranking["diverged"].max() == 1
    with pytest.raises(tc.InputError, match="`space` has no setting that does not diverge"):
        tc.tune(ONE, FAST, {"alpha.c": (1e7, 1e8)}, steps=400, rungs=1)


def everywhere(method, steps):
    k = np.arange(steps + 1)
    a, b, lam = (np.asarray(jax.vmap(s)(k)) for s in (method.alpha, method.beta, method.lam))
    return bool(np.all(a <= b) and np.all(b <= lam) and np.all(lam <= 1))


def test_candidates_satisfy_the_order_only_if_asked():
    space = {"alpha.c": (0.1, 10.0), "alpha.p": (0.5, 1.0), "beta.c": (0.1, 10.0), "lam.shift": (5.0, 2000.0)}
    points = Proposals(FAST, 5000, True, True, 0).spread(space, 64)
    methods = [with_settings(FAST, point) for point in points]
    assert all(everywhere(method, 5000) for method in methods)
    anything = [with_settings(FAST, point) for point in Proposals(FAST, 5000, False, True, 0).spread(space, 64)]
    assert keeps_order(anything, 5000).tolist() == [everywhere(method, 5000) for method in anything]
    assert not keeps_order(anything, 5000).all()
    assert all(float(method.lam(0)) <= 1 for method in anything)  # a weight above 1 is no average


@pytest.mark.parametrize(
    ("method", "fast", "ok"),
    [
        (tc.Standard(0.1, 0.2), True, True),
        (tc.Standard(0.2, 0.1), True, False),
        (tc.Standard(0.2, 0.0), False, True),  # ω has no entries
        (tc.Fast(0.1, 0.0, 0.05), False, False),
        (tc.Fast(0.1, 0.2, 0.1), True, False),
        (tc.Fast(0.1, 0.2, 0.3, lam_g=0.1), True, False),
        (tc.Polyak(tc.Fast(0.2, 0.1, 0.3)), True, False),
        (tc.Fast("1/(k+1)", "1/(k+10)", "2/(k+2)"), True, False),
        (tc.Fast(tc.Power(0.1, p=0.5), 0.2, lambda k: 0.3), True, True),
        (tc.methods.Lstd(), True, True),
    ],
)
def test_keeps_order(method, fast, ok):
    assert keeps_order([method], 1000, fast).tolist() == [ok]


def test_candidates_are_spread_evenly_on_a_log_scale():
    points, other = (Proposals(FAST, 100, False, True, seed).spread({"alpha.c": (0.01, 100.0)}, 128) for seed in (0, 1))
    logs = np.sort([math.log10(p["alpha.c"]) for p in points[1:]])
    np.testing.assert_allclose(logs, np.linspace(-2, 2, 127), atol=0.1)
    assert points[0] == {"alpha.c": 1.0}
    assert points[1:] != other[1:]


def test_recombined_candidates_lie_between_good_ones():
    box = {"alpha.c": (0.01, 100.0), "beta.c": (0.01, 100.0)}
    ridge = [{"alpha.c": c, "beta.c": 2 * c} for c in (0.5, 0.8, 1.0, 1.7, 4.0)]
    new = Proposals(FAST, 100, False, True, 0).recombine(ridge, box, 8, 0)
    assert len(new) == 8
    assert all(point["beta.c"] == pytest.approx(2 * point["alpha.c"], rel=0.02) for point in new)
    assert all(0.5 / 3 < point["alpha.c"] < 4 * 3 for point in new)


@pytest.mark.usefixtures("long_walks")
def test_gradient_td_wins_without_the_order():
    """On Boyan's chain TDC needs β ≪ α; with α ≤ β the best of the same box is hundreds of times worse."""
    problem, box = tc.problems.boyan(), {"alpha.c": (0.02, 200.0), "beta.c": (0.08, 800.0)}
    found = tc.tune(problem, tc.Standard(), steps=5000)
    assert at_end(problem, {"": found.method}, "error", 5000)[""] < 0.3
    both = tc.tune(problem, tc.Standard(), box, steps=5000, order="both")
    assert both.best_label == "any order"
    assert both.ranking["score"].iloc[0] < 0.3
    assert both.ranking["ratio_low"].iloc[1] > 20
    kept = both["α ≤ β ≤ λ"].method
    assert keeps_order([kept], 5000).all()


NARROW = {"alpha.c": (0.001, 0.01)}


def test_a_winner_at_the_edge_is_reported_and_the_box_can_widen(found):
    """A step size far too small: the score falls up to the upper limit, and a wider box finds what a good one does."""
    stuck = tc.tune(ONE, FAST, NARROW, steps=400, rungs=3)
    assert stuck.edge == {"alpha.c": "high"}
    assert repr(stuck).endswith("alpha.c at the upper edge of its box: try widen=True)")
    assert stuck.plot().axes[0].get_title() == "at the edge of its box"
    grown = tc.tune(ONE, FAST, NARROW, steps=400, rungs=3, widen=True)
    assert grown.edge == {}
    assert "edge" not in repr(grown)
    assert grown.plot().axes[0].get_title() == ""
    assert grown.spec["given"] == NARROW
    assert grown.spec["space"]["alpha.c"][0] == 0.001
    assert grown.spec["space"]["alpha.c"][1] >= 1
    assert grown.spec["spent"] <= grown.spec["budget"]
    errors = at_end(ONE, {"grown": grown.method, "found": found.method}, "error", 400)
    assert errors["grown"] <= 1.2 * errors["found"]


def test_edges_are_a_tenth_of_the_log_range_and_widening_doubles_it():
    box = {"alpha.c": (1.0, 100.0), "beta.c": (1.0, 100.0), "alpha.p": (0.5, 1.0), "lam.p": (0.25, 0.5)}
    at = {"alpha.c": 1.5, "beta.c": 2.0, "alpha.p": 1.0, "lam.p": 0.5}
    # p ends at 1: there is nothing beyond
    assert at_edge(FAST, at, box) == {"alpha.c": ("low", (0.01, 100.0)), "lam.p": ("high", (0.25, 1.0))}


def test_the_default_box_surrounds_the_methods_own_steps():
    box = default_box(FAST, fast=True)
    assert box["alpha.c"] == (0.01, 100.0)
    assert box["beta.c"] == (0.04, 400.0)
    assert box["lam.c"] == (2.0, 50.0)  # λ ≤ 1 at the start, and λ keeps its shift
    assert box["alpha.shift,beta.shift"] == (5.0, 5000.0)
    assert set(default_box(tc.Polyak(tc.Standard(0.1, 0.2)), fast=False)) == {"method.alpha.c"}
    with pytest.raises(tc.InputError, match="`space` is needed: Lstd has no step size"):
        default_box(tc.methods.Lstd(), fast=True)


def test_several_methods_get_equal_budgets_and_are_compared_on_fresh_seeds(found):
    rivals = {"fast": FAST, "slow": tc.Fast(tc.Power(1e-3, shift=50.0), FAST.beta, FAST.lam)}
    spaces = {"fast": SPACE, "slow": {"alpha.c": (1e-4, 1e-2)}}
    both = tc.tune(ONE, rivals, spaces, steps=400, rungs=3)
    assert list(both) == ["fast", "slow"]
    assert both.ranking["label"].tolist() == ["fast", "slow"]
    assert both.best is both["fast"]
    assert both.best.ranking.equals(found.ranking)  # as if alone: the budget is for each
    assert both.ranking["spent"].nunique() == 1
    assert (both.ranking["spent"] <= both.spec["budget"]).all()
    fresh = tc.solve(ONE, both.methods, 400, range(1_000_032, 1_000_048), marks=[400])
    ends = [fresh[label].history["error"].mean() for label in both.ranking["label"]]
    np.testing.assert_allclose(both.ranking["score"], ends, rtol=1e-9)
    assert both.ranking["ratio"].iloc[1] == pytest.approx(ends[1] / ends[0])
    assert both._repr_html_().count("<tr>") == 1 + len(both)
    lines = repr(both).splitlines()
    assert lines[1].startswith("  1. fast: ")
    assert "alpha.c at the upper edge of its box" in lines[2]
    assert len(both.plot().axes[0].get_yticks()) == 2


def one_number(c):
    return with_settings(FAST, {"alpha.c": c})


def test_a_function_of_numbers_is_tuned_by_its_arguments(found):
    made = tc.tune(ONE, one_number, {"c": (0.05, 50.0)}, steps=400, rungs=3)
    assert set(made.settings) == {"c"}
    assert made.method.alpha.c == made.settings["c"]
    assert str(made.method.beta) == str(FAST.beta)
    assert made.settings["c"] == pytest.approx(found.settings["alpha.c"], rel=0.3)
    assert made.ranking["score"].iloc[0] == pytest.approx(found.ranking["score"].iloc[0], rel=0.1)
    assert float(f"{math.sqrt(0.05 * 50):.3g}") in made.ranking["c"].tolist()  # the middle of the box
    assert made.spec["method"] == {"name": "one_number"}


def test_the_box_of_a_function_widens_and_functions_are_compared_with_methods():
    narrow = {"c": (0.05, 0.1)}
    found = tc.tune(
        ONE, {"a function": one_number, "a method": FAST}, {"a function": narrow, "a method": SPACE}, steps=400,
        rungs=2, widen=True,
    )  # fmt: skip
    assert found["a function"].settings["c"] > 0.1
    assert found["a function"].spec["space"]["c"][1] > 0.1
    assert found["a function"].spec["given"] == narrow
    assert set(found.ranking["label"]) == {"a function", "a method"}


def test_a_function_may_build_its_transformations_anew():
    """No two settings share a program then: each is scored by its own, and ranked by its own step sizes."""

    def clipped(c, d):
        return tc.Fast(
            lambda k: c / (jnp.asarray(k, float) + 50), "4/(k+50)", transform_theta=optax.clip_by_global_norm(d)
        )

    found = tc.tune(ONE, clipped, {"c": (0.05, 50.0), "d": (0.1, 10.0)}, steps=50, rungs=1)
    row = found.ranking.iloc[0]
    errors = at_end(ONE, {"": clipped(row["c"], row["d"])}, "error", 50, range(1_000_000, 1_000_016))
    assert row["score"] == pytest.approx(errors[""], rel=1e-9)
    assert found.ranking["score"].nunique() == len(found.ranking)


def test_the_area_is_that_under_the_mean_curve_on_log_log_axes():
    found = tc.tune(ONE, FAST, SPACE, steps=400, rungs=1, by="area")
    marks = marks_of("area", 400)
    assert marks[0] == 4
    assert marks[-1] == 400
    assert len(marks) == 21
    history = tc.solve(ONE, found.method, 400, range(1_000_000, 1_000_016), marks=marks).history
    curve = history.groupby("step")["error"].mean().loc[marks]
    assert found.ranking["score"].iloc[0] == pytest.approx(np.exp(np.log(curve).mean()), rel=1e-9)
    assert "over the last decades of 400 steps" in repr(found)


def test_scores_of_curves():
    """Two settings, two seeds, two marks; means 2, 8 and 1, 0: the second reaches zero, which counts as very little."""
    curves = np.array([[[1.0, 8.0], [3.0, 8.0]], [[1.0, 0.0], [1.0, 0.0]]])
    scores = ScoreTable(curves, np.zeros((2, 2), bool))
    np.testing.assert_allclose(scores.scores(), [4.0, np.sqrt(1.0 * 1e-16)])
    lost = ScoreTable(curves, np.array([[False, False], [True, False]]))
    assert lost.best_first().tolist() == [0, 1]
    one = ScoreTable(np.array([[[1.0], [np.inf]]]), np.zeros((1, 2), bool)).rows(0)[0]
    assert math.isinf(one["score"])
    assert math.isinf(one["high"])


def test_a_noisy_estimate_does_not_win():
    """Without truth a setting far away may be estimated at −1000, give or take 10,000; one at 1 ± 0.1 wins."""
    values, noise = np.array([[-2000.0, 0.0], [1.1, 0.9]]), np.array([[1e4, 1e4], [0.1, 0.1]])
    scores = ScoreTable(values[..., None], np.zeros((2, 2), bool), noise=noise)
    assert scores.best_first().tolist() == [1, 0]
    assert ScoreTable(values[..., None], np.zeros((2, 2), bool)).best_first().tolist() == [0, 1]


def guess(measure):
    return tc.problems.custom(
        F=lambda t, w, x: w - 1, G=lambda t, w, x: w - t + x, noise=lambda key: jax.random.normal(key),
        theta=0.0, omega=0.0, measure=measure,
    )  # fmt: skip


def test_a_metric_that_is_no_error_is_not_chosen_by_default():
    problem = guess(lambda t, w: {"estimate": t, "value": -t})
    options = {"steps": 340, "rungs": 1}
    assert tc.tune(problem, FAST, SPACE, **options).metric == "residual"
    assert tc.tune(problem, FAST, SPACE, metric="value", **options).metric == "value"
    assert tc.tune(guess(lambda t, w: {"value": t, "gap": t**2}), FAST, SPACE, **options).metric == "gap"


def tune(problem=ONE, method=FAST, space=SPACE, **options):
    return tc.tune(problem, method, space, **{"steps": 100, **options})


CASES = {
    "empty space": (lambda: tune(space={}), "`space` must map settings to"),
    "a list": (lambda: tune(space=["alpha.c"]), "`space` must map settings to"),
    "no box to build": (lambda: tune(method=tc.methods.Lstd(), space=None), "`space` is needed: Lstd has no step size"),
    "low above high": (lambda: tune(space={"alpha.c": (2, 1)}), r"`alpha.c` must have 0 < low < high, .* got \(2, 1\)"),
    "not positive": (lambda: tune(space={"alpha.c": (0, 1)}), r"`alpha.c` must have 0 < low < high"),
    "infinite": (lambda: tune(space={"alpha.c": (1, math.inf)}), r"`alpha.c` must have 0 < low < high"),
    "one number": (lambda: tune(space={"alpha.c": 1.0}), r"`alpha.c` must be given as \(low, high\), got 1.0"),
    "three numbers": (lambda: tune(space={"alpha.c": (1, 2, 3)}), r"`alpha.c` must be given as \(low, high\)"),
    "unknown": (lambda: tune(space={"alhpa.c": (1, 2)}), r"`alhpa.c` is not a setting of Fast; did you mean `alp"),
    "not a number": (lambda: tune(space={"alpha": (1, 2)}), "`alpha` is not a number and cannot be tuned; try alpha.c"),
    "against the field's rule": (lambda: tune(space={"alpha.p": (0.5, 2)}), r"`Power\(p=…\)` must lie in \[0, 1\]"),
    "no order": (
        lambda: tune(space={"alpha.c": (1e3, 1e4)}, order=True), "`space` has too few settings with α ≤ β ≤ λ ≤ 1: 0 of"
    ),
    "small budget": (lambda: tune(budget=1000), "`budget` must be at least .* for rungs=4 at steps=100, .* got 1000"),
    "budget text": (lambda: tune(budget="much"), "`budget` must be at least .*, got 'much'"),
    "metric": (lambda: tune(metric="regret"), "`metric` must be one of error, .*residual, got 'regret'"),
    "rungs": (lambda: tune(rungs=0), "`rungs` must be a whole number from 1 to 10, got 0"),
    "seed": (lambda: tune(seed=-1), "`seed` must be a whole number from 0"),
    "steps": (lambda: tune(steps=0), "`steps` must lie in 1"),
    "no problem": (lambda: tune(problem=3), "`problem` must have init, noise, draw, F and G"),
    "no F": (lambda: tune(problem=object()), "`problem` must have init, noise, draw, F and G"),
    "order": (lambda: tune(order="alpha"), "`order` must be False or True or 'both', got 'alpha'"),
    "by": (lambda: tune(by="mean"), "`by` must be 'end' or 'area', got 'mean'"),
    "widen": (lambda: tune(widen=3), "`widen` must be None or False or True, got 3"),
    "no methods": (lambda: tune(method={}), "`method` must name at least one method"),
    "a class": (lambda: tune(method=tc.Fast), "`method` must be a method, got the class Fast; call it"),
    "a label": (lambda: tune(method={1: FAST}), "`method` must map text labels to methods, got the label 1"),
    "another label": (
        lambda: tune(method={"a": FAST, "b": FAST}, space={"a": SPACE}), "`space` must have an entry for each method"
    ),
    "a setting of one": (
        lambda: tune(method={"a": FAST, "b": tc.Standard()}, space={"lam.c": (1, 2)}),
        r"`lam.c` is not a setting of Standard; .* \(for the method 'b'\)",
    ),
    "a function without a space": (
        lambda: tune(method=one_number, space=None), "`space` is needed for a function that makes a method: one_number"
    ),
    "not an argument": (
        lambda: tune(method=one_number, space={"d": (1, 2)}), "`space` must name the arguments of one_number that have"
    ),
    "makes no method": (lambda: tune(method=lambda c: c, space={"c": (1, 2)}), "must have init, step and estimate"),
    "a function that fails": (
        lambda: tune(method=lambda c: 1 / 0, space={"c": (1, 2)}), r"<lambda> fails at \{'c': 1.41\}, ZeroDivisionError"
    ),
    "a function that fails at some settings": (
        lambda: tune(method=lambda c: FAST if c < 3 else 1 / 0, space={"c": (1, 4)}), r"<lambda> fails at \{'c': \d"
    ),
    "a function that makes no method at some settings": (
        lambda: tune(method=lambda c: FAST if c < 3 else None, space={"c": (1, 4)}), "what <lambda> returns` must"
    ),
    "a path that is no text": (lambda: tune(space={1: (1, 2)}), "`space` must map settings to"),
    "a function's limits": (lambda: tune(method=one_number, space={"c": (2, 1)}), "`c` must have 0 < low < high"),
    "negative": (lambda: tune(method=one_number, space={"c": (-1, 1)}), "`c` must have 0 < low < high"),
    "area without truth": (lambda: tune(metric="residual", by="area"), "`by='area'` needs a metric with known truth"),
    "area of a sign": (
        lambda: tune(guess(lambda t, w: {"value": t - 9}), metric="value", by="area"),
        "`by='area'` needs a metric that is never negative, and 'value' is; use by='end'",
    ),
    "a projection": (
        lambda: tune(method=tc.Fast(project_theta=lambda t: t), metric="residual"),
        "the residual says nothing here: `project_theta` keeps a variable in a set",
    ),
    "bound": (lambda: tune(bound=-1.0), "`bound` must be positive"),
    "engine": (lambda: tune(engine="fortran"), "`engine` has no 'fortran'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_argument_is_one_line(case):
    make, words = CASES[case]
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_ctrl_c_is_not_lost_inside_a_function_of_the_garbage_collector(monkeypatch):
    """Python ignores what is raised there, and JAX has such a function."""
    check, before = ProblemObjective.check, signal.getsignal(signal.SIGINT)

    def strike(phase, info):
        gc.callbacks.remove(strike)
        os.kill(os.getpid(), signal.SIGINT)

    def check_and_collect(self, methods, seeds):
        gc.callbacks.append(strike)
        gc.collect()
        check(self, methods, seeds)

    monkeypatch.setattr(ProblemObjective, "check", check_and_collect)
    with pytest.raises(KeyboardInterrupt, match="stopped while tuning"):
        tc.tune(ONE, tc.Fast(), SPACE, steps=200, rungs=2)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("space", [None, {"beta.1.c": (1.0, 10.0), "alpha.c": (0.3, 3.0)}])
def test_each_level_of_omega_is_tuned_and_keeps_the_order(space):
    problem = tc.problems.custom(
        F=lambda t, w, x: t - 0.5 * w[0] + x[0],
        G=(lambda t, w, x: w[0] - 0.5 * t - 0.3 * w[1] + x[1], lambda t, w, x: w[1] - 0.2 * t + x[2]),
        noise=lambda key: jax.random.normal(key, (3,)), theta=1.0, omega=(0.0, 0.0),
    )  # fmt: skip
    start = tc.Fast("1/(k+20)", ("4/(k+20)", "8/(k+20)"), "20/(k+20)", lam_g=("20/(k+20)", "16/(k+20)"))
    found = tc.tune(problem, start, space, steps=200, metric="residual", rungs=2, order=True).method
    if space is None:
        assert len({found.lam_g.entries[0], found.lam_g.entries[1], start.lam_g.entries[0]}) == 3
    assert keeps_order([found], 200).all()
    wrong = tc.Fast("1/(k+20)", ("4/(k+20)", "0.5/(k+20)"), "20/(k+20)", lam_g=start.lam_g)
    assert keeps_order([start, wrong], 200).tolist() == [True, False]
