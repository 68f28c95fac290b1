"""What ``tune`` was asked for, checked: methods with their boxes, the metric, the seeds that a budget pays for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import numpy as np

from twoclock import prng, validation
from twoclock.engine.metrics import PREFERRED_METRICS
from twoclock.engine.select_engine import EngineName
from twoclock.protocols import InputError, Problem
from twoclock.tuning.halving import Plan
from twoclock.tuning.method_factory import Recipe, Tunable, is_recipe
from twoclock.tuning.objective import MOST_SEEDS, RESIDUAL
from twoclock.tuning.scores import By
from twoclock.tuning.search_space import Box, check_box, default_box

Limits = Mapping[str, tuple[float, float]]
ORDERED = "α ≤ β ≤ λ"
_SEEDS = 8
_MOST = 10**18


class Options(TypedDict, total=False):
    """The keywords of ``tune`` that do not change what it returns."""

    by: By
    widen: bool | None
    rungs: int
    seed: int
    bound: float | None
    engine: EngineName
    progress: bool


@dataclass(frozen=True)
class Entry:
    """One method to tune, where, whether α ≤ β ≤ λ is kept, and whether the box may grow."""

    method: Tunable
    box: Box
    order: bool
    widen: bool


def entries(method: Any, space: Any, order: Any, widen: bool | None, fast: bool) -> dict[str, Entry]:
    """What to tune, by label; a single method has the empty one.

    Args:
        widen: None lets the default box grow, and no other.
        fast: False where ω has no entries.
    """
    methods = method if isinstance(method, Mapping) else {"": method}
    if not methods:
        raise InputError("`method` must name at least one method, got an empty mapping")
    by_label = isinstance(method, Mapping) and isinstance(space, Mapping) and any(label in methods for label in space)
    if by_label and set(space) != set(methods):
        odd = ", ".join(str(label) for label in set(space) ^ set(methods))
        raise InputError(f"`space` must have an entry for each method, or be one for all; {odd} is in one of them only")
    found: dict[str, Entry] = {}
    for label, each in methods.items():
        if not isinstance(label, str):
            raise InputError(f"`method` must map text labels to methods, got the label {label!r}")
        limits = space[label] if by_label else space
        grows = limits is None if widen is None else widen
        try:
            tunable: Tunable = Recipe.of(each, limits) if is_recipe(each) else validation.check_method(each)
            box = _box(tunable, limits, fast)
        except InputError as error:
            if not label:
                raise
            raise InputError(f"{error} (for the method {label!r})") from None
        if order == "both":
            found[f"{label}, {ORDERED}" if label else ORDERED] = Entry(tunable, box, True, grows)
            found[label or "any order"] = Entry(tunable, box, False, grows)
        else:
            found[label] = Entry(tunable, box, bool(order), grows)
    if len(found) < len(methods) * (2 if order == "both" else 1):
        raise InputError("`method` has two labels that order='both' cannot tell apart; choose others")
    return found


def _box(method: Tunable, limits: object, fast: bool) -> Box:
    if limits is None and not isinstance(method, Recipe):
        return default_box(method, fast)
    return check_box(method, limits)


def metric_of(example: Problem, metric: object, by: str) -> str:
    """What to compare: what was asked for, or an error that the problem knows, or the residual; never a guess."""
    if metric is not None and not isinstance(metric, str):
        raise InputError(f"`metric` must be text, got {validation.shown(metric)}; leave it out to have it chosen")
    known: list[str] = []
    if metric != RESIDUAL and example.knows("measure"):
        known = list(jax.eval_shape(lambda problem: problem.measure(*problem.init(prng.start_key(0))[:2]), example))
    if metric is None:
        metric = next((name for name in PREFERRED_METRICS if name in known), RESIDUAL)
    elif metric != RESIDUAL and metric not in known:
        raise InputError(f"`metric` must be one of {', '.join((*known, RESIDUAL))}, got {validation.shown(metric)}")
    if metric == RESIDUAL and by == "area":
        others = f"name one of {', '.join(known)}" if known else "use by='end'"
        raise InputError(f"`by='area'` needs a metric with known truth, and the residual is of the end alone; {others}")
    return str(metric)


def seeds_for(budget: object, plans: Mapping[str, Plan]) -> tuple[int, dict[str, int]]:
    """The seed-steps that each method may spend, and how many seeds they pay for in the first rung of each."""
    dearest = max(plans.values(), key=lambda plan: plan.price())
    if budget is None:
        budget = _SEEDS * dearest.price()
    least = 2 * dearest.price()
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not least <= budget <= _MOST:
        raise InputError(
            f"`budget` must be at least {least:,} seed-steps for rungs={dearest.rungs} at steps={dearest.steps:,}, and "
            f"at most 10¹⁸, got {validation.shown(budget)}; raise it, or lower `steps` or `rungs`"
        )
    counts = {label: int(budget // plan.price()) for label, plan in plans.items()}
    return int(budget), {
        label: count if count <= MOST_SEEDS else count - count % MOST_SEEDS for label, count in counts.items()
    }


def whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"`{name}` must be a whole number from {low} to {high:,}, got {validation.shown(value)}")
    return int(value)


def one_of(name: str, value: object, choices: tuple[Any, ...]) -> Any:
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise InputError(
            f"`{name}` must be {' or '.join(repr(choice) for choice in choices)}, got {validation.shown(value)}"
        )
    return value


def counter(look: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    """A function that adds up what it is told of, and passes the sum on."""
    done = 0

    def add(work: int) -> None:
        nonlocal done
        done += work
        look(done, total)

    return add
