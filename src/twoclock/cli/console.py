"""What the commands print, and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twoclock import storage
from twoclock.engine.metrics import preferred_metric
from twoclock.protocols import InputError
from twoclock.result import Result

if TYPE_CHECKING:
    from twoclock.sweeps.sweep_result import Sweep

OUT = Console()
ERR = Console(stderr=True)


def printable(text: str) -> str:
    """Text with what no terminal can show, such as the odd bytes of a file's name, written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def say(text: str, console: Console = OUT) -> None:
    """A line as it is: brackets in it are no markup."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of plain text: a label with brackets is shown, not obeyed."""
    table = Table(*columns, title=Text(printable(title)) if title else None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    OUT.print(table)


def say_figures(paths: Iterable[Path]) -> None:
    for path in paths:
        say(f"  {path}")


def main_metric(result: Result | Sweep) -> str:
    metric = preferred_metric(result.metrics)
    if metric is None:
        raise InputError("this run recorded no metrics, so there is nothing to draw; give the problem a `measure`")
    return metric


def draw_comparison(
    results: dict[str, Result], folder: Path, metric: str, statistic: str, title: str | None = None
) -> list[Path]:
    from twoclock import plot as drawing

    fig = drawing.compare(results, metric, statistic, title)
    return [storage.put(folder / f"{metric}.{kind}", content) for kind, content in drawing.render(fig).items()]
