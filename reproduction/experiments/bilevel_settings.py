"""Bilevel least squares: what is compared, and how it is tuned."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TypedDict

import twoclock as tc
from reproduction.sensitivity import around, label_settings
from reproduction.tuned_settings import Limits, MethodSearch, decaying, holding, settings
from twoclock import Method, Problem


class DataSize(TypedDict):
    """The size of the data, as the problems' factories take it."""

    dim_x: int
    dim_y: int
    samples: int


SETTING: DataSize = {"dim_x": 100, "dim_y": 100, "samples": 1024}
# Items drawn from each level in a whole run; a run of batch B has as many steps as that takes.
ITEMS = {True: 32_000, False: 640_000}
SOBA, MA_SOBA, TTSA, FAST, FAST_MEAN, SGDA = "SOBA", "MA-SOBA", "TTSA steps", "Fast", "Fast, averaged", "SGDA"
BILEVEL = (FAST, SOBA, MA_SOBA, TTSA, FAST_MEAN)
COMPARED = {"bilevel": BILEVEL, "replaced": BILEVEL, "minimax": (FAST, SGDA, FAST_MEAN)}
# Methods that need finite data, to go through it again: SVRG every item equally often. They converge linearly, so a
# fifteenth of the items is enough to see where they go.
SABA, SVRG = "SABA", "SVRG"
REDUCED = {"bilevel": (SABA, SVRG), "replaced": (SABA,), "minimax": (SABA, SVRG)}
WORDS = {"bilevel": "without replacement", "replaced": "with replacement", "minimax": "minimax, without replacement"}
PANELS = (("bilevel", 16), ("replaced", 16), ("minimax", 16))
# The box in which `tc.tune` looks first; it widens it while the leader lies at an edge. No order is imposed.
_RATIO, _ITEMS = (0.5, 32.0), (100.0, 100_000.0)
_REDUCED_BOX: Limits = {"c": (1.0, 32.0), "second": (0.25, 16.0)}
# As few runs as a search of four rungs takes: seeds differ little here.
_RUNS = 228
BOXES: dict[str, Limits] = {
    name: {"c": (1.0, 64.0), "second": _ITEMS if name in (TTSA, FAST_MEAN) else _RATIO}
    for name in (FAST, SOBA, MA_SOBA, TTSA, FAST_MEAN, SGDA)
}


def where(kind: str, batch: int) -> str:
    return f"{WORDS[kind]}, batches of {batch}"


def make(name: str, c: float, second: float, batch: int, levels: int = 2) -> Method:
    """A method with two numbers to tune: c, of α = c/(k + shift), and one of its own.

    SOBA, SGDA, MA-SOBA, Fast: β/α at the end; the averages have λ/β = 4 there. TTSA: for how many items β
    holds before it falls as k^−⅔. Fast, averaged: for how many items α = β holds, at c/32 of the first step, before it
    falls as k^−½; weights ∝ k². SABA, SVRG: β/α, and α is constant, c/16 of the first step; the first has a memory for
    each of the ``levels``. The first step is half of what a batch of this size is stable with.
    """
    first = 0.5 * batch / (batch + 40.0)  # E‖a‖² is about 40
    if name in (SABA, SVRG):
        steps = tc.Constant(first * c / 16), tc.Constant(second * first * c / 16)
        items = (SETTING["samples"],) * levels
        return tc.methods.SABA(*steps, items=items) if name == SABA else tc.methods.SVRG(*steps)
    alpha = decaying(c, first / 2)
    if name in (SOBA, SGDA):
        return tc.methods.soba(alpha, decaying(second * c, first))
    if name == TTSA:
        return tc.Standard(alpha, holding(first, second / batch, 2 / 3))
    if name == MA_SOBA:
        return tc.methods.ma_soba(alpha, decaying(second * c, first), decaying(4 * second * c, 0.25))
    if name == FAST:
        return tc.Fast(alpha, decaying(second * c, first), decaying(4 * second * c, 0.25))
    step = holding(first * c / 32, second / batch, 0.5)
    return tc.Polyak(tc.Fast(step, step, 0.25), power=2.0)


def builder(name: str, batch: int) -> Callable[..., Method]:
    """The method as a function of its two numbers."""
    return partial(make, name, batch=batch)


def searches() -> dict[str, MethodSearch]:
    """What is tuned: every method of a panel, on its data; those with variance reduction at their own horizon."""
    found = {}
    for kind, batch in PANELS:
        made, title = problem(kind, batch), where(kind, batch)
        methods = {name: (builder(name, batch), BOXES[name]) for name in COMPARED[kind]}
        found[f"{kind}-{batch}"] = MethodSearch(made, methods, ITEMS[False] // batch, "error", _RUNS, title)
        methods = {name: (reduced(name, kind), _REDUCED_BOX) for name in REDUCED[kind]}
        steps = reduced_marks(batch)[-1]
        found[_reduced_case(kind)] = MethodSearch(made, methods, steps, "error", _RUNS, f"{title}, variance reduced")
    return found


def tuned(name: str, kind: str, batch: int) -> Method:
    """The method with the settings that were found."""
    return builder(name, batch)(**settings("bilevel", f"{kind}-{batch}", name))


def nearby(kind: str, batch: int) -> dict[str, Method]:
    """Settings around the tuned ones."""
    found: dict[str, Method] = {}
    for name in COMPARED[kind]:
        chosen = settings("bilevel", f"{kind}-{batch}", name)
        found |= label_settings(name, around(builder(name, batch), chosen, count=16))
    return found


@cache
def problem(kind: str, batch: int) -> Problem:
    """The data are one draw, the same for all batches, methods and seeds; seeds draw the batches."""
    if kind == "minimax":
        return tc.problems.quadratic_minimax(**SETTING, batch=batch)
    return tc.problems.quadratic_bilevel(**SETTING, batch=batch, replace=kind == "replaced", v_scale=1.0)


def reduced(name: str, kind: str) -> Callable[..., Method]:
    """A method with variance reduction as a function of its two numbers, in batches of 16."""
    return partial(make, name, batch=16, levels=1 if kind == "minimax" else 2)


def reduced_marks(batch: int) -> list[int]:
    """Those of a whole run up to a fifteenth of it."""
    marks = tc.log_marks(ITEMS[False] // batch)
    return [mark for mark in marks if mark <= marks[-1] // 15]


def _reduced_case(kind: str) -> str:
    return f"{kind}-16-reduced"


def reduced_tuned(name: str, kind: str) -> Method:
    """The method with the settings that were found."""
    return reduced(name, kind)(**settings("bilevel", _reduced_case(kind), name))


def reduced_nearby(kind: str) -> dict[str, Method]:
    """Settings around those of the methods with variance reduction."""
    found: dict[str, Method] = {}
    for name in REDUCED[kind]:
        chosen = settings("bilevel", _reduced_case(kind), name)
        found |= label_settings(name, around(reduced(name, kind), chosen, count=4))
    return found
