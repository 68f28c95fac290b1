"""Near twins: a checkpoint, a start or a record of one problem, used with another that differs in one thing."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from faults._worker import differs, foreign

NAME = "near twins"
TRIALS = 60
_G = 1.0


def _host(c: float) -> Callable[[Any], Any]:
    return lambda t: np.asarray(t) - c


def _by_callback(t: Any, c: float, callback: Any, **how: Any) -> Any:
    return callback(_host(c), jax.ShapeDtypeStruct(jnp.shape(t), t.dtype), t, **how)


def _default(c: float) -> Any:
    def F(t: Any, w: Any, x: Any, c: float = c) -> Any:
        return t - c + x

    return F


def _named(c: float) -> Any:
    space: dict[str, Any] = {}
    exec(f"def F(t, w, x):\n    return t - {c} + x", space)  # another body of the same name
    return space["F"]


def _two(t: Any, w: Any, x: Any, c: Any) -> Any:
    return t - c + x


FORMS: dict[str, Callable[[float], Any]] = {
    "closure": lambda c: lambda t, w, x: t - c + x,
    "array": lambda c: (lambda a: lambda t, w, x: t - a + x)(np.asarray(c)),
    "default": _default,
    "body": _named,
    "partial": lambda c: functools.partial(_two, c=c),
    "jitted": lambda c: jax.jit(lambda t, w, x: t - c + x),
    "pure_callback": lambda c: lambda t, w, x: _by_callback(t, c, jax.pure_callback, vmap_method="sequential") + x,
    "io_callback": lambda c: lambda t, w, x: _by_callback(t, c, jax.experimental.io_callback) + x,
}


def problem(form: str, c: float, metric: str = "error", theta: float = 0.0) -> tc.Problem:
    noise = lambda key: 0.01 * jax.random.normal(key)  # noqa: E731
    measure = lambda t, w: {metric: (t - 1.0) ** 2}  # noqa: E731
    return tc.problems.custom(FORMS[form](c), lambda t, w, x: w - t, noise, theta, 0.0, measure=measure)


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    import jax.experimental  # noqa: F401

    form = list(FORMS)[i % len(FORMS)]
    change = str(rng.choice(["constant", "metric", "theta", "nothing"], p=[0.6, 0.15, 0.15, 0.1]))
    one = {"form": form, "c": 1.0}
    two = {
        **one,
        **{"constant": {"c": 9.0}, "metric": {"metric": "gap"}, "theta": {"theta": 5.0}, "nothing": {}}[change],
    }
    steps, more, method = 200, int(rng.choice([200, 400])), tc.Standard(0.05, 0.1)
    how = str(rng.choice(["checkpoint", "start"]))
    what = f"{how} of a twin"
    try:
        if how == "start":
            if change in ("nothing", "theta"):
                return what, None  # another start is what `start` is for
            before = tc.solve(problem(**one), method, steps, 2)
            after = tc.solve(problem(**two), method, steps + 100, 2, start=before)
            trouble = "it was taken" if change == "constant" else foreign(lambda: after.history["gap"])
            return what, trouble and f"{form}, {change}: {trouble}"
        with tempfile.TemporaryDirectory() as folder:
            tc.solve(problem(**one), method, more, 2, checkpoint=folder)
            after = tc.solve(problem(**two), method, more, 2, checkpoint=folder)
    except tc.InputError:
        return what, None if change != "nothing" or "callback" in form else f"{form}: the same run is refused"
    except Exception as error:
        return what, f"{form}, {change}: {type(error).__name__}: {error!s:.100}"
    fresh = tc.solve(problem(**two), method, more, 2)
    trouble = differs(after.theta, fresh.theta, 1e-12)
    return what, trouble and f"{form}, {change}: {trouble}"
