"""Random problems of many kinds: linear, curved, heavy-tailed, regression, policy evaluation, bilevel, control."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import twoclock as tc
from reproduction.experiments import hard_problems
from reproduction.experiments.hard_problems import Array, Numbers, Rng, Rule, draw_power, gradient_in_omega, normal
from twoclock.protocols import Key, PyTree, Scalar, pytree


def _logistic_noise(n: Numbers, key: Key) -> PyTree:
    one, two = jax.random.split(key)
    a = jax.random.normal(one, n["truth"].shape)
    likely = jax.nn.sigmoid(jnp.sum(a * n["truth"]))
    return {"a": a, "b": jnp.where(jax.random.uniform(two) < likely, 1.0, 0.0)}


_LOGISTIC_REGRESSION = Rule(
    gradient_in_omega, lambda n, t, w, x: w - (jax.nn.sigmoid(jnp.sum(x["a"] * t)) - x["b"]) * x["a"], _logistic_noise
)


def logistic_regression(rng: Rng) -> tc.Problem:
    """Ten coefficients, and ω for the gradient."""
    truth = rng.uniform(0.3, 1.5) * rng.normal(size=10) / np.sqrt(2)
    zero = np.zeros(10)
    return _LOGISTIC_REGRESSION.problem(zero, zero, truth, truth=truth)


def _growth_noise(n: Numbers, key: Key) -> PyTree:
    one, two = jax.random.split(key)
    a = jax.random.uniform(one, n["truth"].shape, minval=-1.0, maxval=1.0)
    return {"a": a, "b": jnp.exp(jnp.sum(a * n["truth"]) + 0.5 * jax.random.normal(two) - 0.125)}


_EXPONENTIAL_REGRESSION = Rule(
    gradient_in_omega, lambda n, t, w, x: w - (jnp.exp(jnp.sum(x["a"] * t)) - x["b"]) * x["a"], _growth_noise
)


def exponential_regression(rng: Rng) -> tc.Problem:
    """E b = exp(aᵀθ) with noise in proportion, three coefficients: steep on one side and flat on the other."""
    truth, zero = rng.uniform(0.5, 2) * rng.normal(size=3), np.zeros(3)
    return _EXPONENTIAL_REGRESSION.problem(zero, zero, truth, truth=truth)


_MULTIPLICATIVE_NOISE = Rule(
    lambda n, t, w, x: t - n["c"] + 0.5 * (w - t) + x * (1 + n["m"] * jnp.abs(t)),
    lambda n, t, w, x: w - t + x * (1 + jnp.abs(w)),
    normal(2),
)


def multiplicative_noise(rng: Rng) -> tc.Problem:
    """Noise that grows with θ and ω."""
    c, zero = 2 * rng.normal(size=2), np.zeros(2)
    return _MULTIPLICATIVE_NOISE.problem(zero + 5, zero, c, c=c, m=rng.uniform(0.5, 3))


_NEARLY_SINGULAR = Rule(
    lambda n, t, w, x: w - n["c"] + 0.1 * x, lambda n, t, w, x: n["e"] * (w - t) + n["e"] * n["s"] * x, normal()
)


def nearly_singular(rng: Rng) -> tc.Problem:
    """G of a slope of 10⁻³ to 10⁻², and a million samples."""
    c, e = rng.normal(), draw_power(rng, -3, -2)
    return _NEARLY_SINGULAR.problem(0.0, 0.0, c, c=c, e=e, s=rng.uniform(1, 10))


def _scaled_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    a, b = t / n["slow"], w / n["fast"]
    return n["of_F"] * (n["H"] @ (a - n["c"]) + 0.5 * (b - a) + 0.3 * x)


_UNITS = Rule(_scaled_F, lambda n, t, w, x: n["of_G"] * (w / n["fast"] - t / n["slow"] + 0.3 * x), normal(3))


def units(rng: Rng) -> tc.Problem:
    """A linear problem with θ, ω, F and G each in its own unit, 10⁻⁶ to 10⁶; the error is in the unit of θ."""
    A, zero = rng.normal(size=(3, 3)), np.zeros(3)
    H, c = A @ A.T / 3 + 0.3 * np.eye(3) + 0.3 * (A - A.T), rng.normal(size=3)
    scale = {name: draw_power(rng, -6, 6) for name in ("slow", "fast", "of_F", "of_G")}
    return _UNITS.problem(zero, zero, c * scale["slow"], H=H, c=c, **scale)


_MANY_ENTRIES = Rule(
    lambda n, t, w, x: n["h"] * (t - n["c"]) + 0.5 * (w - t), lambda n, t, w, x: w - t + n["s"] * x, normal(10_000)
)


def many_entries(rng: Rng) -> tc.Problem:
    """Ten thousand entries of θ with curvatures of 1 to 1/30, and as many of ω."""
    size = 10_000
    c, zero = rng.normal(size=size), np.zeros(size)
    h = np.geomspace(1, 1 / 30, size)
    return _MANY_ENTRIES.problem(zero, zero, c, c=c, h=h, s=rng.uniform(0.1, 1))


@pytree
class HeavyTails(tc.Problem):
    """F = H(θ − θ*) + C(ω − Wθ) + X, G = M(ω − Wθ) + X, X symmetric with P(|X| > x) = (1 + x/σ)^−tail."""

    H: Float[jax.Array, "d d"]
    C: Float[jax.Array, "d d"]
    M: Float[jax.Array, "d d"]
    W: Float[jax.Array, "d d"]
    star: jax.Array
    sigma: Scalar
    tail: Scalar

    def init(self, key: Key) -> tuple[jax.Array, jax.Array, None]:
        zero = jnp.zeros_like(jnp.asarray(self.star))
        return zero, zero, None

    def noise(self, key: Key) -> jax.Array:
        return jax.random.uniform(key, jnp.shape(self.star), minval=-1.0, maxval=1.0)

    def draw(self, u: jax.Array, theta: jax.Array, env: None) -> tuple[jax.Array | np.ndarray, None]:
        size = jnp.expm1(-jnp.log1p(-jnp.minimum(jnp.abs(u), 1 - 1e-7)) / self.tail)
        return self.sigma * jnp.sign(u) * size, env

    def F(self, theta: jax.Array, omega: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.asarray(self.H) @ (theta - self.star) + self.C @ (omega - self.W @ theta) + x

    def G(self, theta: jax.Array, omega: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.asarray(self.M) @ (omega - self.W @ theta) + x

    def measure(self, theta: jax.Array, omega: jax.Array) -> dict[str, jax.Array]:
        return {
            "error": jnp.sum(jnp.square(theta - self.star)),
            "tracking": jnp.sum(jnp.square(omega - self.W @ theta)),
        }


def rotating(rng: Rng) -> tc.Problem:
    mu_h, mu_g = rng.uniform(0.2, 0.8, 2)
    rotation, coupling = rng.uniform(0.5, 3), rng.uniform(0.2, 1)
    return tc.problems.quadratic(
        5, mu_h, mu_g, 1.0, rotation, coupling, draw_power(rng, -2, 0), int(rng.integers(10**6))
    )


def ill_conditioned(rng: Rng) -> tc.Problem:
    """Curvatures down to 10⁻⁴ of the largest, and noise small enough for them to show."""
    mu_h, mu_g = draw_power(rng, -4, -2), draw_power(rng, -2, 0)
    return tc.problems.quadratic(5, mu_h, mu_g, 1.0, 0.0, 0.5, mu_h * draw_power(rng, 0, 1.5), int(rng.integers(10**6)))


def kinked(rng: Rng) -> tc.Problem:
    return tc.problems.rates("strongly-convex", "kinked", 2, draw_power(rng, -1, 0.5), draw_power(rng, -0.5, 1))


def polyak_lojasiewicz(rng: Rng) -> tc.Problem:
    return tc.problems.rates("pl", "smooth", 2, draw_power(rng, -1, 0.5), rng.uniform(1, 4))


def non_convex(rng: Rng) -> tc.Problem:
    return tc.problems.rates("non-convex", "smooth", 2, draw_power(rng, -1, 0), rng.uniform(0.5, 2))


def heavy_tailed(rng: Rng) -> tc.Problem:
    base: Any = rotating(rng)
    return HeavyTails(base.H, base.C, base.M, base.W, base.theta_star, base.sigma, np.float64(rng.uniform(2.2, 4)))


def slow_chain(rng: Rng, operator: str = "tdc") -> tc.Problem:
    """A lazy random walk along a line with walls; random rewards; each feature covers a third of the line."""
    n, s = 15, np.arange(15)
    P = np.zeros((n, 2, n))
    P[s, 0, np.maximum(s - 1, 0)] = P[s, 1, np.minimum(s + 1, n - 1)] = 1
    right = rng.uniform(0.4, 0.6)
    mdp = tc.models.Mdp(P, np.tile(rng.normal(size=(n, 1)), 2), rng.uniform(0.3, 0.9))
    behaviour = np.full((n, 2), 0.5)
    return tc.problems.policy_evaluation(
        mdp, np.eye(3)[s * 3 // n], np.tile([1 - right, right], (n, 1)), behaviour, operator, "markov"
    )


def off_policy(rng: Rng) -> tc.Problem:
    """Importance ratios of ten and more."""
    n, m, d = 10, 4, 4
    P = rng.dirichlet(np.full(n, 0.3), size=(n, m))
    mdp = tc.models.Mdp(P, rng.normal(size=(n, m)), rng.uniform(0.5, 0.95))
    target, behaviour = rng.dirichlet(np.full(m, 0.3), n), rng.dirichlet(np.full(m, 1.0), n)
    mixed = 0.85 * behaviour + 0.15 / m
    return tc.problems.policy_evaluation(mdp, rng.normal(size=(n, d)), target, mixed, "tdc", "iid")


def least_squares(make: Callable[..., tc.Problem], rng: Rng) -> tc.Problem:
    """Bilevel or minimax, with data of any condition and noise."""
    return make(3, 3, 48, 8, draw_power(rng, 0.3, 1.7), draw_power(rng, -1, 0.5), seed=int(rng.integers(10**6)))


def regulator(rng: Rng) -> tc.Problem:
    """A stable plant of two states and one input."""
    A = rng.normal(size=(2, 2))
    A *= rng.uniform(0.3, 0.8) / np.abs(np.linalg.eigvals(A)).max()
    plant = tc.models.Lqr(A, rng.normal(size=(2, 1)), np.diag(rng.uniform(0.3, 2, 2)), [[rng.uniform(0.3, 2)]])
    return tc.problems.lqr_actor_critic(plant, sigma=1.0, kappa=5.0)


def soft_mdp(rng: Rng) -> tc.Problem:
    make = partial(tc.problems.random_entropy_mdp, states=4, actions=2, gamma=0.8, temp=draw_power(rng, -1.3, 0))
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(make)(jax.random.key(int(rng.integers(10**6)))))


def variance(problem: Any) -> float:
    """tr D Cov(X) Dᵀ, D = H⁻¹(I − CM⁻¹): of the efficient estimate of θ* from one sample, where F and G share X."""
    D = np.linalg.solve(problem.H, np.eye(len(problem.H)) - problem.C @ np.linalg.inv(problem.M))
    tail = getattr(problem, "tail", None)
    of_X = 1.0 if tail is None else 2 / ((tail - 1) * (tail - 2))
    return float(problem.sigma**2 * of_X * np.sum(D**2))


# Policy evaluation along a chain, where LSTD is a rival.
CHAINS = {"slow chain": slow_chain, "RiverSwim": hard_problems.river_swim}
LINEAR = ("linear, rotating", "ill-conditioned", "heavy tails")


class KindOfProblem(NamedTuple):
    """How problems of a kind are drawn, and what a race on them costs."""

    make: Callable[[Rng], tc.Problem]
    steps: int
    seeds: int = 16
    apart: int = 4  # other seeds, on which the best of 60 settings is chosen


KINDS = {
    "linear, rotating": KindOfProblem(rotating, 30_000),
    "ill-conditioned": KindOfProblem(ill_conditioned, 100_000),
    "kinked": KindOfProblem(kinked, 100_000),
    "PL": KindOfProblem(polyak_lojasiewicz, 10_000),
    "non-convex": KindOfProblem(non_convex, 10_000),
    "heavy tails": KindOfProblem(heavy_tailed, 30_000),
    "slow chain": KindOfProblem(slow_chain, 100_000),
    "off-policy": KindOfProblem(off_policy, 100_000),
    "bilevel": KindOfProblem(partial(least_squares, tc.problems.quadratic_bilevel), 10_000),
    "minimax": KindOfProblem(partial(least_squares, tc.problems.quadratic_minimax), 10_000),
    "LQR": KindOfProblem(regulator, 10_000),
    "entropy MDP": KindOfProblem(soft_mdp, 100_000),
    "quantiles": KindOfProblem(hard_problems.quantiles, 20_000),
    "absolute value": KindOfProblem(hard_problems.absolute_value, 20_000),
    "stop_gradient": KindOfProblem(hard_problems.stop_gradient, 1000),
    "tanh from far": KindOfProblem(hard_problems.far_tanh, 20_000),
    "clipped from far": KindOfProblem(hard_problems.clipped, 20_000),
    "ridge penalty": KindOfProblem(hard_problems.ridge_penalty, 20_000),
    "meta-learning": KindOfProblem(hard_problems.meta_learning, 3000, 8, 2),
    "double well": KindOfProblem(hard_problems.double_well, 20_000),
    "Rosenbrock": KindOfProblem(hard_problems.rosenbrock, 30_000),
    "cubic G": KindOfProblem(hard_problems.cubic, 20_000),
    "RiverSwim": KindOfProblem(hard_problems.river_swim, 20_000),
    "KL-DRO": KindOfProblem(hard_problems.robust_regression, 20_000),
    "logistic": KindOfProblem(logistic_regression, 10_000),
    "exponential": KindOfProblem(exponential_regression, 10_000),
    "multiplicative noise": KindOfProblem(multiplicative_noise, 10_000),
    "nearly singular": KindOfProblem(nearly_singular, 1_000_000, 8, 2),
    "odd units": KindOfProblem(units, 10_000),
    "10⁴ entries": KindOfProblem(many_entries, 1000, 4, 1),
}


def draw_problem(make: Callable[[Rng], tc.Problem], seed: Sequence[int]) -> tc.Problem:
    """The problem of a kind that a seed makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a plant or a curvature that only a person would change
        return make(np.random.default_rng(seed))
