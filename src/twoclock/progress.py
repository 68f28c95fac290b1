"""A bar for long runs: rate, time left, seeds diverged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from twoclock.engine.loop import ProgressEvent


@contextmanager
def watch(
    progress: bool | Callable[[ProgressEvent], None], steps: int, lanes: int, labels: Sequence[str] = ("",)
) -> Iterator[Callable[[ProgressEvent], None]]:
    """What to call with each tick: nothing, the user's own function, or a bar on the terminal."""
    if callable(progress):
        yield lambda tick: progress(replace(tick, labels=tuple(labels)))
    elif not progress:
        yield lambda tick: None
    else:
        with bar() as columns:
            task = columns.add_task("steps", total=steps, lanes=lanes, diverged=0)
            yield lambda tick: columns.update(
                task, completed=tick.step, diverged=tick.diverged, description=f"steps on {tick.engine}"
            )


@contextmanager
def tally(progress: bool, label: str) -> Iterator[Callable[[int, int], None]]:
    """What to call with the work done and the work there is: nothing, or a bar on the terminal."""
    if not progress:
        yield lambda done, total: None
        return
    with bar() as columns:
        task = columns.add_task(label, total=None, lanes=1, of=0, diverged=0)
        yield lambda done, total: columns.update(task, completed=done, total=total)


def bar() -> Any:
    """A rich progress bar whose tasks count steps and have the fields ``lanes`` and ``diverged``.

    A task may also say how many lanes can diverge, ``of``, and what stands for its count, ``count``.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(task.fields.get("count") or f"{task.completed:,.0f}/{task.total or 0:,.0f}", style="green")

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = (task.finished_speed or task.speed or 0) * task.fields["lanes"]
            return Text(f"{_si(speed)} seed-steps/s", style="cyan")

    class Diverged(ProgressColumn):
        def render(self, task: Task) -> Text:
            count, lanes = task.fields["diverged"], task.fields.get("of", task.fields["lanes"])
            return Text(f"{count}/{lanes} diverged" if lanes else "", style="red" if count else "dim")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        Count(),
        Rate(),
        TimeRemainingColumn(),
        Diverged(),
        console=Console(stderr=True),
    )


def _si(number: float | int) -> str:
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"
