"""What the paper says of its simulations and rates, judged as its authors would draw it; `exact` has the rest."""

from collections.abc import Mapping

import numpy as np

from reproduction.comparisons import BAND, Paired, at_least, last_ratio, number
from reproduction.experiment import Case, Claim, Measured, Records, words_of
from reproduction.experiments import fig2_settings, mdp, table1
from reproduction.experiments.fig1_settings import FAST, TD, TDC
from reproduction.experiments.paper_cases import COMMON, CORRELATIONS, ROWS, SGD, all_cases
from reproduction.verdicts import REPRODUCED, above, all_of, below, decide, decide_each, keep_seeds, only_for_steps
from twoclock import Result, plot
from twoclock.intervals import Estimate, MeanCurve

TITLE = "The paper's simulations and rates"
ALT = {
    "paper-figures": "Figures 1 and 2 as their authors would draw them: common steps for all methods, linear axes.",
    "paper-table1": "Table 1 where its claim is: error of Fast and of standard against steps with kinked coupling.",
}
JUDGED = {
    "paper-figures": {
        "fig1-tdc-2": "Figure 1, against TDC", "fig1-td-2": "Figure 1, against TD(0)", "fig2-constant": "Figure 2",
    },
    "paper-table1": {
        "table1-strongly-convex": "Table 1, strongly convex", "table1-flat": "Table 1, PL",
        "table1-non-convex": "Table 1, non-convex",
    },
}  # fmt: skip
SOONEST = 10_000  # Figures 1 and 2: from here on a lead counts as convergence that is faster


def cases(quick: bool) -> dict[str, Case]:
    return all_cases(quick)


def draw(records: Records) -> dict[str, plot.Figure]:
    fig, axes = plot.figure(1, 3, width=3.9, height=3.6)
    for ax, factor in zip(axes[0], (2, 1), strict=False):
        plot.curves(ax, printed(records, factor), "error")
        ax.set(xscale="linear", yscale="linear", xlim=(0, 3000), title=f"Figure 1, factor {factor} in TDC's F")
    _figure_2(axes[0, 2], records)
    axes[0, 2].set(title="Figure 2, " + COMMON["constant"])
    for ax in axes[0]:
        ax.title.set_fontsize("medium")
        ax.legend(frameon=False, fontsize="x-small")
    plot.caption(
        fig,
        "The paper's methods alone, the same steps for all, as its Appendix D has it; mean over seeds with 95 % bands. "
        "Figure 2's steps, σ, K₀ and horizon are not in the paper. Longer runs and tuned steps: the next sections.",
    )
    second, axes = plot.figure(1, 3, width=3.9, height=3.4)
    for ax, (shape, row) in zip(axes[0], ROWS.items(), strict=True):
        plot.curves(ax, records[f"{shape} independent"], table1.ROWS[row].metric)
        ax.set_title(f"{table1.STRUCTURES[row]}, kinked", fontsize="medium")
        ax.legend(frameon=False, fontsize="x-small")
    plot.caption(second, "Independent noise in F and G; all methods start from the same α and β.")
    return {"paper-figures": fig, "paper-table1": second}


def printed(records: Records, factor: int = 2) -> dict[str, Result]:
    """The three curves of Figure 1, with or without the factor 2 in TDC's F."""
    found = records["fig1"]
    return {FAST: found[f"{FAST}, factor {factor}"], TDC: found[f"{TDC}, factor {factor}"], TD: found[TD]}


def _figure_1(ax: plot.Axes, records: Records) -> None:
    plot.curves(ax, printed(records), "error")
    ax.set(xscale="linear", yscale="linear", xlim=(0, 3000))


def _figure_2(ax: plot.Axes, records: Records) -> None:
    both = {label.split(": ")[1]: result for label, result in records["fig2"].items() if label.startswith("constant")}
    plot.curves(ax, both, "gap")
    ax.set(xscale="linear", yscale="linear", xlim=(0, 3000))


def _table_1(ax: plot.Axes, records: Records) -> None:
    plot.curves(ax, records["strongly-convex independent"], "error")


# The summary's panels: the figures as their authors would draw them, and Table 1 where its claim is.
PANELS = {
    "Fig. 1": (_figure_1, "fig1-tdc-2"), "Fig. 2": (_figure_2, "fig2-constant"),
    "Table 1": (_table_1, "table1-strongly-convex"),
}  # fmt: skip


def advice(records: Records) -> list[str]:
    """Steps of one order: standard's error with Fast's exponents, and with its own, over Fast's."""
    results = records["strongly-convex independent"]
    one, two = (last_ratio(results[name], results[table1.FAST], "error") for name in (table1.ONE, table1.TWO))
    return [
        f"Give both variables steps of one order, α and β ∝ 1/k: then `tc.Standard` ends at {one.value:.2f} times "
        f"Fast's error where the coupling has a kink, and with two time scales at {two.value:.1f} times."
    ]


def claims(records: Records) -> list[Claim]:
    return [*_figures(records), *_policy_evaluation(records), *_policies(records), *_table1(records)]


def _claim(
    name: str, numbers: Mapping[str, Measured], verdict: str, finding: str, cases: tuple[str, ...], needs: int = 0
) -> Claim:
    speed = name.startswith(("fig", "table1", "lqr-improves", "mdp-improves"))
    words = words_of("paper", name)
    return Claim(
        name, **words, numbers=numbers, verdict=verdict, cases=cases, speed=speed, finding=finding, halves=False,
        needs=needs,
    )  # fmt: skip


def _lead(ours: Result, theirs: Result, metric: str) -> tuple[dict[str, Measured], str, str]:
    """The rule of both figures: the ratios Fast/rival, the verdict, and a sentence."""
    lost = ours.diverged | theirs.diverged
    ours, theirs = (keep_seeds(result, ~lost) for result in (ours, theirs))
    pair = Paired.of(ours, theirs, metric, first=100)
    at = dict(zip(pair.steps.tolist(), pair.ratio.tolist(), strict=True))
    verdict = decide(bool(pair.ahead[pair.steps >= SOONEST].all()))
    lead = pair.longest_lead()
    if verdict != REPRODUCED and len(lead) >= 3:
        verdict = only_for_steps(lead[0], lead[-1])
    shown = (501, 1000, 1995, 5012, 10_000)
    numbers: dict[str, Measured] = {f"Fast / rival at {k:,}": round(at[k], 3) for k in shown if k in at}
    best, last = min(at, key=at.__getitem__), max(at)
    gone = f" {int(lost.sum())} seeds with a diverged run are left out." if lost.any() else ""
    said = f"Fast's error is {at[best]:.2f} times the rival's at best, at k = {best:,}; {at[last]:.3g} at {last:,}."
    said += gone
    return numbers, verdict, said


def _figures(records: Records) -> list[Claim]:
    found = []
    for rival, factor in ((TDC, 2), (TDC, 1), (TD, 2), (TD, 1)):
        shown = printed(records, factor)
        name = f"fig1-{'td' if rival == TD else 'tdc'}-{factor}"
        found.append(_claim(name, *_lead(shown[FAST], shown[rival], "error"), ("fig1",)))
    for name in COMMON:
        fast, standard = (records["fig2"][f"{name}: {label}"] for label in ("Fast", "Standard"))
        found.append(_claim(f"fig2-{name}", *_lead(fast, standard, "gap"), ("fig2",)))
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


def _rate(records: Records, name: str, case: str, method: str, metric: str, rate: float = 1.0) -> Claim:
    """That a metric, or for ‖∇h‖² its least mean so far, falls at a rate up to logarithms."""
    held, slope, p = slope_up_to_logs(records[case][method], metric, rate, lowest=metric == "gradient")
    logs = "" if p == 0 else f", with log{'²' if p == 2 else ''} k allowed for"
    said = f"The slope over the last decade is {number(slope)}{logs}."
    return _claim(name, {"slope": slope, "p": p}, decide(held), said, (case,), 100_000)


def _policy_evaluation(records: Records) -> list[Claim]:
    return [
        _rate(records, "tdc-rate", "fig1", f"{FAST}, tuned", "error"),
        _rate(records, "tdc-matched", "fig1", f"{TDC}, tuned", "error"),
        _rate(records, "markov", "markov", FAST, "error"),
        _rate(records, "nonlinear-rate", "nonlinear", FAST, "gradient", 0.5),
        _rate(records, "nonlinear-matched", "nonlinear", TDC, "gradient", 0.5),
    ]


def _slower(records: Records, name: str, case: str, rival: str) -> Claim:
    """That Fast improves on a rival whose rate is k^-⅔: the rival's slope and the difference."""
    fast, other = (MeanCurve.of(records[case][label].history, "gap").slopes(1.0) for label in ("Fast", rival))
    slope, less = table1.estimate(*other), table1.estimate(other[0] - fast[0], other[1] - fast[1])
    said = f"The standard method's slope is {number(slope)}; less Fast's it is {number(less)}."
    verdict = decide(all_of(above(slope, -0.8), above(less, 0.0)))
    return _claim(name, {"rival's slope": slope, "less Fast's": less}, verdict, said, (case,), 100_000)


def _policies(records: Records) -> list[Claim]:
    return [
        _rate(records, "lqr-rate", "lqr", fig2_settings.FAST, "gap"),
        _slower(records, "lqr-improves", "lqr", fig2_settings.TWO),
        _rate(records, "mdp-rate", "mdp 1", mdp.FAST, "gap"),
        _rate(records, "mdp-rate-cooler", "mdp 0.1", mdp.FAST, "gap"),
        _slower(records, "mdp-improves", "mdp 1", mdp.TWO),
        _rate(records, "mdp-cold", "mdp 0", mdp.FAST, "gradient", 0.5),
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
            held[words] = all_of(at_least(fast, row.fast), above(less, (row.fast - row.two) / 2))
            numbers[f"{words}: Fast"], numbers[f"{words}: standard − Fast"] = fast, less
        own, less_own = (number(numbers[f"independent: {what}"]) for what in ("Fast", "standard − Fast"))
        said = f"With independent noise Fast's slope is {own}, and standard's less Fast's is {less_own}."
        cases = tuple(f"{shape} {words}" for words in correlations)
        found.append(_claim(f"table1-{shape}", numbers, decide_each(held, "the noise is {}"), said, cases))
    row = table1.ROWS["strongly-convex"]
    smooth = table1.estimate(*table1.curve(records["smooth"][table1.TWO], row).slopes())
    said = f"Its slope is {number(smooth)} with independent noise."
    found.append(_claim("remark-1", {"slope": smooth}, decide(at_least(smooth, 1.0)), said, ("smooth",)))
    kinked, sgd = records["strongly-convex independent"], records["oracle"][SGD]
    slope, fast = (table1.estimate(*table1.curve(result, row).slopes()) for result in (sgd, kinked[table1.FAST]))
    marks = set(sgd.history["step"]) & set(kinked[table1.FAST].history["step"])
    level = last_ratio(kinked[table1.FAST], sgd, "error", int(max(marks)))
    said = f"SGD's slope is {number(slope)}, Fast's {number(fast)}; Fast's error is {number(level)} times SGD's."
    verdict = decide(all_of(at_least(slope, 1.0), at_least(fast, 1.0)))
    cases = ("oracle", "strongly-convex independent")
    return [*found, _claim("sgd", {"SGD": slope, "Fast": fast, "Fast's error / SGD's": level}, verdict, said, cases)]


def captions(records: Records) -> dict[str, str]:
    found = {claim.name: claim.verdict for claim in _figures(records)}
    shown = {"Figure 1 against TDC": "fig1-tdc-2", "Figure 2": "fig2-constant"}
    table = {claim.name: claim.verdict for claim in _table1(records)}
    rows = "; ".join(f"{table1.STRUCTURES[row]}: {table[f'table1-{shape}']}" for shape, row in ROWS.items())
    figures = "; ".join(f"{name}: {found[key]}" for name, key in shown.items())
    return {"paper-figures": f"{figures}.", "paper-table1": f"{rows}."}
