"""Sweep specifications in TOML: problems and methods of the catalogue by name, their settings, and grids over them.

steps = 100_000
seeds = 50

[problems.paper]
name = "random_policy_evaluation"
states = 50

[methods.fast]
name = "fast"
alpha = "5/(k+100)"
grid = { "alpha.c" = [1, 5, 25], "lam.c" = [20, 40] }
"""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from twoclock import registry, storage, validation
from twoclock.param_paths import grid
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.atomic_file import Document

T = TypeVar("T")

# Runs (settings × problems × seeds) beyond which a sweep is more likely a mistake.
MOST_RUNS = 100_000

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "problems": dict, "methods": dict, "steps": int, "seeds": (int, list), "marks": list, "precision": str,
    "bound": (int, float), "lanes": int, "memory": (int, float),
}  # fmt: skip


def read(path: Path, *, however_many: bool = False) -> Document:
    """Read the arguments of ``sweep`` from a file.

    Args:
        however_many: do not ask back when there are more than ``MOST_RUNS`` runs.
    """
    try:
        given = tomllib.loads(storage.text(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        raise InputError(f"`SPEC` {path} is not valid TOML ({error!s:.100})") from None
    for name, value in given.items():
        kind = validation.lookup(_FIELDS, name, "SPEC")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"`{name}` in {path.name} has the wrong type, got {validation.short_repr(value)}")
    for name in ("problems", "methods"):
        if not given.get(name):
            raise InputError(f"`SPEC` needs a table [{name}.LABEL] with a `name`; `twoclock list` shows what there is")
        for label, table in given[name].items():
            if not isinstance(table, Mapping) or not label:
                raise InputError(f"`{name}.{label}` must be a table with a `name`; write [{name}.{label}]")
    _check_runs(given, path, however_many)
    problems: dict[str, ProblemSource] = {}
    for label, table in given.pop("problems").items():
        where = f"problems.{label}"
        factory = _from_catalogue(registry.problems(), where, table)
        options = {name: value for name, value in table.items() if name != "name"}
        for name, value in options.items():
            default = validation.lookup(inspect.signature(factory).parameters, name, where).default
            kinds = (int, float) if isinstance(default, float) else type(default)
            fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)
            if default is not None and not fits:
                raise InputError(
                    f"`{where}.{name}` must be of the kind of its default {default!r}, "
                    f"got {validation.short_repr(value)}"
                )
        problems[label] = factory(**options)
    methods: dict[str, Method | dict[str, Method]] = {}
    for label, table in given.pop("methods").items():
        method = _make_method(f"methods.{label}", {name: v for name, v in table.items() if name != "grid"})
        methods[label] = grid(method, **table["grid"]) if "grid" in table else method
    return {"problems": problems, "methods": methods, **given}


def _make_method(where: str, table: Mapping[str, object]) -> Method:
    """A method from its fields; a method inside a method is a table with a name of its own."""
    kind = _from_catalogue(registry.methods(), where, table)
    fields = dict.fromkeys((*inspect.signature(kind).parameters, "name", "grid"))
    values = {}
    for name, value in table.items():
        validation.lookup(fields, name, where)
        if name != "name":
            values[name] = _make_method(f"{where}.{name}", value) if isinstance(value, Mapping) else value
    return kind(**values)


def _from_catalogue(catalogue: Mapping[str, T], where: str, table: Mapping[str, object]) -> T:
    name = table.get("name")
    if not isinstance(name, str):
        raise InputError(f"`{where}` needs a `name` from the catalogue; `twoclock list` shows what there is")
    return validation.lookup(catalogue, name, f"{where}.name")


def _check_runs(given: Document, path: Path, however_many: bool) -> None:
    """Before a grid is laid out: an empty one, and one that is too large to be meant."""
    settings = 0
    for label, table in given["methods"].items():
        lists = table.get("grid", {})
        if "grid" in table and (not isinstance(lists, Mapping) or not lists):
            raise InputError(f'`methods.{label}.grid` is empty; write grid = {{ "alpha.c" = [0.5, 1.0] }}')
        for name, values in lists.items():
            if not isinstance(values, list) or not values:
                raise InputError(f"`methods.{label}.grid` needs a list with at least one value for {name!r}")
        settings += math.prod(len(values) for values in lists.values())
    seeds = given.get("seeds", 20)
    runs = settings * len(given["problems"]) * (seeds if isinstance(seeds, int) else len(seeds))
    if runs > MOST_RUNS and not however_many:
        many = f"{runs:,}" if runs < 10**18 else validation.short_repr(runs)
        raise InputError(
            f"`SPEC` {path.name} asks for {many} runs (settings × problems × seeds), more than {MOST_RUNS:,}; "
            "add --yes if you mean it"
        )
