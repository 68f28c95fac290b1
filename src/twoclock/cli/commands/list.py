"""What there is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from typing import Any

from rich.table import Table

from twoclock import catalogue
from twoclock.cli import options
from twoclock.cli.console import OUT


def command(args: Sequence[str]) -> int:
    """twoclock list: the problems, methods, schedules and experiments there are."""
    options.parse(make_dataclass("List", []), args, "twoclock list")
    kinds: dict[str, Mapping[str, Any]] = {
        "problems": catalogue.problems(),
        "methods": catalogue.methods(),
        "schedules": catalogue.schedules(),
        "experiments": catalogue.experiments(),
    }
    for title, found in kinds.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, thing in found.items():
            table.add_row(f"[bold]{name}[/]", (inspect.getdoc(thing) or "").split("\n")[0])
        OUT.print(table)
    return 0
