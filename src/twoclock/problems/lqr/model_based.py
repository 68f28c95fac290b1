"""LQR on two clocks by a model: per sample, a least-squares update of the plant and one step of the Riccati
equation."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.lqr import Lqr
from twoclock.problems.lqr.actor_critic import Env, LqrActorCritic, simulate_plant
from twoclock.problems.lqr.operators import Guard, Guarded, Sample, outer
from twoclock.protocols import InputError, Key, Problem, Scalar, checked, forwarded, pytree
from twoclock.tree_math import sqnorm
from twoclock.validation import flag
from twoclock.validation.arrays import Array, MatrixLike, Number, matrix, positive, square_matrix

__all__ = ["ModelCritic", "lqr_model"]

Policy = dict[str, Array]  # ``K``, the gain, and ``P``, the value of states
# ``M``, the mean of vvᵀ, v = (x, u, x') or (x, u, 1, x'), and ``seen``, the share of samples in it against the prior.
Moments = dict[str, Array]
_ENOUGH = 10  # samples per entry of (x, u) from which a model is used. With fewer it fits the noise.
# The gain follows the value once a step changes the value by no more than this share: on the way from Q to the solution
# it would pass through gains that do not stabilise.
_SETTLED = 0.1


def _optional_matrix(what: str, value: object) -> Float[np.ndarray, "p q"] | None:
    return None if value is None else matrix(what, value)


@pytree
class ModelCritic:
    """The two operators of a regulator that learns a model. They use samples alone, never A or B.

        F = (K, P) − (K⁺, P⁺)       K⁺ = (R + B̂ᵀPB̂)⁻¹B̂ᵀPÂ,    P⁺ = Q + K⁺ᵀRK⁺ + (Â − B̂K⁺)ᵀP(Â − B̂K⁺)
        G = M − vvᵀ                 v = (x, u, x'),           [Â B̂] = M_x'z M_zz⁻¹

    The clocks are swapped: the model ω = M is slow and θ = {K, P} is fast. With α = 1 and β = 1/(k+2)
    (``methods.running_means``) M is the plain mean, so [Â B̂] is the least-squares estimate from all samples, and each
    sample takes one step of the Riccati recursion. A floor under β forgets, for a plant that drifts. θ stays as it is
    for the first ten samples per entry of (x, u), and the gain also until the value has nearly converged.

    Args:
        Q, R: the cost of states and of actions.
        ridge: the ridge of the least squares; the prior counts as one sample.
        intercept: also fit the d of x' = Ax + Bu + d + w; v is then (x, u, 1, x').
        known: the last rows of [A B] if they are known, such as those that shift a state of past outputs. Only the
            entries of x' before them are learnt and are part of v.

    >>> critic = ModelCritic(Q=[[1.0]], R=[[1.0]])
    >>> theta, omega = critic.start(jnp.zeros((1, 1)))
    >>> theta["K"].shape, omega["M"].shape
    ((1, 1), (3, 3))

    Reference: Wang & Janson, *Exact asymptotics for linear quadratic adaptive control*, 2021.
    """

    Q: MatrixLike = checked(square_matrix)
    R: MatrixLike = checked(square_matrix)
    ridge: Scalar = checked(positive, default=1e-6)
    intercept: bool = checked(flag, default=False, static=True)
    known: Any = checked(_optional_matrix, default=None)

    def __post_init__(self) -> None:
        n, m = len(self.Q), len(self.R)
        if self.known is not None and (self.known.shape[1] != n + m or len(self.known) >= n):
            raise InputError(
                f"`ModelCritic(known=…)` must have {n + m} columns, for x and u, and fewer rows than the {n} of A, "
                f"got shape {self.known.shape}"
            )

    @property
    def outputs(self) -> int:
        """The number of entries of x' that are learnt."""
        return len(self.Q) - (0 if self.known is None else len(self.known))

    @property
    def enough(self) -> int:
        """The number of samples before the model is used."""
        return _ENOUGH * (len(self.Q) + len(self.R))

    def start(self, K: Float[Array, "m n"]) -> tuple[Policy, Moments]:
        """The gain K, the value Q, and the prior."""
        K = jnp.asarray(K)
        m, n = K.shape
        M = self.ridge * jnp.eye(n + m + self.intercept + self.outputs, dtype=K.dtype)
        return {"K": K, "P": jnp.asarray(self.Q, K.dtype)}, {"M": M, "seen": jnp.zeros((), K.dtype)}

    def plant(self, omega: Moments) -> Float[Array, "n d"]:
        """[Â B̂]."""
        return self.fit(omega)[0]

    def fit(self, omega: Moments) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """[Â B̂] and the intercept, which is zero where none is learnt."""
        M, p = omega["M"], self.outputs
        d = M.shape[0] - p
        rows = solve_definite(M[:d, :d], M[:d, d:]).T
        offset = rows[:, -1] if self.intercept else jnp.zeros_like(rows[:, 0])
        rows = rows[:, :-1] if self.intercept else rows
        if self.known is not None:
            known = jnp.asarray(self.known, rows.dtype)
            rows = jnp.concatenate([rows, known])
            offset = jnp.concatenate([offset, jnp.zeros_like(known[:, 0])])
        return rows, offset

    def noise(self, omega: Moments) -> Float[Array, "p p"]:
        """The covariance of the residuals, for the entries of x' that are learnt."""
        M, p = omega["M"], self.outputs
        d = M.shape[0] - p
        return M[d:, d:] - solve_definite(M[:d, :d], M[:d, d:]).T @ M[:d, d:]

    def mean_cost(self, theta: Policy, omega: Moments, sigma: float, effort: float) -> Number:
        """The mean cost per step of the control law on the estimated plant.

        Args:
            theta: the policy, with the matrix ``P`` of its Riccati equation.
            omega: the moments that the plant is estimated from.
            sigma: the standard deviation of the exploration.
            effort: the factor of uᵀRu in the choice of the state at rest, as for `steady_state`.
        """
        (ab, offset), p = self.fit(omega), self.outputs
        Q, R = jnp.asarray(self.Q, ab.dtype), jnp.asarray(self.R, ab.dtype)
        P, B = theta["P"], ab[:, len(Q) :]
        cost = jnp.sum(P[:p, :p] * self.noise(omega)) + sigma**2 * (jnp.sum(B * (P @ B)) + jnp.trace(R))
        if self.intercept:
            x, u = steady_state(ab, offset, Q, R, effort, jnp)
            cost = cost + x @ Q @ x + u @ R @ u
        return cost

    def resting_point(
        self, omega: Moments, effort: float
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]] | None:
        """The steady state and action of a model with an intercept, by `steady_state`; None while there is none.

        Args:
            omega: the moments that the plant is estimated from.
            effort: the factor of uᵀRu in the choice of the state at rest, as for `steady_state`.
        """
        M, p, n = omega["M"], self.outputs, len(self.Q)
        if omega["seen"] < self.enough / (self.enough + 1):
            return None
        try:
            rows = np.linalg.solve(M[:-p, :-p], M[:-p, -p:]).T
            ab = rows[:, :-1] if self.known is None else np.vstack([rows[:, :-1], self.known])
            x, u = steady_state(ab, np.pad(rows[:, -1], (0, n - p)), self.Q, self.R, effort)
        except np.linalg.LinAlgError:  # no steady state, or more than one
            return None
        return np.asarray(x), np.asarray(u)

    def F(self, theta: Policy, omega: Moments, x: Sample | None) -> Policy:
        """The gain and the value, minus one step of the Riccati recursion on the model so far."""
        K, P, Q, R = theta["K"], theta["P"], jnp.asarray(self.Q), jnp.asarray(self.R)
        n = len(Q)
        ab = self.plant(omega)
        PA, PB = _times(P, ab[:, :n]), _times(P, ab[:, n:])
        BtP = PB.T
        new = solve_definite(R + _times(BtP, ab[:, n:]), _times(BtP, ab[:, :n]))
        # With the best gain for P the Riccati step is Q + Âᵀ P (Â − B̂K⁺), a few products shorter.
        value = Q + _times(PA.T, ab[:, :n] - _times(ab[:, n:], new))
        value = (value + value.T) / 2
        known = omega["seen"] >= self.enough / (self.enough + 1)
        settled = known & (jnp.max(jnp.abs(value - P)) <= _SETTLED * jnp.max(jnp.abs(value)))
        return {
            "K": jnp.where(settled, K - new, jnp.zeros_like(K)),
            "P": jnp.where(known, P - value, jnp.zeros_like(P)),
        }

    def G(self, theta: Policy, omega: Moments, x: Sample) -> Moments:
        """The moments of v, minus those of this sample."""
        z = x["z"]
        one = [jnp.ones_like(z[:1])] if self.intercept else []
        v = jnp.concatenate([z, *one, x["next"][: self.outputs]])
        return {"M": omega["M"] - outer(v), "seen": omega["seen"] - 1}


def solve_definite(a: Float[Array, "d d"], b: Float[Array, "d r"]) -> Float[Array, "d r"]:
    """a⁻¹b for a positive definite matrix, by elimination; plain arithmetic, so that it compiles to C with the rest."""
    rows = jnp.concatenate([a, b], axis=1)
    for i in range(a.shape[0]):
        row = rows[i] / rows[i, i]
        here = jnp.asarray(np.arange(a.shape[0]) == i)[:, None]
        rows = jnp.where(here, row[None, :], rows - rows[:, i][:, None] * row[None, :])
    return rows[:, a.shape[0] :]


def steady_state(
    ab: Float[Array, "n d"],
    offset: Float[Array, " n"],
    Q: Float[Array, "n n"],
    R: Float[Array, "m m"],
    effort: float,
    xp: ModuleType = np,
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """The x and u with x = Ax + Bu + d at the least xᵀQx + effort·uᵀRu, by the equations of its Lagrangian.

    With ``effort`` 1 it is the mean state of the law with the least mean cost: the mean of any law is a steady state,
    and its cost is that of the mean plus that of the deviations. Pass ``jax.numpy`` as ``xp`` inside a trace.
    """
    n, m = len(Q), len(R)
    G = xp.concatenate([xp.eye(n, dtype=ab.dtype) - ab[:, :n], -ab[:, n:]], axis=1)
    W = xp.block([[Q, xp.zeros((n, m), dtype=ab.dtype)], [xp.zeros((m, n), dtype=ab.dtype), effort * R]])
    W = W + 1e-12 * xp.trace(W) * xp.eye(n + m, dtype=ab.dtype)  # directions without cost stay near zero
    rows = xp.block([[W, G.T], [G, xp.zeros((n, n), dtype=ab.dtype)]])
    found = xp.linalg.solve(rows, xp.concatenate([xp.zeros(n + m, dtype=ab.dtype), offset]))
    return found[:n], found[n : n + m]


def _times(a: Float[Array, "p q"], b: Float[Array, "q r"]) -> Float[Array, "p r"]:
    """ab as a broadcast sum, which fuses under vmap."""
    return jnp.sum(a[:, :, None] * b[None, :, :], axis=1)


@pytree
class LqrModel(Problem):
    """The model critic on a simulated plant, with exact answers.

    `lqr_model` makes it.

    Args:
        plant: the simulated plant with its exploration and exact answers.
        operators: the operators.
    """

    plant: LqrActorCritic
    operators: ModelCritic
    noise, report = forwarded("plant", "noise", "report")
    (G,) = forwarded("operators", "G")

    def init(self, key: Key) -> tuple[Policy, Moments, Env]:
        K, _, env = self.plant.init(key)
        return *self.operators.start(K), env

    def draw(self, u: Float[Array, " z"], theta: Policy, env: Env) -> tuple[Sample, Env]:
        return self.plant.draw(u, theta["K"], env)

    def F(self, theta: Policy, omega: Moments, x: Sample) -> Policy:
        return Guarded(self.operators, self.plant.bounds).F(theta, omega, x)

    def h(self, theta: Policy) -> Number:
        return self.plant.h(theta["K"])

    def omega_star(self, theta: Policy) -> Moments:
        """The moments of (x, u, x') under the gain K."""
        lqr, ab = self.plant.lqr, self.plant.lqr.both
        z = lqr.covariance(theta["K"], self.plant.sigma)
        cross = z @ ab.T
        return {
            "M": jnp.block([[z, cross], [cross.T, ab @ cross + jnp.asarray(lqr.noise)]]),
            "seen": jnp.ones((), z.dtype),
        }

    def measure(self, theta: Policy, omega: Moments) -> dict[str, Number]:
        lqr, ab, K = self.plant.lqr, self.plant.lqr.both, theta["K"]
        return {
            "gap": lqr.J(K, self.plant.sigma) - self.plant.J_star,
            "error": sqnorm(K - self.plant.K_star),
            "model": sqnorm(self.operators.plant(omega) - ab),
            "spectral_radius": lqr.spectral_radius(K),
        }


def lqr_model(
    lqr: Lqr, sigma: float = 1.0, K0: ArrayLike | None = None, ridge: float = 1e-6, guard: Guard | bool | None = None
) -> LqrModel:
    """Learn the optimal gain of a linear plant from one trajectory, through a model.

    θ = {"K": gain, "P": value of states}, ω has the second moments of (x, u, x'); the operators are those of
    `ModelCritic`, to be run with ``methods.running_means()``. A run measures ``gap`` J(K) − J*, ``error`` ‖K − K*‖²,
    ``model`` ‖[Â B̂] − [A B]‖², and ``spectral_radius`` of A − BK; a guard adds its counts.

    Args:
        lqr: the plant and its cost.
        sigma: exploration, u ~ N(−Kx, σ²I).
        K0: the first gain, which must stabilise; zero by default.
        ridge: of the least squares.
        guard: as for `lqr_actor_critic`.

    >>> import twoclock as tc
    >>> plant = tc.models.Lqr(A=[[0.9]], B=[[0.5]], Q=[[1.0]], R=[[1.0]])
    >>> result = tc.solve(tc.problems.lqr_model(plant), tc.methods.running_means(), steps=1000, seeds=4)
    >>> bool(result.summary("gap")["mean"].iloc[-1] < 0.05)
    True
    """
    plant = simulate_plant(lqr, sigma, K0, kappa=1.0, expected_action=True, guard=guard)
    return LqrModel(plant, ModelCritic(lqr.Q, lqr.R, ridge))
