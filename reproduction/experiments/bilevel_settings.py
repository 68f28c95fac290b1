"""Bilevel least squares: what is compared, and how it is tuned."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TypedDict

import twoclock as tc
from reproduction.tuned_settings import Limits, MethodSearch, decaying, holding, settings
from twoclock import Method, Problem


class DataSize(TypedDict):
    """The size of the data, as the problems' factories take it."""

    dim_x: int
    dim_y: int
    samples: int


SETTING: DataSize = {"dim_x": 100, "dim_y": 100, "samples": 1024}
BATCH = 16
# Items drawn from each level in a whole run; it has as many steps as that takes.
ITEMS = {True: 32_000, False: 640_000}
SOBA, MA_SOBA, TTSA, FAST, FAST_MEAN, SGDA = "SOBA", "MA-SOBA", "TTSA steps", "Fast", "Fast, averaged", "SGDA"
BILEVEL = (FAST, SOBA, MA_SOBA, TTSA, FAST_MEAN)
COMPARED = {"bilevel": BILEVEL, "replaced": BILEVEL, "minimax": (FAST, SGDA, FAST_MEAN)}
# Methods that need finite data, to go through it again: SVRG every item equally often. They converge linearly, so a
# fifteenth of the items is enough to see where they go.
SABA, SVRG = "SABA", "SVRG"
REDUCED = {"bilevel": (SABA, SVRG), "replaced": (SABA,), "minimax": (SABA, SVRG)}
WORDS = {"bilevel": "without replacement", "replaced": "with replacement", "minimax": "minimax, without replacement"}
# The box in which `tc.tune` looks first; it widens it while the leader lies at an edge. No order is imposed.
_RATIO, _ITEMS = (0.5, 32.0), (100.0, 100_000.0)
_REDUCED_BOX: Limits = {"c": (1.0, 32.0), "second": (0.25, 16.0)}
# As few runs as a search of four rungs takes: seeds differ little here.
_RUNS = 228


def where(kind: str) -> str:
    return f"{WORDS[kind]}, batches of {BATCH}"


def make(name: str, c: float, second: float, levels: int = 2) -> Method:
    """A method with two numbers to tune: c, of α = c/(k + shift), and one of its own.

    SOBA, SGDA, MA-SOBA, Fast: β/α at the end; the averages have λ/β = 4 there. TTSA: for how many items β
    holds before it falls as k^−⅔. Fast, averaged: for how many items α = β holds, at c/32 of the first step, before it
    falls as k^−½; weights ∝ k². SABA, SVRG: β/α, and α is constant, c/16 of the first step; the first has a memory for
    each of the ``levels``. The first step is half of what a batch of this size is stable with.
    """
    first = 0.5 * BATCH / (BATCH + 40.0)  # E‖a‖² is about 40
    if name in (SABA, SVRG):
        steps = tc.Constant(first * c / 16), tc.Constant(second * first * c / 16)
        items = (SETTING["samples"],) * levels
        return tc.methods.SABA(*steps, items=items) if name == SABA else tc.methods.SVRG(*steps)
    alpha = decaying(c, first / 2)
    if name in (SOBA, SGDA):
        return tc.methods.soba(alpha, decaying(second * c, first))
    if name == TTSA:
        return tc.Standard(alpha, holding(first, second / BATCH, 2 / 3))
    if name == MA_SOBA:
        return tc.methods.ma_soba(alpha, decaying(second * c, first), decaying(4 * second * c, 0.25))
    if name == FAST:
        return tc.Fast(alpha, decaying(second * c, first), decaying(4 * second * c, 0.25))
    step = holding(first * c / 32, second / BATCH, 0.5)
    return tc.Polyak(tc.Fast(step, step, 0.25), power=2.0)


def builders(kind: str, reduced: bool) -> dict[str, Callable[..., Method]]:
    """The methods of a panel, or those with variance reduction, each as a function of its two numbers."""
    levels = 1 if kind == "minimax" else 2
    return {name: partial(make, name, levels=levels) for name in (REDUCED if reduced else COMPARED)[kind]}


def searched(kind: str, reduced: bool) -> str:
    """The search that the settings of a panel's methods come from."""
    return f"{kind}-{BATCH}{'-reduced' if reduced else ''}"


def searches() -> dict[str, MethodSearch]:
    """What is tuned: every method of a panel, on its data; those with variance reduction at their own horizon."""
    found = {}
    for kind in COMPARED:
        made, title = problem(kind), where(kind)
        methods: dict[str, tuple[Callable[..., Method], Limits]] = {
            name: (build, {"c": (1.0, 64.0), "second": _ITEMS if name in (TTSA, FAST_MEAN) else _RATIO})
            for name, build in builders(kind, False).items()
        }
        found[searched(kind, False)] = MethodSearch(made, methods, ITEMS[False] // BATCH, "error", _RUNS, title)
        methods = {name: (build, _REDUCED_BOX) for name, build in builders(kind, True).items()}
        steps, title = reduced_marks()[-1], f"{title}, variance reduced"
        found[searched(kind, True)] = MethodSearch(made, methods, steps, "error", _RUNS, title)
    return found


def tuned(kind: str, reduced: bool) -> dict[str, Method]:
    """The methods with the settings that were found."""
    case = searched(kind, reduced)
    return {name: build(**settings("bilevel", case, name)) for name, build in builders(kind, reduced).items()}


@cache
def problem(kind: str) -> Problem:
    """The data are one draw, the same for all methods and seeds; seeds draw the batches."""
    if kind == "minimax":
        return tc.problems.quadratic_minimax(**SETTING, batch=BATCH)
    return tc.problems.quadratic_bilevel(**SETTING, batch=BATCH, replace=kind == "replaced", v_scale=1.0)


def reduced_marks() -> list[int]:
    """Those of a whole run up to a fifteenth of it."""
    marks = tc.log_marks(ITEMS[False] // BATCH)
    return [mark for mark in marks if mark <= marks[-1] // 15]
