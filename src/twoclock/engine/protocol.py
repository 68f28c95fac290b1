"""The contract of an engine: what one step of a lane computes, and how compiled programs advance many lanes.

A lane is one method on one seed. An engine may draw the noise of many steps at once, fuse lanes or unroll arrays; what
it returns for a lane is what ``lane_step`` says, step after step, up to the rounding of its arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.engine.run_batch import Lanes
from twoclock.protocols import Key, Method, Problem, PyTree, RowTable, Scalar, pytree

Row = dict[str, np.ndarray]  # the metrics at a mark, each methods × seeds


@runtime_checkable
class Operators(Protocol):
    """What a step sees of a problem once the sample is there."""

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree: ...
    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree: ...


@pytree
class LaneState:
    """All that a lane carries from step to step.

    Attributes:
        state: the method's state.
        env: the problem's environment.
        alive: whether the lane has not diverged.
        last: how many steps it took while alive.
    """

    state: PyTree
    env: PyTree
    alive: jax.Array
    last: jax.Array


def lane_start(problem: Problem, method: Method, seed: Scalar) -> LaneState:
    """The carry of a seed before its first step."""
    theta, omega, env = problem.init(prng.start_key(seed))
    return LaneState(method.init(theta, omega), env, jnp.asarray(True), jnp.zeros((), jnp.int32))


def lane_step(
    problem: Problem, method: Method, stream: Key, carry: LaneState, k: Scalar, bound: Scalar | None = None
) -> LaneState:
    """Step k: its noise from the key of (s, k), the sample, the method's step, and whether the lane still lives.

    Args:
        stream: the key of the seed's steps, ``keys.step_stream(seed)``.
        bound: a lane whose θ or ω leaves [−bound, bound] in any entry has diverged; None for no bound.
    """
    return step_on(problem, method, lane_noise(problem, stream, k), carry, k, bound)


def trusted_step(problem: Problem, method: Method, stream: Key, carry: LaneState, k: Scalar) -> LaneState:
    """``lane_step`` of a lane that is alive, if it still is after the step; nothing here asks whether."""
    x, env = problem.draw(lane_noise(problem, stream, k), carry.state.theta, carry.env)
    new = method.step(problem.F, problem.G, carry.state, x, k)
    state = jax.tree.map(
        lambda n, o: n if isinstance(n, RowTable) else n.astype(o.dtype), new, carry.state, is_leaf=is_table
    )
    return LaneState(state, env, carry.alive, jnp.asarray(k + 1, carry.last.dtype))


def lane_noise(problem: Problem, stream: Key, k: Scalar) -> PyTree:
    """The noise of step k, which depends on the seed and k alone and so can be drawn ahead."""
    return problem.noise(jax.random.fold_in(stream, k))


def step_on(
    problem: Problem, method: Method, u: PyTree, carry: LaneState, k: Scalar, bound: Scalar | None = None
) -> LaneState:
    """Step k on noise that is already drawn. A lane whose next state is not finite, or out of bounds, stays put."""
    x, env = problem.draw(u, carry.state.theta, carry.env)
    new = learn(problem, method, x, carry, k, bound)
    return LaneState(new.state, env, new.alive, new.last)


def learn(
    operators: Operators, method: Method, x: PyTree, carry: LaneState, k: Scalar, bound: Scalar | None = None
) -> LaneState:
    """Step k on a sample, wherever that comes from."""
    old = carry.state
    new = method.step(operators.F, operators.G, old, x, k)
    alive = carry.alive & _within(new, jnp.inf)
    if bound is not None:
        alive = alive & _within((new.theta, new.omega), bound)

    def kept(n: PyTree, o: PyTree) -> PyTree:
        return n if isinstance(n, RowTable) else jnp.where(alive, n.astype(o.dtype), o)

    state = jax.tree.map(kept, new, old, is_leaf=is_table)
    return LaneState(state, carry.env, alive, jnp.where(alive, k + 1, carry.last))


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


class EngineError(RuntimeError):
    """A program cannot go on, in one line; from where it stood the walk goes on with XLA."""


@runtime_checkable
class Program(Protocol):
    """Some of the lanes, compiled. The carry passes through, so that a walk can be cut short anywhere.

    Attributes:
        where: which methods and which seeds of all lanes it walks.
        stride: how many steps it likes to be asked for at first.
    """

    where: tuple[slice, slice]
    stride: int

    def place(self, carry: LaneState) -> LaneState:
        """Its own part of the carry of all lanes, put where it computes."""

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        """Steps lo … hi−1, finished on return. Called from a thread of its own."""

    def measure(self, carry: LaneState) -> Row:
        """The metrics of its lanes, each methods × seeds."""


@runtime_checkable
class Engine(Protocol):
    """A way to walk lanes.

    Attributes:
        name: "xla", "c" or "cuda".
    """

    @property
    def name(self) -> str: ...

    def compile(self, lanes: Lanes) -> Sequence[Program] | str:
        """Programs that together walk all lanes, or the reason why this engine cannot take them."""
