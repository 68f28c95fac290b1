"""The source of the program that walks given lanes, for the engines that generate one; traced once for each kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.codegen.build import SplitProgram, generate, generate_in_two
from twoclock.codegen.c_template import Example, Source, Target, UncheckedStep
from twoclock.codegen.ir import Unsupported
from twoclock.engine.metrics import metrics_of
from twoclock.engine.protocol import LaneState, Operators, is_table, lane_start, lane_step, learn, trusted_step
from twoclock.engine.run_batch import Lanes
from twoclock.protocols import Method, Problem, PyTree, Scalar

_known: dict[Hashable, Any] = {}
T = TypeVar("T", Source, SplitProgram, "Measuring")
_MOST_KNOWN = 256
_lock = threading.Lock()


@dataclass(frozen=True)
class Measuring:
    """A program that measures, and the metrics of a lane that it writes, as shapes."""

    source: Source
    row: dict[str, PyTree]


def source(work: Lanes, target: Target) -> Source:
    """The program; raises ``Unsupported`` where it cannot be generated."""
    return _once(_kind(work, target), lambda: generate(_lane, _example(work), target))


def trusting(work: Lanes, symmetric: bool = True) -> Source:
    """The program for a GPU that walks on trust; raises ``Unsupported`` where there is none.

    Args:
        symmetric: whether matrices that a step keeps symmetric are so.
    """
    target, example = Target(cuda=True), partial(_trusting_example, work, symmetric)
    return _once(_kind(work, target, f"trusting {symmetric}"), lambda: generate(_trusted, example(), target))


def in_two(work: Lanes, symmetric: bool = True) -> SplitProgram:
    """The same with all that does not wait for the state done ahead."""
    kind = _kind(work, Target(cuda=True), f"in two {symmetric}")
    return _once(kind, lambda: generate_in_two(_trusted, _trusting_example(work, symmetric)))


def measuring(work: Lanes) -> Measuring:
    """The program for a GPU that measures all lanes in one launch; raises ``Unsupported`` where there is none."""
    return _once(_kind(work, Target(cuda=True), "measuring"), lambda: _measuring(_example(work)))


def _measuring(example: Example) -> Measuring:
    def metrics(problem: Problem, method: Method, carry: LaneState) -> dict[str, PyTree]:
        return metrics_of(problem, method, carry.state, carry.env)

    def lane(problem: Problem, method: Method, both: PyTree, *_: object) -> PyTree:
        return both[0], metrics(problem, method, both[0])

    row = jax.eval_shape(metrics, example.problem, example.method, example.carry)
    read = len(jax.tree.leaves(example.carry))
    source = generate(lane, replace(example, carry=(example.carry, row), only_read=read), Target(cuda=True))
    return Measuring(source, row)


def live(operators: Operators, method: Method, carry: LaneState, x: PyTree, bounded: bool, program: str) -> Source:
    """The program of one lane that learns from samples it is handed; raises ``Unsupported`` where there is none.

    Args:
        carry, x: arrays, or shapes.
        bounded: whether there is a bound on the iterates.
        program: a digest of the step; functions may have changed since it was last generated.
    """
    leaves, structure = jax.tree.flatten((operators, method, carry, x))
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    kind = _hashable((program, structure, shapes, bounded, _x64()))
    return _once(kind, lambda: generate(_live, _example_of(operators, method, carry, x, bounded), Target()))


def _once(kind: Hashable, make: Callable[[], T]) -> T:
    """What is made for a kind, remembered; None stands for a kind that cannot be remembered."""
    found = _known.get(kind) if kind is not None else None
    if found is None:
        try:
            found = make()
        except Unsupported as reason:
            found = reason
        except (KeyError, IndexError, AttributeError, AssertionError, NotImplementedError) as fault:
            # A fault of the generator must not end a run that XLA can take; one of the user's comes again there.
            found = Unsupported(f"the generator failed ({type(fault).__name__}: {str(fault)[:100]})")
        if kind is not None:
            with _lock:
                if len(_known) >= _MOST_KNOWN:
                    del _known[next(iter(_known))]
                _known[kind] = found
    if isinstance(found, Unsupported):
        raise Unsupported(*found.args)
    return found


def known(work: Lanes, target: Target) -> bool:
    """Whether it was generated before."""
    return isinstance(_known.get(_kind(work, target)), Source)


def forget() -> None:
    """What was generated may no longer be what the functions compute."""
    with _lock:
        _known.clear()


def tables(work: Lanes) -> list[np.ndarray | jax.Array]:
    """The arrays that the program reads, in its order, before its constants."""
    bound = [] if work.bound is None else [np.asarray(work.bound, jnp.result_type(float))]
    return [*jax.tree.leaves(work.instances.batched), *jax.tree.leaves(work.methods), *bound]


def streams(work: Lanes) -> jax.Array:
    """Two words a seed."""
    return _streams(jnp.asarray(np.asarray(work.seeds, np.uint32)))


_streams = jax.jit(prng.stream_words)


def _lane(
    problem: Problem, method: Method, carry: LaneState, words: jax.Array, k: Scalar, bound: Scalar | None
) -> LaneState:
    return lane_step(problem, method, prng.stream_of(words), carry, k, bound)


def _trusted(
    problem: Problem, method: Method, carry: LaneState, words: jax.Array, k: Scalar, bound: Scalar | None
) -> LaneState:
    return trusted_step(problem, method, prng.stream_of(words), carry, k)


def _live(
    operators: Operators, method: Method, carry: LaneState, x: PyTree, k: Scalar, bound: Scalar | None
) -> LaneState:
    return learn(operators, method, x, carry, k, bound)


def _example_of(operators: Operators, method: Method, carry: LaneState, x: PyTree, bounded: bool) -> Example:
    operators, method, carry, x = (jax.tree.map(_shape, tree) for tree in (operators, method, carry, x))
    return Example(operators, method, carry, x, bounded=bounded)


def _example(work: Lanes) -> Example:
    """What one lane sees, without computing any of it."""
    problem = _without_axis(work.instances.batched) if work.instances.per_seed else work.instances.batched
    problem, method = jax.tree.map(_shape, problem), _without_axis(work.methods)
    carry = jax.eval_shape(partial(lane_start), problem, method, jax.ShapeDtypeStruct((), np.uint32))
    return Example(problem, method, carry, per_seed=work.instances.per_seed, bounded=work.bound is not None)


def _trusting_example(work: Lanes, symmetric: bool) -> Example:
    example = _example(work)
    leaves, structure = jax.tree.flatten(example.carry)
    number: LaneState = jax.tree.unflatten(structure, range(len(leaves)))
    state = jax.tree.leaves(number.state, is_leaf=is_table)
    watched = tuple(i for i in state if not is_table(i) and jnp.issubdtype(leaves[i].dtype, jnp.floating))
    held = set(jax.tree.leaves((number.state.theta, number.state.omega)))
    stays = not any(map(is_table, state)) and not jax.tree.leaves(number.env)
    return replace(
        example, trust=UncheckedStep(watched, tuple(held & set(watched)), int(number.alive), stays, symmetric)
    )


def _without_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)


def _shape(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _kind(work: Lanes, target: Target, way: str = "") -> Hashable:
    """What decides the program: structure, shapes and types, as for ``jax.jit``; None where that cannot be a key."""
    per_seed = work.instances.per_seed
    leaves, structure = jax.tree.flatten((work.instances.batched, work.methods))
    count = len(jax.tree.leaves(work.instances.batched))
    shapes = tuple(
        (leaf.shape[1:] if per_seed or i >= count else leaf.shape, str(leaf.dtype)) for i, leaf in enumerate(leaves)
    )
    return _hashable((structure, shapes, per_seed, work.bound is not None, target, way, _x64(), work.instances.traced))


def _x64() -> bool:
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def _hashable(kind: Hashable) -> Hashable:
    try:
        hash(kind)
    except TypeError:
        return None
    return kind
