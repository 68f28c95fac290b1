"""Registry of methods, schedules and problems: it finds new files in their folders without a list."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

from twoclock import schedules as _schedules
from twoclock.protocols import Method, Problem, ProblemSource, Schedule

__all__ = ["methods", "problems", "schedules"]


def methods() -> dict[str, Callable[..., Method]]:
    """Every method class, by its name in lower case. Each has defaults for all its fields."""
    found = (thing for module in _import_modules("twoclock.methods") for thing in _public_classes(module))
    return {thing.__name__.lower(): thing for thing in found if issubclass(thing, Method)}


def schedules() -> dict[str, Callable[..., Schedule]]:
    """Every schedule class, by its name."""
    return {thing.__name__: thing for thing in _public_classes(_schedules) if "__call__" in vars(thing)}


def problems() -> dict[str, Callable[..., ProblemSource]]:
    """Every problem factory whose arguments are all plain settings, by its name.

    A factory whose first parameter is ``key`` draws a problem; it is listed as a factory of such draws, so that each
    seed has its own.
    """
    found = {}
    for module in _import_modules("twoclock.problems"):
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isfunction(thing) and is_plain(thing):
                found[name] = factory(thing)
    return found


def factory(function: Callable[..., Problem]) -> Callable[..., ProblemSource]:
    """Convert a function that makes problems to one of settings alone; one of a key becomes a factory of draws."""
    signature = inspect.signature(function)
    if "key" not in signature.parameters:
        return function

    def settings(**options: object) -> ProblemSource:
        return partial(function, **options)

    functools.update_wrapper(settings, function)
    rest = [p for name, p in signature.parameters.items() if name != "key"]
    settings.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return settings


def _import_modules(folder: str) -> Iterator[ModuleType]:
    """Every module below a package, in the order of their names."""
    package = importlib.import_module(folder)
    for info in sorted(pkgutil.walk_packages(package.__path__, f"{package.__name__}."), key=lambda info: info.name):
        yield importlib.import_module(info.name)


def _public_classes(module: ModuleType) -> list[type]:
    members = inspect.getmembers(module, inspect.isclass)
    return [thing for name, thing in members if thing.__module__ == module.__name__ and not name.startswith("_")]


def is_plain(factory: Callable[..., Problem]) -> bool:
    """Whether all parameters except a key have defaults that a command-line word can represent."""
    parameters = list(inspect.signature(factory).parameters.values())
    rest = parameters[1:] if parameters and parameters[0].name == "key" else parameters
    return all(p.default is None or isinstance(p.default, (bool, int, float, str)) for p in rest)
