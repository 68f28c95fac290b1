"""The commands, problems, methods and schedules, with their summaries."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType

from rich.markup import escape
from rich.table import Table

from twoclock import methods, problems, registry
from twoclock.cli import OUT
from twoclock.cli.options import read_values
from twoclock_command import describe_commands


def command(args: Sequence[str]) -> int:
    """twoclock list: all commands, problems, methods and schedules, one per line."""
    read_values([], args, "twoclock list")
    problems_here, methods_here = registry.problems(), registry.methods()
    lists = {
        "commands": {name: words for name, (_, words) in describe_commands().items()},
        "problems": {name: _first_paragraph(thing) for name, thing in problems_here.items()},
        "problems that take functions, data or another problem, from Python: tc.problems.…": _describe_calls(
            problems, problems_here
        ),
        "methods": {name: _first_paragraph(thing) for name, thing in methods_here.items()},
        "known methods as settings of these, from Python: tc.methods.…": _describe_calls(methods, methods_here),
        "schedules": {name: _first_paragraph(thing) for name, thing in registry.schedules().items()},
    }
    for title, lines in lists.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, words in lines.items():
            table.add_row(f"[bold]{escape(name)}[/]", escape(words))
        OUT.print(table)
    return 0


def _first_paragraph(thing: object) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].replace("``", "").split())


def _describe_calls(package: ModuleType, known: Mapping[str, object]) -> dict[str, str]:
    """The public functions of a package that the command line does not know by name, with their required arguments."""
    calls = {}
    for name in package.__all__:
        function = getattr(package, name)
        if not inspect.isfunction(function) or name in known:
            continue
        parameters = inspect.signature(function).parameters.values()
        needed = [
            p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        call = f"{name}({', '.join([*needed, '…'] if len(needed) < len(parameters) else needed)})"
        calls[call] = _first_paragraph(function)
    return calls
