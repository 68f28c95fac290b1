"""A certificate put to the test: the quadratic problem that its constants fit, the bound, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twoclock import theory
from twoclock.engine.loop import ProgressEvent
from twoclock.problems.quadratic import quadratic
from twoclock.protocols import Problem
from twoclock.solve import solve
from twoclock.theory import Certificate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def example(certificate: Certificate, dim: int = 2) -> Problem:
    """A quadratic problem with the certificate's μ_h, μ_G and noise level, and with no slope above its L."""
    L, mu_g = certificate.L, certificate.mu_g
    mu_h = mu_g if certificate.mu_h is None else certificate.mu_h
    top = max(mu_h, mu_g, 0.8 * L)
    coupling = min(float(np.sqrt(L - top)), L)  # ‖∂F/∂θ‖ ≤ ‖H‖ + coupling²
    sigma = float(np.sqrt(certificate.noise / dim))
    return quadratic(dim, mu_h, mu_g, top=top, rotation=0.0, coupling=coupling, sigma=sigma)


def trial(
    certificate: Certificate,
    steps: int = 100_000,
    seeds: int = 100,
    progress: bool | Callable[[ProgressEvent], None] = False,
) -> pd.DataFrame:
    """Run the certified method on its example: step, the metric's mean, its 95 % interval, and the bound.

    For non-convex h all of them are smallest values over the marks up to that step, as in the theorem.

    >>> import twoclock as tc
    >>> table = trial(tc.certify("pl", L=1.0, mu_h=0.9, mu_g=0.9, noise=0.5), steps=1000, seeds=10)
    >>> bool((table["mean"] <= table["bound"]).all())
    True
    """
    problem = example(certificate)
    result = solve(problem, certificate.method(), steps, seeds, progress=progress)
    table = result.summary(certificate.metric)[["step", "mean", "low", "high"]].copy()
    if certificate.structure == "non-convex":
        table[["mean", "low", "high"]] = table[["mean", "low", "high"]].cummin()
    table["bound"] = certificate.bound(table["step"].to_numpy(), theory.start(problem, certificate.structure))
    return table


def draw(certificate: Certificate, table: pd.DataFrame, seeds: int) -> Figure:
    """The bound against what was measured."""
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
        f"α = {certificate.alpha}, β = {certificate.beta}, λ = {certificate.lam}; {seeds} seeds, float64; "
        "band: 95 % bootstrap interval of the mean",
    )
    return fig
