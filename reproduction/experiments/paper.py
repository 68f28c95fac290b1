"""What the paper says of its simulations and rates, judged as its authors would draw it; `exact` has the rest."""

import dataclasses
from collections.abc import Mapping
from functools import partial

import numpy as np

import twoclock as tc
from reproduction.comparisons import BAND, Paired, at_least, join_words, last_ratio, number
from reproduction.experiment import Case, Claim, Measured, Records, words_of
from reproduction.experiments import fig1, fig2_settings, mdp, table1, theorems
from reproduction.experiments.fig1 import FAST, TD, TDC
from reproduction.tuned_settings import settings
from reproduction.verdicts import (
    NOT_REPRODUCED,
    ONLY_WHERE,
    REPRODUCED,
    Verdict,
    above,
    all_of,
    below,
    decide,
    decide_each,
    keep_seeds,
    only_where,
)
from twoclock import Method, Problem, Result, plot
from twoclock.intervals import Estimate, MeanCurve

TITLE = "The paper's simulations and rates"
ALT = {
    "paper-figures": "Figures 1 and 2 as their authors would draw them: common steps for all methods, linear axes.",
    "paper-table1": "Table 1 where its claim is: error of Fast and of standard against steps with kinked coupling.",
}
JUDGED = {
    "paper-figures": {
        "fig1-tdc": "Figure 1, against TDC", "fig1-td": "Figure 1, against TD(0)", "fig2": "Figure 2",
    },
    "paper-table1": {
        "table1-strongly-convex": "Table 1, strongly convex", "table1-flat": "Table 1, PL",
        "table1-non-convex": "Table 1, non-convex",
    },
}  # fmt: skip
STEPS = {"constant": "constant steps", "tuned": "Fast's tuned steps"}
SOONEST = 10_000  # Figures 1 and 2: from here on a lead counts as convergence that is faster


SGD = "SGD with the oracle H"
# The two common settings of Figure 2: constant steps, and the schedules that Fast was tuned to.
COMMON = {"constant": "α = 2e-4, β = 2e-3, λ = 0.1", "tuned": "Fast's tuned α and β"}
CORRELATIONS = {0.0: "independent", 1.0: "one draw", -1.0: "opposite"}
ROWS = {"strongly-convex": "strongly-convex", "flat": "pl", "non-convex": "non-convex"}  # shape → row of Table 1
# Temperature 0: steps ∝ k^-½.
COLD = tc.Fast(tc.Power(0.5, p=0.5, shift=400), tc.Power(2.0, p=0.5, shift=400), tc.Power(5.0, p=0.5, shift=400))


def table1_problem(shape: str, coupling: str, correlation: float) -> Problem:
    """A problem of Table 1; the correlation is a number of the program, so that all three share one."""
    made = tc.problems.rates(shape, coupling, dim=2 if shape == "flat" else 1, correlation=0.0)
    return dataclasses.replace(made, correlation=np.float64(correlation))


def cases(quick: bool) -> dict[str, Case]:
    """Few programs, shared by many cases, in sizes chosen from measured cost."""
    return {**_linear_and_nonlinear(quick), **_regulator(quick), **_rows(quick), **_mdps(quick)}


def _linear_and_nonlinear(quick: bool) -> dict[str, Case]:
    """Figure 1 with both readings of the factor 2, and TDC's rates.

    F without the factor 2 is F with half of α, and TD(0) is TDC whose ω stays 0: so all are numbers of two programs.
    """
    steps, seeds = (100_000, 60) if quick else (1_000_000, 100)
    half, printed = 2.5e-4, fig1.printed(FAST)
    assert isinstance(printed, tc.Fast)
    methods: dict[str, Method] = {
        f"{FAST}, factor 2": printed,
        f"{TDC}, factor 2": fig1.printed(TDC),
        f"{FAST}, factor 1": dataclasses.replace(printed, alpha=tc.Constant(half)),
        f"{TDC}, factor 1": tc.Standard(half, 2e-3),
        TD: tc.Standard(half, 0.0),
        f"{FAST}, tuned": fig1.tuned(FAST, "50"),
        f"{TDC}, tuned": fig1.tuned(TDC, "50"),
    }
    root = theorems.ROOT
    return {
        "fig1": Case(fig1.source("50", "tdc"), methods, steps, seeds, title="Figure 1, linear values"),
        "markov": Case(
            fig1.source("50", "tdc", "markov"), {FAST: methods[f"{FAST}, tuned"]}, steps, seeds,
            title="linear values, one trajectory",
        ),
        "nonlinear": Case(
            theorems.walk(), {FAST: root, TDC: tc.Standard(root.alpha, root.beta)}, 2 * steps if quick else steps,
            100 if quick else 200, title="nonlinear values",
        ),
    }  # fmt: skip


def _regulator(quick: bool) -> dict[str, Case]:
    problem, fast = tc.problems.paper_lqr(), fig2_settings.tuned(fig2_settings.FAST)
    alpha, beta, lam = (tc.Power(value, p=0.0) for value in (2e-4, 2e-3, 0.1))
    assert isinstance(fast, tc.Fast)
    common: dict[str, Method] = {
        "constant: Fast": tc.Fast(alpha, beta, lam), "constant: Standard": tc.Standard(alpha, beta),
        "tuned: Fast": fast, "tuned: Standard": tc.Standard(fast.alpha, fast.beta),
    }  # fmt: skip
    names = (fig2_settings.FAST, fig2_settings.TWO)
    return {
        "fig2": Case(problem, common, 30_000, 400, title="Figure 2, common steps"),
        "lqr": Case(
            problem, {name: fig2_settings.tuned(name) for name in names}, 100_000 if quick else 1_000_000,
            100 if quick else 300, title="the paper's regulator, tuned steps",
        ),
        "map": Case(
            problem, {name: m for name, m in fig2_settings.grid().items() if name.split()[1] in ("standard", "0.1")},
            *((5_000, 40) if quick else (20_000, 50)), marks=[0], bound=1e6, title="largest safe critic step",
        ),
    }  # fmt: skip


def _rows(quick: bool) -> dict[str, Case]:
    found = {}
    for shape, row in ROWS.items():
        for correlation, words in CORRELATIONS.items():
            if quick and correlation and shape != "strongly-convex":
                continue
            # Non-convex h claims a difference of 0.1 alone, which takes more seeds and steps to see.
            narrow = shape == "non-convex" and correlation == 0
            long = narrow or (correlation == 0 and not quick)
            seeds = (600 if narrow else 300 if long else 400) if not quick else 300 if narrow else 200
            size = (1_000_000 if long else 100_000, seeds)
            found[f"{shape} {words}"] = Case(
                table1_problem(shape, "kinked", correlation), table1.methods(table1.ROWS[row]), *size,
                title=f"Table 1, {shape}, kinked, noise {words}",
            )  # fmt: skip
    size = (100_000, 200) if quick else (1_000_000, 300)
    methods = table1.methods(table1.ROWS["strongly-convex"])
    found["smooth"] = Case(
        table1_problem("strongly-convex", "smooth", 0.0), methods, *size, title="Table 1, strongly convex, smooth"
    )
    for shape, row in ROWS.items():
        sgd: dict[str, Method] = {SGD: table1.methods(table1.ROWS[row])[table1.ONE]}
        problem, same = tc.problems.oracle(table1_problem(shape, "kinked", 0.0)), found[f"{shape} independent"]
        title = f"Table 1, {shape}, SGD with the oracle H"
        found[f"oracle {shape}"] = Case(problem, sgd, same.steps, same.seeds, title=title)
    return found


def _mdps(quick: bool) -> dict[str, Case]:
    steps, seeds = (100_000, 40) if quick else (1_000_000, 120)
    found = {}
    for temp in (1.0, 0.1):
        methods = {name: mdp.method(name, **settings("mdp", f"random {temp:g}", name)) for name in (mdp.FAST, mdp.TWO)}
        source = partial(tc.problems.random_entropy_mdp, temp=temp)
        found[f"mdp {temp:g}"] = Case(source, methods, steps, seeds, title=f"random MDPs, τ = {temp:g}")
    cold: dict[str, Method] = {mdp.FAST: COLD}
    source = partial(tc.problems.random_entropy_mdp, temp=0.0)
    found["mdp 0"] = Case(source, cold, steps, seeds, title="random MDPs without entropy")
    return found


def draw(records: Records) -> dict[str, plot.Figure]:
    """Figures 1 and 2 with the mean of the seeds above, with the first seed alone below; and Table 1."""
    fig, axes = plot.figure(2, 3, width=3.9, height=3.4)
    for row, one in zip(axes, (False, True), strict=True):
        for ax, factor in zip(row, (2, 1), strict=False):
            _figure_1(ax, records, factor, one)
            ax.set(title=f"Figure 1, factor {factor} in F, {'one MDP' if one else 'mean of the MDPs'}")
        _figure_2(row[2], records, one)
        row[2].set(title=f"Figure 2, {'one run' if one else 'mean of the runs'}")
    for ax in axes.flat:
        ax.title.set_fontsize("medium")
        ax.legend(frameon=False, fontsize="x-small")
    plot.caption(
        fig,
        f"The paper's methods alone, the same steps for all, as its Appendix D has it. Figure 2: {COMMON['constant']}; "
        "its steps, σ, K₀ and horizon are not in the paper. Bands: 95 %. Longer runs, tuned steps: the next sections.",
    )
    second, axes = plot.figure(1, 3, width=3.9, height=3.4)
    for ax, (shape, row_name) in zip(axes[0], ROWS.items(), strict=True):
        runs = {**records[f"{shape} independent"], **records[f"oracle {shape}"]}
        plot.curves(ax, runs, table1.ROWS[row_name].metric)
        ax.set_title(f"{table1.STRUCTURES[row_name]}, kinked", fontsize="medium")
        ax.legend(frameon=False, fontsize="x-small")
    plot.caption(
        second, "Independent noise in F and G; all methods start from the same α and β. The oracle H knows ω*(θ)."
    )
    return {"paper-figures": fig, "paper-table1": second}


def printed(records: Records, factor: int = 2) -> dict[str, Result]:
    """The three curves of Figure 1, with or without the factor 2 in TDC's F."""
    found = records["fig1"]
    return {FAST: found[f"{FAST}, factor {factor}"], TDC: found[f"{TDC}, factor {factor}"], TD: found[TD]}


def _figure_1(ax: plot.Axes, records: Records, factor: int = 2, one: bool = False) -> None:
    _early(ax, printed(records, factor), "error", one)


def _figure_2(ax: plot.Axes, records: Records, one: bool = False) -> None:
    both = {label.split(": ")[1]: result for label, result in records["fig2"].items() if label.startswith("constant")}
    _early(ax, both, "gap", one)


def _early(ax: plot.Axes, runs: Mapping[str, Result], metric: str, one: bool) -> None:
    """The first 3,000 steps on linear axes."""
    shown = {label: keep_seeds(run, np.arange(len(run.diverged)) == 0) if one else run for label, run in runs.items()}
    plot.curves(ax, shown, metric)
    ax.set(xscale="linear", yscale="linear", xlim=(0, 3000))


def _table_1(ax: plot.Axes, records: Records) -> None:
    plot.curves(ax, records["strongly-convex independent"], "error")


# The summary's panels: the figures as their authors would draw them, and Table 1 where its claim is.
PANELS = {
    "Fig. 1": (_figure_1, "fig1-tdc"), "Fig. 2": (_figure_2, "fig2"),
    "Table 1": (_table_1, "table1-strongly-convex"),
}  # fmt: skip


def advice(records: Records) -> list[str]:
    """Steps of one order: Fast's error over standard's with Fast's exponents, and with its own."""
    results = records["strongly-convex independent"]
    one, two = (last_ratio(results[table1.FAST], results[name], "error") for name in (table1.ONE, table1.TWO))
    return [
        "Give both variables steps of one order, α and β ∝ 1/k; where the coupling has a kink Fast's error ends at "
        f"{one.value:.2f} times that of `tc.Standard` with such steps, and at {two.value:.2g} times its error with two "
        "time scales."
    ]


def claims(records: Records) -> list[Claim]:
    return [*_figures(records), *_policy_evaluation(records), *_policies(records), *_table1(records)]


def _claim(
    name: str,
    numbers: Mapping[str, Measured],
    verdict: str,
    finding: str,
    cases: tuple[str, ...],
    needs: int = 0,
    short: str = "",
) -> Claim:
    speed = name.startswith(("fig", "table1", "lqr-improves", "mdp-improves"))
    words = words_of("paper", name)
    return Claim(
        name, **words, numbers=numbers, verdict=verdict, cases=cases, speed=speed, finding=finding, halves=False,
        needs=needs, short=short,
    )  # fmt: skip


def _lead(ours: Result, theirs: Result, metric: str) -> tuple[dict[int, float], str, int]:
    """The rule of both figures: the ratio Fast/rival at each mark, the verdict, and how many seeds are left out."""
    lost = ours.diverged | theirs.diverged
    ours, theirs = (keep_seeds(result, ~lost) for result in (ours, theirs))
    pair = Paired.of(ours, theirs, metric, first=100)
    at = dict(zip(pair.steps.tolist(), pair.ratio.tolist(), strict=True))
    return at, pair.verdict(SOONEST), int(lost.sum())


def _readings(name: str, cases: tuple[str, ...], metric: str, pairs: Mapping[str, tuple[Result, Result]]) -> Claim:
    """A figure's claim, judged in each way to read the paper."""
    found = {words: _lead(ours, theirs, metric) for words, (ours, theirs) in pairs.items()}
    numbers: dict[str, Measured] = {
        f"{words}: Fast / rival at {k:,}": round(at[k], 3)
        for words, (at, *_) in found.items()
        for k in (501, 1000, 1995, 5012, 10_000)
        if k in at
    }
    said = []
    for words, (at, _, lost) in found.items():
        best, last = min(at, key=at.__getitem__), max(at)
        numbers[f"{words}: Fast / rival at the end"] = round(at[last], 3)
        gone = f", {lost} seeds with a diverged run left out" if lost else ""
        said.append(f"{at[best]:.2f} at best, at k = {best:,}, and {at[last]:.3g} at {last:,} ({words}{gone})")
    held = {words: verdict for words, (_, verdict, _) in found.items() if verdict != NOT_REPRODUCED}
    where = [f"{verdict.removeprefix(ONLY_WHERE)} ({words})" for words, verdict in held.items()]
    verdict = only_where(", ".join(where).replace(REPRODUCED, f"k ≥ {SOONEST:,}")) if held else NOT_REPRODUCED
    if len(held) == len(found) and set(held.values()) == {REPRODUCED}:
        verdict = REPRODUCED
    ends = [at.steps[1] for at in held.values() if isinstance(at, Verdict) and at.steps]
    short = f"Fast leads until k ≈ {ends[0]:,.0f}" if ends else "Fast leads" if held else "Fast leads nowhere"
    return _claim(name, numbers, verdict, f"Fast's error over the rival's is {'; '.join(said)}.", cases, short=short)


def _figures(records: Records) -> list[Claim]:
    shown = {f"factor {factor}": printed(records, factor) for factor in (2, 1)}
    found = [
        _readings(name, ("fig1",), "error", {words: (runs[FAST], runs[rival]) for words, runs in shown.items()})
        for name, rival in (("fig1-tdc", TDC), ("fig1-td", TD))
    ]
    runs = records["fig2"]
    common = {words: (runs[f"{name}: Fast"], runs[f"{name}: Standard"]) for name, words in STEPS.items()}
    found.append(_readings("fig2", ("fig2",), "gap", common))
    safe = {}
    for label in ("standard", "0.1"):
        lost = {float(name.split()[0]): r.diverged.mean() for name, r in records["map"].items() if name.endswith(label)}
        safe[label] = max((beta for beta, share in lost.items() if share <= 0.05), default=0.0)
    said = f"Fast's largest safe critic step is {safe['0.1']:g}, standard's {safe['standard']:g}."
    numbers = {"Fast": safe["0.1"], "standard": safe["standard"]}
    return [*found, _claim("aggressive-steps", numbers, decide(safe["0.1"] > safe["standard"]), said, ("map",))]


def slope_up_to_logs(
    result: Result, metric: str, rate: float, lowest: bool = False
) -> tuple[bool | None, Estimate, int]:
    """Whether m/log^p k falls like k^-rate or faster for some p = 0, 1, 2: the answer, the plain slope, the p."""
    curve = MeanCurve.of(result.history, metric, lowest)
    slope = table1.estimate(*curve.slopes(1.0))
    late = curve.k >= curve.k[-1] / 10
    bend = float(np.polyfit(np.log(curve.k[late]), np.log(np.log(curve.k[late])), 1)[0])
    answers = [below(Estimate(*(float(v) - p * bend for v in slope)), -rate * (1 - BAND)) for p in (0, 1, 2)]
    return (True, slope, answers.index(True)) if True in answers else (answers[-1], slope, 2)


def _rate(records: Records, name: str, metric: str, rate: float, runs: Mapping[str, tuple[str, str]]) -> Claim:
    """That a metric, or for ‖∇h‖² its least mean so far, falls at a rate up to logarithms: words → case and method."""
    held: dict[str, bool | None] = {}
    numbers: dict[str, Measured] = {}
    said = []
    for words, (case, method) in runs.items():
        held[words], slope, p = slope_up_to_logs(records[case][method], metric, rate, lowest=metric == "gradient")
        numbers |= {f"{words}: slope": slope, f"{words}: p": p}
        logs = "" if p == 0 else f", with log{'²' if p == 2 else ''} k allowed for"
        said.append(f"{number(slope)} ({words}{logs})")
    cases = tuple(dict.fromkeys(case for case, _ in runs.values()))
    finding = f"The slope over the last decade is {join_words(said)}."
    return _claim(name, numbers, decide_each(held), finding, cases, 100_000)


def _policy_evaluation(records: Records) -> list[Claim]:
    linear = {name: ("fig1", f"{name}, tuned") for name in (FAST, TDC)}
    return [
        _rate(records, "tdc-rate", "error", 1.0, linear),
        _rate(records, "markov", "error", 1.0, {FAST: ("markov", FAST)}),
        _rate(records, "nonlinear-rate", "gradient", 0.5, {name: ("nonlinear", name) for name in (FAST, TDC)}),
    ]


def _slower(records: Records, name: str, case: str, rival: str) -> Claim:
    """That Fast improves on a rival whose rate is k^-⅔: the rival's slope and the difference."""
    fast, other = (MeanCurve.of(records[case][label].history, "gap").slopes(1.0) for label in ("Fast", rival))
    slope, less = table1.estimate(*other), table1.estimate(other[0] - fast[0], other[1] - fast[1])
    said = "The best bound known before was k^-⅔, and on that the paper improves; the standard method's own slope is "
    said += f"{number(slope)}, less Fast's {number(less)}."
    verdict = decide(all_of(above(slope, -0.8), above(less, 0.0)))
    return _claim(name, {"rival's slope": slope, "less Fast's": less}, verdict, said, (case,), 100_000)


def _policies(records: Records) -> list[Claim]:
    warm = {f"τ = {temp}": (f"mdp {temp}", mdp.FAST) for temp in ("1", "0.1")}
    return [
        _rate(records, "lqr-rate", "gap", 1.0, {"Fast": ("lqr", fig2_settings.FAST)}),
        _slower(records, "lqr-improves", "lqr", fig2_settings.TWO),
        _rate(records, "mdp-rate", "gap", 1.0, warm),
        _slower(records, "mdp-improves", "mdp 1", mdp.TWO),
        _rate(records, "mdp-cold", "gradient", 0.5, {"τ = 0": ("mdp 0", mdp.FAST)}),
    ]


def _table1(records: Records) -> list[Claim]:
    found = []
    for shape, row_name in ROWS.items():
        row = table1.ROWS[row_name]
        held: dict[str, bool | None] = {}
        numbers: dict[str, Measured] = {}
        correlations = [words for words in CORRELATIONS.values() if f"{shape} {words}" in records]
        for words in correlations:
            slopes = {name: table1.curve(result, row).slopes() for name, result in records[f"{shape} {words}"].items()}
            (two, twos), (one, ones) = slopes[table1.TWO], slopes[table1.FAST]
            fast, less = table1.estimate(one, ones), table1.estimate(two - one, twos - ones)
            if words == CORRELATIONS[0.0]:
                short = f"slopes {one:.2f} and {two:.2f}".replace("-", "−")
            held[words] = all_of(at_least(fast, row.fast), above(less, (row.fast - row.two) / 2))
            numbers[f"{words}: Fast"], numbers[f"{words}: standard − Fast"] = fast, less
        own, less_own = (number(numbers[f"independent: {what}"]) for what in ("Fast", "standard − Fast"))
        level = _over_sgd(records, shape)
        numbers["independent: Fast / SGD with the oracle H"] = level
        said = f"With independent noise Fast's slope is {own}, and standard's less Fast's is {less_own}; Fast's "
        said += f"{row.metric} is {level.value:.2g} times that of SGD with the oracle H."
        cases = tuple(f"{shape} {words}" for words in correlations)
        judged = decide_each(held, "the noise is {}")
        found.append(_claim(f"table1-{shape}", numbers, judged, said, cases, short=short))
    row = table1.ROWS["strongly-convex"]
    smooth = table1.estimate(*table1.curve(records["smooth"][table1.TWO], row).slopes())
    said = f"Its slope is {number(smooth)} with independent noise."
    found.append(_claim("remark-1", {"slope": smooth}, decide(at_least(smooth, 1.0)), said, ("smooth",)))
    runs = records["oracle strongly-convex"][SGD], records["strongly-convex independent"][table1.FAST]
    slope, fast = (table1.estimate(*table1.curve(result, row).slopes()) for result in runs)
    level = _over_sgd(records, "strongly-convex")
    said = f"SGD's slope is {number(slope)}, Fast's {number(fast)}; Fast's error is {number(level)} times SGD's."
    verdict = decide(all_of(at_least(slope, 1.0), at_least(fast, 1.0)))
    cases = ("oracle strongly-convex", "strongly-convex independent")
    return [*found, _claim("sgd", {"SGD": slope, "Fast": fast, "Fast's error / SGD's": level}, verdict, said, cases)]


def _over_sgd(records: Records, shape: str) -> Estimate:
    """Fast's metric over that of SGD with the oracle H, where the shorter of the two ends."""
    fast, sgd = records[f"{shape} independent"][table1.FAST], records[f"oracle {shape}"][SGD]
    last = max(set(fast.history["step"]) & set(sgd.history["step"]))
    return last_ratio(fast, sgd, table1.ROWS[ROWS[shape]].metric, int(last))


def captions(records: Records) -> dict[str, str]:
    found = {claim.name: claim.verdict for claim in _figures(records)}
    shown = {"Figure 1 against TDC": "fig1-tdc", "Figure 2": "fig2"}
    table = {claim.name: claim.verdict for claim in _table1(records)}
    rows = "; ".join(f"{table1.STRUCTURES[row]}: {table[f'table1-{shape}']}" for shape, row in ROWS.items())
    figures = "; ".join(f"{name}: {found[key]}" for name, key in shown.items())
    return {"paper-figures": f"{figures}.", "paper-table1": f"{rows}."}
