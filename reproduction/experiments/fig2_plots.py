"""Figure 2's pictures."""

from __future__ import annotations

import twoclock as tc
from reproduction.experiment import Records
from reproduction.experiments.algorithm2_variants import READINGS
from reproduction.experiments.lqr_settings import (
    BETAS,
    BOLD,
    EXPECTED,
    FAST,
    LAMBDAS,
    ORDINARY,
    SAME,
    TWO,
    diverged_share,
    start,
    tuned,
)
from twoclock import plot


def draw_comparison(records: Records) -> plot.Figure:
    fig, axes = plot.figure(1, 3, width=4.1, height=4.2)
    first, second, third = axes[0]
    plot.curves(first, {**records["gap"], EXPECTED: records["expected"]["Fast"], **records["model"]}, "gap")
    exact = records["exact"]["exact"].history
    exact = exact[(exact["step"] > 0) & (exact["gap"] > 1e-7)]
    first.plot(exact["step"], exact["gap"], color="0.3", linestyle=":", label="exact natural gradient, same α")
    first.legend(frameon=False, fontsize="x-small")
    first.set_title("J(K) − J*, mean of seeds", fontsize="medium")
    plot.table(
        second, diverged_share(records), [f"{b:g}" for b in BETAS], ["standard", *(f"{lam:g}" for lam in LAMBDAS)],
        "critic step β (constant)", "averaging weight λ",
    )  # fmt: skip
    second.set_title("share of seeds diverged", fontsize="medium")
    plot.curves(third, {name: records[name]["Fast"] for name in READINGS}, "gap", statistic="median")
    start_from_zero = start(records["gap"]["Fast"])  # that case starts from K = 0
    third.axhline(start_from_zero, color="0.5", linestyle=":", linewidth=1)
    third.set_title("Algorithm 2 from K₀ = K*/2; dotted: K = 0", fontsize="medium")
    third.legend(frameon=False, fontsize="x-small")
    fast, same, two = (tuned(name) for name in (FAST, SAME, TWO))
    run, cell, reading = (
        records[n][m].spec for n, m in (("gap", "Fast"), ("map", "0.002 0.5"), ("as printed", "Fast"))
    )
    plot.caption(
        fig,
        f"Not in the paper and chosen here: Ψ = I, σ = 1, K₀ = 0, x₀ ~ N(0, Ψ), Ĵ₀ = 0, Ω̂₀ = 0, κ = 2. "
        f"Fast {_steps(fast)}; standard with Fast's exponents α = {same.alpha}, "
        f"β = {same.beta}; with 1 and 2/3 α = {two.alpha}, β = {two.beta}; tuned alike. "
        f"Left: {len(run['seeds'])} seeds, 95 % bootstrap bands. Middle: α = β/10, {len(cell['seeds'])} seeds, "
        f"{cell['steps']:,} steps, |entry| > 1e6 counts as diverged. Right: median of {len(reading['seeds'])} seeds.",
    )
    return fig


def draw_guard(records: Records) -> plot.Figure:
    fig, axes = plot.figure(1, 2)
    titles = {"boeing": f"Boeing 747, {_steps(ORDINARY)}", "bold": f"the paper's plant, {_steps(BOLD)}"}
    notes = []
    for ax, (name, title) in zip(axes[0], titles.items(), strict=True):
        guarded = records[f"{name} guarded"]["Fast"]
        plot.curves(ax, {"without the guard": records[name]["Fast"], "with it": guarded}, "gap", statistic="median")
        ax.set_title(title, fontsize="small")
        counts = guarded.history.groupby("step")[["guard_trips", "guard_held", "guard_clipped"]].mean().iloc[-1]
        notes.append(
            f"{title.split(',')[0]}: the guard took over {counts['guard_trips']:.3g} times a seed, "
            f"for {counts['guard_held']:.3g} steps, and clipped {counts['guard_clipped']:.3g} samples"
        )
    plot.caption(
        fig,
        f"Medians of {len(guarded.spec['seeds'])} seeds; there is no line where the median gain does not stabilise. "
        f"{'. '.join(notes)}.",
    )
    return fig


def _steps(method: tc.Fast | tc.Standard) -> str:
    lam = f", λ = {method.lam}" if isinstance(method, tc.Fast) else ""
    return f"α = {method.alpha}, β = {method.beta}{lam}"
