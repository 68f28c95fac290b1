"""Estimates of the distance to a solution from fresh samples: E F, E G and their slopes where a run stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from twoclock.engine.loop import ProgressEvent, drive
from twoclock.engine.protocol import LaneState
from twoclock.engine.run_batch import Instances, Lanes
from twoclock.protocols import Method, Operator, Problem, PyTree, Scalar, pytree

_BATCHES, _FIRST = 16, 4  # batches of the squares, and before them of the slopes
_ENTRIES, _DIRECTIONS = 64, 32
# Singular values below these shares of the largest count as zero: of ∂G/∂ω, and of the curvature, where a direction so
# flat would show nothing but noise.
_CUT, _FLAT = 1e-6, 1e-3


def _forward(name: str) -> Callable[..., Any]:
    return lambda oracle, *args: getattr(oracle.problem, name)(*args)


@pytree
class Oracle(Problem):
    """The oracle half of a problem and nothing else: it hides the answer."""

    problem: Problem
    init, noise, draw, sample, F, G = (_forward(name) for name in ("init", "noise", "draw", "sample", "F", "G"))


def hide_truth(lanes: Lanes) -> Lanes:
    """The same lanes on problems that do not know the answer."""
    return replace(lanes, instances=Instances(Oracle(lanes.instances.batched), lanes.instances.per_seed))


def samples_used(samples: int) -> int:
    """Round a number of samples to batches of equal length."""
    return max(samples // (_BATCHES + _FIRST), 1) * (_BATCHES + _FIRST)


class Square(NamedTuple):
    """An estimate of a squared norm per setting and seed, infinite where the lane diverged, and its standard error.

    The error is the jackknife's over batches. That of the slopes is not in it; the spread over seeds has it all.
    """

    value: Float[np.ndarray, "settings seeds"]
    se: Float[np.ndarray, "settings seeds"]


class ResidualEstimates(NamedTuple):
    """What fresh samples say of the estimates of a run.

    Attributes:
        distance: ‖S⁺(E F − B·E G)‖², see ``estimate_residuals``; NaN where θ and ω are too large for it.
        slow: ‖E F − B·E G‖²; like the others unbiased, but for the error of the slopes, and maybe negative.
        rest: the part of ‖E G‖² which B does not act on; 0 but for a large ω.
        F, G: ‖E F‖² and ‖E G‖².
        unit: ‖J_F‖²/‖J_G‖², which turns a square of G into one of F.
        flat: how many directions of θ have a curvature below the noise, and are not in the distance.
    """

    distance: Square
    slow: Square
    rest: Square
    F: Square
    G: Square
    unit: Float[np.ndarray, "settings seeds"]
    flat: Float[np.ndarray, "settings seeds"]

    def median_unit(self) -> float:
        """The usual unit, over the lanes that did not diverge."""
        finite = self.unit[np.isfinite(self.unit)]
        return float(np.median(finite)) if finite.size else 0.0

    def best(self, unit: float) -> Square:
        """The squared distance, or the squared gradient where there are too many entries."""
        if np.isnan(self.distance.value).any():
            return Square(*(slow + unit * rest for slow, rest in zip(self.slow, self.rest, strict=True)))
        return self.distance


def estimate_residuals(
    lanes: Lanes, carry: LaneState, step: int, samples: int, engine: str = "auto"
) -> ResidualEstimates:
    """Estimate the squared means of F and G at the estimates of a run, on the samples that come after it.

        (1/#pairs) Σ ⟨m_i, m_j⟩   over the pairs of batch means that are neither the same nor neighbours

    The batches are 16 stretches of the samples that the run would have seen next, with θ and ω fixed. Where
    samples are independent the estimate is unbiased; on a chain its bias falls geometrically with the length of a
    batch. Four more batches before them let a chain settle and measure the slopes of E F and E G. With them

        E F − B·E G,    B = F_ω G_ω⁺             is E F where one Newton step would take ω: ∇h(θ) to first order
        S⁺(E F − B·E G),    S = F_θ − B·G_θ      is the Newton step of θ: θ − θ* to first order

    both exactly where F and G are affine. The second needs θ and ω to have no more than 64 entries together; a larger ω
    is corrected for along 32 random directions. Nothing but ``draw``, F and G is called. ``carry`` is where the lanes
    stopped, at step ``step``.
    """
    length = samples_used(samples) // (_BATCHES + _FIRST)
    unbounded = replace(hide_truth(lanes), bound=None)
    directions, whole = _directions(carry.state.theta, carry.state.omega)
    slopes = Slopes(np.stack([directions] * lanes.count))
    first = step + _FIRST * length
    begin = _place_probe(slopes, lanes.methods, carry)
    carry = drive(replace(unbounded, methods=slopes), [first], begin, step, engine=engine).carry
    J_F, J_G = (np.asarray(total) / (_FIRST * length) for total in carry.state.totals)
    probe, means = Probe(), (list[np.ndarray](), list[np.ndarray]())  # settings × seeds × entries, of F and of G

    def add(event: ProgressEvent) -> None:
        if event.row is not None:
            for total, part in zip(event.carry().state.totals, means, strict=True):
                leaves = [np.asarray(leaf).reshape(*lanes.shape, -1) for leaf in jax.tree.leaves(total) if leaf.size]
                part.append(np.concatenate([np.zeros((*lanes.shape, 0)), *leaves], axis=-1))

    marks = [first + length * i for i in range(_BATCHES + 1)]
    begin = _place_probe(probe, slopes, carry)
    carry = drive(replace(unbounded, methods=probe), marks, begin, first, engine=engine, look=add).carry
    alive = np.asarray(carry.alive)
    F, G = (np.diff(np.stack(part), axis=0) / length for part in means)
    J_F, J_G = (np.where(alive[..., None, None], J, 0.0) for J in (J_F, J_G))
    return _square(J_F, J_G, F, G, whole, alive)


@pytree
class FrozenState:
    """Iterates that do not move, and sums over the samples."""

    theta: PyTree
    omega: PyTree
    totals: tuple[PyTree, PyTree]


@pytree
class Probe(Method):
    """A method that does not move and adds up F and G."""

    def init(self, theta: PyTree, omega: PyTree) -> FrozenState:
        return FrozenState(theta, omega, jax.tree.map(jnp.zeros_like, (theta, omega)))

    def step(self, F: Operator, G: Operator, state: FrozenState, x: PyTree, k: Scalar) -> FrozenState:
        seen = F(state.theta, state.omega, x), G(state.theta, state.omega, x)
        return FrozenState(state.theta, state.omega, jax.tree.map(jnp.add, state.totals, seen))

    def estimate(self, state: FrozenState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega


@pytree
class Slopes(Probe):
    """A probe that does not move and adds up the derivatives of F and G along directions of (θ, ω), one per row."""

    directions: jax.Array | np.ndarray

    def init(self, theta: PyTree, omega: PyTree) -> FrozenState:
        rows = len(self.directions)
        flat = ravel_pytree(theta)[0], ravel_pytree(omega)[0]
        totals = jax.tree.map(lambda vector: jnp.zeros((rows, vector.size), vector.dtype), flat)
        return FrozenState(theta, omega, totals)

    def step(self, F: Operator, G: Operator, state: FrozenState, x: PyTree, k: Scalar) -> FrozenState:
        here, back = ravel_pytree((state.theta, state.omega))

        def operators(flat: jax.Array) -> tuple[jax.Array, jax.Array]:
            at = *back(flat), x
            return ravel_pytree(F(*at))[0], ravel_pytree(G(*at))[0]

        directions = self.directions.astype(here.dtype)
        along = jax.vmap(lambda direction: jax.jvp(operators, (here,), (direction,))[1])(directions)
        totals = jax.tree.map(lambda a, b: a + b.astype(a.dtype), state.totals, along)
        return FrozenState(state.theta, state.omega, totals)


@jax.jit
def _place_probe(probe: Method, methods: Method, carry: LaneState) -> LaneState:
    """Start a probe at the estimate of each lane."""
    by_seed = jax.vmap(lambda probe, method, state: probe.init(*method.estimate(state)), in_axes=(None, None, 0))
    by_method = jax.vmap(by_seed, axis_size=carry.alive.shape[0])
    return LaneState(by_method(probe, methods, carry.state), carry.env, carry.alive, carry.last)


def _directions(theta: PyTree, omega: PyTree) -> tuple[np.ndarray, bool]:
    """Directions of (θ, ω), one per row, and whether they are all of them or some of ω alone."""
    slow, fast = (sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(tree)) for tree in (theta, omega))
    if slow + fast <= _ENTRIES:
        return np.eye(slow + fast), True
    some = np.eye(fast)
    if fast > _DIRECTIONS:
        some = np.linalg.qr(np.random.default_rng(0).standard_normal((fast, _DIRECTIONS)))[0].T
    return np.concatenate([np.zeros((len(some), slow)), some], axis=1), False


def _square(
    J_F: Float[np.ndarray, "settings seeds directions slow"],
    J_G: Float[np.ndarray, "settings seeds directions fast"],
    F: Float[np.ndarray, "batches settings seeds slow"],
    G: Float[np.ndarray, "batches settings seeds fast"],
    whole: bool,
    alive: Bool[np.ndarray, "settings seeds"],
) -> ResidualEstimates:
    """Combine slopes along directions and batch means; ``whole``: the directions are all of (θ, ω), not some of ω."""
    split = F.shape[-1] if whole else 0
    (F_theta, F_omega), (G_theta, G_omega) = ((J[..., :split, :], J[..., split:, :]) for J in (J_F, J_G))
    back = np.linalg.pinv(G_omega, rcond=_CUT)
    slow, rest = F - _times(_times(G, back), F_omega), G - _times(_times(G, back), G_omega)
    size_F, size_G = (np.sum(J**2, axis=(-2, -1)) for J in (F_omega, G_omega))
    unit = np.divide(size_F, size_G, out=np.zeros_like(size_F), where=size_G > 0)
    nothing = np.full(size_F.shape, np.nan)
    distance, flat = Square(nothing, nothing), nothing
    if whole:
        S = F_theta - G_theta @ back @ F_omega
        sizes = np.linalg.svd(S, compute_uv=False)
        flat = np.sum(sizes <= _FLAT * sizes[..., :1], axis=-1).astype(float)
        distance = _squared_mean(_times(slow, np.linalg.pinv(S, rcond=_FLAT)))
    slow_sq, rest_sq, F_sq, G_sq = (_squared_mean(means) for means in (slow, rest, F, G))
    found = ResidualEstimates(distance, slow_sq, rest_sq, F_sq, G_sq, unit, flat)
    return jax.tree.map(lambda part: np.where(alive, part, np.inf), found)


def _times(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Row vectors (batches × …) times one matrix for each lane."""
    return np.einsum("...d,...de->...e", rows, matrix)


def _squared_mean(means: np.ndarray) -> Square:
    """From batch means: over all pairs, less each with itself and with the next; and its jackknife standard error.

    What overflows comes out infinite: a lane about to diverge.
    """
    count = len(means)
    at = np.arange(count)
    pairs = (np.abs(at[:, None] - at) > 1).astype(float)
    with np.errstate(over="ignore", invalid="ignore"):
        products = np.einsum("i...d,j...d->ij...", means, means) * pairs.reshape(count, count, *[1] * (means.ndim - 2))
        total, number = products.sum(axis=(0, 1)), pairs.sum()
        without = (total - 2 * products.sum(axis=1)) / (number - 2 * pairs.sum(axis=1)).reshape(-1, *[1] * total.ndim)
        spread = np.sum((without - without.mean(axis=0)) ** 2, axis=0)
        return Square(total / number, np.sqrt((count - 1) / count * spread))
