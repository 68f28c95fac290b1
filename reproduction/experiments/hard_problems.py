"""Random problems on which a default method may fail: steps, kinks, flat and singular starts, curved valleys.

A kind has fixed shapes and functions, and its problems differ in numbers alone, so that each kind is compiled once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, stats

import twoclock as tc
from twoclock.protocols import Key, PyTree, pytree, static

Rng = np.random.Generator
Array = jax.Array
Numbers = dict[str, Any]


class Rule(NamedTuple):
    """What the problems of a kind share: functions of their numbers n."""

    F: Callable[..., PyTree]  # (n, θ, ω, x)
    G: Callable[..., PyTree]
    noise: Callable[..., PyTree]  # (n, key) → x

    def problem(self, theta: PyTree, omega: PyTree, stars: Any, **numbers: Any) -> "DrawnProblem":
        """The problem of this kind with these numbers, start and solutions."""
        theta, omega, numbers = jax.tree.map(lambda leaf: np.asarray(leaf, float), (theta, omega, numbers))
        return DrawnProblem(self, theta, omega, numbers, np.asarray(stars, float).reshape(-1, np.size(theta)))


@pytree
class DrawnProblem(tc.Problem):
    """A problem of a kind: start, numbers and the solution, or several."""

    rule: Rule = static()
    theta: PyTree
    omega: PyTree
    numbers: Numbers
    stars: jax.Array | np.ndarray  # solutions × entries of θ

    def init(self, key: Key) -> tuple[PyTree, PyTree, None]:
        return *jax.tree.map(jnp.asarray, (self.theta, self.omega)), None

    def noise(self, key: Key) -> PyTree:
        return self.rule.noise(self.numbers, key)

    def draw(self, u: PyTree, theta: PyTree, env: None) -> tuple[PyTree, None]:
        return u, env

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.rule.F(self.numbers, theta, omega, x)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.rule.G(self.numbers, theta, omega, x)

    def measure(self, theta: PyTree, omega: PyTree) -> dict[str, jax.Array]:
        """The squared distance from the nearest solution."""
        return {"error": jnp.min(jnp.sum(jnp.square(theta - jnp.asarray(self.stars)), axis=-1))}


def draw_power(rng: Rng, low: float, high: float) -> float:
    """Ten to a uniform exponent."""
    return float(10 ** rng.uniform(low, high))


def normal(*shape: int) -> Callable[[Numbers, Key], jax.Array]:
    """Standard normal samples of a shape."""
    return lambda n, key: jax.random.normal(key, shape)


def gradient_in_omega(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    """F = ω, where ω follows the gradient."""
    return w


_QUANTILES = Rule(
    gradient_in_omega, lambda n, t, w, x: w - (jnp.where(n["m"] + n["s"] * x < t, 1.0, 0.0) - n["q"]), normal(3)
)


def quantiles(rng: Rng) -> tc.Problem:
    """Three quantiles of a normal sample: G has steps and no derivative."""
    s, q = draw_power(rng, -2, 2), rng.uniform(0.55, 0.97, 3)
    m = s * rng.normal(size=3)
    zero = np.zeros(3)
    return _QUANTILES.problem(zero, zero, m + s * stats.norm.ppf(q), m=m, s=s, q=q)


_ABSOLUTE_VALUE = Rule(lambda n, t, w, x: jnp.sign(t - n["c"]) + 0.3 * w, lambda n, t, w, x: w + x, normal())


def absolute_value(rng: Rng) -> tc.Problem:
    """|θ − c| with a noisy ω beside its subgradient."""
    c = 3 * rng.normal()
    return _ABSOLUTE_VALUE.problem(c + rng.choice([-1, 1]) * rng.uniform(1, 5), 0.0, c, c=c)


_STOP_GRADIENT = Rule(
    lambda n, t, w, x: jax.lax.stop_gradient(w) - n["c"], lambda n, t, w, x: w - n["a"] * t + n["s"] * x, normal(2)
)


def stop_gradient(rng: Rng) -> tc.Problem:
    """An operator whose derivative JAX was asked not to see."""
    a, c, s = rng.uniform(0.5, 2, 2), rng.normal(size=2), draw_power(rng, -1, 0)
    return _STOP_GRADIENT.problem(np.zeros(2), np.zeros(2), c / a, a=a, c=c, s=s)


_FAR_TANH = Rule(
    lambda n, t, w, x: jnp.tanh(t - n["c"]) + 0.5 * (w - t), lambda n, t, w, x: w - n["a"] * t + n["s"] * x, normal()
)


def far_tanh(rng: Rng) -> tc.Problem:
    """A far start where F is flat."""
    c, start = rng.normal(), rng.uniform(10, 60) * rng.choice([-1, 1])
    return _FAR_TANH.problem(c + start, 0.0, c, c=c, a=1.0, s=rng.uniform(0.2, 1))


_CLIPPED = Rule(
    lambda n, t, w, x: jnp.clip(t - n["c"] + 3 * x[0], -0.5, 0.5) + 0.2 * (w - t),
    lambda n, t, w, x: w - t + 0.6 * x[1],
    normal(2),
)


def clipped(rng: Rng) -> tc.Problem:
    """Clipped gradients, from far."""
    c = 3 * rng.normal()
    return _CLIPPED.problem(c + rng.uniform(10, 40) * rng.choice([-1, 1]), 0.0, c, c=c)


def _penalty_noise(n: Numbers, key: Key) -> PyTree:
    one, two = jax.random.split(key)
    return {"X": jax.random.randint(one, (8,), 0, len(n["X"])), "V": jax.random.randint(two, (8,), 0, len(n["V"]))}


def _penalty_G(n: Numbers, t: Array, w: PyTree, x: PyTree) -> PyTree:
    X, b, V, c = n["X"][x["X"]], n["b"][x["X"]], n["V"][x["V"]], n["c"][x["V"]]
    on_train = X.T @ (X @ w["y"] - b) / 8 + jnp.exp(t) * w["y"]
    curved = X.T @ (X @ w["v"]) / 8 + jnp.exp(t) * w["v"]
    return {"y": on_train, "v": curved - V.T @ (V @ w["y"] - c) / 8}


_RIDGE_PENALTY = Rule(lambda n, t, w, x: -jnp.exp(t) * jnp.sum(w["y"] * w["v"]), _penalty_G, _penalty_noise)


def ridge_penalty(rng: Rng) -> tc.Problem:
    """Bilevel: the logarithm of a ridge penalty by the loss on other data. At y = v = 0 the Jacobian is singular."""
    d = 5
    while True:
        X, V, truth = rng.normal(size=(20, d)), rng.normal(size=(200, d)), rng.normal(size=d)
        b, c = X @ truth + 2 * rng.normal(size=20), V @ truth + 2 * rng.normal(size=200)

        def fitted(t: float, X: np.ndarray = X, b: np.ndarray = b) -> np.ndarray:
            return np.linalg.solve(X.T @ X / len(X) + np.exp(t) * np.eye(d), X.T @ b / len(X))

        def loss(t: float, V: np.ndarray = V, c: np.ndarray = c, fit: Any = fitted) -> float:
            return float(np.mean((V @ fit(t) - c) ** 2))

        best = optimize.minimize_scalar(loss, bounds=(-6, 4), method="bounded", options={"xatol": 1e-9})
        if -3 < best.x < 1:
            break
    zero = {"y": np.zeros(d), "v": np.zeros(d)}
    return _RIDGE_PENALTY.problem(best.x - 1.5, zero, best.x, X=X, b=b, V=V, c=c)


def _tasks_G(n: Numbers, t: Array, w: PyTree, x: PyTree) -> PyTree:
    a, b, e = x["a"], x["b"], n["s"] * x["e"]

    def slope(a: Array, y: Array) -> Array:
        return a * jnp.sum(a * y, axis=1, keepdims=True)

    of_y = slope(a, w["y"] - n["w"]) + a * e[0][:, None] + w["y"] - t
    return {"y": of_y, "v": slope(a, w["v"]) + w["v"] - slope(b, w["y"] - n["w"]) - b * e[1][:, None]}


def _tasks_noise(n: Numbers, key: Key) -> PyTree:
    one, two, three = jax.random.split(key, 3)
    shape, normal = n["w"].shape, jax.random.normal
    return {"a": normal(one, shape), "b": normal(two, shape), "e": normal(three, (2, shape[0]))}


_META_LEARNING = Rule(lambda n, t, w, x: jnp.mean(w["v"], axis=0), _tasks_G, _tasks_noise)


def meta_learning(rng: Rng) -> tc.Problem:
    """Twenty linear tasks of dimension 5, each fitted near a shared start x that is to be good on other items."""
    w = rng.normal(size=(20, 5)) + 2 * rng.normal(size=5)
    zero = {"y": np.zeros((20, 5)), "v": np.zeros((20, 5))}
    return _META_LEARNING.problem(np.zeros(5), zero, w.mean(axis=0), w=w, s=rng.uniform(0.1, 1))


_DOUBLE_WELL = Rule(lambda n, t, w, x: t**3 - t * w + n["s"] * x[0], lambda n, t, w, x: w - n["c"] + x[1], normal(2))


def double_well(rng: Rng) -> tc.Problem:
    """θ³ − cθ with c to be learnt, from near the saddle at 0; either well is a solution."""
    c = rng.uniform(0.5, 4)
    root = np.sqrt(c)
    start = rng.uniform(0.1, 0.3) * root
    return _DOUBLE_WELL.problem(start, 0.0, [[root], [-root]], c=c, s=draw_power(rng, -1, 0))


def _valley_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    bend = n["k"] * (t[1] - w)
    return jnp.stack([t[0] - 1 - 2 * t[0] * bend, bend]) + 0.1 * x[:2]


_ROSENBROCK = Rule(_valley_F, lambda n, t, w, x: w - t[0] ** 2 + 0.1 * x[2], normal(3))


def rosenbrock(rng: Rng) -> tc.Problem:
    """Rosenbrock's valley, with ω for the square."""
    return _ROSENBROCK.problem(rng.uniform(-1, 0.5, 2), 0.0, np.ones(2), k=rng.uniform(1, 5)
    )  # fmt: skip


_CUBIC = Rule(lambda n, t, w, x: t - w, lambda n, t, w, x: (w**3 - n["c"] ** 3) / n["c"] ** 2 + x, normal())


def cubic(rng: Rng) -> tc.Problem:
    """G nearly flat at the start."""
    c = rng.uniform(1, 3)
    return _CUBIC.problem(0.0, 0.05 * c, c, c=c)


def river_swim(rng: Rng, operator: str = "tdc") -> tc.Problem:
    """Policy evaluation on RiverSwim's six states, whose right end is seldom visited."""
    n, s = 6, np.arange(6)
    P = np.zeros((n, 2, n))
    P[s, 0, np.maximum(s - 1, 0)] = 1
    P[0, 1, :2] = P[-1, 1, -2:] = 0.4, 0.6
    for state in s[1:-1]:
        P[state, 1, state - 1 : state + 2] = 0.05, 0.6, 0.35
    reward = np.zeros((n, 2))
    reward[0, 0], reward[-1, 1] = 0.005, 1
    mdp = tc.models.Mdp(P, reward, rng.uniform(0.85, 0.96))
    target, behaviour = (np.tile([1 - p, p], (n, 1)) for p in (rng.uniform(0.8, 0.95), rng.uniform(0.5, 0.7)))
    return tc.problems.policy_evaluation(mdp, np.eye(n), target, behaviour, operator, "markov")


def _loss(n: Numbers, t: Array, i: Array) -> tuple[Array, Array]:
    away = jnp.sum(n["a"][i] * t) - n["y"][i]
    return jnp.exp(away**2 / 8), away * n["a"][i]


def _robust_F(n: Numbers, t: Array, w: Array, i: Array) -> Array:
    weight, slope = _loss(n, t, i)
    return weight * slope / w


_ROBUST_REGRESSION = Rule(
    _robust_F, lambda n, t, w, i: w - _loss(n, t, i)[0], lambda n, key: jax.random.randint(key, (), 0, len(n["a"]))
)


def robust_regression(rng: Rng) -> tc.Problem:
    """KL-DRO, log E exp(ℓ/4) of 400 squared residuals with heavy tails: nearly flat where few items carry the mean."""
    a = rng.normal(size=(400, 5))
    y = a @ (rng.uniform(0.3, 1) * rng.normal(size=5)) + 0.7 * rng.standard_t(3, size=400).clip(-6, 6)

    def h(t: np.ndarray) -> tuple[float, np.ndarray]:
        away = a @ t - y
        power = away**2 / 8
        weights = np.exp(power - power.max())
        return float(np.log(weights.mean()) + power.max()), a.T @ (weights * away) / weights.sum() / 4

    best = optimize.minimize(h, np.zeros(5), jac=True, options={"gtol": 1e-10})
    return _ROBUST_REGRESSION.problem(np.zeros(5), 1.0, best.x, a=a, y=y)
