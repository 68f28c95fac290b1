"""Run the experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from twoclock import catalogue, record
from twoclock.cli import options
from twoclock.cli.console import OUT, say_figures


@dataclass
class ReproduceOptions:
    experiments: Annotated[tuple[str, ...], tyro.conf.Positional] = ("all",)
    """Which experiments; `twoclock list` shows them."""
    quick: bool = False
    """Fewer seeds and steps; every figure says so."""
    out: Path = Path("reproduction")
    """Folder for records and figures. What is there already is not run again."""


def command(args: Sequence[str]) -> int:
    """twoclock reproduce [EXPERIMENT …] [--quick] [--out DIR]: run the experiments, draw and judge them."""
    from twoclock.experiment import run_experiment
    from twoclock.progress import bar

    chosen = options.parse(ReproduceOptions, args, "twoclock reproduce")
    known = catalogue.experiments()
    names = list(known) if "all" in chosen.experiments else chosen.experiments
    picked = {name: catalogue.pick({**known, "all": None}, name, "EXPERIMENT") for name in names}
    out = record.writable(chosen.out / ("quick" if chosen.quick else "full"))
    for name, module in picked.items():
        assert module is not None
        OUT.print(f"[bold]{name}[/]: {module.TITLE}")
        with bar() as columns:

            def look(label: str, case: Any, columns: Any = columns) -> Callable[[Any], None]:
                seeds = case.seeds if isinstance(case.seeds, int) else len(case.seeds)
                task = columns.add_task(label, total=case.steps, lanes=seeds, diverged=0)
                return lambda tick: columns.update(task, completed=tick.step, diverged=tick.diverged)

            outcome = run_experiment(name, module, out, quick=chosen.quick, look=look)
        for claim in outcome.claims:
            OUT.print(f"  {claim.statement} ({claim.place}): [bold]{claim.verdict}[/]", soft_wrap=True)
        say_figures(outcome.figures.values())
    if chosen.quick:
        OUT.print("These verdicts are of a quick run, too short for some of the claims; the full run decides.")
    return 0
