"""The loop of a single lane with many numbers, such as networks, which holds its state once.

The usual loop makes the next state, reads all of it to see whether it is finite, and then chooses between it and the
last. For networks that costs more memory and time than the step itself. Here a bound on all numbers of the state is
measured every few steps, and between them it grows by what the method says of its steps and by the largest numbers of F
and G. While the bound is far from overflow the next state is finite without a look at it. Otherwise the lane stops
before the step, and the usual loop continues from there: no result differs.
"""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import tree_math
from twoclock.engine.protocol import LaneState, is_table
from twoclock.engine.run_batch import Instances
from twoclock.engine.stored_programs import StoredFunction
from twoclock.protocols import Method, Operator, PyTree, Scalar

# Numbers in the state from which the loop is used, steps between two measurements, and the bound.
MANY_NUMBERS, SPAN, SAFE = 1 << 16, 32, 1e30


def serves(method: Method, carry: LaneState, bound: Scalar | None) -> bool:
    """Whether the loop serves these lanes, of which the carry may be just shapes."""
    leaves = jax.tree.leaves(carry.state, is_leaf=is_table)
    return (
        carry.alive.shape == (1, 1)
        and bound is None
        and method.bounds_steps
        and not any(map(is_table, leaves))
        and tree_math.size(carry.state) >= MANY_NUMBERS
    )


def _advance(
    instances: Instances, methods: Method, state: PyTree, rest: tuple[PyTree, ...], noise: PyTree, span: jax.Array
) -> tuple[PyTree, tuple[PyTree, ...], jax.Array]:
    """As the usual loop does; returned last is whether it came to the end of the span."""
    first, lo, hi = span
    problem = _single(instances.batched, 1) if instances.per_seed else instances.batched
    method = _single(methods, 1)

    def step(i: Scalar, at: tuple[LaneState, jax.Array, jax.Array]) -> tuple[LaneState, jax.Array, jax.Array]:
        carry, top, going = at
        numbers, k = [top], first + i

        def seen(operator: Operator) -> Operator:
            def with_look(theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
                value = operator(theta, omega, x)
                numbers.append(_largest(value))
                return value

            return with_look

        u = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False)[0], noise)
        x, env = problem.sample(u, carry.state.theta, carry.state.omega, carry.env)
        new = method.step(seen(problem.F), seen(problem.G), carry.state, x, k)
        top = method.bound_step(reduce(jnp.maximum, numbers), k)
        going = going & (top < SAFE)  # not where a number is none
        last = jnp.asarray(k + 1, carry.last.dtype)
        moved = LaneState(new, env, carry.alive, last)
        carry = jax.tree.map(lambda n, o: jnp.where(going, n.astype(o.dtype), o), moved, carry)
        return carry, top, going

    def steps(begin: Scalar, end: Scalar, at: tuple[LaneState, jax.Array]) -> tuple[LaneState, jax.Array]:
        carry, going = at
        carry, _, going = jax.lax.fori_loop(begin, end, step, (carry, _largest(carry.state), going))
        return carry, going

    def full(j: Scalar, at: tuple[LaneState, jax.Array]) -> tuple[LaneState, jax.Array]:
        # With a number of passes that is known when it is compiled, a GPU need not ask after each of them.
        carry, going = at
        begin = lo + j * SPAN
        top = _largest(carry.state)
        at_end = jax.lax.fori_loop(0, SPAN, lambda i, at: step(begin + i, at), (carry, top, going))
        return at_end[0], at_end[2]

    def short(j: Scalar, at: tuple[LaneState, jax.Array]) -> tuple[LaneState, jax.Array]:
        begin = lo + j * SPAN
        return steps(begin, jnp.minimum(begin + SPAN, hi), at)

    carry: LaneState = _single(LaneState(state, *rest), 2)
    at = carry, carry.alive
    count = (hi - lo) // SPAN
    if jax.default_backend() == "cpu":
        carry, going = jax.lax.fori_loop(0, (hi - lo + SPAN - 1) // SPAN, short, at)
    else:
        carry, going = steps(lo + count * SPAN, hi, jax.lax.fori_loop(0, count, full, at))
    carry = jax.tree.map(lambda leaf: leaf[None, None], carry)
    return carry.state, (carry.env, carry.alive, carry.last), going


_loop = StoredFunction(_advance, donate_argnames="state")


def advance(
    instances: Instances, methods: Method, carry: LaneState, noise: PyTree, span: np.ndarray
) -> tuple[LaneState, bool]:
    """Run a span of steps and use up the state; return whether it came to the end."""
    state, rest, going = _loop(instances, methods, carry.state, (carry.env, carry.alive, carry.last), noise, span)
    return LaneState(state, *rest), bool(going)


def _single(tree: PyTree, axes: int) -> PyTree:
    """The only entry along the leading axes."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[axes:]), tree)


def _largest(tree: PyTree) -> jax.Array:
    """The largest absolute value among all floats; not a number where one is none."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    return reduce(
        jnp.maximum, [jnp.max(jnp.abs(leaf)).astype(float) for leaf in leaves if jnp.size(leaf)], jnp.zeros(())
    )
