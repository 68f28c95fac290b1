"""Table 1, levels: where standard with Fast's exponents ends, against λ/β and the correlation of the noise."""

from __future__ import annotations

import twoclock as tc
from reproduction.comparisons import last_ratio
from reproduction.experiment import Case, Claim, Records
from reproduction.tuned_settings import decaying
from reproduction.verdicts import above, all_of, below, decide_each
from twoclock import Method, plot
from twoclock.intervals import Estimate

COUPLINGS = ("smooth", "kinked")
ONE = "Standard, Fast's exponents"
RATIOS = (2, 4, 8, 16, 32, 64)
NOISES = {"shared": (1.0, "one draw in F and G"), "independent": (0.0, "independent"), "opposite": (-1.0, "opposite")}
# How far from 1 the ratio of two errors may lie that are called level.
LEVEL = 1.1

ALT = {
    "table1-levels": "Error of standard with Fast's exponents over Fast's at the end, against λ/β, for smooth and for "
    "kinked coupling; one line for each correlation between the noise of F and of G; dotted: level."
}


def fast(ratio: int) -> str:
    return f"Fast, λ/β = {ratio}"


def methods() -> dict[str, Method]:
    """The steps of Table 1 for strongly convex h; only λ differs: it starts at ¼ and ends at ratio·β."""
    alpha, beta = tc.Power(2.0, shift=32.0), tc.Power(4.0, shift=32.0)
    found: dict[str, Method] = {ONE: tc.Standard(alpha, beta)}
    return found | {fast(ratio): tc.Fast(alpha, beta, decaying(4.0 * ratio, 0.25)) for ratio in RATIOS}


def level_cases() -> dict[str, Case]:
    return {
        f"levels-{coupling}-{noise}": Case(
            tc.problems.rates("strongly-convex", coupling, correlation=correlation), methods(), 20_000, 6_000,
            marks=[20_000], title=f"levels, strongly convex h, {coupling}, noise {words}",
        )
        for coupling in COUPLINGS
        for noise, (correlation, words) in NOISES.items()
    }  # fmt: skip


def is_level(case: str) -> bool:
    return case.startswith("levels-")


def ratios(records: Records) -> dict[tuple[str, str], dict[int, Estimate]]:
    """(coupling, noise) → λ/β → standard's error over Fast's at the end."""
    return {
        (coupling, noise): {ratio: last_ratio(results[ONE], results[fast(ratio)], "error") for ratio in RATIOS}
        for coupling in COUPLINGS
        for noise in NOISES
        if (results := records.get(f"levels-{coupling}-{noise}"))
    }


def claims(records: Records) -> list[Claim]:
    return [_claim(coupling, noise, found) for (coupling, noise), found in ratios(records).items()]


def _claim(coupling: str, noise: str, found: dict[int, Estimate]) -> Claim:
    held = {str(ratio): all_of(above(ends, 1 / LEVEL), below(ends, LEVEL)) for ratio, ends in found.items()}
    return Claim(
        name=f"table1-level-{coupling}-{noise}",
        statement=f"Standard with Fast's exponents ends level with Fast, whatever λ/β ({coupling} coupling, noise "
        f"{NOISES[noise][1]})",
        place="ours: the paper compares rates, which leave levels open",
        rule="the geometric mean over shared seeds of standard's ‖θ−θ*‖² over Fast's at the end has its 95 % interval "
        f"between 1/{LEVEL} and {LEVEL}, for each λ/β from {RATIOS[0]} to {RATIOS[-1]}; not where it lies outside, not "
        "decided between",
        numbers={f"standard's error / Fast's, λ/β = {ratio}": ends for ratio, ends in found.items()},
        verdict=decide_each(held, "λ/β is {}"),
        cases=(f"levels-{coupling}-{noise}",),
        ours=True,
    )


def draw(records: Records) -> dict[str, plot.Figure]:
    found = ratios(records)
    if not found:
        return {}
    fig, axes = plot.figure(1, len(COUPLINGS))
    for ax, coupling in zip(axes[0], COUPLINGS, strict=True):
        for j, (noise, (_, words)) in enumerate(NOISES.items()):
            ends = found[coupling, noise]
            values, low, high = ([getattr(end, part) for end in ends.values()] for part in ("value", "low", "high"))
            ax.plot(RATIOS, values, "o-", color=plot.COLOURS[j], linewidth=1.5, markersize=4, label=f"noise {words}")
            ax.fill_between(RATIOS, low, high, color=plot.COLOURS[j], alpha=0.2, linewidth=0)
        ax.axhline(1.0, color="0.45", linestyle=":", linewidth=1)
        ax.set(xscale="log", xlabel="λ/β at the end", ylabel="error of standard / Fast's")
        ax.set_xticks(RATIOS, [str(ratio) for ratio in RATIOS])
        ax.minorticks_off()
        ax.set_title(f"{coupling} coupling", fontsize="medium")
        ax.legend(frameon=False, fontsize="x-small")
    run = records[f"levels-{COUPLINGS[0]}-shared"][ONE].spec
    plot.caption(
        fig,
        f"strongly convex h, one dimension, {len(run['seeds'])} seeds, {run['steps']:,} steps, the same α and β; "
        "geometric mean of ‖θ−θ*‖² over Fast's on the same noise; bands: 95 % bootstrap interval",
    )
    return {"table1-levels": fig}


def captions(records: Records) -> dict[str, str]:
    return {"table1-levels": f"{words}."} if (words := _ends(records)) else {}


def advice(records: Records) -> list[str]:
    words = _ends(records)
    return [f"Levels depend on λ/β, which slopes do not show: {words}."] if words else []


def _ends(records: Records) -> str:
    """Standard's error over Fast's at the two ends of λ/β, with one draw in F and G."""
    first, last = RATIOS[0], RATIOS[-1]
    found = {coupling: ends for (coupling, noise), ends in ratios(records).items() if noise == "shared"}
    parts = [
        f"{coupling} coupling, standard ends at {ends[first].value:.2f} of Fast's error where λ/β is {first} and at "
        f"{ends[last].value:.2f} where it is {last}"
        for coupling, ends in found.items()
    ]
    return "; ".join(parts)
