"""The source of the program that walks given lanes, for the engines that generate one; traced once for each kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.core import Method, Problem, PyTree, Scalar
from twoclock.engine import keys
from twoclock.engine.codegen.frame import STREAM, Example, Source, Target
from twoclock.engine.codegen.ir import Unsupported
from twoclock.engine.codegen.program import generate
from twoclock.engine.lanes import Lanes
from twoclock.engine.step import Carry, Operators, lane_noise, lane_start, lane_step, learn, step_on

_known: dict[Hashable, Source | Unsupported] = {}
_MOST_KNOWN = 256
_lock = threading.Lock()


def source(work: Lanes, target: Target) -> Source:
    """The program; raises ``Unsupported`` where it cannot be generated."""
    return _once(_kind(work, target), lambda: generate(_lane, _example(work), target))


@dataclass(frozen=True)
class Ahead:
    """A program in two: the first draws the noise of many steps at once, the second walks on it.

    Attributes:
        noise, steps: the two.
        drawn: the shapes of one step's noise.
    """

    noise: Source
    steps: Source
    drawn: tuple[jax.ShapeDtypeStruct, ...]


def ahead(work: Lanes) -> Ahead:
    """The program in two, for a GPU; raises ``Unsupported`` where it cannot be, or where no noise is drawn."""
    kind, example = _kind(work, Target(cuda=True)), _example(work)
    u = jax.eval_shape(_noise, example.problem, (), None, STREAM, jax.ShapeDtypeStruct((), np.int32), None)
    drawn = tuple(jax.tree.leaves(u))
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in drawn) or not any(leaf.size for leaf in drawn):
        raise Unsupported("there are no numbers to draw ahead")
    alone = replace(example, method=(), carry=u, bounded=False)
    one, two = (None, None) if kind is None else ((kind, "noise"), (kind, "steps"))
    noise = _once(one, lambda: generate(_noise, alone, Target(cuda=True, scattered=True)))
    steps = _once(two, lambda: generate(_on_noise, replace(example, source=u), Target(cuda=True)))
    return Ahead(noise, steps, drawn)


def live(operators: Operators, method: Method, carry: Carry, x: PyTree, bounded: bool, program: str) -> Source:
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


def _once(kind: Hashable, make: Callable[[], Source]) -> Source:
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


_streams = jax.jit(keys.stream_words)


def _lane(problem: Problem, method: Method, carry: Carry, words: jax.Array, k: Scalar, bound: Scalar | None) -> Carry:
    return lane_step(problem, method, keys.stream_of(words), carry, k, bound)


def _noise(problem: Problem, method: PyTree, carry: PyTree, words: jax.Array, k: Scalar, bound: None) -> PyTree:
    return lane_noise(problem, keys.stream_of(words), k)


def _on_noise(problem: Problem, method: Method, carry: Carry, u: PyTree, k: Scalar, bound: Scalar | None) -> Carry:
    return step_on(problem, method, u, carry, k, bound)


def _live(operators: Operators, method: Method, carry: Carry, x: PyTree, k: Scalar, bound: Scalar | None) -> Carry:
    return learn(operators, method, x, carry, k, bound)


def _example_of(operators: Operators, method: Method, carry: Carry, x: PyTree, bounded: bool) -> Example:
    operators, method, carry, x = (jax.tree.map(_shape, tree) for tree in (operators, method, carry, x))
    return Example(operators, method, carry, x, bounded=bounded)


def _example(work: Lanes) -> Example:
    """What one lane sees, without computing any of it."""
    problem = _without_axis(work.instances.batched) if work.instances.per_seed else work.instances.batched
    problem, method = jax.tree.map(_shape, problem), _without_axis(work.methods)
    carry = jax.eval_shape(partial(lane_start), problem, method, jax.ShapeDtypeStruct((), np.uint32))
    return Example(problem, method, carry, per_seed=work.instances.per_seed, bounded=work.bound is not None)


def _without_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)


def _shape(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _kind(work: Lanes, target: Target) -> Hashable:
    """What decides the program: structure, shapes and types, as for ``jax.jit``; None where that cannot be a key."""
    per_seed = work.instances.per_seed
    leaves, structure = jax.tree.flatten((work.instances.batched, work.methods))
    count = len(jax.tree.leaves(work.instances.batched))
    shapes = tuple(
        (leaf.shape[1:] if per_seed or i >= count else leaf.shape, str(leaf.dtype)) for i, leaf in enumerate(leaves)
    )
    return _hashable((structure, shapes, per_seed, work.bound is not None, target, _x64()))


def _x64() -> bool:
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def _hashable(kind: Hashable) -> Hashable:
    try:
        hash(kind)
    except TypeError:
        return None
    return kind
