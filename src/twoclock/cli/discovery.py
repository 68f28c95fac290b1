"""The commands there are: each file in `commands` is one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence

from twoclock.cli import commands


def command_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


def command(name: str) -> Callable[[Sequence[str]], int]:
    """The function that runs a command, given its arguments."""
    return importlib.import_module(f"twoclock.cli.commands.{name}").command


def summary(name: str) -> tuple[str, str]:
    """How a command is called, and what it does."""
    usage, _, words = (command(name).__doc__ or "").partition(": ")
    return usage, words
