"""Wrong arguments: every public function, from its real signature, with one or two of them replaced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from faults._calls import arguments, callables, right_values
from faults._values import WRONG
from faults._worker import foreign

NAME = "wrong arguments"
TRIALS = 4000
# No faults, but minutes of work: 10⁹ steps of a run, a tuning or an estimate.
_ONLY_LONG = {"steps=10**9", "samples=10**9", "budget=10**9", "budget=2**31"}


@functools.cache
def interface() -> tuple[dict[str, Any], dict[str, Callable[..., Any]]]:
    return right_values(), callables()


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    known, functions = interface()
    name = sorted(functions)[int(rng.integers(len(functions)))]
    given = arguments(name, functions[name], known)
    what = []
    for parameter in rng.permutation(sorted(given))[: 1 + (rng.random() < 0.3)]:
        kind = str(rng.choice(sorted(WRONG)))
        if f"{parameter}={kind}" in _ONLY_LONG:
            kind = "10**400"
        given[str(parameter)] = WRONG[kind]()
        what.append(f"{parameter}=<{kind}>")
    trouble = foreign(lambda: functions[name](**given))
    return "calls of the Python interface", trouble and f"{name}({', '.join(what)}): {trouble}"
