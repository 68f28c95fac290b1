"""What there is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from rich.markup import escape
from rich.table import Table

from twoclock import methods, problems, registry
from twoclock.cli import OUT, command_names, describe_command
from twoclock.cli.options import read_values


def command(args: Sequence[str]) -> int:
    """twoclock list: the commands, problems, methods and schedules there are, a line each."""
    read_values([], args, "twoclock list")
    plain = registry.problems()
    settings = {name: function for name, function in _functions(methods).items() if name not in registry.methods()}
    from_python = {_call(f): _summary(f) for name, f in _functions(problems).items() if name not in plain}
    lists = {
        "commands": {name: describe_command(name)[1] for name in command_names()},
        "problems": _lines(plain),
        "problems that take functions, data or another problem, from Python: tc.problems.…": from_python,
        "methods": _lines(registry.methods()),
        "known methods as settings of these, from Python: tc.methods.…": {
            _call(f): _summary(f) for f in settings.values()
        },
        "schedules": _lines(registry.schedules()),
    }
    for title, lines in lists.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, words in lines.items():
            table.add_row(f"[bold]{escape(name)}[/]", escape(words))
        OUT.print(table)
    return 0


def _lines(found: Mapping[str, Callable[..., object]]) -> dict[str, str]:
    return {name: _summary(thing) for name, thing in found.items()}


def _summary(thing: object) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].replace("``", "").split())


def _functions(package: ModuleType) -> dict[str, Callable[..., object]]:
    """The public functions of a package, by name."""
    found = {name: getattr(package, name) for name in package.__all__}
    return {name: thing for name, thing in found.items() if inspect.isfunction(thing)}


def _call(function: Callable[..., object]) -> str:
    """How a function is called: its name and the arguments that it must have."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return f"{function.__name__}({', '.join([*needed, '…'] if len(needed) < len(parameters) else needed)})"
