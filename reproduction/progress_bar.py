"""What runs now, and how far all of it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.progress import Progress, TaskID

from twoclock.progress import bar

if TYPE_CHECKING:  # matplotlib and all that draws is not loaded for the help
    from reproduction.experiment import Case
    from twoclock.engine.loop import ProgressEvent


class Overview:
    """A bar for everything and one for each experiment's case that is running."""

    def __init__(self) -> None:
        self.columns: Progress = bar()
        self.work = 0
        self.whole = self.columns.add_task("everything", total=0, lanes=1, of=0, diverged=0, visible=False)
        self.done: dict[tuple[str, str], int] = {}
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Overview:
        self.columns.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.columns.stop()

    def expect(self, work: int) -> None:
        """So many seed-steps more are to be done."""
        self.work += work
        self.columns.update(self.whole, total=self.work, visible=self.work > 0)

    def begin(self, name: str, title: str, work: int = 0) -> None:
        self.columns.console.print(f"[bold]{name}[/]: {title}")
        self.expect(work)

    def progress(self, name: str) -> Callable[[str, Case], Callable[[ProgressEvent], None]]:
        """For ``run_experiment``: what to call with each tick of a case of this experiment."""

        def of_case(label: str, case: Case) -> Callable[[ProgressEvent], None]:
            self.start(name, label, case.steps, case.lanes)
            return lambda tick: self.tick(name, label, tick.step, tick.diverged, case.lanes)

        return of_case

    def start(self, name: str, label: str, steps: int, lanes: int) -> None:
        if name in self.tasks:
            self.columns.remove_task(self.tasks[name])
        self.tasks[name] = self.columns.add_task(f"{name}, {label}", total=steps, lanes=lanes, diverged=0)

    def tick(self, name: str, label: str, step: int, diverged: int, lanes: int) -> None:
        self.columns.update(self.tasks[name], completed=step, diverged=diverged)
        # Methods of different kinds walk the same steps one after the other.
        self.done[name, label] = max(self.done.get((name, label), 0), step * lanes)
        self.columns.update(self.whole, completed=sum(self.done.values()))
