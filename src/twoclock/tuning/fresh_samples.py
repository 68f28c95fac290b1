"""Means and slopes of F and G at fixed estimates, over fresh samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from twoclock.engine.loop import ProgressEvent, drive
from twoclock.engine.protocol import LaneState
from twoclock.engine.run_batch import Instances, Lanes
from twoclock.protocols import Method, Operator, Problem, PyTree, Scalar, forwarded, pytree

_BATCHES, _FIRST = 16, 4  # batches of the means, and of the slopes before them
_PIECES = 8  # parts of the slopes' samples, for their error
_ENTRIES, _DIRECTIONS = 64, 32
# Distance of the two points of a difference: in standard deviations over seeds, as a share of the way from the start,
# and as a share of the size of the variable where it did not move (of 1 where that is 0). The last is for a second try,
# where the first is not finite.
_SPREAD, _WAY, _SIZE, _CLOSER = 2.0, 0.03, 1e-6, 1e-4


@pytree
class OracleHalf(Problem):
    """A problem without its known answer."""

    problem: Problem
    init, noise, draw, sample, F, G = forwarded("problem", "init", "noise", "draw", "sample", "F", "G")


def hide_truth(lanes: Lanes) -> Lanes:
    """The same lanes on problems without their known answers."""
    return replace(lanes, instances=Instances(OracleHalf(lanes.instances.batched), lanes.instances.per_seed))


def samples_used(samples: int) -> int:
    """Round a number of samples to batches of equal length."""
    return max(samples // (_BATCHES + _FIRST), 1) * (_BATCHES + _FIRST)


class FreshMeans(NamedTuple):
    """Means of fresh samples at the estimates of settings × seeds.

    Attributes:
        J_F, J_G: mean slopes along directions of (θ, ω), one per row, for each piece of the samples.
        F, G: means over batches.
        F_start, G_start: the same at the start of each seed.
        moved: θ minus its start.
        whole: 1 if the directions span (θ, ω), 0 if they are some directions of ω.
        alive: whether the lane did not diverge.
    """

    J_F: Float[np.ndarray, "settings seeds pieces directions slow"]
    J_G: Float[np.ndarray, "settings seeds pieces directions fast"]
    F: Float[np.ndarray, "settings seeds batches slow"]
    G: Float[np.ndarray, "settings seeds batches fast"]
    F_start: Float[np.ndarray, "settings seeds batches slow"]
    G_start: Float[np.ndarray, "settings seeds batches fast"]
    moved: Float[np.ndarray, "settings seeds slow"]
    whole: Bool[np.ndarray, "settings seeds"]
    alive: Bool[np.ndarray, "settings seeds"]

    @property
    def way(self) -> Float[np.ndarray, "settings seeds"]:
        """The squared distance of θ from its start."""
        return np.sum(self.moved**2, axis=-1)

    def select(self, setting: int) -> FreshMeans:
        """One of the settings."""
        return FreshMeans(*(part[setting : setting + 1] for part in self))


@pytree
class FrozenState:
    """Fixed iterates and sums over the samples; ``reach`` is half the distance of the points of a difference."""

    theta: PyTree
    omega: PyTree
    totals: tuple[PyTree, PyTree]
    reach: PyTree = None


@pytree
class Probe(Method):
    """A method that does not move and sums F and G."""

    def init(self, theta: PyTree, omega: PyTree) -> FrozenState:
        return FrozenState(theta, omega, jax.tree.map(jnp.zeros_like, (theta, omega)))

    def step(self, F: Operator, G: Operator, state: FrozenState, x: PyTree, k: Scalar) -> FrozenState:
        seen = F(state.theta, state.omega, x), G(state.theta, state.omega, x)
        return replace(state, totals=jax.tree.map(jnp.add, state.totals, seen))

    def estimate(self, state: FrozenState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega


@pytree
class Slopes(Probe):
    """A probe that sums slopes of F and G along directions of (θ, ω), one per row, from differences of one sample.

        (f(z + r d, X) − f(z − r d, X)) / 2r

    Their mean is a slope of the mean even if F and G have steps or kinks, or no useful derivatives.
    """

    directions: jax.Array | np.ndarray

    def init(self, theta: PyTree, omega: PyTree) -> FrozenState:
        rows = len(self.directions)
        flat = ravel_pytree(theta)[0], ravel_pytree(omega)[0]
        totals = jax.tree.map(lambda vector: jnp.zeros((rows, vector.size), vector.dtype), flat)
        return FrozenState(theta, omega, totals, jnp.ones(rows))

    def step(self, F: Operator, G: Operator, state: FrozenState, x: PyTree, k: Scalar) -> FrozenState:
        here, back = ravel_pytree((state.theta, state.omega))

        def operators(flat: jax.Array) -> tuple[jax.Array, jax.Array]:
            at = *back(flat), x
            seen = ravel_pytree(F(*at))[0], ravel_pytree(G(*at))[0]
            return seen[0].astype(here.dtype), seen[1].astype(here.dtype)

        def along(direction: jax.Array, reach: jax.Array) -> tuple[jax.Array, jax.Array]:
            ahead, behind = operators(here + reach * direction), operators(here - reach * direction)
            return jax.tree.map(lambda a, b: (a - b) / (2 * reach), ahead, behind)

        found = jax.vmap(along)(jnp.asarray(self.directions, here.dtype), state.reach.astype(here.dtype))
        return replace(state, totals=jax.tree.map(lambda a, b: a + b.astype(a.dtype), state.totals, found))


def read_samples(lanes: Lanes, carry: LaneState, step: int, samples: int, engine: str = "auto") -> FreshMeans:
    """Fix the estimates of a run, and average F and G there and at the start over the samples that come next.

    Only ``draw``, F and G are called. ``carry`` is the final state of the lanes, at step ``step``.
    """
    length = samples_used(samples) // (_BATCHES + _FIRST)
    first = step + _FIRST * length
    unbounded = replace(hide_truth(lanes), bound=None)
    at_start = replace(unbounded, methods=Probe(), count=1)
    start = drive(at_start, [0], engine="xla").carry
    frozen = _place_probe(Probe(), lanes.methods, carry)
    alive = np.asarray(carry.alive)
    z, z_start = (_flatten(lane.state.theta, lane.state.omega) for lane in (frozen, start))
    z = np.where(alive[..., None], z, z_start)
    directions, whole = _directions(carry.state.theta, carry.state.omega)
    slopes = Slopes(np.stack([directions] * lanes.count))
    pieces = np.unique(np.linspace(step, first, _PIECES + 1).round().astype(int)).tolist()
    slow = sum(_leaf_sizes(frozen.state.theta))
    reach = _reach(z, z_start, _leaf_sizes((frozen.state.theta, frozen.state.omega)))
    if not whole:  # one for every direction of ω
        reach = np.repeat(_rms(reach[..., slow:]), len(directions), axis=-1)
    for closer in (1.0, _CLOSER):
        begin = _place_probe(slopes, lanes.methods, carry)
        begin = replace(begin, state=replace(begin.state, reach=jnp.asarray(closer * reach)))
        J, after = _accumulate(replace(unbounded, methods=slopes), begin, pieces, engine)
        if all(np.isfinite(part[alive]).all() for part in J):
            break
    marks = [first + length * i for i in range(_BATCHES + 1)]
    here, after = _accumulate(replace(unbounded, methods=Probe()), _place_probe(Probe(), slopes, after), marks, engine)
    there, _ = _accumulate(at_start, start, marks, engine)
    J = [np.where(alive[..., None, None, None], part, 0.0) for part in J]
    if not whole:
        J = [part.mean(axis=2, keepdims=True) for part in J]
    there = [np.broadcast_to(part, (*lanes.shape, *part.shape[2:])) for part in there]
    rest = (z - z_start)[..., :slow], np.full(lanes.shape, whole), np.asarray(after.alive)
    return FreshMeans._make((*J, *here, *there, *rest))


def _accumulate(
    lanes: Lanes, carry: LaneState, marks: Sequence[int], engine: str
) -> tuple[list[np.ndarray], LaneState]:
    """The means of a probe's sums between marks, settings × seeds × stretches × …, of F and of G."""
    totals: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])

    def add(event: ProgressEvent) -> None:
        if event.row is not None:
            for total, part in zip(event.carry().state.totals, totals, strict=True):
                rows = [lanes.methods.directions.shape[1]] if isinstance(lanes.methods, Slopes) else []
                shape = (*lanes.shape, *rows)
                leaves = [np.asarray(leaf).reshape(*shape, -1) for leaf in jax.tree.leaves(total) if leaf.size]
                part.append(np.concatenate([np.zeros((*shape, 0)), *leaves], axis=-1))

    after = drive(lanes, list(marks), carry, marks[0], engine=engine, look=add).carry
    counts = np.diff(marks)
    return [
        np.moveaxis(np.diff(np.stack(part), axis=0), 0, 2) / counts.reshape(-1, *[1] * (part[0].ndim - 2))
        for part in totals
    ], after


@jax.jit
def _place_probe(probe: Method, methods: Method, carry: LaneState) -> LaneState:
    """Start a probe at the estimate of each lane."""
    by_seed = jax.vmap(lambda probe, method, state: probe.init(*method.estimate(state)), in_axes=(None, None, 0))
    by_method = jax.vmap(by_seed, axis_size=carry.alive.shape[0])
    return LaneState(by_method(probe, methods, carry.state), carry.env, carry.alive, carry.last)


def _flatten(theta: PyTree, omega: PyTree) -> Float[np.ndarray, "settings seeds entries"]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((theta, omega))]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=-1).astype(float)


def _leaf_sizes(tree: PyTree) -> list[int]:
    """Entries of each leaf of a tree with leading axes settings × seeds."""
    return [math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(tree)]


def _rms(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(np.square(values), axis=-1, keepdims=True))


def _reach(
    z: Float[np.ndarray, "settings seeds entries"],
    z_start: Float[np.ndarray, "settings seeds entries"],
    sizes: Sequence[int],
) -> Float[np.ndarray, "settings seeds entries"]:
    """The step of a difference for each entry: the uncertainty of the estimate, in the entry's own unit."""
    spread = np.broadcast_to(z.std(axis=1, keepdims=True), z.shape)
    reach, at = np.empty_like(z), 0
    for size in sizes:
        leaf = slice(at, at + size)
        way = np.abs(z - z_start)[..., leaf]
        # An entry that did not move has the unit of its neighbours.
        moved = np.maximum(_SPREAD * spread[..., leaf], _WAY * np.maximum(way, _rms(way) / 10))
        still = _SIZE * np.maximum(_rms(z[..., leaf]), _rms(z_start[..., leaf]))
        reach[..., leaf] = np.maximum(moved, np.where(still + moved > 0, still, _SIZE))
        at += size
    return reach


def _directions(theta: PyTree, omega: PyTree) -> tuple[np.ndarray, bool]:
    """Directions of (θ, ω), one per row, and whether they span the space or are some directions of ω."""
    slow, fast = (sum(_leaf_sizes(tree)) for tree in (theta, omega))
    if slow + fast <= _ENTRIES:
        return np.eye(slow + fast), True
    some = np.eye(fast)
    if fast > _DIRECTIONS:
        some = np.linalg.qr(np.random.default_rng(0).standard_normal((fast, _DIRECTIONS)))[0].T
    return np.concatenate([np.zeros((len(some), slow)), some], axis=1), False
