"""The operators of the LQR actor-critic, and a guard for learning on a plant. Both use samples alone, never A or B."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.protocols import PyTree, Scalar, checked, pytree
from twoclock.validation import flag, number, whole
from twoclock.validation.arrays import Array, Number, finite_number, positive

__all__ = ["ActorCritic", "Guard"]

Gain = Float[Array, "m n"]
Critic = dict[str, Number | Array]  # ``J``, the mean cost, and ``Omega``[z, z]
Sample = dict[str, Array]  # ``z``, ``next`` and ``c``; a guard adds ``held`` and ``share``
# The supervisor's memory: ``held`` (whether K0 acts), ``goal`` (how near K must come back), and the counts.
Watch = dict[str, Array]
# How hard F pulls K back to K0, in units of α. The theory keeps α well below λ, so this much more is still stable.
_PULL = 10.0


@pytree
class ActorCritic:
    """The two operators of the actor-critic. They use samples alone, never A or B.

        F = Ω²²K − Ω²¹                                     half the natural gradient of J, once Ω = Ω_K
        G = (κ(J − c),  zzᵀ(zᵀΩz − z'ᵀΩz' + J − c))        z = (x, u), z' = (x', u'), c the cost of z

    A sample is a dict with ``z``, ``next`` (z') and ``c``. With ``expected_action`` the mean over u' ~ N(−Kx', σ²I) is
    taken in closed form: z' is then (x', −Kx') and G subtracts σ² tr Ω²² more.

    Args:
        kappa: the weight κ of the J row.
        sigma: the exploration σ; only ``expected_action`` needs to know it.
        expected_action: whether the next action is a mean rather than a draw.

    >>> import numpy as np
    >>> ActorCritic().F(np.ones((1, 2)), ActorCritic().start(np.ones((1, 2)))[1], None).tolist()
    [[0.0, 0.0]]

    Reference: Zeng & Doan, Algorithm 2, with the sign and the missing z' of its critic corrected.
    """

    kappa: Scalar = checked(positive, default=2.0)
    sigma: Scalar = checked(finite_number, 0, default=1.0)
    expected_action: bool = checked(flag, default=False, static=True)

    def start(self, K: Gain) -> tuple[Gain, Critic]:
        """θ₀ = K, and a critic of zeros."""
        K = jnp.asarray(K)
        d = sum(K.shape)
        return K, {"J": jnp.zeros((), K.dtype), "Omega": jnp.zeros((d, d), K.dtype)}

    def F(self, theta: Gain, omega: Critic, x: Sample | None) -> Gain:
        """Half the natural gradient of J once the critic is right."""
        n = theta.shape[1]
        rows = omega["Omega"][n:]
        # A broadcast sum rather than `@`: with a seed axis in front, tiny products fuse and batched ones do not.
        return jnp.sum(rows[:, n:, None] * theta[None, :, :], axis=1) - rows[:, :n]

    def G(self, theta: Gain, omega: Critic, x: Sample) -> Critic:
        """The critic of Q and of the mean cost."""
        Omega, zz = omega["Omega"], outer(x["z"])
        excess = omega["J"] - x["c"]
        delta = jnp.sum(Omega * (zz - outer(x["next"]))) + excess
        if self.expected_action:
            n = theta.shape[1]
            delta = delta - self.sigma**2 * jnp.trace(Omega[n:, n:])
        return {"J": self.kappa * excess, "Omega": delta * zz}


def outer(v: Float[Array, " z"]) -> Float[Array, "z z"]:
    """vvᵀ."""
    return v[:, None] * v[None, :]


def product(M: Float[Array, "p q"], v: Float[Array, " q"]) -> Float[Array, " p"]:
    """Mv as a broadcast sum, which fuses under vmap."""
    return jnp.sum(M * v[None, :], axis=1)


def quadratic(M: Float[Array, "p p"], v: Float[Array, " p"]) -> Number:
    """vᵀMv."""
    return jnp.sum(product(jnp.asarray(M), v) * v)


@pytree
class Bounds:
    """The bounds that a `Guard` measured on its log, and their use inside the loop."""

    K0: Float[Array, "m n"]
    limit: Scalar
    reach: Scalar
    rms: Float[Array, " n"]  # of each state in the log
    weight: Float[Array, " z"] | None  # of each entry of z in the critic's update; None where all are 1
    cost_unit: Scalar | None  # that the actor's update is divided by; None where it is 1

    def start(self) -> Watch:
        none = jnp.zeros((), jnp.int32)
        goal = jnp.zeros((), jnp.asarray(self.K0).dtype)
        return {"held": none > 0, "goal": goal, "trips": none, "steps": none, "clipped": none}

    def supervise(self, K: Gain, x: Float[Array, " n"], watch: Watch) -> tuple[Gain, Watch]:
        """The gain that acts in state x, and the new memory.

        K0 takes over where x leaves normal operation, until x is well inside it and K has come half the way back to K0.
        """
        size, away = self._size(x), jnp.sum(jnp.square(K - self.K0))
        trip = ~watch["held"] & (size > self.limit)
        safe = (size < self.limit / 2) & (away <= watch["goal"])
        held = trip | (watch["held"] & ~safe)
        new = watch | {
            "held": held,
            "goal": jnp.where(trip, away / 4, watch["goal"]),
            "trips": watch["trips"] + trip.astype(jnp.int32),
            "steps": watch["steps"] + held.astype(jnp.int32),
        }
        return jnp.where(held, self.K0, K), new

    def judge(self, sample: Sample, watch: Watch) -> tuple[Sample, Watch]:
        """The sample with the weight that the critic gives it, and the new memory.

        The weight depends on states and actions, never on the critic, so the root stays the same.
        """
        n = self.K0.shape[1]
        z, square = sample["z"], jnp.square(sample["z"])
        norm2 = jnp.sum(square if self.weight is None else square * self.weight)
        share = jnp.minimum(jnp.square(self.reach**2 / jnp.maximum(norm2, self.reach**2)), 1)
        normal = (self._size(z[:n]) <= self.limit) & (self._size(sample["next"][:n]) <= self.limit)
        share = jnp.where(normal, share, jnp.zeros_like(share))
        clipped = watch["clipped"] + (share < 1).astype(jnp.int32)
        return sample | {"held": watch["held"], "share": share}, watch | {"clipped": clipped}

    def F(self, f: Gain, K: Gain, x: Sample) -> Gain:
        return jnp.where(x["held"], _PULL * (K - self.K0), self.scale_F(f))

    def G(self, g: Critic, omega: Critic, x: Sample) -> Critic:
        g = self.scale_G(g)
        # The J row is a plain average of costs: it cannot diverge, and the costs under K0 are worth averaging.
        J = jnp.where(x["share"] > 0, g["J"], jnp.zeros_like(g["J"]))
        return {"J": J, "Omega": jnp.where(x["held"], _PULL * omega["Omega"], x["share"] * g["Omega"])}

    def scale_F(self, f: Gain) -> Gain:
        return f if self.cost_unit is None else f / self.cost_unit

    def scale_G(self, g: Critic) -> Critic:
        if self.weight is None:
            return g
        weight = jnp.asarray(self.weight)
        return {"J": g["J"], "Omega": g["Omega"] * weight[:, None] * weight[None, :]}

    def report(self, watch: Watch) -> dict[str, Array]:
        return {"guard_trips": watch["trips"], "guard_held": watch["steps"], "guard_clipped": watch["clipped"]}

    def _size(self, x: Float[Array, " n"]) -> Number:
        return jnp.max(jnp.abs(x) / self.rms)


@pytree
class Guarded:
    """`ActorCritic` or `ModelCritic`, perhaps under a guard that has judged their samples."""

    operators: PyTree
    bounds: Bounds | None

    def F(self, theta: PyTree, omega: PyTree, x: Sample) -> PyTree:
        f = self.operators.F(theta, omega, x)
        if self.bounds is None:
            return f
        if isinstance(f, dict):  # for a model α is 1, so the gain is K0 at once while the guard holds the plant
            return f | {"K": jnp.where(x["held"], theta["K"] - jnp.asarray(self.bounds.K0), f["K"])}
        return self.bounds.F(f, theta, x)

    def G(self, theta: PyTree, omega: PyTree, x: Sample) -> PyTree:
        g = self.operators.G(theta, omega, x)
        return g if self.bounds is None or "Omega" not in g else self.bounds.G(g, omega, x)


@pytree
class Guard:
    """Bounds on the update and on the state, which bring back a run that would leave the stabilising gains.

    Before the run the plant is driven by K0 for ``log`` steps. From that log alone come

    * **the units**: an entry of z = (x, u) whose root mean square lies within a factor ``span`` of 1 keeps its
      unit. Any other is measured in its own root mean square within the critic's update, and so is the cost
      (within span²) within the actor's: steps are then safe in the plant's units, not in the user's. The roots
      of F and G stay where they were.
    * **the reach**: the critic's update is quartic in z. Beyond ‖z‖ = ``reach``, in those units, it does not grow.
      Large step sizes need a smaller reach; but a small one weighs states unlike the policy, and a critic on
      weighted samples need not be stable.
    * **the edge**: a state with an entry beyond ``limit`` times its root mean square is not normal. The critic
      does not learn from such samples, K0 takes the plant, F turns to K − K0 and G to Ω̂, so that both are
      forgotten, until the state is within half the limit and K has come half the way back.

    The record counts every intervention: ``guard_trips``, how often K0 took over; ``guard_held``, for how many steps;
    ``guard_clipped``, the samples that the critic learnt from only in part or not at all.

    A run that needs no intervention is the same as without a guard. It assumes that K0 stabilises the plant, that the
    log shows normal operation, and that good gains need no states beyond ``limit``; if they do, the trips say so.

    Args:
        limit: the largest state, in root mean squares.
        reach: the largest ‖z‖ that the critic learns from in full.
        span: how far from 1 a root mean square may lie before its unit is changed.
        log: the length of the log.

    >>> import twoclock as tc
    >>> problem = tc.problems.paper_lqr(guard=True)
    >>> problem.bounds.weight is None      # nothing to rescale here
    True
    """

    limit: float = checked(number, 1, default=8.0)
    reach: float = checked(number, 1, default=10.0)
    span: float = checked(number, 1, default=4.0)
    log: int = checked(whole, 100, default=10_000)

    def measure(self, K0: np.ndarray, x: np.ndarray, u: np.ndarray, c: np.ndarray) -> Bounds:
        """The bounds that a log of states x, actions u and costs c under K0 gives."""
        z = np.concatenate([x, u], axis=1)
        rms = np.sqrt(np.mean(z**2, axis=0))
        rms = np.where(rms > 0, rms, 1.0)
        mean_cost = float(np.mean(c))
        rescaled = (rms > self.span) | (rms < 1 / self.span)
        rescaled_cost = mean_cost > 0 and not 1 / self.span <= np.sqrt(mean_cost) <= self.span
        weight = np.where(rescaled, rms**-2.0, 1.0) if rescaled.any() else None
        cost_unit = np.float64(mean_cost) if rescaled_cost else None
        return Bounds(K0, np.float64(self.limit), np.float64(self.reach), rms[: x.shape[1]], weight, cost_unit)
