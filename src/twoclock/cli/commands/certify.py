"""Step sizes with a proof, and a test of their bound on a quadratic problem with the same constants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from twoclock import theory, validation
from twoclock.cli import open_folder, print_table, save_figure, say
from twoclock.cli.options import option, parse
from twoclock.engine.loop import ProgressEvent
from twoclock.methods import Fast, Standard
from twoclock.problems import custom, quadratic
from twoclock.protocols import InputError, Operator, Problem, PyTree
from twoclock.solve import solve
from twoclock.theory import Certificate
from twoclock.validation import run_args

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class CertifyOptions:
    """Options of `twoclock certify`."""

    structure: str = option("strongly-convex, pl or non-convex.", positional=True)
    L: float = option("Lipschitz constant of F, G, ∇h and ω*.")
    mu_g: tuple[float, ...] = option("Strong monotonicity of G in ω; with more than two levels one for each fast one.")
    mu_h: float | None = option("Strong convexity or PL constant of h.", None)
    noise: float = option("Noise level B, a bound on the variance of F and of G.", 1.0)
    method: str = option("fast, or standard.", "fast")
    proof: str = option("tight, paper or printed.", "tight")
    check: bool = option("Judge the schedules --alpha, --beta, --lam instead of computing new ones.", False)
    alpha: str | None = option("The step size of θ to judge, such as 1/(k+10); Fast's own if left out.", None)
    beta: str | None = option("The step size of ω to judge.", None)
    lam: str | None = option("The averaging weight to judge.", None)
    steps: int = option("Steps of the run that the bound is drawn against.", 100_000)
    seeds: int = option("Seeds of that run.", 100)
    out: Path | None = option("Folder for the picture; by default a new one under runs/.", None)


def command(args: Sequence[str]) -> int:
    """twoclock certify STRUCTURE --L … --mu-h … --mu-g … --noise …: step sizes with a proof, and the bound drawn."""
    chosen = parse(CertifyOptions, args, "twoclock certify")
    mu_g = chosen.mu_g if len(chosen.mu_g) > 1 else chosen.mu_g[0]
    if chosen.check:
        judged = {"fast": Fast, "standard": Standard}
        kind = validation.lookup(judged, chosen.method, "method")
        own = {name: getattr(chosen, name) for name in ("alpha", "beta", "lam") if getattr(chosen, name) is not None}
        if kind is Standard and "lam" in own:
            raise InputError("`lam` is for --method fast; the standard method averages nothing")
        checked = theory.check(kind(**own), chosen.structure, L=chosen.L, mu_h=chosen.mu_h, mu_g=mu_g)
        print_table("", ("proof", "inequality", "verdict"), [(f.group, f.name, str(f)) for f in checked.findings])
        left = "met at every step" if checked.leaves_order is None else f"left at step {checked.leaves_order}"
        say(f"The order α ≤ β ≤ λ ≤ ¼ is {left}; proofs that cover it: {', '.join(checked.covered) or 'none'}.")
        return 0
    found = theory.certify(
        chosen.structure, L=chosen.L, mu_h=chosen.mu_h, mu_g=mu_g, noise=chosen.noise,
        method=chosen.method, proof=chosen.proof, horizon=run_args.check_steps(chosen.steps),
    )  # fmt: skip
    conditions = [(c.name, f"{c.left:.6g}", f"{c.right:.6g}", f"{c.slack:.3g}") for c in found.conditions]
    print_table(str(found), ("inequality", "left", "right", "slack"), conditions)
    for note in found.notes:
        say(f"Note: {note}.")
    with open_folder(chosen.out, "certify") as out:
        table = measure_bound(found, chosen.steps, chosen.seeds, progress=True)
        rows = table[table["step"].isin([10**i for i in range(10)] + [chosen.steps])]
        columns = ("step", "measured mean", "bound")
        print_table("", columns, [(f"{r.step:,}", f"{r.mean:.3g}", f"{r.bound:.3g}") for r in rows.itertuples()])
        save_figure(draw_bound(found, table, chosen.seeds), out, "bound")
    return 0


def fit_quadratic(certificate: Certificate, dim: int = 2) -> Problem:
    """Make a problem with the certificate's μ_h, μ_G and noise level, and with slopes of at most its L."""
    L, mu_g = certificate.L, np.ravel(certificate.mu_g).tolist()
    mu_h = mu_g[0] if certificate.mu_h is None else certificate.mu_h
    top = max(mu_h, *mu_g, 0.8 * L)
    coupling = min(float(np.sqrt(L - top)), L)  # ‖∂F/∂θ‖ ≤ ‖H‖ + coupling²
    sigma = float(np.sqrt(certificate.noise / dim))
    if len(mu_g) == 1:
        return quadratic(dim, mu_h, mu_g[0], top=top, rotation=0.0, coupling=coupling, sigma=sigma)
    mu, coupling = (mu_h, *mu_g), min(coupling, 1.0)

    def operator(i: int) -> Operator:
        """μᵢ(xᵢ − c·xᵢ₋₁) + c(xᵢ₊₁ − c·xᵢ): a level's solution is c times the level before it, where it starts."""

        def one(theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
            at = (theta, *omega)
            off = [theta, *(later - coupling * before for before, later in itertools.pairwise(at))]
            return mu[i] * off[i] + (coupling * off[i + 1] if i < len(mu_g) else 0.0) + sigma * x[i]

        return one

    def measure(theta: PyTree, omega: PyTree) -> dict[str, jax.Array]:
        error = jnp.sum(jnp.square(theta))
        return {"error": error, "gap": mu_h * error / 2, "gradient": mu_h**2 * error}

    return custom(
        F=operator(0),
        G=tuple(operator(i) for i in range(1, len(mu))),
        noise=lambda key: jax.random.normal(key, (len(mu), dim)),
        theta=np.ones(dim),
        omega=tuple(np.full(dim, coupling**i) for i in range(1, len(mu))),
        measure=measure,
    )


def measure_bound(
    certificate: Certificate,
    steps: int = 100_000,
    seeds: int = 100,
    progress: bool | Callable[[ProgressEvent], None] = False,
) -> pd.DataFrame:
    """Run the certified method on its example: step, the metric's mean, its 95 % interval, and the bound.

    For non-convex h all of them are smallest values over the marks up to that step, as in the theorem.

    >>> import twoclock as tc
    >>> table = measure_bound(tc.certify("pl", L=1.0, mu_h=0.9, mu_g=0.9, noise=0.5), steps=1000, seeds=10)
    >>> bool((table["mean"] <= table["bound"]).all())
    True
    """
    problem = fit_quadratic(certificate)
    result = solve(problem, certificate.method(), steps, seeds, progress=progress)
    table = result.summary(certificate.metric)[["step", "mean", "low", "high"]].copy()
    if certificate.structure == "non-convex":
        table[["mean", "low", "high"]] = table[["mean", "low", "high"]].cummin()
    if (levels := len(certificate.c) - 1) == 2:
        start: Any = theory.start(problem, certificate.structure)
    else:  # each fast level starts at its solution, and each average at 0
        first = result.history[result.history["step"] == 0].iloc[0]
        distance = first["error" if certificate.structure == "strongly-convex" else "gap"]
        start = [distance, *[0.0] * (levels - 1), first["gradient"], *[0.0] * (levels - 1)]
    table["bound"] = certificate.bound(table["step"].to_numpy(), start)
    return table


def draw_bound(certificate: Certificate, table: pd.DataFrame, seeds: int) -> Figure:
    """Draw the bound and the measured mean."""
    from twoclock import plot

    fig, axes = plot.figure(width=6.4, height=4.6)
    ax, rows = axes[0, 0], table[table["step"] > 0]
    ax.plot(rows["step"], rows["bound"], color=plot.COLOURS[1], linewidth=1.6, label="bound of the certificate")
    ax.plot(rows["step"], rows["mean"], color=plot.COLOURS[0], linewidth=1.6, label="measured mean")
    ax.fill_between(rows["step"], rows["low"], rows["high"], color=plot.COLOURS[0], alpha=0.2, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel=plot.LABELS[certificate.metric])
    ax.set_title(f"{certificate.structure}, {certificate.proof} proof, on a quadratic that it fits", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")
    plot.caption(
        fig,
        f"α = {certificate.alpha}, β = {certificate.method().beta}, λ = {certificate.lam}; {seeds} seeds, float64; "
        "band: 95 % bootstrap interval of the mean",
    )
    return fig
