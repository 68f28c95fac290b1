"""Random problems of regression, odd noise, odd units and many entries, each with a known solution."""

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from reproduction.experiments.hard_problems import (
    Array,
    Numbers,
    Rng,
    draw_power,
    gradient_in_omega,
    make_problem,
    normal,
)
from twoclock.protocols import Key, PyTree


def _logistic_noise(n: Numbers, key: Key) -> PyTree:
    one, two = jax.random.split(key)
    a = jax.random.normal(one, n["truth"].shape)
    likely = jax.nn.sigmoid(jnp.sum(a * n["truth"]))
    return {"a": a, "b": jnp.where(jax.random.uniform(two) < likely, 1.0, 0.0)}


def _logistic_G(n: Numbers, t: Array, w: Array, x: PyTree) -> Array:
    return w - (jax.nn.sigmoid(jnp.sum(x["a"] * t)) - x["b"]) * x["a"]


def logistic_regression(rng: Rng) -> tc.Problem:
    """Ten coefficients, and ω for the gradient."""
    truth = rng.uniform(0.3, 1.5) * rng.normal(size=10) / np.sqrt(2)
    zero = np.zeros(10)
    return make_problem(gradient_in_omega, _logistic_G, _logistic_noise, zero, zero, truth, truth=truth)


def _growth_noise(n: Numbers, key: Key) -> PyTree:
    one, two = jax.random.split(key)
    a = jax.random.uniform(one, n["truth"].shape, minval=-1.0, maxval=1.0)
    return {"a": a, "b": jnp.exp(jnp.sum(a * n["truth"]) + 0.5 * jax.random.normal(two) - 0.125)}


def _growth_G(n: Numbers, t: Array, w: Array, x: PyTree) -> Array:
    return w - (jnp.exp(jnp.sum(x["a"] * t)) - x["b"]) * x["a"]


def exponential_regression(rng: Rng) -> tc.Problem:
    """E b = exp(aᵀθ) with noise in proportion, three coefficients: steep on one side and flat on the other."""
    truth, zero = rng.uniform(0.5, 2) * rng.normal(size=3), np.zeros(3)
    return make_problem(gradient_in_omega, _growth_G, _growth_noise, zero, zero, truth, truth=truth)


def _loud_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return t - n["c"] + 0.5 * (w - t) + x * (1 + n["m"] * jnp.abs(t))


def _loud_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w - t + x * (1 + jnp.abs(w))


def multiplicative_noise(rng: Rng) -> tc.Problem:
    """Noise that grows with θ and ω."""
    c, zero = 2 * rng.normal(size=2), np.zeros(2)
    return make_problem(_loud_F, _loud_G, normal(2), zero + 5, zero, c, c=c, m=rng.uniform(0.5, 3))


def _shallow_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w - n["c"] + 0.1 * x


def _shallow_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return n["e"] * (w - t) + n["e"] * n["s"] * x


def nearly_singular(rng: Rng) -> tc.Problem:
    """G of a slope of 10⁻³ to 10⁻², and a million samples."""
    c, e = rng.normal(), draw_power(rng, -3, -2)
    return make_problem(_shallow_F, _shallow_G, normal(), 0.0, 0.0, c, c=c, e=e, s=rng.uniform(1, 10))


def _scaled_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    a, b = t / n["slow"], w / n["fast"]
    return n["of_F"] * (n["H"] @ (a - n["c"]) + 0.5 * (b - a) + 0.3 * x)


def _scaled_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return n["of_G"] * (w / n["fast"] - t / n["slow"] + 0.3 * x)


def units(rng: Rng) -> tc.Problem:
    """A linear problem with θ, ω, F and G each in its own unit, 10⁻⁶ to 10⁶; the error is in the unit of θ."""
    A, zero = rng.normal(size=(3, 3)), np.zeros(3)
    H, c = A @ A.T / 3 + 0.3 * np.eye(3) + 0.3 * (A - A.T), rng.normal(size=3)
    scale = {name: draw_power(rng, -6, 6) for name in ("slow", "fast", "of_F", "of_G")}
    return make_problem(_scaled_F, _scaled_G, normal(3), zero, zero, c * scale["slow"], H=H, c=c, **scale)


def _wide_F(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return n["h"] * (t - n["c"]) + 0.5 * (w - t)


def _wide_G(n: Numbers, t: Array, w: Array, x: Array) -> Array:
    return w - t + n["s"] * x


def many_entries(rng: Rng) -> tc.Problem:
    """Ten thousand entries of θ with curvatures of 1 to 1/30, and as many of ω."""
    size = 10_000
    c, zero = rng.normal(size=size), np.zeros(size)
    h = np.geomspace(1, 1 / 30, size)
    return make_problem(_wide_F, _wide_G, normal(size), zero, zero, c, c=c, h=h, s=rng.uniform(0.1, 1))
