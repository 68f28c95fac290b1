"""Run a sweep from a TOML file: problems and methods of the catalogue by name, their settings, and grids over them.

steps = 100_000
seeds = 50

[problems.paper]
name = "random_policy_evaluation"
states = 50

[methods.fast]
name = "fast"
alpha = "5/(k+100)"
grid = { "alpha.c" = [1, 5, 25], "lam.c" = [20, 40] }

A name may also be file.py:name of your own problem or method; its path is relative to the TOML file.
"""

from __future__ import annotations

import inspect
import math
import os
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from twoclock import registry, storage, validation
from twoclock.cli import ERR, draw_sweep, main_metric, options, print_table, resumable, say
from twoclock.cli.options import EngineOption, option, parse
from twoclock.engine.engines import VARIABLE
from twoclock.param_paths import grid
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.atomic_file import Document
from twoclock.validation import short_repr

T = TypeVar("T")

_MOST_RUNS = 100_000  # settings × problems × seeds; more are probably a mistake
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "problems": dict, "methods": dict, "steps": int, "seeds": (int, list), "marks": list, "precision": str,
    "bound": (int, float), "lanes": int, "memory": (int, float),
}  # fmt: skip


@dataclass
class SweepOptions:
    spec: Path = option(
        "A TOML file: steps, seeds, [problems.LABEL] and [methods.LABEL] with a name, settings and a grid.",
        positional=True,
    )
    out: Path | None = option(
        "Folder for the data set; by default runs/ and the name of the file. Finished runs in it are not repeated.",
        None,
    )
    on: Literal["local", "ray"] = option("Where to run.", "local")
    address: str | None = option("Of the Ray cluster, host:port; started on this machine if left out.", None)
    shared: bool = option("Ray workers write to --out themselves; it must be a folder that they all see.", False)
    metric: str | None = option("What to draw; the first recorded metric that measures progress if left out.", None)
    engine: EngineOption = option(
        'What runs the steps: "xla" works everywhere, "c" and "cuda" compile a program for them.', "auto"
    )
    yes: bool = option("Run without asking, even if the grid is very large.", False)


def command(args: Sequence[str]) -> int:
    """twoclock sweep SPEC.toml [--on ray] [--out DIR] [--yes]: run a grid of settings as one resumable data set."""
    from twoclock.sweeps import ShardsFailed, sweep

    chosen = parse(SweepOptions, args, "twoclock sweep")
    if chosen.engine != "auto":
        os.environ[VARIABLE] = chosen.engine  # for the rest of the process, and for its child processes
    wanted = read_spec(chosen.spec, however_many=chosen.yes)
    out = chosen.out or Path("runs") / chosen.spec.stem
    try:
        with resumable(shlex.join(["twoclock", "sweep", *args])):
            found = sweep(
                **wanted, out=out, on=chosen.on, address=chosen.address, shared=chosen.shared, progress=True
            )  # fmt: skip
    except ShardsFailed as trouble:
        say(f"twoclock: {trouble}", ERR)
        return 1
    metric = chosen.metric or main_metric(found)
    best = found.best(metric)
    rows = [
        (str(r.problem), str(r.method), f"{r.mean:.4g}", f"{r.low:.3g} … {r.high:.3g}", f"{r.diverged}/{r.seeds}")
        for r in best.itertuples()
    ]
    print_table(f"best by {metric}", ("problem", "method", "mean", "95 % interval", "diverged"), rows)
    draw_sweep(found, metric, "mean", out)
    say(f"  {(out / 'history').absolute()}")
    return 0


def read_spec(path: Path, *, however_many: bool = False) -> Document:
    """Read the arguments of ``sweep`` from a file; a very large number of runs only if ``however_many``."""
    try:
        given = tomllib.loads(storage.text(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        raise InputError(f"`SPEC` {path} is not valid TOML ({error!s:.100})") from None
    for name, value in given.items():
        kind = validation.lookup(_FIELDS, name, "SPEC")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"`{name}` in {path.name} has the wrong type, got {short_repr(value)}")
    for name in ("problems", "methods"):
        if not given.get(name):
            raise InputError(f"`SPEC` needs a table [{name}.LABEL] with a `name`; `twoclock list` shows what there is")
        for label, table in given[name].items():
            if not isinstance(table, Mapping) or not label:
                raise InputError(f"`{name}.{label}` must be a table with a `name`; write [{name}.{label}]")
    seeds, settings = given.get("seeds", 20), 0
    for label, table in given["methods"].items():
        lists = table.get("grid", {})
        if "grid" in table and (not isinstance(lists, Mapping) or not lists):
            raise InputError(f'`methods.{label}.grid` is empty; write grid = {{ "alpha.c" = [0.5, 1.0] }}')
        for name, values in lists.items():
            if not isinstance(values, list) or not values:
                raise InputError(f"`methods.{label}.grid` needs a list with at least one value for {name!r}")
        settings += math.prod(len(values) for values in lists.values())
    runs = settings * len(given["problems"]) * (seeds if isinstance(seeds, int) else len(seeds))
    if runs > _MOST_RUNS and not however_many:
        many = f"{runs:,}" if runs < 10**18 else short_repr(runs)
        raise InputError(
            f"`SPEC` {path.name} asks for {many} runs (settings × problems × seeds), more than {_MOST_RUNS:,}; "
            "add --yes if you mean it"
        )
    problems: dict[str, ProblemSource] = {}
    for label, table in given.pop("problems").items():
        where = f"problems.{label}"
        factory = _find(registry.problems(), options.load_problem, where, table, path.parent)
        settings_here = {name: value for name, value in table.items() if name != "name"}
        for name, value in settings_here.items():
            default = validation.lookup(inspect.signature(factory).parameters, name, where).default
            kinds = (int, float) if isinstance(default, float) else type(default)
            fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)
            if default is not None and not fits:
                raise InputError(
                    f"`{where}.{name}` must be of the kind of its default {default!r}, got {short_repr(value)}"
                )
        with options.user_code(f"`{where}` fails"):
            problems[label] = factory(**settings_here)
    methods: dict[str, Method | dict[str, Method]] = {}
    for label, table in given.pop("methods").items():
        of_method = {name: value for name, value in table.items() if name != "grid"}
        method = _make_method(f"methods.{label}", of_method, path.parent)
        methods[label] = grid(method, **table["grid"]) if "grid" in table else method
    return {"problems": problems, "methods": methods, **given}


def _make_method(where: str, table: Mapping[str, object], folder: Path) -> Method:
    """A method from its fields; a method inside a method is a table with its own name."""
    kind = _find(registry.methods(), options.load_method, where, table, folder)
    fields = dict.fromkeys((*inspect.signature(kind).parameters, "name", "grid"))
    values = {}
    for name, value in table.items():
        validation.lookup(fields, name, where)
        if name != "name":
            values[name] = _make_method(f"{where}.{name}", value, folder) if isinstance(value, Mapping) else value
    with options.user_code(f"`{where}` fails"):
        return kind(**values)


def _find(
    catalogue: Mapping[str, T], load: Callable[[str, str], T], where: str, table: Mapping[str, object], folder: Path
) -> T:
    """The object that a table names: an entry of the catalogue, or an object in a user's file."""
    name = table.get("name")
    if not isinstance(name, str):
        raise InputError(
            f"`{where}` needs a `name`: one that `twoclock list` shows, or file.py:name of your own; write name = …"
        )
    if ".py:" in name:
        return load(str(folder / Path(name).expanduser()), f"{where}.name")
    return validation.lookup(catalogue, name, f"{where}.name")
