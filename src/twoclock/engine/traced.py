"""The source of the program that walks given lanes, for the engines that generate one; traced once for each kind."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.core import Method, Problem, PyTree, Scalar
from twoclock.engine import keys
from twoclock.engine.codegen.ir import Unsupported
from twoclock.engine.codegen.program import Example, Source, Target, generate
from twoclock.engine.lanes import Lanes
from twoclock.engine.step import Carry, lane_start, lane_step

_known: dict[Hashable, Source | Unsupported] = {}
_MOST_KNOWN = 256
_lock = threading.Lock()


def source(work: Lanes, target: Target) -> Source:
    """The program; raises ``Unsupported`` where it cannot be generated."""
    kind = _kind(work, target)
    found = _known.get(kind) if kind is not None else None
    if found is None:
        try:
            found = generate(_lane, _example(work), target)
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


def tables(work: Lanes, source: Source) -> list[np.ndarray | jax.Array]:
    """The arrays that the program reads, in its order."""
    bound = [] if work.bound is None else [np.asarray(work.bound, jnp.result_type(float))]
    return [*jax.tree.leaves(work.instances.batched), *jax.tree.leaves(work.methods), *bound, *source.constants]


def streams(work: Lanes) -> jax.Array:
    """Two words a seed."""
    return _streams(jnp.asarray(np.asarray(work.seeds, np.uint32)))


_streams = jax.jit(keys.stream_words)


def _lane(problem: Problem, method: Method, carry: Carry, words: jax.Array, k: Scalar, bound: Scalar | None) -> Carry:
    return lane_step(problem, method, keys.stream_of(words), carry, k, bound)


def _example(work: Lanes) -> Example:
    """What one lane sees, without computing any of it."""
    problem = _without_axis(work.instances.batched) if work.instances.per_seed else work.instances.batched
    problem, method = jax.tree.map(_shape, problem), _without_axis(work.methods)
    carry = jax.eval_shape(partial(lane_start), problem, method, jax.ShapeDtypeStruct((), np.uint32))
    return Example(problem, method, carry, work.instances.per_seed, work.bound is not None)


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
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    kind = (structure, shapes, per_seed, work.bound is not None, target, x64)
    try:
        hash(kind)
    except TypeError:
        return None
    return kind
