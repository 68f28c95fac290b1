"""LQR without a model: the single-loop actor-critic on one online trajectory, and known plants by name."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.lqr import Lqr
from twoclock.problems.lqr.operators import (
    ActorCritic,
    Bounds,
    Critic,
    Gain,
    Guard,
    Guarded,
    Sample,
    product,
    quadratic,
)
from twoclock.protocols import InputError, Key, Problem, PyTree, Scalar, pytree
from twoclock.tree_math import difference, sqnorm
from twoclock.validation import flag, number
from twoclock.validation.arrays import Array, Number, matrix, shaped

__all__ = ["BlindCriticWarning", "LqrActorCritic", "boeing_747", "double_integrator", "lqr_actor_critic", "paper_lqr"]

# z = (x, u), or the bare state x where the next action is averaged over; and the guard's memory.
Env = tuple[Float[Array, " here"], PyTree]


class BlindCriticWarning(UserWarning):
    """The exploration is too small for the critic to estimate what actions cost."""


@pytree
class LqrActorCritic(Problem):
    """The actor-critic on a simulated plant, with the plant's exact answers; see `lqr_actor_critic`."""

    lqr: Lqr
    operators: ActorCritic
    K0: Float[Array, "m n"]
    sigma: Scalar
    root: Float[Array, "n n"] | None  # a square root of Ψ, None for the identity
    K_star: Float[Array, "m n"]
    J_star: Scalar
    bounds: Bounds | None
    Omega0: Float[Array, "z z"] | None = None
    J0: Scalar | None = None
    x0: Float[Array, " n"] | None = None

    def init(self, key: Key) -> tuple[Gain, Critic, Env]:
        n = self.K0.shape[1]
        theta, omega = self.operators.start(self.K0)
        given = {"Omega": self.Omega0, "J": self.J0}
        omega |= {name: jnp.asarray(value, theta.dtype) for name, value in given.items() if value is not None}
        u = jax.random.normal(key, (sum(self.K0.shape),), theta.dtype)
        x = self._disturbance(u[:n]) if self.x0 is None else jnp.asarray(self.x0, theta.dtype)
        first = x if self.operators.expected_action else self._act(theta, x, u)
        return theta, omega, (first, None if self.bounds is None else self.bounds.start())

    def noise(self, key: Key) -> Float[Array, " z"]:
        return jax.random.normal(key, (sum(self.K0.shape),), jnp.asarray(self.K0).dtype)

    def draw(self, u: Float[Array, " z"], theta: Gain, env: Env) -> tuple[Sample, Env]:
        # The action in z' is drawn now, from the present gain, and z' is the next step's z. So the cost in the J row
        # belongs to an action of the previous gain. With ``expected_action`` the action in z is drawn now, and z' has
        # the mean action.
        (here, watch), n = env, theta.shape[1]
        if self.operators.expected_action:
            gain, watch = self._supervise(theta, here, watch)
            z = self._act(gain, here, u)
            after = self._move(z, u)
            following: Array = jnp.concatenate([after, -product(gain, after)])
        else:
            z, x = here, self._move(here, u)
            gain, watch = self._supervise(theta, x, watch)
            after = following = self._act(gain, x, u)
        sample: Sample = {"z": z, "next": following, "c": quadratic(self.lqr.Q, z[:n]) + quadratic(self.lqr.R, z[n:])}
        if self.bounds is not None:
            sample, watch = self.bounds.judge(sample, watch)
        return sample, (after, watch)

    def F(self, theta: Gain, omega: Critic, x: Sample) -> Gain:
        return Guarded(self.operators, self.bounds).F(theta, omega, x)

    def G(self, theta: Gain, omega: Critic, x: Sample) -> Critic:
        return Guarded(self.operators, self.bounds).G(theta, omega, x)

    def report(self, env: Env) -> dict[str, Array]:
        """The guard's counts of interventions; empty without a guard."""
        return {} if self.bounds is None else self.bounds.report(env[1])

    def h(self, theta: Gain) -> Number:
        return self.lqr.J(theta, self.sigma)

    def field(self, theta: Gain) -> Gain:
        """The mean of F at ω*(θ): half the natural gradient, which is ∇h in another metric."""
        return self.mean_F(theta, self.omega_star(theta))

    def omega_star(self, theta: Gain) -> Critic:
        return {"J": self.lqr.J(theta, self.sigma), "Omega": self.lqr.Omega(theta)}

    def mean_F(self, theta: Gain, omega: Critic) -> Gain:
        f = self.operators.F(theta, omega, None)
        return f if self.bounds is None else self.bounds.scale_F(f)

    def mean_G(self, theta: Gain, omega: Critic) -> Critic:
        """The exact mean of G over the stationary distribution of θ, by Gaussian moments."""
        mean = self.lqr.critic_mean(theta, self.sigma, omega["J"], omega["Omega"])
        g = {"J": self.operators.kappa * (omega["J"] - self.lqr.J(theta, self.sigma)), "Omega": mean}
        return g if self.bounds is None else self.bounds.scale_G(g)

    def confine(self, theta: Gain) -> Gain:
        """A gain that costs no more than K₀: θ, or one between θ and K*."""
        most = float(np.asarray(self.h(self.K0)))
        for share in 0.8 ** np.arange(100):
            nearer = self.K_star + share * (theta - self.K_star)
            if float(np.asarray(self.h(nearer))) <= most:
                return nearer
        return self.K_star

    def pl_constants(self, thetas: Sequence[Gain]) -> dict[str, Any]:
        """Constants for the gains that cost no more than K₀: J − J* ≤ ‖Σ_{K*}‖/σ_min(R)·‖E_K‖², and ∇J = 2E_KΣ_K.

        E_K is the mean of F at ω*. Σ_K is at least Ψ + σ²BBᵀ, and at most (J(K₀) − σ² tr R)/σ_min(Q).

        Reference: Fazel et al. 2018, Lemmas 11 and 13.
        """
        if self.bounds is not None:
            return {}
        lqr, sigma = self.lqr, float(np.asarray(self.sigma))
        best = np.linalg.norm(np.asarray(lqr.state_covariance(self.K_star, sigma)), 2)
        least = np.linalg.eigvalsh(lqr.noise + sigma**2 * lqr.B @ lqr.B.T)[0]
        cost = float(np.asarray(self.h(self.K0))) - sigma**2 * np.trace(lqr.R)
        most = cost / max(float(np.linalg.eigvalsh(lqr.Q)[0]), np.finfo(float).tiny)
        mu_h = float(np.linalg.eigvalsh(lqr.R)[0] / (2 * best))
        return {"mu_h": mu_h, "metric": (2 * float(least), 2 * float(most))}

    def measure(self, theta: Gain, omega: Critic) -> dict[str, Number]:
        truth = self.omega_star(theta)
        tracking = sqnorm(difference(omega, truth))
        return {
            "gap": truth["J"] - self.J_star,
            "error": sqnorm(theta - self.K_star),
            "tracking": jnp.where(jnp.isnan(tracking), jnp.inf, tracking),
            "spectral_radius": self.lqr.spectral_radius(theta),
        }

    def _supervise(self, K: Gain, x: Float[Array, " n"], watch: PyTree) -> tuple[Gain, PyTree]:
        """The gain that acts in state x: K unless a guard intervenes."""
        return (K, None) if self.bounds is None else self.bounds.supervise(K, x, watch)

    def _disturbance(self, u: Float[Array, " n"]) -> Float[Array, " n"]:
        return u if self.root is None else product(jnp.asarray(self.root), u)

    def _move(self, z: Float[Array, " z"], u: Float[Array, " z"]) -> Float[Array, " n"]:
        n = self.K0.shape[1]
        A, B = jnp.asarray(self.lqr.A), jnp.asarray(self.lqr.B)
        return product(A, z[:n]) + product(B, z[n:]) + self._disturbance(u[:n])

    def _act(self, K: Gain, x: Float[Array, " n"], u: Float[Array, " z"]) -> Float[Array, " z"]:
        return jnp.concatenate([x, self.sigma * u[x.shape[0] :] - product(K, x)])


def lqr_actor_critic(
    lqr: Lqr,
    sigma: float = 1.0,
    K0: ArrayLike | None = None,
    kappa: float = 2.0,
    expected_action: bool = False,
    guard: Guard | bool | None = None,
    *,
    Omega0: ArrayLike | None = None,
    J0: float | None = None,
    x0: ArrayLike | None = None,
) -> LqrActorCritic:
    """Learn the optimal gain of a linear plant from one trajectory of it.

    θ is the gain K (u = −Kx) and ω = {"J": mean cost, "Omega": Ω}; the operators are those of `ActorCritic`. A run
    measures ``gap`` J(K) − J*, ``error`` ‖K − K*‖², ``tracking``, and ``spectral_radius`` of A − BK; a guard adds its
    counts.

    Args:
        lqr: the plant and its cost.
        sigma: exploration, u ~ N(−Kx, σ²I). The critic learns the cost of actions from it alone, so σ must not be too
            small.
        K0: the first gain, which must stabilise; zero by default.
        kappa: the weight of the J row; 1 is the paper's, and not enough for a monotone critic at every gain.
        expected_action: average over the next action in closed form; on the paper's regulator the final gap falls by
            about 30 %.
        guard: a `Guard`, True for one with its defaults, or None.
        Omega0, J0: the first critic, a symmetric matrix on (x, u) and a mean cost; 0 by default.
        x0: the first state; drawn from N(0, Ψ) by default.

    >>> import twoclock as tc
    >>> plant = tc.models.Lqr(A=[[0.9]], B=[[0.5]], Q=[[1.0]], R=[[1.0]])
    >>> problem = tc.problems.lqr_actor_critic(plant, sigma=1.0)

    Reference: Zeng & Doan, Algorithm 2; Yang et al., *Provably global convergence of actor-critic: a case for linear
    quadratic regulator with ergodic cost*, 2019.
    """
    kappa = number("kappa", kappa, 0, above=True)
    problem = simulate_plant(lqr, sigma, K0, kappa, expected_action, guard)
    problem = dataclasses.replace(problem, **_read_start(*lqr.shape, Omega0, J0, x0))

    def conditioning(s: float) -> float:
        T = lqr.critic(problem.K0, s)[0][1:, 1:]
        values = np.linalg.eigvalsh((T + T.T) / 2)
        return float(values[0] / values[-1])

    # Where the critic's conditioning still grows like σ⁴, actions drown in the noise.
    if sigma == 0 or conditioning(2 * sigma) > 8 * conditioning(sigma):
        constant, better = (float(lqr.monotonicity(problem.K0, s, kappa)) for s in (sigma, max(2 * sigma, 0.1)))
        warnings.warn(
            f"`sigma={sigma:g}` leaves the critic nearly blind: its monotonicity constant at K0 is {constant:.3g} "
            f"(with sigma={max(2 * sigma, 0.1):g} it would be {better:.3g}); raise `sigma`",
            BlindCriticWarning,
            stacklevel=2,
        )
    return problem


def _read_start(n: int, m: int, Omega0: ArrayLike | None, J0: float | None, x0: ArrayLike | None) -> dict[str, Any]:
    """The inputs of Algorithm 2 beside K₀, checked; None stays None."""
    found: dict[str, Any] = {"Omega0": None, "J0": None, "x0": None}
    if Omega0 is not None:
        critic = matrix("Omega0", Omega0)
        if critic.shape != (n + m, n + m) or not np.allclose(critic, critic.T):
            raise InputError(
                f"`Omega0` must be a symmetric matrix on (x, u), shape {(n + m, n + m)}, got "
                f"{f'shape {critic.shape}' if critic.shape != (n + m, n + m) else 'one that is not symmetric'}; "
                "`lqr.Omega(K)` is that of a gain"
            )
        found["Omega0"] = critic
    if J0 is not None:
        found["J0"] = np.float64(number("J0", J0))
    if x0 is not None:
        found["x0"] = shaped("x0", x0, (n,), which=", one entry per state")
    return found


def simulate_plant(
    lqr: object, sigma: float, K0: ArrayLike | None, kappa: float, expected_action: bool, guard: object
) -> LqrActorCritic:
    """Make the problem, without the check that its critic can learn."""
    if not isinstance(lqr, Lqr):
        raise InputError(f"`lqr` must be a tc.models.Lqr, got {type(lqr).__name__}; build one with `Lqr(A, B, Q, R)`")
    sigma = number("sigma", sigma, 0, 1e50)
    n, m = lqr.shape
    gain = np.zeros((m, n)) if K0 is None else matrix("K0", K0)
    if gain.shape != (m, n):
        raise InputError(f"`K0` has shape {gain.shape} and `B` {(n, m)}: `K0` must be {(m, n)}")
    radius = float(lqr.spectral_radius(gain))
    if radius >= 1:
        what = "`K0=None` means zero, which" if K0 is None else "`K0`"
        raise InputError(
            f"{what} does not stabilise: A − B·K0 has spectral radius {radius:.6g}, it must be below 1; "
            "pass a gain that does (signs are u = −Kx)"
        )
    root = None
    if not np.array_equal(lqr.noise, np.eye(n)):
        values, vectors = np.linalg.eigh(lqr.noise)
        root = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
    if isinstance(guard, bool):
        guard = Guard() if guard else None
    if guard is not None and not isinstance(guard, Guard):
        raise InputError(f"`guard` must be a Guard, True or None, got {type(guard).__name__}; try `guard=True`")
    operators = ActorCritic(kappa, sigma, flag("expected_action", expected_action))
    bounds = None if guard is None else guard.measure(gain, *lqr.simulate(gain, sigma, guard.log))
    K_star, J_star = lqr.gain, lqr.J(lqr.gain, sigma)
    return LqrActorCritic(lqr, operators, gain, np.float64(sigma), root, K_star, J_star, bounds)


PAPER = Lqr(
    A=[[0.5, 0.01, 0.0], [0.01, 0.5, 0.01], [0.0, 0.01, 0.5]],
    B=[[1.0, 0.1], [0.0, 0.1], [0.0, 0.1]],
    Q=np.eye(3),
    R=np.eye(2),
)

DOUBLE_INTEGRATOR = Lqr(A=[[1.0, 1.0], [0.0, 1.0]], B=[[0.0], [1.0]], Q=np.eye(2), R=np.eye(1))

_GUST = np.array(
    [
        [1.0, -0.01, 0.5, -0.5, -0.5],
        [0.0, 1.0, 0.1, -0.01, -0.01],
        [0.0, 0.0, 1.0, -0.5, -0.5],
        [0.0, 0.0, 0.0, 1.0, 0.5],
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ]
)

BOEING = Lqr(
    A=[
        [1.0, -1.1267, -0.6528, -8.0749, 1.589],
        [0.0, 0.7741, 0.3176, -0.9772, -2.969],
        [0.0, 0.1157, 0.0201, -0.0005, -0.3628],
        [0.0, 0.0111, 0.0033, -0.0349, -0.0447],
        [0.0, 0.1388, -0.0862, 0.2935, 0.7579],
    ],
    B=[
        [89.1973, -50.1685, 1.1267, -19.3472],
        [5.2231, 6.3614, 0.2259, -0.3176],
        [-9.4731, 5.9294, -0.1157, 0.9799],
        [-0.3236, 0.3178, -0.0111, -0.0033],
        [-4.5318, 3.2146, -0.1388, 0.0862],
    ],
    Q=np.eye(5),
    R=np.eye(4),
    noise=_GUST @ _GUST.T,
)


def paper_lqr(
    sigma: float = 1.0, kappa: float = 2.0, expected_action: bool = False, guard: bool = False
) -> LqrActorCritic:
    """The paper's system of three states and two actions, from K₀ = 0 with Ψ = I (Zeng & Doan, Section 5).

    Args:
        sigma: the standard deviation of the exploration.
        kappa: the weight of the critic's row of the mean cost.
        expected_action: whether the critic takes the mean over the next action in closed form.
        guard: whether a supervisor takes over where the gain does not stabilise.

    >>> round(float(paper_lqr().J_star), 6)
    6.95782
    """
    return lqr_actor_critic(PAPER, sigma, None, kappa, expected_action, guard)


def double_integrator(
    sigma: float = 1.0, kappa: float = 2.0, expected_action: bool = False, guard: bool = False
) -> LqrActorCritic:
    """A mass pushed by a force (a double integrator, unstable without control), from K₀ = [0.5, 1].

    Args:
        sigma: the standard deviation of the exploration.
        kappa: the weight of the critic's row of the mean cost.
        expected_action: whether the critic takes the mean over the next action in closed form.
        guard: whether a supervisor takes over where the gain does not stabilise.

    >>> round(float(double_integrator().J_star), 3)
    13.173
    """
    return lqr_actor_critic(DOUBLE_INTEGRATOR, sigma, [[0.5, 1.0]], kappa, expected_action, guard)


def boeing_747(
    sigma: float = 1.0, kappa: float = 12.0, expected_action: bool = False, guard: bool = True
) -> LqrActorCritic:
    """The lateral motion of a Boeing 747 in its usual units, from K₀ = 0.005 everywhere.

    Its states differ in scale by two hundred and its cost is in the ten thousands: without the guard no ordinary step
    size survives ten steps. κ = 2 is too small for a monotone critic here, 12 is enough.

    Args:
        sigma: the standard deviation of the exploration.
        kappa: the weight of the critic's row of the mean cost.
        expected_action: whether the critic takes the mean over the next action in closed form.
        guard: whether a supervisor takes over where the gain does not stabilise.

    >>> import jax
    >>> boeing_747().init(jax.random.key(0))[0].shape  # the first gain
    (4, 5)
    """
    return lqr_actor_critic(BOEING, sigma, np.full((4, 5), 0.005), kappa, expected_action, guard)
