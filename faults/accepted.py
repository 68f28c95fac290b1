"""Objects made of odd arguments: what is accepted when it is made works when it is used, or is refused in one line."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import twoclock as tc
from faults._calls import arguments, callables, right_values
from faults._values import WRONG
from faults._worker import foreign

NAME = "accepted, then used"
TRIALS = 400


@functools.cache
def _makers() -> tuple[dict[str, Any], dict[str, Any]]:
    """Classes and factories whose product can be used."""
    known, every = right_values(), callables()
    kinds = ("problems.", "methods.", "agents.", "models.", "logs.features.")
    picked = {n: f for n, f in every.items() if n.startswith(kinds) or (n in tc.__all__ and isinstance(f, type))}
    return known, picked


def _use(made: Any) -> None:
    if isinstance(made, tc.Problem):
        result = tc.solve(made, tc.Standard(0.01, 0.01), 5, 2)
        repr(made), repr(result)
    elif isinstance(made, tc.Method):
        tc.solve(tc.problems.quadratic(dim=2), made, 5, 2)
        repr(made)
    elif hasattr(made, "observe"):
        x = np.zeros(2)
        u = made.act(x) if hasattr(made, "act") else 0
        made.observe(x, u, x)
    elif isinstance(made, (tc.Power, tc.Constant)):
        tc.solve(tc.problems.quadratic(dim=2), tc.Standard(made, made), 5, 2)
    else:
        repr(made)


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    known, makers = _makers()
    name = str(rng.choice(sorted(makers)))
    given = arguments(name, makers[name], known)
    if not given:
        return "made", None
    parameter, kind = str(rng.choice(sorted(given))), str(rng.choice(sorted(WRONG)))
    given[parameter] = WRONG[kind]()
    made: list[Any] = []
    label = f"{name}({parameter}=<{kind}>)"
    if trouble := foreign(lambda: made.append(makers[name](**given))):
        return "made", f"{label}: {trouble}"
    if not made:
        return "refused", None
    trouble = foreign(lambda: _use(made[0]))
    return "used", trouble and f"{label}, used: {trouble}"
