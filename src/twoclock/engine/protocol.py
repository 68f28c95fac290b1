"""The protocol of an engine: what a lane computes and measures, and how compiled programs advance many lanes.

A lane is one method on one seed. Whatever an engine fuses or draws ahead, it returns what ``lane_step`` says, up to
rounding. Metrics are measured methods × seeds; a history has, for each method, the marks inside the seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng, tree_math
from twoclock.engine.run_batch import Instances, Lanes
from twoclock.engine.stored_programs import StoredFunction
from twoclock.intervals.bootstrap import TRACKED
from twoclock.protocols import Key, Method, Problem, PyTree, RowTable, Scalar, pytree

Row = dict[str, np.ndarray]  # the metrics at a mark, each methods × seeds

# The default metric: the first of these that was recorded.
PREFERRED_METRICS = ("error", "gap", "gradient")
_PAID = ("mean_return", "mean_cost", "mean_reward")  # to an agent, see ``agents.run``

# Columns of a run's history or a sweep's; no metric may have their names.
RESERVED = ("seed", "step", "problem", "method", "diverged")


# For programs that run rarely: XLA compiles them in a third of the time. An unknown option would be an error.
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):
    QUICK_TO_COMPILE["xla_cpu_use_fusion_emitters"] = False
# Up to this many numbers in a lane's state, compiling dominates the cost of measuring it. Seeds do not count, since
# they share no number.
_QUICKLY_MEASURED = 1 << 12

# Seeds whose history is put together at once.
_TOGETHER = 1 << 10


@runtime_checkable
class Operators(Protocol):
    """The part of a problem that a step sees, once the sample is drawn."""

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree: ...
    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree: ...
    def measure(self, theta: PyTree, omega: PyTree) -> Mapping[str, Scalar]: ...


@pytree
class LaneState:
    """All that a lane carries from step to step; ``last`` is how many steps it took while ``alive``."""

    state: PyTree
    env: PyTree
    alive: jax.Array
    last: jax.Array


def lane_start(problem: Problem, method: Method, seed: Scalar) -> LaneState:
    """The carry of a seed before its first step."""
    theta, omega, env = problem.init(prng.start_key(seed))
    return LaneState(method.init(theta, omega), env, jnp.asarray(True), jnp.zeros((), jnp.int32))


def lane_step(
    problem: Problem, method: Method, stream: Key, carry: LaneState, k: Scalar, bound: Scalar | None = None,
    refined: bool = True,
) -> LaneState:  # fmt: skip
    """Step k: its noise from the key of (s, k), the sample, the method's step, and whether the lane still lives."""
    return step_on(problem, method, lane_noise(problem, stream, k), carry, k, bound, refined)


def trusted_step(problem: Problem, method: Method, stream: Key, carry: LaneState, k: Scalar) -> LaneState:
    """``lane_step`` without checks, for a lane that is alive before and after the step."""
    x, env = problem.sample(lane_noise(problem, stream, k), carry.state.theta, carry.state.omega, carry.env)
    new = method.step(problem.F, problem.G, carry.state, x, k)
    state = jax.tree.map(
        lambda n, o: n if isinstance(n, RowTable) else n.astype(o.dtype), new, carry.state, is_leaf=is_table
    )
    return LaneState(state, env, carry.alive, jnp.asarray(k + 1, carry.last.dtype))


def lane_noise(problem: Problem, stream: Key, k: Scalar) -> PyTree:
    """The noise of step k, which depends on the seed and k alone and so can be drawn ahead."""
    return problem.noise(jax.random.fold_in(stream, k))


def step_on(
    problem: Problem, method: Method, u: PyTree, carry: LaneState, k: Scalar, bound: Scalar | None = None,
    refined: bool = True,
) -> LaneState:  # fmt: skip
    """Step k on noise that is already drawn. A lane whose next state is not finite, or out of bounds, stays put."""
    x, env = problem.sample(u, carry.state.theta, carry.state.omega, carry.env)
    new = learn(problem, method, x, carry, k, bound, refined)
    return LaneState(new.state, env, new.alive, new.last)


def learn(
    operators: Operators, method: Method, x: PyTree, carry: LaneState, k: Scalar, bound: Scalar | None = None,
    refined: bool = True,
) -> LaneState:  # fmt: skip
    """Take step k on a sample from any source; unless it is to be ``refined``, only the method's part ``between``."""
    old = carry.state
    new = (method.step if refined else method.between)(operators.F, operators.G, old, x, k)
    pairs = zip(*(jax.tree.leaves(tree, is_leaf=is_table) for tree in (new, old)), strict=True)
    alive = carry.alive
    for n, o in pairs:
        if n is not o and not is_table(n) and jnp.issubdtype(n.dtype, jnp.floating):
            alive = alive & state_leaf_is_finite(n)
    if bound is not None:
        alive = alive & _within((new.theta, new.omega), bound)

    def kept(n: PyTree, o: PyTree) -> PyTree:
        if n is o or isinstance(n, RowTable):
            return n
        return jax.lax.select(jnp.broadcast_to(alive, o.shape), n.astype(o.dtype), o)

    state = jax.tree.map(kept, new, old, is_leaf=is_table)
    return LaneState(state, carry.env, alive, jnp.where(alive, k + 1, carry.last))


def due_steps(method: Method, state: PyTree, lo: int, hi: int) -> list[int]:
    """The steps among lo … hi−1 that end with ``refine``."""
    if not method.refines:
        return []
    return (lo + np.flatnonzero(method.is_due(state, np.arange(lo, hi, dtype=np.int32)))).tolist()


def refine_lanes(methods: Method, carry: LaneState, k: int, bound: Scalar | None = None) -> LaneState:
    """End step k with what it does to the state alone, on all lanes, methods × seeds.

    The matrices are small and many, and NumPy's functions take them as they are: nothing is compiled. On accelerators
    the state stays where it is.
    """
    if jax.default_backend() != "cpu":
        return _refine_there(methods, carry, np.int32(k), bound)
    carry = jax.device_get(carry)
    old, structure = jax.tree.flatten(carry.state)
    old = [np.asarray(leaf) for leaf in old]
    given, rows = [[leaf[i] for leaf in old] for i in range(len(carry.alive))], []
    with np.errstate(all="ignore"), _one_thread():  # of lanes that diverged; the bits must not depend on the cores
        for i, leaves in enumerate(given):
            method = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], methods)
            rows.append(jax.tree.leaves(method.refine(jax.tree.unflatten(structure, leaves), k)))
    # What no method has touched is neither checked nor copied.
    touched = [
        n for n in range(len(old)) if any(row[n] is not leaves[n] for row, leaves in zip(rows, given, strict=True))
    ]
    new = {n: np.stack([row[n] for row in rows]).astype(old[n].dtype, copy=False) for n in touched}
    alive: Any = np.asarray(carry.alive) & _lanes_within(new.values(), np.inf)
    if bound is not None:
        state = jax.tree.unflatten(structure, [new.get(n, leaf) for n, leaf in enumerate(old)])
        alive &= _lanes_within(jax.tree.leaves((state.theta, state.omega)), float(np.asarray(bound)))
    if not alive.all():
        new = {n: np.where(alive.reshape(alive.shape + (1,) * (old[n].ndim - 2)), new[n], old[n]) for n in touched}
    state = jax.tree.unflatten(structure, [new.get(n, leaf) for n, leaf in enumerate(old)])
    return replace(carry, state=state, alive=alive)


def _lanes_within(leaves: Iterable[np.ndarray], bound: float) -> np.ndarray:
    """The same as ``_within`` for each lane, of NumPy's arrays methods × seeds."""
    rows = [leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves if leaf.dtype.kind == "f"]
    fine = [np.isfinite(row) if bound == np.inf else np.abs(row) <= bound for row in rows]
    return np.all([row.all(axis=-1) for row in fine], axis=0)


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _one_thread() -> AbstractContextManager[object]:
    found: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return found


def _refine_all(methods: Method, carry: LaneState, k: Scalar, bound: Scalar | None) -> LaneState:
    def lane(method: Method, old: LaneState) -> LaneState:
        new = method.refine(old.state, k)
        alive = old.alive & _within(new, jnp.inf)
        if bound is not None:
            alive = alive & _within((new.theta, new.omega), bound)
        state = jax.tree.map(lambda n, o: jnp.where(alive, n.astype(o.dtype), o), new, old.state)
        return replace(old, state=state, alive=alive)

    found: LaneState = jax.vmap(jax.vmap(lane, in_axes=(None, 0)))(methods, carry)
    return found


_refine_there = jax.jit(_refine_all)


@jax.jit  # a call in the traced step, which ``RareSteps`` finds there
def state_leaf_is_finite(leaf: jax.Array) -> jax.Array:
    return jnp.all(jnp.abs(leaf) <= jnp.finfo(leaf.dtype).max)


def _within(tree: PyTree, bound: Scalar) -> jax.Array:
    """Whether every float in the tree is finite and no larger than the bound."""
    ok = jnp.asarray(True)
    for leaf in jax.tree.leaves(tree, is_leaf=is_table):
        if not is_table(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating):
            largest = jnp.minimum(jnp.asarray(bound, leaf.dtype), jnp.finfo(leaf.dtype).max)
            ok = ok & jnp.all(jnp.abs(leaf) <= largest)
    return ok


def is_table(node: PyTree) -> bool:
    return isinstance(node, RowTable)


def preferred_metric(recorded: Iterable[str]) -> str | None:
    """The default metric: the first of the preferred ones, else the first recorded; None if none was recorded."""
    names = list(recorded)
    return next((name for name in (*PREFERRED_METRICS, *_PAID, *names) if name in names), None)


def lane_metrics(problem: Problem, method: Method, state: PyTree, env: PyTree) -> dict[str, PyTree]:
    """The metrics of one lane, and what its method tracks for intervals: pytrees of arrays, named as ``TRACKED``."""
    return {**state_metrics(problem, method, state), **problem.report(env)}


def state_metrics(operators: Operators, method: Method, state: PyTree) -> dict[str, PyTree]:
    """The same without the report of the environment."""
    known = operators.measure(*method.estimate(state))
    tracked = {TRACKED + kind: tree for kind, tree in method.track(state).items()}
    return {**known, **method.report(state), **tracked}


def flatten_row(row: Mapping[str, PyTree], lanes: int = 0) -> dict[str, Any]:
    """One entry for each number of a lane: ``interval:estimate`` of θ ∈ R² is ``interval:estimate:theta[0]``, ``…[1]``.

    The row holds arrays whose first ``lanes`` axes are those of the lanes, or just their shapes.
    """
    found: dict[str, Any] = {}
    for name, tree in row.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            place = f":{jax.tree_util.keystr(path, simple=True, separator='.')}" if path else ""
            for index in np.ndindex(leaf.shape[lanes:]):
                entry = f"[{', '.join(map(str, index))}]" if index else ""
                found[name + place + entry] = leaf[(..., *index)] if isinstance(leaf, np.ndarray) else leaf
    return found


def measure_lanes(instances: Instances, methods: Method, carry: LaneState) -> Row:
    """The metrics of all lanes, each methods × seeds."""
    if not methods.reads_on_host:
        lanes, problems = carry.alive.size, carry.alive.shape[1] if instances.per_seed else 1
        numbers = tree_math.size(carry) // max(lanes, 1) + tree_math.size(instances.batched) // max(problems, 1)
        quickly = numbers <= _QUICKLY_MEASURED and jax.default_backend() == "cpu"
        measure = _measure_quickly if quickly else _measure
        return flatten_row(jax.device_get(measure(instances, methods, carry)), lanes=2)
    state = jax.device_get(carry.state)
    with np.errstate(all="ignore"):  # of lanes that diverged
        estimates, reported = methods.estimate(state), methods.report(state)
    # The metrics depend on θ, ω and the environment alone.
    known, of_env = jax.device_get(_measure_at(instances, estimates, carry.env))
    return flatten_row({**known, **reported, **of_env}, lanes=2)


def _of_all_lanes(instances: Instances, methods: Method, carry: LaneState) -> dict[str, PyTree]:
    by_seed = jax.vmap(instances.exact(lane_metrics), in_axes=(instances.seed_axis, None, 0, 0))
    by_method = jax.vmap(by_seed, in_axes=(None, 0, 0, 0))
    return by_method(instances.batched, methods, carry.state, carry.env)


_measure = StoredFunction(_of_all_lanes)
_measure_quickly = StoredFunction(_of_all_lanes, compiler_options=QUICK_TO_COMPILE)


def _of_estimates(instances: Instances, estimates: tuple[PyTree, PyTree], env: PyTree) -> tuple[PyTree, PyTree]:
    def measure(problem: Problem, estimate: tuple[PyTree, PyTree], env: PyTree) -> tuple[PyTree, PyTree]:
        return problem.measure(*estimate), problem.report(env)

    by_seed = jax.vmap(instances.exact(measure), in_axes=(instances.seed_axis, 0, 0))
    found: tuple[PyTree, PyTree] = jax.vmap(by_seed, in_axes=(None, 0, 0))(instances.batched, estimates, env)
    return found


_measure_at = StoredFunction(_of_estimates, compiler_options=QUICK_TO_COMPILE)


def estimate_each(method: Method, state: PyTree, program: str) -> tuple[PyTree, PyTree]:
    """Take θ and ω of a method on each of its seeds from its state; ``program`` is the digest of the lane."""
    if method.reads_on_host:
        with np.errstate(all="ignore"):
            return method.estimate(jax.device_get(state))
    # Usually they are part of the state, and nothing needs to be compiled.
    compile_it = _estimate_each.trace(method, state, program).jaxpr.eqns
    return _estimate_each(method, state, program) if compile_it else jax.vmap(method.estimate)(state)


@partial(jax.jit, static_argnums=2, compiler_options=QUICK_TO_COMPILE)
def _estimate_each(method: Method, state: PyTree, program: str) -> tuple[PyTree, PyTree]:
    return jax.vmap(method.estimate)(state)


def history_columns(
    rows: Sequence[Row], method: int, seeds: Sequence[int], marks: Sequence[int]
) -> dict[str, np.ndarray]:
    """The history of one method, by seed and then by mark; lanes beyond the seeds only fill the program."""
    return {
        "seed": np.repeat(np.asarray(seeds, np.int64), len(marks)),
        "step": np.tile(np.asarray(marks, np.int64), len(seeds)),
        **{name: _by_seed([row[name][method, : len(seeds)] for row in rows]) for name in rows[0]},
    }


def _by_seed(marks: Sequence[np.ndarray]) -> np.ndarray:
    """Put the marks inside the seeds, a few seeds at a time: what is written then stays in a core's own cache."""
    found = np.empty((len(marks[0]), len(marks)), np.result_type(*marks))
    for at in range(0, len(found), _TOGETHER):
        np.stack([mark[at : at + _TOGETHER] for mark in marks], axis=1, out=found[at : at + _TOGETHER])
    return found.ravel()


def diverged_by(carry: LaneState, method: int, seeds: int, marks: Sequence[int]) -> np.ndarray:
    """For the rows of one method, whether the seed had diverged: the mark lies after its last finite step."""
    alive, last = (np.asarray(part)[method, :seeds, None] for part in (carry.alive, carry.last))
    return (~alive & (last < np.asarray(marks))).ravel()


class EngineError(RuntimeError):
    """A program failed, in one line; XLA takes over."""


@runtime_checkable
class Program(Protocol):
    """Some of the lanes, compiled: ``where`` says which, and ``stride`` how many steps to ask for at first."""

    where: tuple[slice, slice]
    stride: int

    def place(self, carry: LaneState) -> LaneState:
        """Select its part of the carry of all lanes, and transfer it to its device."""

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        """Run steps lo … hi−1 to the end, or just compile if there are none. It is called from a separate thread.

        The carry may be used up.
        """

    def measure(self, carry: LaneState) -> Row:
        """The metrics of its lanes, each methods × seeds."""


@runtime_checkable
class Engine(Protocol):
    """A way to compile lanes: "xla", "c" or "cuda"."""

    @property
    def name(self) -> str: ...

    def compile(self, lanes: Lanes) -> Sequence[Program] | str:
        """Return programs that together advance all lanes, or the reason why this engine cannot take them."""
