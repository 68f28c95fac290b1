"""How far a candidate is from a solution, told by samples alone: E[F] and E[G] where it stands."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from twoclock.engine.loop import ProgressEvent, drive
from twoclock.engine.protocol import LaneState
from twoclock.engine.run_batch import Instances, Lanes
from twoclock.protocols import Key, Method, Operator, Problem, PyTree, Scalar, pytree
from twoclock.tuning.residual_math import Residuals, squares

_BATCHES, _FIRST = 16, 4  # batches of the squares, and before them of the slopes
_ENTRIES, _DIRECTIONS = 64, 32


@pytree
class Oracle(Problem):
    """The oracle half of a problem and nothing else: whoever gets this cannot look at the answer."""

    problem: Problem

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        return self.problem.init(key)

    def noise(self, key: Key) -> PyTree:
        return self.problem.noise(key)

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return self.problem.draw(u, theta, env)

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.problem.F(theta, omega, x)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.problem.G(theta, omega, x)


def samples_used(samples: int) -> int:
    """The samples that are drawn where so many are asked for: batches of equal length, and some before them."""
    return max(samples // (_BATCHES + _FIRST), 1) * (_BATCHES + _FIRST)


def blind(lanes: Lanes) -> Lanes:
    """The same lanes on problems that do not know the answer."""
    return replace(lanes, instances=Instances(Oracle(lanes.instances.batched), lanes.instances.per_seed))


def residuals(lanes: Lanes, carry: LaneState, step: int, samples: int, engine: str = "auto") -> Residuals:
    """The squared means of F and G at the estimates of a run, on the samples that come after it.

        (1/#pairs) Σ ⟨m_i, m_j⟩   over the pairs of batch means that are neither the same nor neighbours

    The batches are 16 stretches of the samples that the run would have seen next, with θ and ω standing still. Where
    samples are independent the estimate is unbiased; on a chain its bias falls geometrically with the length of a
    batch. Four more batches before them let a chain settle and measure the slopes of E F and E G. With them

        E F − B·E G,    B = F_ω G_ω⁺             is E F where one Newton step would take ω: ∇h(θ) to first order
        S⁺(E F − B·E G),    S = F_θ − B·G_θ      is the Newton step of θ: θ − θ* to first order

    both exactly where F and G are affine. The second needs θ and ω to have no more than 64 entries together; a larger ω
    is corrected for along 32 random directions. Nothing but ``draw``, F and G is called.

    Args:
        lanes: what was run.
        carry: where it stopped, at step ``step``.
        samples: about how many to draw for each lane.
        engine: as for ``solve``.
    """
    length = samples_used(samples) // (_BATCHES + _FIRST)
    unbounded = replace(blind(lanes), bound=None)
    directions, whole = _directions(carry.state.theta, carry.state.omega)
    slopes = Slopes(np.stack([directions] * lanes.count))
    first = step + _FIRST * length
    begin = _stand(slopes, lanes.methods, carry)
    carry = drive(replace(unbounded, methods=slopes), [first], begin, step, engine=engine).carry
    J_F, J_G = (np.asarray(total) / (_FIRST * length) for total in carry.state.totals)
    probe, means = Probe(), []

    def add(tick: ProgressEvent) -> None:
        if tick.row is not None:
            means.append([_flat(total, lanes.shape) for total in tick.carry().state.totals])

    marks = [first + length * i for i in range(_BATCHES + 1)]
    begin = _stand(probe, slopes, carry)
    carry = drive(replace(unbounded, methods=probe), marks, begin, first, engine=engine, look=add).carry
    alive = np.asarray(carry.alive)
    F, G = (np.diff(np.stack(part), axis=0) / length for part in zip(*means, strict=True))
    J_F, J_G = (np.where(alive[..., None, None], J, 0.0) for J in (J_F, J_G))
    return squares(J_F, J_G, F, G, whole, alive)


@pytree
class FrozenState:
    """A state that does not move, and what was added up meanwhile."""

    theta: PyTree
    omega: PyTree
    totals: tuple[PyTree, PyTree]


@pytree
class Probe(Method):
    """A method that stands still and adds up F and G."""

    def init(self, theta: PyTree, omega: PyTree) -> FrozenState:
        return FrozenState(theta, omega, jax.tree.map(jnp.zeros_like, (theta, omega)))

    def step(self, F: Operator, G: Operator, state: FrozenState, x: PyTree, k: Scalar) -> FrozenState:
        seen = F(state.theta, state.omega, x), G(state.theta, state.omega, x)
        return FrozenState(state.theta, state.omega, jax.tree.map(jnp.add, state.totals, seen))

    def estimate(self, state: FrozenState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega


@pytree
class Slopes(Method):
    """A method that stands still and adds up the derivatives of F and G along directions of (θ, ω), one a row."""

    directions: jax.Array | np.ndarray

    def init(self, theta: PyTree, omega: PyTree) -> FrozenState:
        rows = len(self.directions)
        flat = ravel_pytree(theta)[0], ravel_pytree(omega)[0]
        return FrozenState(
            theta, omega, jax.tree.map(lambda vector: jnp.zeros((rows, vector.size), vector.dtype), flat)
        )

    def step(self, F: Operator, G: Operator, state: FrozenState, x: PyTree, k: Scalar) -> FrozenState:
        here, back = ravel_pytree((state.theta, state.omega))

        def operators(flat: jax.Array) -> tuple[jax.Array, jax.Array]:
            at = *back(flat), x
            return ravel_pytree(F(*at))[0], ravel_pytree(G(*at))[0]

        directions = self.directions.astype(here.dtype)
        along = jax.vmap(lambda direction: jax.jvp(operators, (here,), (direction,))[1])(directions)
        return FrozenState(
            state.theta, state.omega, jax.tree.map(lambda a, b: a + b.astype(a.dtype), state.totals, along)
        )

    def estimate(self, state: FrozenState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega


@jax.jit
def _stand(probe: Method, methods: Method, carry: LaneState) -> LaneState:
    """The probes where the methods are."""
    by_seed = jax.vmap(lambda probe, method, state: probe.init(*method.estimate(state)), in_axes=(None, None, 0))
    by_method = jax.vmap(by_seed, axis_size=carry.alive.shape[0])
    return LaneState(by_method(probe, methods, carry.state), carry.env, carry.alive, carry.last)


def _directions(theta: PyTree, omega: PyTree) -> tuple[np.ndarray, bool]:
    """Directions of (θ, ω), one a row, and whether they are all of them or some of ω alone."""
    slow, fast = (sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(tree)) for tree in (theta, omega))
    if slow + fast <= _ENTRIES:
        return np.eye(slow + fast), True
    some = np.eye(fast)
    if fast > _DIRECTIONS:
        some = np.linalg.qr(np.random.default_rng(0).standard_normal((fast, _DIRECTIONS)))[0].T
    return np.concatenate([np.zeros((len(some), slow)), some], axis=1), False


def _flat(tree: PyTree, lanes: tuple[int, ...]) -> np.ndarray:
    """Settings × seeds × entries."""
    leaves = [np.asarray(leaf).reshape(*lanes, -1) for leaf in jax.tree.leaves(tree) if leaf.size]
    return np.concatenate([np.zeros((*lanes, 0)), *leaves], axis=-1)
