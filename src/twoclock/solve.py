"""Where a problem and a method meet: one call from the two operators to the solution and its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import inputs
from twoclock.core import InputError, Method
from twoclock.engine import fingerprint, fit, keys
from twoclock.engine.interrupt import patience
from twoclock.engine.run import Carry, Tick, run, stack, start
from twoclock.progress import watch
from twoclock.record import Checkpoints
from twoclock.record.describe import describe, versions
from twoclock.result import Result

Row = dict[str, np.ndarray]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the message says where it stopped and how to go on."""


@overload
def solve(problem: Any, method: Method, *args: Any, **options: Any) -> Result: ...
@overload
def solve(problem: Any, method: Mapping[str, Method], *args: Any, **options: Any) -> dict[str, Result]: ...
def solve(
    problem: Any,
    method: Any,
    steps: Any = 100_000,
    seeds: Any = 20,
    marks: Any = None,
    precision: str = "float64",
    progress: bool | Callable[[Tick], None] = False,
    checkpoint: str | Path | None = None,
    *,
    bound: float | None = None,
    block: int | None = None,
    checkpoint_every: float = 10.0,
) -> Any:
    """Run a method on a problem for many seeds at once.

    Args:
        problem: a problem, or a function of a key that makes one, so that each seed has its own instance.
        method: a method, or a mapping of labels to methods. Those that differ only in numbers run as one program, and
            a mapping of results comes back.
        steps: how many; one step takes one sample.
        seeds: a count, or the integers themselves. Step k of seed s depends on (s, k) alone.
        marks: the steps at which to record; by default the start, the end and ten a decade.
        precision: "float64", or "float32" with compensated sums.
        progress: True for a bar, or a function that is called with every tick of the run.
        checkpoint: a folder. A run that was killed goes on from what it finds there, to the identical result.
        bound: count a seed as diverged when an entry of θ or ω leaves [−bound, bound].
        block: draw the noise of at most so many steps at once; changes the speed and nothing else.
        checkpoint_every: seconds between checkpoints.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=3), tc.Fast(), steps=1000, seeds=5)
    >>> result.summary("error").columns.tolist()
    ['step', 'mean', 'median', 'iqm', 'low', 'high', 'seeds', 'diverged']
    """
    steps = inputs.check_steps(steps)
    seeds = inputs.check_seeds(seeds)
    marks = inputs.check_marks(marks, steps)
    inputs.check_numbers(precision, bound)
    if block is not None and block < 1:
        raise InputError(f"`block` must be at least 1, got {block}; leave it out to have it chosen")
    labelled = method if isinstance(method, Mapping) else {"": method}
    if not labelled:
        raise InputError("`method` must name at least one method, got an empty mapping")
    spec = {"steps": steps, "seeds": seeds, "marks": marks, "precision": precision, "bound": bound}
    results: dict[str, Result] = {}
    with jax.enable_x64(precision == "float64"), patience() as asked:
        one, all_of_them, own = instances(problem, seeds)
        for number, labels in enumerate(alike(labelled)):
            methods = [labelled[label] for label in labels]
            fit.check_fit(one, methods[0])
            folder = None
            if checkpoint is not None:
                folder = Path(checkpoint) / str(number) if isinstance(method, Mapping) else Path(checkpoint)
            began = time.perf_counter()
            with (
                _keeper(folder, one, methods, spec) as keeper,
                watch(progress, steps, len(seeds) * len(methods)) as look,
            ):
                rows, carry = _drive(
                    all_of_them, stack(methods), own, spec, block, keeper, checkpoint_every, look, asked
                )
            how = {"wall_seconds": round(time.perf_counter() - began, 3), **versions()}
            for i, label in enumerate(labels):
                what = {"problem": describe(problem), "method": describe(methods[i])}
                results[label] = _result(methods[i], i, rows, carry, {**what, **spec, **how})
    return {label: results[label] for label in labelled} if isinstance(method, Mapping) else results[""]


def instances(problem: Any, seeds: list[int]) -> tuple[Any, Any, bool]:
    """One problem to look at, all of them to run, and whether each seed has its own."""
    if hasattr(problem, "F"):
        ready = _cast(problem)
        return ready, ready, False
    if not callable(problem):
        raise InputError(
            "`problem` must have init, noise, draw, F and G, or be a function of a key that makes one; "
            f"got {type(problem).__name__}"
        )
    batch = _cast(_draw(problem, jnp.asarray(seeds, jnp.uint32)))
    return jax.tree.map(lambda leaf: leaf[0], batch), batch, True


@partial(jax.jit, static_argnums=0)
def _draw(problem: Callable[[Any], Any], seeds: Any) -> Any:
    return jax.vmap(lambda seed: problem(keys.instance_key(seed)))(seeds)


def _cast(tree: Any) -> Any:
    """All numbers as arrays, the floats in the precision of the run."""

    def cast(leaf: Any) -> jax.Array:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        return jnp.asarray(array, jnp.result_type(float) if floating else None)

    return jax.tree.map(cast, tree)


def alike(methods: Mapping[str, Any]) -> list[list[str]]:
    """Labels of methods that differ only in numbers, together."""
    groups: dict[Any, list[str]] = {}
    for label, method in methods.items():
        if not hasattr(method, "step"):
            raise InputError(f"`method` must have init, step and estimate, got {type(method).__name__}; try tc.Fast()")
        groups.setdefault(jax.tree.structure(method), []).append(label)
    return list(groups.values())


def _keeper(
    folder: Path | None, problem: Any, methods: list[Any], spec: dict[str, Any]
) -> AbstractContextManager[Checkpoints | None]:
    if folder is None:
        return nullcontext()
    by_method = [fingerprint.of_method(method, problem) for method in methods]
    programs = {"problem": fingerprint.of_problem(problem), "method": by_method}
    return closing(Checkpoints(folder, {**spec, **programs}))


def _drive(
    problem: Any,
    methods: Any,
    own: bool,
    spec: dict[str, Any],
    block: int | None,
    keeper: Checkpoints | None,
    every: float,
    look: Callable[[Tick], None],
    asked: Callable[[], bool],
) -> tuple[list[Row], Carry]:
    """Walk through the marks, keeping checkpoints on the way: a row for each mark, and where the lanes ended."""
    seeds, marks = spec["seeds"], spec["marks"]
    carry, step = start(problem, methods, seeds, own=own), 0
    rows: list[Row] = []
    fit.check_start(carry.state.theta, carry.state.omega)
    if keeper is not None and (kept := keeper.latest()) is not None:
        step, (carry, rows) = kept[0], _thaw(kept[1], carry)
    tick, saved = Tick(step, None, 0, lambda: carry), time.monotonic()
    for tick in run(problem, methods, seeds, marks, carry, step, own=own, block=block, bound=spec["bound"]):
        if tick.row is not None:
            rows[marks.index(tick.step) :] = [tick.row]
        look(tick)
        stop = asked()
        if keeper is not None and (stop or time.monotonic() - saved > every or tick.step == marks[-1]):
            keeper.save(tick.step, _freeze(tick.carry(), rows))
            saved = time.monotonic()
        if stop:
            how = "; the same call with the same checkpoint goes on from there" if keeper else ""
            raise Interrupted(f"stopped at step {tick.step:,} of {marks[-1]:,}{how}")
    return rows, tick.carry()


def _freeze(carry: Carry, rows: list[Row]) -> dict[str, Any]:
    """A run as named arrays."""
    leaves = {f"{i:04d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))}
    metrics = {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    return {"carry": leaves, "rows": metrics} if metrics else {"carry": leaves}


def _thaw(tree: dict[str, Any], like: Carry) -> tuple[Carry, list[Row]]:
    carry = jax.tree.unflatten(jax.tree.structure(like), [tree["carry"][name] for name in sorted(tree["carry"])])
    metrics = tree.get("rows", {})
    count = len(next(iter(metrics.values()), ()))
    return carry, [{name: values[i] for name, values in metrics.items()} for i in range(count)]


def _result(method: Method, i: int, rows: list[Row], carry: Carry, spec: dict[str, Any]) -> Result:
    import pandas as pd

    seeds, marks = spec["seeds"], spec["marks"]
    of_method = jax.tree.map(lambda leaf: leaf[i], carry)
    theta, omega = jax.tree.map(np.asarray, jax.vmap(method.estimate)(of_method.state))
    columns = {name: np.stack([row[name][i] for row in rows], axis=1).ravel() for name in rows[0]}
    history = pd.DataFrame({"seed": np.repeat(seeds, len(marks)), "step": np.tile(marks, len(seeds)), **columns})
    return Result(theta, omega, history, ~np.asarray(of_method.alive), np.asarray(of_method.last, int), spec)
