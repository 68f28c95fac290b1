"""The loop of a single lane with many numbers, such as networks, which holds its state once.

The usual loop makes the next state, reads all of it to see whether it is finite, and then chooses between it and the
last. For networks that takes more memory and time than the step itself. But where what is not finite in a state stays
so, a look at every 32nd state shows whether all before it were finite. A lane that was not is run again from a state
that was kept, up to the last look with this loop and from there with the usual one: no result differs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import tree_math
from twoclock.engine.protocol import LaneState, is_table
from twoclock.engine.run_batch import Instances
from twoclock.engine.stored_programs import StoredFunction
from twoclock.protocols import Method, PyTree, Scalar

# Numbers in the state from which the loop is used, steps between two looks, and seconds between two kept states.
MANY_NUMBERS, SPAN, KEEP_SECONDS = 1 << 16, 32, 60.0


def serves(method: Method, carry: LaneState, bound: Scalar | None) -> bool:
    """Whether the loop serves these lanes, of which the carry may be just shapes."""
    leaves = jax.tree.leaves(carry.state, is_leaf=is_table)
    return (
        carry.alive.shape == (1, 1)
        and bound is None
        and method.stays_infinite
        and not any(map(is_table, leaves))
        and tree_math.size(carry.state) >= MANY_NUMBERS
    )


def _advance(
    instances: Instances,
    methods: Method,
    state: PyTree,
    env: PyTree,
    noise: PyTree,
    span: jax.Array,
    *,
    whole: bool,
) -> tuple[PyTree, PyTree, jax.Array]:
    """As the usual loop does, but stop at a look that shows a state which is not finite; return the look before it.

    With ``whole`` spans between looks, a number that is known when it is compiled, a GPU need not ask after each step.
    """
    first, lo, hi = span
    problem = _single(instances.batched, 1) if instances.per_seed else instances.batched
    method = _single(methods, 1)
    State = tuple[PyTree, PyTree]

    def step(i: Scalar, at: State) -> State:
        state, env = at
        u = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False)[0], noise)
        x, env = problem.sample(u, state.theta, state.omega, env)
        new = method.step(problem.F, problem.G, state, x, first + i)
        return jax.tree.map(lambda n, o: n.astype(o.dtype), new, state), env

    def steps(at: tuple[State, Scalar, jax.Array]) -> tuple[State, Scalar, jax.Array]:
        state, begin, _ = at
        if whole:
            end = begin + SPAN
            state = jax.lax.fori_loop(0, SPAN, lambda i, at: step(begin + i, at), state)
        else:
            end = jnp.minimum(begin + SPAN, hi)
            state = jax.lax.fori_loop(begin, end, step, state)
        fine = _all_finite(state[0])
        return state, jnp.where(fine, end, begin), fine

    at = (_single(state, 2), _single(env, 2)), lo, jnp.asarray(True)
    (state, env), end, _ = jax.lax.while_loop(lambda at: at[2] & (at[1] < hi), steps, at)
    return *jax.tree.map(lambda leaf: leaf[None, None], (state, env)), first + end


_loop = StoredFunction(_advance, static_argnames="whole", donate_argnames="state")


def advance(
    instances: Instances, methods: Method, carry: LaneState, noise: PyTree, span: np.ndarray
) -> tuple[LaneState, int]:
    """Run a span of steps and use up the state; return the step up to which it was finite."""
    first, lo, hi = span.tolist()
    # One program for each kind: the memory of two loops in one program would not fit into that of one.
    cut = hi - (hi - lo) % SPAN
    parts = [(lo, hi, False)] if jax.default_backend() == "cpu" else [(lo, cut, True), (cut, hi, False)]
    end, state, env = first + lo, carry.state, carry.env
    for begin, last, whole in parts:
        # Without a step both are just compiled.
        if end == first + begin and (begin < last or lo == hi):
            part = np.asarray([first, begin, last], np.int32)
            state, env, reached = _loop(instances, methods, state, env, noise, part, whole=whole)
            end = int(reached)
    return LaneState(state, env, carry.alive, jnp.full_like(carry.last, end)), end


def _single(tree: PyTree, axes: int) -> PyTree:
    """The only entry along the leading axes."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[axes:]), tree)


def _all_finite(tree: PyTree) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.asarray([jnp.isfinite(leaf).all() for leaf in floats]))
