"""The page on the command line, from the options that the commands themselves declare."""

import dataclasses
import importlib
from pathlib import Path

from twoclock.cli import commands
from twoclock.cli.options import options_of


def page():
    lines = [
        "# The command line",
        "",
        "`twoclock COMMAND --help` says the same. Exit status: 0 done, 1 trouble with the machine or damage found,",
    ]
    lines += ["2 a wrong argument, 130 Ctrl-C. What goes wrong is one line.", ""]
    for path in sorted(Path(commands.__file__).parent.glob("*.py")):
        module = importlib.import_module(f"twoclock.cli.commands.{path.stem}")
        if not hasattr(module, "command"):
            continue
        usage, _, words = module.command.__doc__.partition(": ")
        lines += [f"## {path.stem}", "", f"`{usage}`", "", f"{words[:1].upper()}{words[1:]}", ""]
        kinds = [
            kind
            for name, kind in vars(module).items()
            if name.endswith("Options") and kind.__module__ == module.__name__
        ]
        rows = [row(option) for kind in kinds for option in options_of(kind)]
        lines += ["| | | default |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def row(option):
    name = option.name.upper() if option.positional else option.flag
    default = option.default
    if default is dataclasses.MISSING:
        default = "must be given"
    elif default is None:
        default = ""
    else:
        default = f"`{' '.join(default) if isinstance(default, tuple) else default}`" if default != "" else ""
    return f"| `{name}` | {option.help.replace('|', chr(92) + '|')} | {default} |"


def write(path):
    if not path.exists() or path.read_text() != page():
        path.write_text(page())
