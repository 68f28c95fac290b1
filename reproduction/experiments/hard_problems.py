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


def make_problem(
    F: Callable[..., PyTree],
    G: Callable[..., PyTree],
    noise: Callable[..., PyTree],
    theta: PyTree,
    omega: PyTree,
    stars: Any,
    **numbers: Any,
) -> DrawnProblem:
    """A problem of the kind that these functions make, with its numbers and its solutions."""
    theta, omega, numbers = jax.tree.map(lambda leaf: np.asarray(leaf, float), (theta, omega, numbers))
    return DrawnProblem(Rule(F, G, noise), theta, omega, numbers, np.asarray(stars, float).reshape(-1, np.size(theta)))


def draw_power(rng: Rng, low: float, high: float) -> float:
    """Ten to a uniform exponent."""
    return float(10 ** rng.uniform(low, high))


def normal(*shape: int) -> Callable[[Numbers, Key], jax.Array]:
    """Standard normal samples of a shape."""
    # One function per shape: another of the same shape would be compiled again.
    if shape not in _normals:
        _normals[shape] = lambda n, key: jax.random.normal(key, shape)
    return _normals[shape]


_normals: dict[tuple[int, ...], Callable[[Numbers, Key], jax.Array]] = {}


def _quantile_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w - (jnp.where(n["m"] + n["s"] * x < t, 1.0, 0.0) - n["q"])


def gradient_in_omega(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    """F = ω, where ω follows the gradient."""
    return w


def quantiles(rng: Rng) -> tc.Problem:
    """Three quantiles of a normal sample: G has steps and no derivative."""
    s, q = draw_power(rng, -2, 2), rng.uniform(0.55, 0.97, 3)
    m = s * rng.normal(size=3)
    zero = np.zeros(3)
    return make_problem(gradient_in_omega, _quantile_G, normal(3), zero, zero, m + s * stats.norm.ppf(q), m=m, s=s, q=q)


def _absolute_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return jnp.sign(t - n["c"]) + 0.3 * w


def _noise_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w + x


def absolute_value(rng: Rng) -> tc.Problem:
    """|θ − c| with a noisy ω beside its subgradient."""
    c = 3 * rng.normal()
    return make_problem(_absolute_F, _noise_G, normal(), c + rng.choice([-1, 1]) * rng.uniform(1, 5), 0.0, c, c=c)


def _blind_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return jax.lax.stop_gradient(w) - n["c"]


def _linear_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w - n["a"] * t + n["s"] * x


def stop_gradient(rng: Rng) -> tc.Problem:
    """An operator whose derivative JAX was asked not to see."""
    a, c, s = rng.uniform(0.5, 2, 2), rng.normal(size=2), draw_power(rng, -1, 0)
    return make_problem(_blind_F, _linear_G, normal(2), np.zeros(2), np.zeros(2), c / a, a=a, c=c, s=s)


def _tanh_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return jnp.tanh(t - n["c"]) + 0.5 * (w - t)


def far_tanh(rng: Rng) -> tc.Problem:
    """A far start where F is flat."""
    c, start = rng.normal(), rng.uniform(10, 60) * rng.choice([-1, 1])
    return make_problem(_tanh_F, _linear_G, normal(), c + start, 0.0, c, c=c, a=1.0, s=rng.uniform(0.2, 1))


def _clipped_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return jnp.clip(t - n["c"] + 3 * x[0], -0.5, 0.5) + 0.2 * (w - t)


def _clipped_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w - t + 0.6 * x[1]


def clipped(rng: Rng) -> tc.Problem:
    """Clipped gradients, from far."""
    c = 3 * rng.normal()
    return make_problem(_clipped_F, _clipped_G, normal(2), c + rng.uniform(10, 40) * rng.choice([-1, 1]), 0.0, c, c=c)


def _penalty_noise(n: Numbers, key: Key) -> PyTree:
    one, two = jax.random.split(key)
    return {"X": jax.random.randint(one, (8,), 0, len(n["X"])), "V": jax.random.randint(two, (8,), 0, len(n["V"]))}


def _penalty_F(n: Numbers, t: Array, w: PyTree, x: PyTree) -> Array:
    return -jnp.exp(t) * jnp.sum(w["y"] * w["v"])


def _penalty_G(n: Numbers, t: Array, w: PyTree, x: PyTree) -> PyTree:
    X, b, V, c = n["X"][x["X"]], n["b"][x["X"]], n["V"][x["V"]], n["c"][x["V"]]
    on_train = X.T @ (X @ w["y"] - b) / 8 + jnp.exp(t) * w["y"]
    curved = X.T @ (X @ w["v"]) / 8 + jnp.exp(t) * w["v"]
    return {"y": on_train, "v": curved - V.T @ (V @ w["y"] - c) / 8}


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
    return make_problem(_penalty_F, _penalty_G, _penalty_noise, best.x - 1.5, zero, best.x, X=X, b=b, V=V, c=c)


def _tasks_F(n: Numbers, t: Array, w: PyTree, x: PyTree) -> Array:
    return jnp.mean(w["v"], axis=0)


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


def meta_learning(rng: Rng) -> tc.Problem:
    """Twenty linear tasks of dimension 5, each fitted near a shared start x that is to be good on other items."""
    w = rng.normal(size=(20, 5)) + 2 * rng.normal(size=5)
    zero = {"y": np.zeros((20, 5)), "v": np.zeros((20, 5))}
    return make_problem(_tasks_F, _tasks_G, _tasks_noise, np.zeros(5), zero, w.mean(axis=0), w=w, s=rng.uniform(0.1, 1))


def _well_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return t**3 - t * w + n["s"] * x[0]


def _well_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w - n["c"] + x[1]


def double_well(rng: Rng) -> tc.Problem:
    """θ³ − cθ with c to be learnt, from near the saddle at 0; either well is a solution."""
    c = rng.uniform(0.5, 4)
    root = np.sqrt(c)
    start = rng.uniform(0.1, 0.3) * root
    return make_problem(_well_F, _well_G, normal(2), start, 0.0, [[root], [-root]], c=c, s=draw_power(rng, -1, 0))


def _valley_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    bend = n["k"] * (t[1] - w)
    return jnp.stack([t[0] - 1 - 2 * t[0] * bend, bend]) + 0.1 * x[:2]


def _valley_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w - t[0] ** 2 + 0.1 * x[2]


def rosenbrock(rng: Rng) -> tc.Problem:
    """Rosenbrock's valley, with ω for the square."""
    return make_problem(
        _valley_F, _valley_G, normal(3), rng.uniform(-1, 0.5, 2), 0.0, np.ones(2), k=rng.uniform(1, 5)
    )  # fmt: skip


def _follow_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return t - w


def _cubic_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return (w**3 - n["c"] ** 3) / n["c"] ** 2 + x


def cubic(rng: Rng) -> tc.Problem:
    """G nearly flat at the start."""
    c = rng.uniform(1, 3)
    return make_problem(_follow_F, _cubic_G, normal(), 0.0, 0.05 * c, c, c=c)


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


def _item(n: Numbers, key: Key) -> jax.Array:
    return jax.random.randint(key, (), 0, len(n["a"]))


def _loss(n: Numbers, t: Array, i: Array) -> tuple[Array, Array]:
    away = jnp.sum(n["a"][i] * t) - n["y"][i]
    return jnp.exp(away**2 / 8), away * n["a"][i]


def _robust_F(n: Numbers, t: Array, w: Array, i: Array) -> Array:
    weight, slope = _loss(n, t, i)
    return weight * slope / w


def _robust_G(n: Numbers, t: Array, w: Array, i: Array) -> Array:
    return w - _loss(n, t, i)[0]


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
    return make_problem(_robust_F, _robust_G, _item, np.zeros(5), 1.0, best.x, a=a, y=y)
