"""A constant changed between two calls: the second call must give the answer of the second constant."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from faults._worker import differs

NAME = "constants changed"
TRIALS = 64
STEPS = tc.Standard(0.5, 0.5)
_BOX = {"c": 0.0}


class _Holder:
    c: Any = 0.0


def _kinds() -> dict[str, Callable[[], tuple[Callable[[float], Any], Callable[[], Any]]]]:
    """Where a constant can live → a function that sets it and one that reads it."""

    def closure() -> tuple[Callable[[float], Any], Callable[[], Any]]:
        c = [0.0]
        return lambda v: c.__setitem__(0, v), lambda: c[0]

    def in_place() -> tuple[Callable[[float], Any], Callable[[], Any]]:
        c = np.zeros(())
        return lambda v: c.__setitem__((), v), lambda: c

    def replaced() -> tuple[Callable[[float], Any], Callable[[], Any]]:
        c = [jnp.zeros(())]
        return lambda v: c.__setitem__(0, jnp.asarray(v)), lambda: c[0]

    def attribute() -> tuple[Callable[[float], Any], Callable[[], Any]]:
        holder = _Holder()
        return lambda v: setattr(holder, "c", v), lambda: holder.c

    def module() -> tuple[Callable[[float], Any], Callable[[], Any]]:
        return lambda v: _BOX.__setitem__("c", v), lambda: _BOX["c"]

    return {f.__name__: f for f in (closure, in_place, replaced, attribute, module)}


def _noise(key: jax.Array) -> jax.Array:
    return jnp.zeros(())


def _problem(read: Callable[[], Any], jitted: bool) -> tc.Problem:
    F: Any = lambda t, w, x: t - read()  # noqa: E731
    return tc.problems.custom(
        jax.jit(F) if jitted else F, lambda t, w, x: w - t + x, _noise, 0.0, 0.0,
        measure=lambda t, w: {"theta": t},
    )  # fmt: skip


def _solve(engine: str) -> Callable[[Any, Any], Any]:
    return lambda make, read: tc.solve(make(), STEPS, 80, 1, engine=engine).theta


def _factory(make: Any, read: Any) -> Any:
    def of_key(key: jax.Array) -> tc.Problem:
        return tc.problems.custom(lambda t, w, x: t * 0, lambda t, w, x: w - t, _noise, read() * jnp.ones(()), 0.0)

    return tc.solve(_same(of_key, read), STEPS, 5, 1).theta


@functools.lru_cache(maxsize=256)
def _keep(token: int) -> list[Any]:
    return []


def _same(of_key: Any, read: Any) -> Any:
    """One factory for both calls, as a user has it."""
    kept = _keep(id(read))
    if not kept:
        kept.append(of_key)
    return kept[0]


def _learner(make: Any, read: Any) -> Any:
    problem = make()
    learner = tc.Learner(problem.F, problem.G, STEPS, 0.0, 0.0)
    learner.update_many(np.zeros(80))
    return learner.theta


def _sweep(make: Any, read: Any) -> Any:
    return tc.sweep({"a": make()}, {"b": STEPS}, 80, 1).result("a", "b").history["theta"].iloc[-1]


def _schedule(make: Any, read: Any) -> Any:
    """Steps that read the constant: θ goes from 0 by c·1 in one step."""
    step = lambda k: read() + 0.0 * k  # noqa: E731
    problem = tc.problems.custom(lambda t, w, x: -1.0 + 0 * t, lambda t, w, x: w - t, _noise, 0.0, 0.0)
    return tc.solve(problem, tc.Standard(step, 0.5), 1, 1).theta


CALLS = {
    "solve, xla": _solve("xla"), "solve, auto": _solve("auto"), "solve, c": _solve("c"), "a factory": _factory,
    "a learner": _learner, "a sweep": _sweep, "steps": _schedule,
}  # fmt: skip


def _twice(rng: np.random.Generator, call: str, kind: str) -> str | None:
    write, read = _kinds()[kind]()
    jitted, again = bool(rng.random() < 0.3), bool(rng.random() < 0.5)
    one = _problem(read, jitted)
    values = rng.uniform(0.1, 2.0, 3).round(3).tolist()
    for i, value in enumerate(values):
        write(value)
        try:
            found = CALLS[call](lambda: _problem(read, jitted) if again else one, read)
        except tc.InputError:
            return None  # refused in one line
        if trouble := differs(found, value):
            how = f"{'jitted' if jitted else 'plain'}, {'another' if again else 'the same'} object, call {i}"
            return f"{call}, {kind}, {how}: {trouble}"
    return None


def _residual(rng: np.random.Generator) -> str | None:
    write, read = _kinds()[str(rng.choice(["closure", "in_place", "attribute"]))]()
    problem = _problem(read, False)
    write(1.0)
    at_one = tc.solve(problem, STEPS, 80, 4)
    near = [tc.residual(problem, at_one, 64, check=False).value]
    write(5.0)
    near.append(tc.residual(problem, at_one, 64, check=False).value)
    return None if near[1] > 1 + near[0] else f"residual {near} though the solution moved by 4"


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    if i % 8 == 7:
        return "tc.residual", _residual(rng)
    names = [(call, kind) for call in CALLS for kind in _kinds()]
    if i % 2:
        return "one thread", _twice(rng, *names[int(rng.integers(len(names)))])
    found: list[str | None] = [None] * 4
    picks = [names[int(rng.integers(len(names)))] for _ in range(4)]
    picks = [(call, "closure" if kind == "module" else kind) for call, kind in picks]  # each has its own

    def run(j: int) -> None:
        found[j] = "it ended with an exception"
        found[j] = _twice(np.random.default_rng([i, j]), *picks[j])

    threads = [threading.Thread(target=run, args=(j,)) for j in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "four threads", next(filter(None, found), None)
