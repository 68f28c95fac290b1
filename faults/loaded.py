"""Learners and evaluators saved, and loaded with other functions, without some of them, or as they were."""

from __future__ import annotations

import tempfile
from typing import Any

import jax.numpy as jnp
import numpy as np

import twoclock as tc
from faults._worker import differs, foreign

NAME = "learners loaded"
TRIALS = 36
METHODS = {
    "Standard": lambda: tc.Standard(0.1, 0.2), "Fast": tc.Fast, "Polyak": tc.Polyak, "Zap": tc.Zap, "Auto": tc.Auto,
    "MatrixFreeZap": tc.MatrixFreeZap, "RichardsonRomberg": tc.RichardsonRomberg,
}  # fmt: skip


def _F(c: float) -> Any:
    return lambda t, w, x: t - c + w - x


def _G(t: Any, w: Any, x: Any) -> Any:
    return w - t + x


def _measure(t: Any, w: Any) -> Any:
    return {"error": jnp.sum(t**2)}


def _learner(rng: np.random.Generator) -> tuple[str, str | None]:
    name = str(rng.choice(list(METHODS)))
    measured = _measure if rng.random() < 0.4 else None
    try:
        one = tc.Learner(_F(1.0), _G, METHODS[name](), 0.0, 0.0, measure=measured)
    except tc.InputError:
        return "a learner", None
    xs = rng.normal(size=60)
    one.update_many(xs[:30])
    with tempfile.TemporaryDirectory() as folder:
        path = one.save(f"{folder}/learnt")
        edit = str(rng.choice(["nothing", "constant", "measure left out", "measure added"]))
        F = _F(7.0) if edit == "constant" else _F(1.0)
        other = {"measure left out": None, "measure added": _measure}.get(edit, measured)
        loaded: list[Any] = []
        trouble = foreign(lambda: loaded.append(tc.Learner.load(path, F, _G, METHODS[name](), measure=other)))
    if trouble is None and loaded and edit in ("nothing", "constant"):
        one.update_many(xs[30:])
        went_on: list[bool] = []
        trouble = foreign(lambda: (loaded[0].update_many(xs[30:]), went_on.append(True)))
        if trouble is None and edit == "constant":  # the first sample tells
            trouble = "another operator is taken" if went_on else None
        elif trouble is None:
            trouble = differs(loaded[0].theta, one.theta, 1e-12) if went_on else "it is refused"
    elif trouble is None and not loaded and edit == "nothing":
        trouble = "it is refused"
    return "a learner", trouble and f"{name}, {edit}: {trouble}"


def _evaluator(rng: np.random.Generator) -> tuple[str, str | None]:
    def ratio(c: float) -> Any:
        return lambda x, u: c + 0.0 * u

    def features(c: float) -> Any:
        return lambda x: jnp.asarray([1.0, c * x])

    one = tc.agents.Evaluator(ratio(1.0), features(1.0), 0.9, at=[0.0])
    way = rng.normal(size=41)
    for i in range(20):
        one.observe(way[i], 0, way[i + 1], reward=float(way[i]))
    edit = str(rng.choice(["nothing", "ratio", "features", "left out"]))
    given = {
        "policy_ratio": ratio(3.0 if edit == "ratio" else 1.0), "features": features(5.0 if edit == "features" else 1.0)
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = one.save(f"{folder}/judged")
        loaded: list[Any] = []
        call = lambda: loaded.append(tc.agents.Evaluator.load(path, **({} if edit == "left out" else given)))  # noqa: E731
        trouble = foreign(call)
    if trouble is None and loaded and edit in ("ratio", "features"):
        trouble = "another function is taken"
    elif trouble is None and not loaded and edit == "nothing":
        trouble = "it is refused"
    return "an evaluator", trouble and f"{edit}: {trouble}"


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    return _evaluator(rng) if i % 3 == 2 else _learner(rng)
