"""Step sizes with a proof."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twoclock import storage, validation
from twoclock.cli import options
from twoclock.cli.console import OUT, print_table, say_figures
from twoclock.methods import Fast


@dataclass
class CertifyOptions:
    """Options of `twoclock certify`."""

    structure: Annotated[str, tyro.conf.Positional]
    """strongly-convex, pl or non-convex."""
    L: float
    """Lipschitz constant of F, G, ∇h and ω*."""
    mu_g: float
    """Strong monotonicity of G in ω."""
    mu_h: float | None = None
    """Strong convexity or PL constant of h."""
    noise: float = 1.0
    """Noise level B, a bound on the variance of F and of G."""
    proof: str = "tight"
    """tight, or paper."""
    check: bool = False
    """Judge the schedules --alpha, --beta, --lam instead of making some."""
    alpha: str | None = None
    """Schedules to judge, Fast's own if left out."""
    beta: str | None = None
    lam: str | None = None
    steps: options.Whole = 100_000
    """Steps of the run that the bound is drawn against."""
    seeds: options.Whole = 100
    out: Path | None = None
    """Folder for the picture; by default a new one under runs/."""


def command(args: Sequence[str]) -> int:
    """twoclock certify STRUCTURE --L … --mu-h … --mu-g … --noise …: step sizes with a proof, and the bound drawn."""
    from twoclock import plot as drawing
    from twoclock import theory
    from twoclock.cli import certificate_check

    chosen = options.parse(CertifyOptions, args, "twoclock certify")
    known = {"L": chosen.L, "mu_h": chosen.mu_h, "mu_g": chosen.mu_g}
    if chosen.check:
        own = {name: getattr(chosen, name) for name in ("alpha", "beta", "lam") if getattr(chosen, name) is not None}
        checked = theory.check(Fast(**own), chosen.structure, **known)
        print_table("", ("proof", "inequality", "verdict"), [(f.group, f.name, str(f)) for f in checked.findings])
        left = "kept at every step" if checked.leaves_order is None else f"left at step {checked.leaves_order}"
        OUT.print(f"The order α ≤ β ≤ λ ≤ ¼ is {left}; proofs that cover it: {', '.join(checked.covered) or 'none'}.")
        return 0
    found = theory.certify(
        chosen.structure, **known, noise=chosen.noise, proof=chosen.proof, horizon=validation.check_steps(chosen.steps)
    )
    conditions = [(c.name, f"{c.left:.6g}", f"{c.right:.6g}", f"{c.slack:.3g}") for c in found.conditions]
    print_table(str(found), ("inequality", "left", "right", "slack"), conditions)
    for note in found.notes:
        OUT.print(f"Note: {note}.", highlight=False)
    with nullcontext(storage.writable(chosen.out)) if chosen.out else storage.numbered(Path("runs"), "certify") as out:
        table = certificate_check.trial(found, chosen.steps, chosen.seeds, progress=True)
        rows = table[table["step"].isin([10**i for i in range(10)] + [chosen.steps])]
        columns = ("step", "measured mean", "bound")
        print_table("", columns, [(f"{r.step:,}", f"{r.mean:.3g}", f"{r.bound:.3g}") for r in rows.itertuples()])
        drawn = drawing.render(certificate_check.draw(found, table, chosen.seeds))
        say_figures(storage.put(out / f"bound.{kind}", content) for kind, content in drawn.items())
    return 0
