"""Source of the programs generated for lanes, cached by kind, and the check of a compiled program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from twoclock import codegen, prng
from twoclock.codegen import CodeTarget, Example, ProgramSource, Unsupported, generate
from twoclock.codegen.self_check import compare
from twoclock.engine import numpy_evaluator, protocol
from twoclock.engine.protocol import LaneState, Operators, is_table
from twoclock.engine.rare_branches import RareSteps
from twoclock.engine.run_batch import Lanes
from twoclock.engine.stored_programs import StoredFunction
from twoclock.engine.tracing import TracedProgram
from twoclock.protocols import Method, Problem, PyTree, Scalar


@dataclass(frozen=True)
class MetricsSource:
    """A program that measures, and the shapes of the metrics of a lane that it writes."""

    source: ProgramSource
    row: dict[str, PyTree]


@dataclass(frozen=True)
class UsualSource:
    """A program of the usual steps, which steps are not, and the whole step if NumPy can take it."""

    source: ProgramSource
    rare: RareSteps
    by_numpy: ClosedJaxpr | None


T = TypeVar("T", ProgramSource, MetricsSource, UsualSource)
_CUDA = CodeTarget(cuda=True)
_MAX_CACHED = 256
_cache: dict[Hashable, ProgramSource | MetricsSource | UsualSource | Unsupported] = {}
_lock = threading.Lock()


def checked_source(work: Lanes, target: CodeTarget) -> ProgramSource:
    """Generate the program that stops diverged lanes at every step; raise ``Unsupported`` if it cannot be."""
    return _cached(_kind(work, target), lambda: generate(_checked_lane, _example(work), target))


def usual_source(work: Lanes, target: CodeTarget) -> UsualSource:
    """Generate the same for steps without ``refine`` and rare branches; also return which steps have such a branch."""

    def make() -> UsualSource:
        example = _example(work)
        words, k = jax.ShapeDtypeStruct((2,), np.uint32), jax.ShapeDtypeStruct((), np.int32)
        bound = jax.ShapeDtypeStruct((), jnp.result_type(float)) if example.bounded else None
        args = example.inputs, example.parameters, example.carry, words, k, bound
        before = len(jax.tree.leaves((example.inputs, example.parameters)))
        state = range(before, before + len(jax.tree.leaves(example.carry.state)))
        tables = any(map(is_table, jax.tree.leaves(example.carry.state, is_leaf=is_table)))  # these are not checked
        rare = RareSteps(_lane_between, args, number=4, checked=range(0) if tables else state)
        return UsualSource(generate(rare.usual if rare else _lane_between, example, target), rare, rare.by_numpy())

    return _cached(_kind(work, target, "usual"), make)


def unchecked_source(work: Lanes, symmetric: bool = True) -> ProgramSource:
    """Generate the program for a GPU that only notes divergence; ``symmetric`` matrices are computed by half."""
    kind = _kind(work, _CUDA, f"unchecked {symmetric}")
    return _cached(kind, lambda: generate(_unchecked_lane, _unchecked_example(work, symmetric), _CUDA))


def few_source(work: Lanes, lanes: int, symmetric: bool = True) -> ProgramSource:
    """Generate the same for few lanes, some in a block: what does not depend on the state is computed ahead."""
    kind = _kind(work, _CUDA, f"few {lanes} {symmetric}")
    return _cached(kind, lambda: codegen.generate_few(_unchecked_lane, _unchecked_example(work, symmetric), lanes))


def metrics_source(work: Lanes) -> MetricsSource:
    """Generate the program for a GPU that measures all lanes; raise ``Unsupported`` if there is none."""

    def metrics(problem: Problem, method: Method, carry: LaneState) -> dict[str, PyTree]:
        return protocol.lane_metrics(problem, method, carry.state, carry.env)

    def lane(problem: Problem, method: Method, both: PyTree, *_: object) -> PyTree:
        return both[0], metrics(problem, method, both[0])

    def make() -> MetricsSource:
        example = _example(work)
        row = jax.eval_shape(metrics, example.inputs, example.parameters, example.carry)
        read = len(jax.tree.leaves(example.carry))
        return MetricsSource(generate(lane, replace(example, carry=(example.carry, row), only_read=read), _CUDA), row)

    return _cached(_kind(work, _CUDA, "metrics"), make)


def online_source(
    operators: Operators, method: Method, carry: LaneState, x: PyTree, bounded: bool, program: str
) -> ProgramSource:
    """Generate the program of one lane that learns from samples like ``x``; ``program`` is a digest of the step."""

    def lane(operators: Operators, method: Method, carry: LaneState, x: PyTree, *rest: PyTree) -> LaneState:
        return protocol.learn(operators, method, x, carry, *rest)

    given = operators, method, carry, x
    leaves, structure = jax.tree.flatten(given)
    kind = program, structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), bounded
    example = Example(*(jax.tree.map(_shape, tree) for tree in given))
    return _cached(kind, lambda: generate(lane, replace(example, bounded=bounded), CodeTarget()))


def clear_cache() -> None:
    """Drop all sources; the functions that they were generated from may have changed."""
    with _lock:
        _cache.clear()


def tables(work: Lanes) -> list[np.ndarray | jax.Array]:
    """Return the arrays that a program reads, in its order, before its constants."""
    bound = [] if work.bound is None else [np.asarray(work.bound, jnp.result_type(float))]
    return [*jax.tree.leaves(work.instances.batched), *jax.tree.leaves(work.methods), *bound]


def _cached(kind: Hashable, make: Callable[[], T]) -> T:
    """Return the source of a kind in this precision from the cache, or make it."""
    key: Hashable = kind, jax.config.jax_enable_x64  # type: ignore[attr-defined]
    try:
        found = _cache.get(key)
    except TypeError:  # a kind that cannot be a key
        key = found = None
    if found is None:
        try:
            found = make()
        except Unsupported as reason:
            found = reason
        except Exception as fault:
            # A fault of the generator must not end a run that XLA can take; a fault of the user's code occurs there
            # again.
            found = Unsupported(f"the generator failed ({type(fault).__name__}: {str(fault)[:100]})")
        if key is not None:
            with _lock:
                if len(_cache) >= _MAX_CACHED:
                    del _cache[next(iter(_cache))]
                _cache[key] = found
    if isinstance(found, Unsupported):
        raise Unsupported(*found.args)
    return found  # type: ignore[return-value]


def kind_of(work: Lanes) -> Hashable:
    """Return what all programs of these lanes share, whatever the seeds and the numbers in the methods."""
    return _kind(work, CodeTarget())


def _kind(work: Lanes, target: CodeTarget, variant: str = "") -> Hashable:
    """Return what decides the program: structure, shapes and types, as for ``jax.jit``."""
    per_seed = work.instances.per_seed
    leaves, structure = jax.tree.flatten((work.instances.batched, work.methods))
    count = len(jax.tree.leaves(work.instances.batched))
    shapes = tuple(
        (leaf.shape[1:] if per_seed or i >= count else leaf.shape, str(leaf.dtype)) for i, leaf in enumerate(leaves)
    )
    alone = target.cuda and work.count == 1
    return structure, shapes, per_seed, work.bound is not None, alone, target, variant, work.instances.traced


def _checked_lane(
    problem: Problem, method: Method, carry: LaneState, words: jax.Array, k: Scalar, bound: Scalar | None
) -> LaneState:
    return protocol.lane_step(problem, method, prng.stream_of(words), carry, k, bound)


def _lane_between(
    problem: Problem, method: Method, carry: LaneState, words: jax.Array, k: Scalar, bound: Scalar | None
) -> LaneState:
    return protocol.lane_step(problem, method, prng.stream_of(words), carry, k, bound, refined=False)


def _unchecked_lane(
    problem: Problem, method: Method, carry: LaneState, words: jax.Array, k: Scalar, bound: Scalar | None
) -> LaneState:
    return protocol.trusted_step(problem, method, prng.stream_of(words), carry, k)


def _example(work: Lanes) -> Example:
    """Return the shapes of what one lane sees, without computing any of it."""
    problem = _without_axis(work.instances.batched) if work.instances.per_seed else work.instances.batched
    problem, method = jax.tree.map(_shape, problem), _without_axis(work.methods)
    carry = jax.eval_shape(partial(protocol.lane_start), problem, method, jax.ShapeDtypeStruct((), np.uint32))
    return Example(
        problem,
        method,
        carry,
        per_seed=work.instances.per_seed,
        bounded=work.bound is not None,
        alone=work.count == 1,
    )


def _unchecked_example(work: Lanes, symmetric: bool) -> Example:
    example = _example(work)
    leaves, structure = jax.tree.flatten(example.carry)
    number: LaneState = jax.tree.unflatten(structure, range(len(leaves)))
    state = jax.tree.leaves(number.state, is_leaf=is_table)
    finite = tuple(i for i in state if not is_table(i) and jnp.issubdtype(leaves[i].dtype, jnp.floating))
    bounded = tuple(set(jax.tree.leaves((number.state.theta, number.state.omega))) & set(finite))
    frozen = not any(map(is_table, state)) and not jax.tree.leaves(number.env)
    return replace(example, unchecked=codegen.UncheckedStep(finite, bounded, int(number.alive), frozen, symmetric))


def _without_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)


def _shape(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


# Size of the self-check: steps, methods and seeds, evenly spread, since a compiler may be wrong in a single branch.
CHECKED_STEPS = 8
_CHECKED_METHODS, _CHECKED_SEEDS = 2, 8
# Lanes that NumPy takes at once.
_LANES_TOGETHER = 256


def difference_from_xla(
    lanes: Lanes,
    advance: Callable[[LaneState, int, int], LaneState],
    carry: LaneState,
    lo: int,
    all_lanes: bool = False,
    by_numpy: ClosedJaxpr | None = None,
) -> str | None:
    """Take a few steps from step ``lo`` by a program and by XLA; return how they differ beyond rounding.

    Args:
        all_lanes: check every lane instead of a few; if XLA takes steps of all of them anyway, this saves a program.
        by_numpy: the step as a program for NumPy. Where it gives the same, XLA, which is slow to compile, is not asked.
    """
    seeds = range(len(lanes.seeds)) if all_lanes else _spread(len(lanes.seeds), _CHECKED_SEEDS)
    methods = range(lanes.count) if all_lanes else _spread(lanes.count, _CHECKED_METHODS)
    where, problem = np.ix_(methods, seeds), lanes.instances.batched
    if lanes.instances.per_seed and not all_lanes:
        problem = jax.tree.map(lambda leaf: leaf[np.asarray(seeds)], problem)
    some = Lanes(
        replace(lanes.instances, batched=problem),
        jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(methods)], lanes.methods),
        len(methods),
        [lanes.seeds[i] for i in seeds],
        lanes.bound,
    )
    begin = jax.tree.map(lambda leaf: np.asarray(leaf)[where], carry)
    words, found = prng.stream_words(some.seeds), None
    for program in (by_numpy, None) if by_numpy is not None else (None,):
        expected = begin
        for k in range(lo, lo + CHECKED_STEPS):
            expected = step_apart(some, words, expected, k, program)
        if found is None:
            found = jax.tree.map(lambda leaf: np.asarray(leaf)[where], advance(carry, lo, lo + CHECKED_STEPS))
        difference = compare(found, expected, f" after {CHECKED_STEPS} steps")
        if difference is None:
            break
    return difference


def step_apart(
    lanes: Lanes, words: np.ndarray, carry: LaneState, k: int, by_numpy: ClosedJaxpr | None = None
) -> LaneState:
    """Take step k of all lanes by NumPy, if there is a program for it, or else by XLA."""
    if by_numpy is None:
        return step_on_xla(lanes, words, carry, k)
    (count, seeds), per_seed = lanes.shape, lanes.instances.per_seed
    problem, method = (
        [np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (lanes.instances.batched, lanes.methods)
    )
    own, structure = jax.tree.flatten(carry)
    given = [
        *(np.tile(leaf, (count, *(1,) * (leaf.ndim - 1))) if per_seed else leaf[None] for leaf in problem),
        *(np.repeat(leaf, seeds, axis=0) if count > 1 else leaf for leaf in method),
        *(np.reshape(leaf, (count * seeds, *np.shape(leaf)[2:])) for leaf in own),
        np.tile(words, (count, 1)),
        np.full(1, k, np.int32),
        *([] if lanes.bound is None else [np.full(1, lanes.bound, jnp.result_type(float))]),
    ]
    parts: list[list[np.ndarray]] = []
    for first in range(0, count * seeds, _LANES_TOGETHER):
        here = slice(first, first + _LANES_TOGETHER)
        some = [array if len(array) == 1 else array[here] for array in given]
        size = min(count * seeds - first, _LANES_TOGETHER)
        try:
            found = numpy_evaluator.evaluate(by_numpy, some)
        except Exception:  # an operation in a form that is not known there
            return step_on_xla(lanes, words, carry, k)
        parts.append([np.broadcast_to(leaf, (size, *leaf.shape[1:])) for leaf in found])
    leaves = [
        np.reshape(np.concatenate(leaf), np.shape(old)).astype(np.asarray(old).dtype)
        for leaf, old in zip(zip(*parts, strict=True), own, strict=True)
    ]
    return _refined(lanes, jax.tree.unflatten(structure, leaves), k)


def step_on_xla(lanes: Lanes, words: np.ndarray, carry: LaneState, k: int) -> LaneState:
    """Take step k of all lanes by XLA."""
    axes = {"axis": lanes.instances.seed_axis, "traced": lanes.instances.traced}
    methods = jax.tree.map(np.asarray, lanes.methods)
    carry = jax.device_get(_xla_step(lanes.instances.batched, methods, carry, words, np.int32(k), lanes.bound, **axes))
    return _refined(lanes, carry, k)


def _refined(lanes: Lanes, carry: LaneState, k: int) -> LaneState:
    due = protocol.due_steps(lanes.methods, carry.state, k, k + 1)
    return protocol.refine_lanes(jax.tree.map(np.asarray, lanes.methods), carry, k, lanes.bound) if due else carry


def _spread(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()


def _step_lanes(*arguments: PyTree, axis: int | None, traced: TracedProgram | None) -> LaneState:
    """Take one step of all lanes; ``traced`` distinguishes functions that have changed since they were compiled.

    One lane after the other, so that the bits of a lane do not depend on how many there are.
    """
    problem, methods, carry, words, k, bound = arguments

    def of_method(each: tuple[Method, LaneState]) -> LaneState:
        method, of_seeds = each

        def of_seed(one: tuple[Problem | None, LaneState, jax.Array]) -> LaneState:
            return _lane_between(problem if one[0] is None else one[0], method, *one[1:], k, bound)

        return jax.lax.map(of_seed, (None if axis is None else problem, of_seeds, words))

    return jax.lax.map(of_method, (methods, carry))


# Hardly optimised, since a check has to be quick: LLVM would take many minutes for some steps of one lane.
_xla_step = StoredFunction(_step_lanes, static_argnames=("axis", "traced"), compiler_options=protocol.QUICK_TO_COMPILE)
