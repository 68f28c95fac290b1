"""A checkpoint of ``tc.agents.run``, and the environment, its start or its arguments edited before the next run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import twoclock as tc
from faults._worker import differs

NAME = "agents' checkpoints after an edit"
TRIALS = 40
A = 0.9


def _body(a: float) -> Any:
    space: dict[str, Any] = {}
    exec(f"def step(x, u, rng):\n    return {a} * x + 0.5 * u + rng.normal(size=1)", space)
    return space["step"]


def _from_global(a: float) -> Any:
    space: dict[str, Any] = {"A": a}
    exec("def step(x, u, rng):\n    return A * x + 0.5 * u + rng.normal(size=1)", space)
    return space["step"]


def _from_default(a: float) -> Any:
    def step(x: Any, u: Any, rng: Any, a: float = a) -> Any:
        return a * x + 0.5 * u + rng.normal(size=1)

    return step


class _Plant:
    def __init__(self, a: float) -> None:
        self.a = a

    def __call__(self, x: Any, u: Any, rng: Any) -> Any:
        return self.a * x + 0.5 * u + rng.normal(size=1)


PLANTS: dict[str, Callable[[float], Any]] = {
    "closure": lambda a: lambda x, u, rng: a * x + 0.5 * u + rng.normal(size=1),
    "array": lambda a: (lambda m: lambda x, u, rng: m @ x + 0.5 * u + rng.normal(size=1))(np.full((1, 1), a)),
    "body": _body,
    "global": _from_global,
    "default": _from_default,
    "object": _Plant,
    "helper": lambda a: (lambda move: lambda x, u, rng: move(x) + 0.5 * u + rng.normal(size=1))(lambda x: a * x),
}


def _run(make: Any, a: float, x0: float, steps: int, folder: str | None) -> Any:
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[0.3]])
    return tc.agents.run(agent, make(a), steps, 1, x0=np.full(1, x0), checkpoint=folder, processes=1)


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    kind = list(PLANTS)[i % len(PLANTS)]
    edit = str(rng.choice(["plant", "x0", "nothing"], p=[0.6, 0.25, 0.15]))
    after = {"a": 0.3 if edit == "plant" else 0.9, "x0": 4.0 if edit == "x0" else 0.0}
    what = {"plant": "another plant", "x0": "another start", "nothing": "the same again"}[edit]
    with tempfile.TemporaryDirectory() as folder:
        _run(PLANTS[kind], 0.9, 0.0, 300, folder)
        try:
            found = _run(PLANTS[kind], **after, steps=300, folder=folder)
        except tc.InputError:
            refused = edit == "nothing" and kind in ("body", "default")
            return what, f"{kind}: the same run is refused" if refused else None
        except Exception as error:
            return what, f"{kind}: {type(error).__name__}: {error!s:.100}"
    truth = _run(PLANTS[kind], **after, steps=300, folder=None)
    ours, theirs = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.theta)]) for run in (found, truth))
    trouble = differs(ours, theirs, 1e-12)
    return what, trouble and f"{kind}: {trouble}"
