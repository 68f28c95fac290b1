"""Run the experiments and write the report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from twoclock import __version__, catalogue, record
from twoclock.cli import options
from twoclock.cli.reporting import report
from twoclock.core import InputError
from twoclock.solve import Interrupted


@dataclass
class ReproduceOptions:
    experiments: Annotated[tuple[str, ...], tyro.conf.Positional] = ("all",)
    """Which experiments; `twoclock list` shows them."""
    quick: bool = False
    """Fewer seeds and steps; every page and figure says so."""
    out: Path = Path("reproduction")
    """Folder for records, figures and the report. What is there already is not run again."""
    resume: bool = False
    """Go on with an interrupted reproduction: the same, but an empty folder is a mistake."""


def command(args: Sequence[str]) -> int:
    """twoclock reproduce [EXPERIMENT …] [--quick] [--out DIR] [--resume]: run the experiments, judge them, report."""
    from twoclock.experiment import missing, run_experiment

    chosen = options.parse(ReproduceOptions, args, "twoclock reproduce")
    known = catalogue.experiments()
    asked = [
        catalogue.pick({name: name for name in (*known, "all")}, name, "EXPERIMENT") for name in chosen.experiments
    ]
    picked = {name: module for name, module in known.items() if name in asked or "all" in asked}
    out = _folder(chosen)
    todo = {name: missing(name, module, out, chosen.quick) for name, module in picked.items()}
    outcomes = {}
    with Overview(sum(_work(case) for cases in todo.values() for case in cases.values())) as overview:
        for name, module in picked.items():
            overview.begin(name, module.TITLE)
            try:
                outcomes[name] = run_experiment(name, module, out, quick=chosen.quick, look=overview.look)
            except Interrupted as stop:
                again = shlex.join(
                    ["twoclock", "reproduce", *(word for word in args if word != "--resume"), "--resume"]
                )
                raise Interrupted(f"{name} {str(stop).split(';')[0]}; to go on: {again}") from None
    made = shlex.join(["twoclock", "reproduce", *args])
    report(outcomes, picked, out, quick=chosen.quick, command=made)
    return 0


def _folder(chosen: ReproduceOptions) -> Path:
    """The folder, if it is of this version; quick and full runs live side by side in it."""
    out = chosen.out.expanduser().absolute() / ("quick" if chosen.quick else "full")
    made_by = record.note(out, "reproduction").get("twoclock")
    if chosen.resume and made_by is None:
        raise InputError(f"`--resume` needs a folder to go on in, {out} has no reproduction; leave --resume out")
    if made_by not in (None, __version__):
        raise InputError(
            f"`--out` {out} was made by twoclock {made_by}, this is {__version__}; remove it to redo, or choose another"
        )
    record.put_note(record.writable(out), "reproduction", {"twoclock": __version__})
    return out


def _work(case: Any) -> int:
    return case.steps * case.lanes


class Overview:
    """What runs now, and how far all of it is: a bar for the whole and a bar for the case."""

    def __init__(self, work: int) -> None:
        from twoclock.progress import bar

        self.work, self.done, self.name = work, 0, ""
        self.columns, self.stack = bar(), ExitStack()

    def __enter__(self) -> Overview:
        self.stack.enter_context(self.columns)
        self.whole = self.columns.add_task("everything", total=self.work, lanes=1, of=0, diverged=0)
        self.columns.update(self.whole, visible=self.work > 0)
        self.case: Any = None
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.close()

    def begin(self, name: str, title: str) -> None:
        self.name = name
        self.columns.console.print(f"[bold]{name}[/]: {title}")

    def look(self, label: str, case: Any) -> Callable[[Any], None]:
        if self.case is not None:
            self.columns.remove_task(self.case)
        task = self.columns.add_task(f"{self.name}, {label}", total=case.steps, lanes=case.lanes, diverged=0)
        self.case, before, share = task, self.done, case.lanes
        self.done += _work(case)
        seen = 0

        def tick(tick: Any) -> None:
            nonlocal seen
            seen = max(seen, tick.step)  # methods of different kinds walk the same steps one after the other
            self.columns.update(task, completed=tick.step, diverged=tick.diverged)
            self.columns.update(self.whole, completed=before + seen * share)

        return tick
