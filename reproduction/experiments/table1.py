"""Table 1: the rates of Fast and of the standard method, measured on problems with and without a kink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import twoclock as tc
from reproduction.comparisons import BAND, at_least, last_mean, listed
from reproduction.experiment import Case, Claim, Measured, Records
from reproduction.experiments import table1_noise as levels
from reproduction.verdicts import above, all_of, confirmed_verdict, decide_each, kind
from twoclock import Method, Result, plot
from twoclock.intervals import Estimate, MeanCurve

TITLE = "Table 1: measured rates, smooth and kinked coupling"

ALT = {
    f"table1-{dim}d": f"Six panels, three structures of h with smooth and with kinked coupling, dimension {dim}: error "
    "of Fast and of standard with two sets of exponents against steps, slopes in the legends."
    for dim in (1, 4)
} | levels.ALT

COUPLINGS = levels.COUPLINGS
FAST, TWO, ONE = "Fast", "Standard, two time scales", levels.ONE


@dataclass(frozen=True)
class Row:
    """A row of Table 1: what is measured, the exponents of the methods' steps, and the rates they are said to have."""

    metric: str
    fast: float
    two: float
    alpha: float
    beta: float


# Two-time-scale exponents of the standard method: Hong et al. 2023; Zeng, Doan & Romberg 2021.
ROWS: dict[str, Row] = {
    "strongly-convex": Row("error", fast=1.0, two=2 / 3, alpha=1.0, beta=2 / 3),
    "pl": Row("gap", fast=1.0, two=2 / 3, alpha=1.0, beta=2 / 3),
    "non-convex": Row("gradient", fast=0.5, two=2 / 5, alpha=3 / 5, beta=2 / 5),
}
RATES = {1.0: "1/k", 2 / 3: "1/k^⅔", 0.5: "1/√k", 2 / 5: "1/k^⅖"}
STRUCTURES = {"strongly-convex": "strongly convex", "pl": "PL", "non-convex": "non-convex"}
TOLERANCE = 0.05


def methods(row: Row) -> dict[str, Method]:
    """All methods start from the same α and β, in the theory's order; only the exponents differ."""
    alpha, beta, lam, shift = (1 / 16, 1 / 8, 1 / 4, 32.0) if row.fast == 1 else (1 / 10, 1 / 5, 1 / 4, 16.0)

    def power(first: float, p: float) -> tc.Power:
        return tc.Power(first * shift**p, p=p, shift=shift)

    slow, quick = power(alpha, row.fast), power(beta, row.fast)
    return {
        FAST: tc.Fast(slow, quick, power(lam, row.fast), order="paper"),
        TWO: tc.Standard(power(alpha, row.alpha), power(beta, row.beta)),
        ONE: tc.Standard(slow, quick),
    }


def cases(quick: bool) -> dict[str, Case]:
    """One dimension; at full length also four, a tenth as long, so that nothing hangs on the one, and the levels."""
    sizes = {1: (100_000, 100)} if quick else {1: (1_000_000, 600), 4: (100_000, 300)}
    found = {
        f"{h}-{coupling}-{dim}d": Case(
            tc.problems.rates(h, coupling, dim=dim), methods(row), steps, seeds, title=words(f"{h}-{coupling}-{dim}d")
        )
        for dim, (steps, seeds) in sizes.items()
        for h, row in ROWS.items()
        for coupling in COUPLINGS
    }
    return found if quick else found | levels.level_cases()


def of_slopes(records: Records) -> Records:
    """The records that slopes are fitted to."""
    return {key: results for key, results in records.items() if not levels.is_level(key)}


def words(case: str) -> str:
    """The case in words.

    >>> words("non-convex-kinked-1d")
    'non-convex h, kinked, dimension 1'
    """
    h, coupling, dim = case.rsplit("-", 2)
    return f"{STRUCTURES[h]} h, {coupling}, dimension {dim[:-1]}"


def curve(result: Result, row: Row) -> MeanCurve:
    """The mean of the row's metric; for non-convex h the smallest so far, among the marks: no smaller than over all."""
    return MeanCurve.of(result.history, row.metric, lowest=row.metric == "gradient")


def estimate(slope: float, samples: np.ndarray) -> Estimate:
    """A slope, or a difference of slopes, with its 95 % interval."""
    return Estimate(*(round(float(v), 4) for v in (slope, *np.quantile(samples, (0.025, 0.975)))))


def draw(records: Records) -> dict[str, plot.Figure]:
    dims = sorted({int(key.rsplit("-", 1)[1][:-1]) for key in of_slopes(records)})
    return {f"table1-{dim}d": _figure(records, dim) for dim in dims} | levels.draw(records)


def _figure(records: Records, dim: int) -> plot.Figure:
    fig, axes = plot.figure(len(COUPLINGS), len(ROWS), width=3.9, height=3.4)
    for i, coupling in enumerate(COUPLINGS):
        for ax, (h, row) in zip(axes[i], ROWS.items(), strict=True):
            results = records[f"{h}-{coupling}-{dim}d"]
            for j, (label, result) in enumerate(results.items()):
                _panel(ax, curve(result, row), label, j)
            name = "least mean ‖∇h(θ)‖² so far" if row.metric == "gradient" else plot.LABELS[row.metric]
            ax.set(xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel=name)
            ax.set_title(f"{STRUCTURES[h]}, {coupling}", fontsize="medium")
            _references(ax, curve(results[FAST], row), row)
            ax.legend(frameon=False, fontsize="x-small")
    run = results[FAST].spec
    plot.caption(
        fig,
        f"{len(run['seeds'])} seeds, {run['steps']:,} steps, dimension {dim}; mean with 95 % bootstrap band; slopes, "
        "in the legends, are fitted over the last two decades; all methods start from the same α and β",
    )
    return fig


def _panel(ax: plot.Axes, curve: MeanCurve, label: str, j: int) -> None:
    slope, low, high = estimate(*curve.slopes())
    colour = plot.COLOURS[j]
    ax.plot(curve.k, curve.mean, color=colour, linewidth=1.5, label=f"{label}: {slope:.2f} [{low:.2f}, {high:.2f}]")
    band = np.quantile(curve.resampled, (0.025, 0.975), axis=0)
    ax.fill_between(curve.k, *band, color=colour, alpha=0.2, linewidth=0)


def _references(ax: plot.Axes, fast: MeanCurve, row: Row) -> None:
    """The two rates of the table, from a point above Fast's curve at the start of the fit."""
    fit = fast.k >= fast.k[-1] / 100
    ends = np.array([fast.k[fit][0], fast.k[-1]])
    for rate in (row.fast, row.two):
        line = 3 * fast.mean[fit][0] * (ends / ends[0]) ** -rate
        ax.plot(ends, line, color="0.45", linestyle="--", linewidth=1, zorder=1)
        ax.annotate(
            RATES[rate], (ends[1], line[1]), (3, 0), textcoords="offset points", fontsize="x-small", va="center"
        )


def panel(ax: plot.Axes, records: Records) -> None:
    """Where the table's gap does show: strongly convex, kinked."""
    row = ROWS["strongly-convex"]
    for j, (label, result) in enumerate(records["strongly-convex-kinked-1d"].items()):
        _panel(ax, curve(result, row), label, j)
    ax.set(xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel=plot.LABELS[row.metric])
    ax.legend(frameon=False, fontsize="x-small")


def captions(records: Records) -> dict[str, str]:
    measured = slopes(records)
    found = {}
    for dim in sorted({int(key.rsplit("-", 1)[1][:-1]) for key in measured}):
        keys = [key for key in measured if key.endswith(f"-{dim}d")]
        reached = sum(_reaches_its_rate(measured[key], _row(key)) is True for key in keys)
        slower = sum(_is_slower(measured[key], _row(key)) is True for key in keys)
        found[f"table1-{dim}d"] = (
            f"Fast reaches its rate in {reached} of {len(keys)} panels; the claimed advantage over standard with two "
            f"time scales shows in {slower}."
        )
    return found | levels.captions(records)


def advice(records: Records) -> list[str]:
    last = {
        coupling: {label: last_mean(r, "error") for label, r in records[f"strongly-convex-{coupling}-1d"].items()}
        for coupling in COUPLINGS
    }
    kinked, smooth = last["kinked"], last["smooth"]
    adds = {
        "no": "The rate comes from the exponents; the averaging of F and G adds none",
        "partly": "In some cases the averaging of F and G adds to the rate",
        "yes": "The averaging of F and G adds to the rate",
        "undecided": "Whether the averaging of F and G adds to the rate is not decided",
    }[kind(confirmed_verdict(lambda some: _averaging_claim(slopes(some)), records))]
    one = [coupling for coupling in COUPLINGS if last[coupling][ONE] < last[coupling][TWO]]
    two = [coupling for coupling in COUPLINGS if coupling not in one]
    choices = {"1/k for both variables": one, "the usual two time scales": two}
    give = [f"{steps} where the coupling is {listed(where)}" for steps, where in choices.items() if where]
    return [
        f"Steps: give the standard method {listed(give)}. Where the coupling has a kink, standard with 1/k for both "
        f"ends at {kinked[ONE] / kinked[FAST]:.2f} of Fast's error, with the usual two time scales at "
        f"{kinked[TWO] / kinked[FAST]:.3g} of it; on the smooth problem at {smooth[ONE] / smooth[FAST]:.2f} and "
        f"{smooth[TWO] / smooth[FAST]:.2f}. {adds}.",
        *levels.advice(records),
    ]


# The slopes of each method in a case, with their bootstrap samples.
Slopes = Mapping[str, tuple[float, np.ndarray]]


def slopes(records: Records) -> dict[str, Slopes]:
    return {
        key: {label: curve(result, _row(key)).slopes() for label, result in results.items()}
        for key, results in of_slopes(records).items()
    }


def _row(key: str) -> Row:
    return ROWS[key.rsplit("-", 2)[0]]


def claims(records: Records) -> list[Claim]:
    measured = slopes(records)
    rows = [_row_claim(h, row, measured) for h, row in ROWS.items()]
    return [*rows, _averaging_claim(measured), *levels.claims(records)]


def _reaches_its_rate(of_case: Slopes, row: Row) -> bool | None:
    return at_least(estimate(*of_case[FAST]), row.fast)


def _less_fast(of_case: Slopes, label: str) -> Estimate:
    """A method's slope less Fast's, on the same seeds."""
    return estimate(of_case[label][0] - of_case[FAST][0], of_case[label][1] - of_case[FAST][1])


def _is_slower(of_case: Slopes, row: Row) -> bool | None:
    """Whether standard with two time scales is, by half the claimed difference or more."""
    return above(_less_fast(of_case, TWO), (row.fast - row.two) / 2)


def _row_claim(h: str, row: Row, measured: Mapping[str, Slopes]) -> Claim:
    numbers: dict[str, Measured] = {}
    shown: dict[str, bool | None] = {}
    keys = [key for key in measured if key.rsplit("-", 2)[0] == h]
    for key in keys:
        for label, (slope, samples) in measured[key].items():
            numbers[f"{words(key)}: {label}"] = estimate(slope, samples)
        numbers[f"{words(key)}: standard − Fast"] = _less_fast(measured[key], TWO)
        if key.endswith("-1d"):
            shown[key.split("-")[-2]] = all_of(_reaches_its_rate(measured[key], row), _is_slower(measured[key], row))
    return Claim(
        f"table1-{h}",
        f"Fast converges as {RATES[row.fast]} where the standard method has {RATES[row.two]} ({STRUCTURES[h]} h)",
        "Table 1",
        f"in one dimension, slopes over the last two decades with 95 % intervals: Fast's is at most "
        f"{2 * BAND * row.fast:.2g} wide and lies below −{(1 - BAND) * row.fast:.3g}, and the interval of the "
        "difference (standard, two time scales) − (Fast) on shared seeds lies above half of the claimed one, "
        f"{(row.fast - row.two) / 2:.2g}; not decided where either interval has its mark inside",
        numbers,
        decide_each(shown, "the coupling is {}"),
        keys,
        speed=True,
    )


def _averaging_claim(measured: Mapping[str, Slopes]) -> Claim:
    gaps = {key: _less_fast(of, ONE) for key, of in measured.items() if key.endswith("-1d")}
    return Claim(
        "table1-averaging",
        "It is the averaging of F and G that lets steps of Fast's order reach Fast's rate",
        "Section 1, main contributions",
        f"the interval of the difference of slopes (standard, Fast's exponents) − (Fast) lies above {TOLERANCE}; not "
        "reproduced where it lies below, not decided between; of slopes alone: levels are compared apart",
        {words(key): gap for key, gap in gaps.items()},
        decide_each({words(key): above(gap, TOLERANCE) for key, gap in gaps.items()}, "h and coupling are {}", "; "),
        tuple(gaps),
        speed=True,
    )
