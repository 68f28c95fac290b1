"""The theorems: each bound against a run, the printed step-size rules, λ ≡ 1, and nonlinear evaluation's rate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reproduction.comparisons import listed, rate_claim
from reproduction.experiment import Case, Claim, Measured, Records
from reproduction.experiments import printed_conditions as printed
from reproduction.experiments.theorems_settings import (
    MOVED,
    ONE,
    PRINTED,
    PROOFS,
    ROOT,
    STRUCTURES,
    WORDS,
    certificate,
    problem,
    trap,
    walk,
)
from reproduction.verdicts import VACUOUS, decide, only_where
from twoclock import Result, plot, theory
from twoclock.intervals import Estimate, log_slope

TITLE = "The theorems' bounds, the printed conditions, and λ ≡ 1"
ALT = {
    "theorems": "Measured error of certified steps against two proven bounds for strongly convex, PL and non-convex h.",
    "conditions": "Left: the gradient under the printed non-convex step rule. Right: nonlinear policy evaluation's "
    "gradient against the rate k^-½.",
}


def cases(quick: bool) -> dict[str, Case]:
    steps, seeds = (20_000, 50) if quick else (1_000_000, 200)
    bounds = {
        name: Case(
            problem(name), {proof: certificate(name, proof).method() for proof in PROOFS}, steps, seeds,
            title=f"Theorem {STRUCTURES[name]}, {WORDS[name]}",
        )
        for name in STRUCTURES
    }  # fmt: skip
    long = 100_000 if quick else 1_000_000
    # Theorem 1's printed steps are so small that nothing moves before 10⁷ of them.
    as_printed, far = {"Fast": printed.of_gentle().method()}, 1_000 if quick else 100_000_000
    return bounds | {
        "printed-1": Case(printed.gentle(), as_printed, far, 20, title="Theorem 1's conditions as printed"),
        "printed": Case(trap(), {"Fast": PRINTED}, long, 40, title="steps that Section 3.3 allows"),
        "lambda-1": Case(problem("strongly-convex"), ONE, 1000, 20, title="λ ≡ 1"),
        "nonlinear": Case(walk(), {"Fast": ROOT}, steps, seeds, title="nonlinear policy evaluation"),
    }


def draw(records: Records) -> dict[str, plot.Figure]:
    fig, axes = plot.figure(1, 3, width=3.9, height=3.6)
    for ax, name in zip(axes[0], STRUCTURES, strict=True):
        panel(ax, records, name)
        ax.set_title(f"Theorem {STRUCTURES[name]}: {WORDS[name]}", fontsize="medium")
    run = records["pl"]["tight"].spec
    plot.caption(
        fig,
        "Fast with certified steps on one-dimensional problems with a kink and their exact constants; "
        f"{len(run['seeds'])} seeds, {run['steps']:,} steps; mean with 95 % bootstrap band; dashed: proven",
    )
    second, axes = plot.figure(1, 2)
    plot.curves(axes[0, 0], {"steps that Section 3.3 allows": records["printed"]["Fast"]}, "gradient")
    axes[0, 0].set_title("F = 0.2θ + (ω−θ), G = 0.1(ω−θ)", fontsize="medium")
    plot.curves(axes[0, 1], {"Fast, steps ∝ k^-½": records["nonlinear"]["Fast"]}, "gradient")
    k, mean = lowest(records["nonlinear"]["Fast"])
    plot.slope(axes[0, 1], -0.5, (k[-1] / 100, 8 * mean[np.searchsorted(k, k[-1] / 100)]), "k^-½")
    axes[0, 1].set_title("nonlinear policy evaluation, V = a·tanh(bx+c)", fontsize="medium")
    plot.caption(second, f"mean of {len(run['seeds'])} seeds (left 40); bands: 95 % bootstrap interval of the mean")
    return {"theorems": fig, "conditions": second}


def panel(ax: plot.Axes, records: Records, name: str = "strongly-convex") -> None:
    """Both bounds of a theorem and what was measured."""
    for colour, (proof, words) in zip(plot.COLOURS, PROOFS.items(), strict=False):
        k, low, mean, high, bound = measured(records[name][proof], certificate(name, proof), name)
        # Where nothing moves the lines lie on one another: the first is the wider, and stays in sight.
        width = 3.6 if proof == "paper" else 1.6
        ax.plot(k, mean, color=colour, linewidth=width, label=f"measured, {words}")
        ax.fill_between(k, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(k, bound, color=colour, linewidth=1.2, linestyle="--", label=f"bound, {words}")
    metric = certificate(name, "tight").metric
    label = "least so far, " if name == "non-convex" else ""
    ax.set(xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel=label + plot.LABELS[metric])
    ax.legend(frameon=False, fontsize="x-small")


def measured(result: Result, proven: theory.Certificate, name: str) -> tuple[np.ndarray, ...]:
    """Marks, the metric's lower end, mean and upper end, and the bound; for non-convex h smallest values so far."""
    table = result.summary(proven.metric).query("step > 0")
    values = [table[column].to_numpy() for column in ("low", "mean", "high")]
    if name == "non-convex":
        values = [np.minimum.accumulate(v) for v in values]
    k = table["step"].to_numpy()
    return k, *values, np.asarray(proven.bound(k, theory.start(problem(name), name)))


def lowest(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Marks and min over t ≤ k of the mean of ‖∇h‖², t among the marks."""
    table = result.summary("gradient").query("step > 0")
    return table["step"].to_numpy(), np.minimum.accumulate(table["mean"].to_numpy())


def claims(records: Records) -> list[Claim]:
    bounds = [_bound(records, name) for name in STRUCTURES]
    nonlinear = rate_claim(
        records["nonlinear"]["Fast"], "gradient", 0.5, lowest=True, case="nonlinear",
        name="nonlinear-policy-evaluation-rate", place="Section 4.1, after Theorem 3",
        statement="With a nonlinear value function min over t ≤ k of E‖∇J‖² falls like k^-½, up to logarithms",
    )  # fmt: skip
    return [*bounds, _printed(records["printed"]["Fast"]), _one(records["lambda-1"]), nonlinear]


def _bound(records: Records, name: str) -> Claim:
    """Nothing here is settled beforehand: printed conditions are run, or shown to admit no steps, from the records."""
    numbers: dict[str, Measured] = {}
    going: dict[str, float] = {}
    for proof, words in PROOFS.items():
        proven = certificate(name, proof)
        _, _, mean, high, bound = measured(records[name][proof], proven, name)
        numbers[f"{words}: bound / measured mean at the end"] = float(bound[-1] / mean[-1])
        numbers[f"{words}: largest upper end / bound"] = float(np.max(high / bound))
        numbers[f"{words}: α"] = str(proven.alpha)
        numbers[f"{words}: the end over the start"] = going[proof] = printed.moved(records[name][proof], proven.metric)
    kept, why, printed_numbers = _as_printed(records, name)
    steps = records[name]["paper"].spec["steps"]
    if not _bounds_hold(records, name):
        verdict = decide(False)
    elif min(going.values()) > MOVED:
        verdict = f"{VACUOUS}: nothing moved in {steps:,} steps"
    elif kept:
        verdict = decide(True)
    else:
        still = [words for proof, words in PROOFS.items() if going[proof] > MOVED]
        aside = f"; vacuous for {listed(still)}, whose steps move nothing in {steps:,}" if still else ""
        verdict = only_where(f"the printed step-size conditions are put right ({why}){aside}")
    return Claim(
        f"theorem-{STRUCTURES[name]}",
        f"Theorem {STRUCTURES[name]}'s bound holds at every step ({WORDS[name]})",
        f"Theorem {STRUCTURES[name]}",
        "the upper end of the mean's 95 % interval lies below the bound at every mark: with the conditions put right, "
        "for the paper's proof and for the tight one, and with those that are printed, where any steps meet them; a "
        f"bound is vacuous where what it bounds ends above {MOVED:g} of its start",
        numbers | printed_numbers,
        verdict,
        (name, *(["printed-1"] if name == "strongly-convex" else ["printed"] if name == "non-convex" else [])),
    )


def _as_printed(records: Records, name: str) -> tuple[bool, str, dict[str, Measured]]:
    """Whether the printed conditions hold up in a run that moves; why not, in words; and the numbers."""
    if name == "pl":
        constants = theory.constants(problem(name))
        least, most = printed.second(constants["L"], constants["mu_h"], constants["mu_g"])
        numbers: dict[str, Measured] = {"as printed: least c_β that is asked for": least, "most that is allowed": most}
        return least <= most, "as printed no steps meet them", numbers
    if name == "non-convex":
        return _printed(records["printed"]["Fast"]).verdict == decide(True), "as printed they let a run diverge", {}
    result, steps = records["printed-1"]["Fast"], printed.of_gentle()
    table = result.summary("error").query("step > 0")
    ratio = float(np.max(table["high"].to_numpy() / printed.bound(printed.gentle(), steps, table["step"].to_numpy())))
    end = printed.moved(result, "error")
    numbers = {
        "as printed, a gentle quadratic: τ": f"{steps.tau:.3g}",
        "as printed: steps": int(result.spec["steps"]),
        "as printed: largest upper end / bound": ratio,
        "as printed: the end over the start": end,
    }
    held = ratio <= 1 and not result.diverged.any()
    why = f"as printed nothing moved in {result.spec['steps']:,} steps" if held else "as printed the bound is broken"
    return held and end <= MOVED, why, numbers


def _bounds_hold(records: Records, name: str) -> bool:
    """Whether what is measured stays below both bounds of a theorem, with no seed diverged."""
    held = True
    for proof in PROOFS:
        _, _, _, high, bound = measured(records[name][proof], certificate(name, proof), name)
        held = held and bool(np.all(high <= bound)) and not records[name][proof].diverged.any()
    return held


def _printed(result: Result) -> Claim:
    table = result.summary("gradient").query("step > 0")
    first, last = float(table["mean"].iloc[0]), float(table["mean"].iloc[-1])
    return Claim(
        "printed-conditions",
        "α₀ ≤ β₀ ≤ 1/(72L), β₀ ≤ λ₀ and α₀ ≤ 1/(72L²) are enough for Theorem 3",
        "Section 3.3",
        "on F = 0.2θ+(ω−θ), G = 0.1(ω−θ) with steps that meet them, the mean of ‖∇h‖² ends below where it began",
        {
            "at the first mark": first,
            "at the end": Estimate(last, *(float(table[c].iloc[-1]) for c in ("low", "high"))),
        },
        decide(last < first),
        ("printed",),
    )


def _one(results: Mapping[str, Result]) -> Claim:
    paths = {name: result.history["error"].to_numpy() for name, result in results.items()}
    away = {name: float(np.max(np.abs(path / paths["Standard"] - 1))) for name, path in paths.items()}
    paper, fresh = away["Fast, λ = 1"], away["Fast, λ = 1, blended first"]
    exact = 1e-9
    verdict = decide(paper < exact)
    if paper >= exact > fresh:
        verdict = only_where("F and G are blended before the step; as printed the operators are a step old")
    return Claim(
        "lambda-1",
        "With λ ≡ 1 Algorithm 1 is the standard method",
        "Section 2, after Algorithm 1",
        f"on the same samples ‖θ−θ*‖² agrees to {exact:g} of itself at every mark",
        {"largest relative difference, as printed": paper, "blended first": fresh},
        verdict,
        ("lambda-1",),
    )


def captions(records: Records) -> dict[str, str]:
    ends = []
    for name in STRUCTURES:
        _, _, mean, _, bound = measured(records[name]["tight"], certificate(name, "tight"), name)
        stays = "stays below both bounds" if _bounds_hold(records, name) else "does not stay below its bounds"
        ends.append(
            f"for {WORDS[name]} what is measured {stays} (our bound ends at {bound[-1] / mean[-1]:,.3g} times it)"
        )
    table = records["printed"]["Fast"].summary("gradient").query("step > 0")["mean"]
    slope = log_slope(records["nonlinear"]["Fast"].history, "gradient", lowest=True)
    return {
        "theorems": f"F{'; '.join(ends)[1:]}.",
        "conditions": f"Left: the mean goes from {table.iloc[0]:.3g} to {table.iloc[-1]:.3g}. Right: the smallest "
        f"mean so far falls with slope {slope}.",
    }


def advice(records: Records) -> list[str]:
    name = "strongly-convex"
    _, _, mean, _, bound = measured(records[name]["tight"], certificate(name, "tight"), name)
    _, _, slow, _, _ = measured(records[name]["paper"], certificate(name, "paper"), name)
    steps = f"the same {records[name]['tight'].spec['steps']:,} samples"
    closer = slow[-1] / mean[-1]
    tight = (
        f"the tight proof's steps end {closer:,.3g} times closer than those of the paper's own constants after {steps}"
    )
    if closer <= 1:
        tight = f"the tight proof's steps end no closer than those of the paper's own constants after {steps}"
    loose = bound[-1] / mean[-1]
    use = f"its bound is {loose:,.3g} times what is measured, so compare methods by runs and not by bounds"
    return [
        f"Guarantees: for steps with a proof use `tc.certify(…)`; {tight}{'; ' + use if loose > 1 else ''}.",
    ]
