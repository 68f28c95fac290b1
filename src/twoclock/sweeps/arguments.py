"""The arguments of a sweep, checked before anything is made of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from twoclock import validation
from twoclock.engine import select_engine
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.run_identity import RunSpec
from twoclock.storage.sweep_store import hive
from twoclock.sweeps.plan import Job
from twoclock.validation import run_args, short_repr


def job(
    problems: Mapping[str, ProblemSource],
    methods: Mapping[str, Method | Mapping[str, Method]],
    steps: object,
    seeds: object,
    marks: object,
    precision: object,
    bound: object,
    engine: object = "auto",
) -> tuple[Job, dict[str, str]]:
    """What is to be swept, and for each method the family among whose settings it is compared."""
    for name, given in {"problems": problems, "methods": methods}.items():
        if not isinstance(given, Mapping) or not given:
            raise InputError(f"`{name}` must be a mapping of labels with at least one entry, got {short_repr(given)}")
    run = RunSpec.checked(steps, seeds, marks, precision, bound)
    flat: dict[str, Method] = {}
    families: dict[str, str] = {}
    for label, entry in methods.items():
        if isinstance(entry, Mapping) and not entry:
            raise InputError(f"`methods` has an empty grid under {label!r}; give it at least one setting")
        settings = {f"{label} {s}": m for s, m in entry.items()} if isinstance(entry, Mapping) else {label: entry}
        for twice in flat.keys() & settings.keys():
            raise InputError(f"`methods` has {twice!r} twice, alone and in a grid; give one of them another label")
        flat.update(settings)
        families.update(dict.fromkeys(settings, label))
    alone = [label for label in methods if label in flat]
    kinds = [_kind(flat[label]) for label in alone]
    families.update({label: kind for label, kind in zip(alone, kinds, strict=True) if kinds.count(kind) > 1})
    for label, method in flat.items():
        hive("method", label)
        if not isinstance(method, Method) or isinstance(method, type):
            raise InputError(
                f"`methods` has {label!r}, which is no method but a {type(method).__name__}; try tc.Fast()"
            )
    for label in problems:
        hive("problem", label)
    checked = {label: run_args.check_problem(problem) for label, problem in problems.items()}
    return Job(checked, flat, run, select_engine.resolve(engine)), families


def _kind(method: object) -> str:
    """Methods given one by one are compared with those of their kind, as settings of it."""
    inner = getattr(method, "method", None)
    return type(method).__name__ + (f"({_kind(inner)})" if isinstance(inner, Method) else "")


def check_lanes(lanes: object) -> int:
    if isinstance(lanes, bool) or not isinstance(lanes, (int, np.integer)) or lanes < 1:
        raise InputError(f"`lanes` must be a whole number from 1 on, got {short_repr(lanes)}; leave it out for 2048")
    return int(lanes)


def check_bytes(memory: object) -> float | int:
    if isinstance(memory, bool) or not isinstance(memory, (int, float, np.number)) or not memory > 0:
        raise InputError(f"`memory` must be a number of bytes, got {short_repr(memory)}; leave it out for 1 GiB")
    return int(min(memory, 2**62))


def check_choices(on: object, out: object, address: object, shared: object, tries: object) -> None:
    """Where to run, and what only a cluster has."""
    if not isinstance(on, str) or on not in ("local", "ray"):
        raise InputError(f"`on` must be 'local' or 'ray', got {short_repr(on)}")
    if out is not None:
        validation.check_path("out", out)
    if validation.flag("shared", shared) and (out is None or on != "ray"):
        raise InputError('`shared` needs on="ray" and `out`, a folder that every worker sees')
    if address is not None and (not isinstance(address, str) or on != "ray"):
        raise InputError(f'`address` must be "host:port" of a Ray cluster, with on="ray", got {short_repr(address)}')
    if isinstance(tries, bool) or not isinstance(tries, int) or not 1 <= tries <= 1000:
        raise InputError(f"`tries` must be a whole number from 1 to 1,000, got {short_repr(tries)}")
