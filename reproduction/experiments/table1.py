"""Table 1: the rates of Fast and of the standard method, with and without a kink, and the levels they leave open."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

import twoclock as tc
from reproduction.comparisons import BAND, at_least, join_words, last_means, last_ratio
from reproduction.experiment import Case, Claim, Measured, Records
from reproduction.tuned_settings import decaying, holding
from reproduction.verdicts import above, all_of, below, confirm_verdict, decide_each, kind
from twoclock import Method, Result, plot
from twoclock.intervals import Estimate, MeanCurve

TITLE = "Table 1: measured rates, smooth and kinked coupling"
QUICK = False  # `paper` and `exact` have the paper's claims; this is ours and longer
ALT = {
    f"table1-{dim}d": f"Six panels, three structures of h with smooth and with kinked coupling, dimension {dim}: error "
    "of Fast and of standard with two sets of exponents against steps, slopes in the legends."
    for dim in (1, 4)
} | {
    "table1-levels": "Fast's error over that of standard with Fast's exponents at the end, against λ/β, for smooth and "
    "for kinked coupling; one line for each correlation between the noise of F and of G; dotted: level."
}
FAST, TWO, ONE = "Fast", "Standard, two time scales", "Standard, Fast's exponents"
COUPLINGS = ("smooth", "kinked")
STRUCTURES = {"strongly-convex": "strongly convex", "pl": "PL", "non-convex": "non-convex"}
RATES = {1.0: "1/k", 2 / 3: "1/k^⅔", 0.5: "1/√k", 2 / 5: "1/k^⅖"}
TOLERANCE = 0.05
# The levels: λ/β at the end, and how the noise of F and G is correlated.
RATIOS = (2, 4, 8, 16, 32, 64)
WEIGHTED = {ratio: f"Fast, λ/β = {ratio}" for ratio in RATIOS}
NOISES = {"shared": (1.0, "one draw in F and G"), "independent": (0.0, "independent"), "opposite": (-1.0, "opposite")}
# How far from 1 the ratio of two errors may lie that are called level.
LEVEL = 1.1


class RateRow(NamedTuple):
    """A row of Table 1: what is measured, the exponents of the methods' steps, and the rates they are said to have."""

    metric: str
    fast: float
    two: float
    alpha: float
    beta: float


# Two-time-scale exponents of the standard method: Hong et al. 2023; Zeng, Doan & Romberg 2021.
ROWS: dict[str, RateRow] = {
    "strongly-convex": RateRow("error", fast=1.0, two=2 / 3, alpha=1.0, beta=2 / 3),
    "pl": RateRow("gap", fast=1.0, two=2 / 3, alpha=1.0, beta=2 / 3),
    "non-convex": RateRow("gradient", fast=0.5, two=2 / 5, alpha=3 / 5, beta=2 / 5),
}


class RateKey(NamedTuple):
    """Which problem a slope is fitted on: the structure of h, the coupling and the dimension."""

    h: str
    coupling: str
    dim: int

    @property
    def label(self) -> str:
        return f"{self.h}-{self.coupling}-{self.dim}d"

    @property
    def words(self) -> str:
        return f"{STRUCTURES[self.h]} h, {self.coupling}, dimension {self.dim}"


KEYS = [RateKey(h, coupling, dim) for dim in (1, 4) for h in ROWS for coupling in COUPLINGS]


def methods(row: RateRow) -> dict[str, Method]:
    """All methods start from the same α and β, in the theory's order; only the exponents differ."""
    alpha, beta, lam, shift = (1 / 16, 1 / 8, 1 / 4, 32.0) if row.fast == 1 else (1 / 10, 1 / 5, 1 / 4, 16.0)
    slow, quick = holding(alpha, shift, row.fast), holding(beta, shift, row.fast)
    return {
        FAST: tc.Fast(slow, quick, holding(lam, shift, row.fast), order="paper"),
        TWO: tc.Standard(holding(alpha, shift, row.alpha), holding(beta, shift, row.beta)),
        ONE: tc.Standard(slow, quick),
    }


def level_methods() -> dict[str, Method]:
    """The steps of Table 1 for strongly convex h; only λ differs: it starts at ¼ and ends at ratio·β."""
    alpha, beta = tc.Power(2.0, shift=32.0), tc.Power(4.0, shift=32.0)
    found: dict[str, Method] = {ONE: tc.Standard(alpha, beta)}
    return found | {WEIGHTED[ratio]: tc.Fast(alpha, beta, decaying(4.0 * ratio, 0.25)) for ratio in RATIOS}


def cases(quick: bool) -> dict[str, Case]:
    """One dimension; at full length also four, a tenth as long, so that nothing hangs on the one, and the levels."""
    sizes = {1: (100_000, 100)} if quick else {1: (1_000_000, 120), 4: (100_000, 300)}
    found = {
        key.label: Case(
            tc.problems.rates(key.h, key.coupling, dim=key.dim), methods(ROWS[key.h]), *sizes[key.dim], title=key.words
        )
        for key in KEYS
        if key.dim in sizes
    }
    if not quick:
        for coupling in COUPLINGS:
            for noise, (correlation, words) in NOISES.items():
                found[f"levels-{coupling}-{noise}"] = Case(
                    tc.problems.rates("strongly-convex", coupling, correlation=correlation), level_methods(), 20_000,
                    2_500, marks=[20_000], title=f"levels, strongly convex h, {coupling}, noise {words}",
                )  # fmt: skip
    return found


def curve(result: Result, row: RateRow) -> MeanCurve:
    """The mean of the row's metric; for non-convex h the smallest so far, among the marks: no smaller than over all."""
    return MeanCurve.of(result.history, row.metric, lowest=row.metric == "gradient")


def estimate(slope: float, samples: np.ndarray) -> Estimate:
    """A slope, or a difference of slopes, with its 95 % interval."""
    return Estimate(*(round(float(v), 4) for v in (slope, *np.quantile(samples, (0.025, 0.975)))))


# The slopes of each method in a case, with their bootstrap samples.
Slopes = Mapping[str, tuple[float, np.ndarray]]


def slopes(records: Records) -> dict[RateKey, Slopes]:
    return {
        key: {label: curve(result, ROWS[key.h]).slopes() for label, result in records[key.label].items()}
        for key in KEYS
        if key.label in records
    }


def level_ratios(records: Records) -> dict[tuple[str, str], dict[int, Estimate]]:
    """(coupling, noise) → λ/β → Fast's error over standard's at the end."""
    return {
        (coupling, noise): {ratio: last_ratio(results[WEIGHTED[ratio]], results[ONE], "error") for ratio in RATIOS}
        for coupling in COUPLINGS
        for noise in NOISES
        if (results := records.get(f"levels-{coupling}-{noise}"))
    }


def draw(records: Records) -> dict[str, plot.Figure]:
    dims = sorted({key.dim for key in KEYS if key.label in records})
    found = {f"table1-{dim}d": _draw_rates(records, dim) for dim in dims}
    return found | ({"table1-levels": _draw_levels(records, ratios)} if (ratios := level_ratios(records)) else {})


def _draw_rates(records: Records, dim: int) -> plot.Figure:
    fig, axes = plot.figure(len(COUPLINGS), len(ROWS), width=3.9, height=3.4)
    for i, coupling in enumerate(COUPLINGS):
        for ax, (h, row) in zip(axes[i], ROWS.items(), strict=True):
            results = records[RateKey(h, coupling, dim).label]
            _panel(ax, results, row)
            if row.metric == "gradient":
                ax.set_ylabel("least mean ‖∇h(θ)‖² so far")
            ax.set_title(f"{STRUCTURES[h]}, {coupling}", fontsize="medium")
            # The two rates of the table, from a point above Fast's curve at the start of the fit.
            fast = curve(results[FAST], row)
            fit = fast.k >= fast.k[-1] / 100
            ends = np.array([fast.k[fit][0], fast.k[-1]])
            for rate in (row.fast, row.two):
                line = 3 * fast.mean[fit][0] * (ends / ends[0]) ** -rate
                ax.plot(ends, line, color="0.45", linestyle="--", linewidth=1, zorder=1)
                ax.annotate(
                    RATES[rate], (ends[1], line[1]), (3, 0), textcoords="offset points", fontsize="x-small", va="center"
                )
    run = results[FAST].spec
    plot.caption(
        fig,
        f"{len(run['seeds'])} seeds, {run['steps']:,} steps, dimension {dim}; mean with 95 % bootstrap band; slopes, "
        "in the legends, are fitted over the last two decades; all methods start from the same α and β",
    )
    return fig


def _panel(ax: plot.Axes, results: Mapping[str, Result], row: RateRow) -> None:
    for colour, (label, result) in zip(plot.COLOURS, results.items(), strict=False):
        line = curve(result, row)
        slope, low, high = estimate(*line.slopes())
        ax.plot(line.k, line.mean, color=colour, linewidth=1.5, label=f"{label}: {slope:.2f} [{low:.2f}, {high:.2f}]")
        band = np.quantile(line.resampled, (0.025, 0.975), axis=0)
        ax.fill_between(line.k, *band, color=colour, alpha=0.2, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel=plot.LABELS[row.metric])
    ax.legend(frameon=False, fontsize="x-small")


def _draw_levels(records: Records, found: Mapping[tuple[str, str], dict[int, Estimate]]) -> plot.Figure:
    fig, axes = plot.figure(1, len(COUPLINGS))
    for ax, coupling in zip(axes[0], COUPLINGS, strict=True):
        for colour, (noise, (_, words)) in zip(plot.COLOURS, NOISES.items(), strict=False):
            values, low, high = np.array(list(found[coupling, noise].values())).T
            ax.plot(RATIOS, values, "o-", color=colour, linewidth=1.5, markersize=4, label=f"noise {words}")
            ax.fill_between(RATIOS, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.axhline(1.0, color="0.45", linestyle=":", linewidth=1)
        ax.set(xscale="log", xlabel="λ/β at the end", ylabel="Fast's error / standard's")
        ax.set_xticks(RATIOS, [str(ratio) for ratio in RATIOS])
        ax.minorticks_off()
        ax.set_title(f"{coupling} coupling", fontsize="medium")
        ax.legend(frameon=False, fontsize="x-small")
    run = records[f"levels-{COUPLINGS[0]}-shared"][ONE].spec
    plot.caption(
        fig,
        f"strongly convex h, one dimension, {len(run['seeds'])} seeds, {run['steps']:,} steps, the same α and β; "
        "geometric mean of Fast's ‖θ−θ*‖² over standard's on the same noise; bands: 95 % bootstrap interval",
    )
    return fig


def panel(ax: plot.Axes, records: Records) -> None:
    """Where the table's gap does show: strongly convex, kinked."""
    key = RateKey("strongly-convex", "kinked", 1)
    _panel(ax, records[key.label], ROWS[key.h])


def captions(records: Records) -> dict[str, str]:
    measured = slopes(records)
    found = {}
    for dim in sorted({key.dim for key in measured}):
        keys = [key for key in measured if key.dim == dim]
        reached = sum(at_least(estimate(*measured[key][FAST]), ROWS[key.h].fast) is True for key in keys)
        slower = sum(_is_slower(measured[key], ROWS[key.h]) is True for key in keys)
        found[f"table1-{dim}d"] = (
            f"Fast reaches its rate in {reached} of {len(keys)} panels; the claimed advantage over standard with two "
            f"time scales shows in {slower}."
        )
    return found | ({"table1-levels": f"{words}."} if (words := _level_ends(records)) else {})


def advice(records: Records) -> list[str]:
    last = {
        coupling: last_means(records[RateKey("strongly-convex", coupling, 1).label], "error") for coupling in COUPLINGS
    }
    kinked, smooth = last["kinked"], last["smooth"]
    adds = {
        "no": "The rate comes from the exponents; the averaging of F and G adds none",
        "partly": "In some cases the averaging of F and G adds to the rate",
        "yes": "The averaging of F and G adds to the rate",
        "undecided": "Whether the averaging of F and G adds to the rate is not decided",
    }[kind(confirm_verdict(lambda some: _averaging_claim(slopes(some)), records))]
    one = [coupling for coupling in COUPLINGS if last[coupling][ONE] < last[coupling][TWO]]
    two = [coupling for coupling in COUPLINGS if coupling not in one]
    choices = {"1/k for both variables": one, "the usual two time scales": two}
    give = [f"{steps} where the coupling is {join_words(where)}" for steps, where in choices.items() if where]
    found = [
        f"Steps: give the standard method {join_words(give)}. Where the coupling has a kink, Fast ends at "
        f"{kinked[FAST] / kinked[ONE]:.2f} of the error of standard with 1/k for both, and at "
        f"{kinked[FAST] / kinked[TWO]:.2g} of that with the usual two time scales; on the smooth problem at "
        f"{smooth[FAST] / smooth[ONE]:.2f} and {smooth[FAST] / smooth[TWO]:.2f}. {adds}."
    ]
    words = _level_ends(records)
    return [*found, f"Levels depend on λ/β, which slopes do not show: {words}."] if words else found


def _level_ends(records: Records) -> str:
    """Fast's error over standard's at the two ends of λ/β, with one draw in F and G."""
    first, last = RATIOS[0], RATIOS[-1]
    return "; ".join(
        f"{coupling} coupling, Fast ends at {ends[first].value:.2f} of standard's error where λ/β is {first} and at "
        f"{ends[last].value:.2f} where it is {last}"
        for (coupling, noise), ends in level_ratios(records).items()
        if noise == "shared"
    )


def claims(records: Records) -> list[Claim]:
    measured = slopes(records)
    rates = [*(_row_claim(h, measured) for h in ROWS), _averaging_claim(measured)]
    return [*rates, *level_claims(records)]


def _less_fast(of_case: Slopes, label: str) -> Estimate:
    """A method's slope less Fast's, on the same seeds."""
    return estimate(of_case[label][0] - of_case[FAST][0], of_case[label][1] - of_case[FAST][1])


def _is_slower(of_case: Slopes, row: RateRow) -> bool | None:
    """Whether standard with two time scales is, by half the claimed difference or more."""
    return above(_less_fast(of_case, TWO), (row.fast - row.two) / 2)


def _row_claim(h: str, measured: Mapping[RateKey, Slopes]) -> Claim:
    numbers: dict[str, Measured] = {}
    shown: dict[str, bool | None] = {}
    row, keys = ROWS[h], [key for key in measured if key.h == h]
    for key in keys:
        for label, (slope, samples) in measured[key].items():
            numbers[f"{key.words}: {label}"] = estimate(slope, samples)
        numbers[f"{key.words}: standard − Fast"] = _less_fast(measured[key], TWO)
        if key.dim == 1:
            shown[key.coupling] = all_of(
                at_least(estimate(*measured[key][FAST]), row.fast), _is_slower(measured[key], row)
            )
    return Claim(
        f"table1-{h}",
        f"Fast converges as {RATES[row.fast]} where the standard method has {RATES[row.two]} ({STRUCTURES[h]} h)",
        "ours: both couplings, one draw in F and G",
        f"in one dimension, slopes over the last two decades with 95 % intervals: Fast's is at most "
        f"{2 * BAND * row.fast:.2g} wide and lies below −{(1 - BAND) * row.fast:.3g}, and the interval of the "
        "difference (standard, two time scales) − (Fast) on shared seeds lies above half of the claimed one, "
        f"{(row.fast - row.two) / 2:.2g}; not decided where either interval has its mark inside",
        numbers,
        decide_each(shown, "the coupling is {}"),
        [key.label for key in keys],
        speed=True,
    )


def _averaging_claim(measured: Mapping[RateKey, Slopes]) -> Claim:
    gaps = {key: _less_fast(of, ONE) for key, of in measured.items() if key.dim == 1}
    return Claim(
        "table1-averaging",
        "It is the averaging of F and G that lets steps of Fast's order reach Fast's rate",
        "ours: slopes with steps of one order",
        f"the interval of the difference of slopes (standard, Fast's exponents) − (Fast) lies above {TOLERANCE}; not "
        "reproduced where it lies below, not decided between; of slopes alone: levels are compared apart",
        {key.words: gap for key, gap in gaps.items()},
        decide_each({key.words: above(gap, TOLERANCE) for key, gap in gaps.items()}, "h and coupling are {}", "; "),
        tuple(key.label for key in gaps),
        speed=True,
    )


def level_claims(records: Records) -> list[Claim]:
    return [
        Claim(
            name=f"table1-level-{coupling}-{noise}",
            statement=f"Standard with Fast's exponents ends level with Fast, whatever λ/β ({coupling} coupling, noise "
            f"{NOISES[noise][1]})",
            place="ours: the paper compares rates, which leave levels open",
            rule="the geometric mean over shared seeds of Fast's ‖θ−θ*‖² over standard's at the end has its 95 % "
            f"interval between 1/{LEVEL} and {LEVEL}, for each λ/β from {RATIOS[0]} to {RATIOS[-1]}; not where it lies "
            "outside, not decided between",
            numbers={f"Fast's error / standard's, λ/β = {ratio}": ends for ratio, ends in found.items()},
            verdict=decide_each(
                {str(ratio): all_of(above(ends, 1 / LEVEL), below(ends, LEVEL)) for ratio, ends in found.items()},
                "λ/β is {}",
            ),
            cases=(f"levels-{coupling}-{noise}",),
        )
        for (coupling, noise), found in level_ratios(records).items()
    ]
