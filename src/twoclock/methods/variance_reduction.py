"""Variance reduction: by an anchor with the means of F and G there, and by a memory of each item of finite data."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from twoclock import tree_math
from twoclock.methods.fast import Both
from twoclock.protocols import (
    IndexedBatch,
    InputError,
    Method,
    Operator,
    PyTree,
    RowTable,
    Scalar,
    checked,
    indexed_batches,
    pytree,
)
from twoclock.schedules import LevelSizes, StepSize, step_size
from twoclock.tree_math import Sum, blend
from twoclock.validation import AT_LEAST_ONE, check_number, whole

Pair = tuple[PyTree, PyTree]


@pytree
class SVRGState(Both[Sum]):
    anchor: Pair  # (θ̃, ω̃)
    field: Sum  # the mean of (F, G) there
    count: Int[Array, ""]  # the steps since the last pass began


@pytree
class SVRG(Method):
    """SVRG for both variables: a pass over the data at an anchor, then some passes of corrected steps.

        gather:  F̃ = mean of F(θ̃, ω̃, X),  G̃ = mean of G(θ̃, ω̃, X)        over one pass, at (θ̃, ω̃) = (θ, ω)
        move:    θ ← θ − α_k[F(θ, ω, X) − F(θ̃, ω̃, X) + F̃]
                 ω ← ω − β_k[G(θ, ω, X) − G(θ̃, ω̃, X) + G̃]                 over ``moves`` passes more

    The noise vanishes as the iterates converge, so constant steps converge linearly to the exact solution. A step of
    the run is a draw, also in a pass that moves nothing. On `bilevel` these are the directions of SOBA. For `bilevel`
    and `minimax` with finite data drawn without replacement (`sampling.Minibatches`): a pass then holds every item
    equally often, and the mean is exact.

    Args:
        alpha, beta: step sizes of θ and ω; constants suit.
        moves: passes that move, for each that gathers; at least 1, a fraction counts as one more.

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic_bilevel(samples=64)
    >>> result = tc.solve(problem, tc.methods.SVRG(0.2, 0.2), steps=8000, seeds=2)
    >>> bool(result.summary("error")["mean"].iloc[-1] < 1e-20)
    True

    Reference: Johnson & Zhang, *Accelerating stochastic gradient descent using predictive variance reduction*, 2013;
    with the directions of Dagréou, Ablin, Vaiter & Moreau, *A framework for bilevel optimization that enables
    stochastic and global variance reduction algorithms*, 2022.
    """

    alpha: StepSize = step_size("0.05")
    beta: LevelSizes = step_size("0.1", levels=True)
    moves: Scalar = checked(check_number, *AT_LEAST_ONE, "it counts passes over the data", default=2.0)

    def init(self, theta: PyTree, omega: PyTree) -> SVRGState:
        return SVRGState(*_start(theta, omega), jnp.zeros((), jnp.int32))

    def step(self, F: Operator, G: Operator, state: SVRGState, x: PyTree, k: Scalar) -> SVRGState:
        one_pass, here = _steps_of_a_pass(x), (state.theta, state.omega)
        gathers = state.count < one_pass
        theta, omega = jax.tree.map(lambda new, old: jnp.where(state.count == 0, new, old), here, state.anchor)
        done = jnp.asarray(state.count, float)
        (f, g), field = correct_by_anchor(F, G, x, here, (theta, omega), state.field, done, gathers)
        slow, fast = tree_math.descend(state.slow, self.alpha(k), f), tree_math.descend(state.fast, self.beta(k), g)
        length = one_pass * (1 + jnp.asarray(jnp.ceil(jnp.asarray(self.moves, float)), jnp.int32))
        count = jnp.where(state.count + 1 >= length, 0, state.count + 1)
        return SVRGState(slow, fast, (theta, omega), field, count)


@pytree
class VRTDCState(Both[Sum]):
    anchor: Pair  # (θ̃, ω̃)
    field: Sum  # the batch's mean of (F, G) there
    mean: Sum  # of the iterates of this epoch's steps
    count: Int[Array, ""]  # the samples of this epoch so far
    epochs: Int[Array, ""]


@pytree
class VRTDC(Method):
    """Variance-reduced TDC, for any two operators: each epoch takes a batch at an anchor and as many steps.

        gather:  F̃ = mean of F(θ̃, ω̃, X),  G̃ = mean of G(θ̃, ω̃, X)        over ``batch`` samples
        move:    θ ← θ − α_k[F(θ, ω, X) − F(θ̃, ω̃, X) + F̃]
                 ω ← ω − β_k[G(θ, ω, X) − G(θ̃, ω̃, X) + G̃]                 on ``batch`` samples more
        anchor:  (θ̃, ω̃) = (θ, ω) = the mean of the iterates of these steps

    The estimate is the anchor. A step of the run is a draw, so half the steps do not move; the published method draws
    from the batch again while it gathers the next. ``evaluations`` is recorded beside the metrics: the number of
    evaluations of F and G, one for a sample that is gathered and two for one with a step. The batch has a fixed size,
    so the error stays at that of its mean. There is no projection.

    Args:
        alpha, beta: step sizes of θ and ω.
        batch: samples in a batch, at least 1; a fraction counts as one more.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.boyan(), tc.methods.VRTDC(0.1, 0.1, batch=100), steps=1000, seeds=2)
    >>> result.history["evaluations"].iloc[-1].item()
    1500.0

    Reference: Ma, Zhou & Zou, *Variance-reduced off-policy TDC learning: non-asymptotic convergence analysis*, 2020;
    with fresh samples as in Frostig, Ge, Kakade & Sidford, *Competing with the empirical risk minimizer in a single
    pass*, 2015.
    """

    alpha: StepSize = step_size("0.01")
    beta: LevelSizes = step_size("0.02", levels=True)
    batch: Scalar = checked(check_number, *AT_LEAST_ONE, "it counts samples", default=500.0)

    def init(self, theta: PyTree, omega: PyTree) -> VRTDCState:
        slow, fast, anchor, nothing = _start(theta, omega)
        zero = jnp.zeros((), jnp.int32)
        return VRTDCState(slow, fast, anchor, nothing, nothing, zero, zero)

    def step(self, F: Operator, G: Operator, state: VRTDCState, x: PyTree, k: Scalar) -> VRTDCState:
        size, here = jnp.ceil(jnp.asarray(self.batch, float)), (state.theta, state.omega)
        done = jnp.asarray(state.count, float)
        gathers, last = done < size, done + 1 >= 2 * size
        (f, g), field = correct_by_anchor(F, G, x, here, state.anchor, state.field, done, gathers)
        slow, fast = tree_math.descend(state.slow, self.alpha(k), f), tree_math.descend(state.fast, self.beta(k), g)
        moved = jnp.maximum(done + 1 - size, 1)
        mean = blend(state.mean, jnp.where(gathers, 0, 1 / moved), (slow.value, fast.value))

        anchor = tree_math.select(last, mean.value, state.anchor)
        pairs = zip(anchor, (slow, fast), strict=True)
        slow, fast = (tree_math.select(last, tree_math.start(new), old) for new, old in pairs)
        count = jnp.where(last, 0, state.count + 1)
        return VRTDCState(slow, fast, anchor, field, mean, count, state.epochs + jnp.asarray(last, jnp.int32))

    def estimate(self, state: VRTDCState) -> tuple[PyTree, PyTree]:
        return state.anchor

    def report(self, state: VRTDCState) -> Mapping[str, Scalar]:
        size = jnp.ceil(jnp.asarray(self.batch, float))
        done, epochs = (jnp.asarray(count, float) for count in (state.count, state.epochs))
        return {"evaluations": 3 * size * epochs + done + jnp.maximum(done - size, 0)}


def _start(theta: PyTree, omega: PyTree) -> tuple[Sum, Sum, Pair, Sum]:
    """θ, ω, both as the first anchor, and no field yet."""
    slow, fast = tree_math.start(theta, "theta"), tree_math.start(omega, "omega")
    anchor = slow.value, fast.value
    return slow, fast, anchor, tree_math.start(jax.tree.map(jnp.zeros_like, anchor))


def correct_by_anchor(
    F: Operator, G: Operator, x: PyTree, here: Pair, anchor: Pair, field: Sum, done: Array, gathers: Bool[Array, ""]
) -> tuple[Pair, Sum]:
    """The directions F(here) − F(anchor) + F̃ and the same of G, 0 while gathering; and (F̃, G̃) with the sample in.

    (F̃, G̃) is the ``field``, the mean of (F, G) at the anchor over the ``done`` samples gathered.
    """
    at_anchor = F(*anchor, x), G(*anchor, x)

    def direction(now: Array, then: Array, mean: Array) -> Array:
        return jnp.where(gathers, jnp.zeros_like(mean), now - then + mean)

    directions = jax.tree.map(direction, (F(*here, x), G(*here, x)), at_anchor, field.value)
    return directions, blend(field, jnp.where(gathers, 1 / (done + 1), 0), at_anchor)


def _steps_of_a_pass(x: PyTree) -> int:
    """The fewest batches that hold every item equally often, at both levels."""
    parts = indexed_batches(x)
    if parts is None or any(part.replace for part in parts):
        why = "this problem has no finite data" if parts is None else "here the same item may come twice"
        raise InputError(
            f"`SVRG` must pass over the data, and {why}; take `bilevel` or `minimax` with `sampling.Minibatches` "
            "without replacement, or tc.methods.VRTDC()"
        )
    return math.lcm(*(part.items // math.gcd(part.items, len(jnp.asarray(part.index))) for part in parts))


@pytree
class ItemMemory:
    """The values of the items of one level when each was last drawn."""

    values: RowTable  # (F, G) of each
    seen: Bool[Array, " items"]  # which have been drawn
    total: Sum  # over those
    count: Float[Array, ""]  # their number


def _check_items(what: str, items: object) -> tuple[int, ...]:
    given = items if isinstance(items, (tuple, list)) else (items,)
    if not given:
        raise InputError(f"`{what}` must name how many items the data have, got ()")
    return tuple(whole(what, n) for n in given)


@pytree
class SABAState(Both[Sum]):
    memories: tuple[ItemMemory, ...]


@pytree
class SABA(Method):
    """SAGA for both variables: an item's F and G are corrected by its last values and the mean of all.

        θ ← θ − α_k[F_i(θ, ω) − F̃_i + mean F̃],    F̃_i ← F_i(θ, ω)
        ω ← ω − β_k[G_i(θ, ω) − G̃_i + mean G̃],    G̃_i ← G_i(θ, ω)        averaged over the items i of the batch

    The noise vanishes where the iterates settle, so that constant steps converge linearly to the exact solution. For
    `bilevel` and `minimax` with finite data (`sampling.Minibatches`), whose losses are means over the batch. Each level
    of a bilevel problem has its own memory, of a θ and an ω for every item. An item that is drawn for the first time is
    not corrected, and the mean is over the items drawn so far, so no first pass is needed.

    Args:
        alpha, beta: step sizes of θ and ω; constants suit.
        items: how many items the data have; for a bilevel problem the pair (inner, outer).

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic_bilevel(samples=64)
    >>> result = tc.solve(problem, tc.methods.SABA(0.2, 0.2, items=(64, 64)), steps=5000, seeds=2)
    >>> bool(result.summary("error")["mean"].iloc[-1] < 1e-20)
    True

    Reference: Dagréou, Ablin, Vaiter & Moreau, *A framework for bilevel optimization that enables stochastic and global
    variance reduction algorithms*, 2022, Section 3.2; Defazio, Bach & Lacoste-Julien, *SAGA*, 2014. There the first
    memory is that of a pass at the start.
    """

    alpha: StepSize = step_size("0.05")
    beta: LevelSizes = step_size("0.1", levels=True)
    items: int | tuple[int, ...] = checked(_check_items, default=(64, 64), static=True)

    def init(self, theta: PyTree, omega: PyTree) -> SABAState:
        slow, fast = tree_math.start(theta, "theta"), tree_math.start(omega, "omega")
        both = slow.value, fast.value

        def memory(items: int) -> ItemMemory:
            values = jax.tree.map(lambda leaf: jnp.zeros((items, *leaf.shape), leaf.dtype), both)
            nothing = tree_math.start(jax.tree.map(jnp.zeros_like, both))
            return ItemMemory(RowTable(values), jnp.zeros(items, bool), nothing, jnp.zeros(()))

        return SABAState(slow, fast, tuple(memory(items) for items in self.items))  # type: ignore[union-attr]

    def step(self, F: Operator, G: Operator, state: SABAState, x: PyTree, k: Scalar) -> SABAState:
        parts, theta, omega = indexed_batches(x), state.theta, state.omega
        if parts is None:
            raise InputError(
                "`SABA` must know which items a sample holds, and this problem has no finite data, or F and G are no "
                "sums over them; take `bilevel` or `minimax` with `sampling.Minibatches`, or tc.Fast()"
            )
        counts = tuple(part.items for part in parts)
        if counts != self.items:
            raise InputError(f"`SABA(items={self.items})` must count the data's items, which are {counts}")
        directions, memories = [], []
        for i, memory in enumerate(state.memories):

            def share(one: IndexedBatch, i: int = i) -> PyTree:
                alone = tuple(one if j == i else part.without() for j, part in enumerate(parts))
                sample = alone if isinstance(x, tuple) else one
                return F(theta, omega, sample), G(theta, omega, sample)

            direction, memory = correct_by_memory(memory, parts[i], jax.vmap(share)(parts[i].one_by_one()))
            directions.append(direction)
            memories.append(memory)
        f, g = jax.tree.map(lambda *shares: sum(shares[1:], shares[0]), *directions)
        slow, fast = tree_math.descend(state.slow, self.alpha(k), f), tree_math.descend(state.fast, self.beta(k), g)
        return SABAState(slow, fast, tuple(memories))


def correct_by_memory(memory: ItemMemory, part: IndexedBatch, now: PyTree) -> tuple[PyTree, ItemMemory]:
    """The batch's mean of its items' values now, minus their old values, plus the mean of all; and the next memory.

    An item that a batch holds twice is remembered once.
    """
    index = jnp.asarray(part.index)
    known = memory.seen[index]
    once = 1 / jnp.sum(index[:, None] == index[None, :], axis=1)
    mean = jax.tree.map(lambda total: total / jnp.maximum(memory.count, 1).astype(total.dtype), memory.total.value)
    old = jax.tree.map(lambda values: values[index], memory.values.rows)

    def along(flags: Array, leaf: Array) -> Array:
        return flags.reshape(-1, *(1,) * (leaf.ndim - 1)).astype(leaf.dtype)

    direction = jax.tree.map(
        lambda new, was, mean: jnp.mean(new - along(known, new) * (was - mean[None]), axis=0), now, old, mean
    )
    change = jax.tree.map(lambda new, was: along(once, new) * (new - was), now, old)
    return direction, ItemMemory(
        # Rows are added to, not set: XLA then changes the table in place instead of copying it.
        RowTable(jax.tree.map(lambda values, rows: values.at[index].add(rows), memory.values.rows, change)),
        memory.seen.at[index].set(True),
        tree_math.add(memory.total, jax.tree.map(lambda rows: jnp.sum(rows, axis=0), change)),
        memory.count + jnp.sum(jnp.where(known, 0, once)),
    )
