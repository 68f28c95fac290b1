"""Odd step programs: loops, branches, scans, gathers, odd shapes and types; C and XLA agree, or C is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import twoclock as tc
from faults._worker import foreign

NAME = "odd step programs"
TRIALS = 40


def _loop(v: Any, n: int) -> Any:
    return lax.fori_loop(0, n, lambda i, s: s * 0.9 + 0.01 * i, v)


def _while(v: Any, n: int) -> Any:
    return lax.while_loop(lambda s: jnp.max(jnp.abs(s)) > 0.5, lambda s: s * 0.7, jnp.clip(v, -5, 5))


def _scan(v: Any, n: int) -> Any:
    return lax.scan(lambda s, y: (0.5 * s + y, s), jnp.zeros((), v.dtype), jnp.tile(v, n))[1][: v.size]


PIECES: dict[str, Callable[[Any, int], Any]] = {
    "fori": _loop,
    "while": _while,
    "scan": _scan,
    "cond": lambda v, n: lax.cond(v[0] > 0, lambda u: u + n, lambda u: u * 0.5, v),
    "switch": lambda v, n: lax.switch(jnp.int32(jnp.abs(v[0])) % 3, [jnp.sin, jnp.cos, lambda u: u], v),
    "gather": lambda v, n: v[(jnp.arange(v.size) * n) % v.size],
    "scatter": lambda v, n: v.at[n % v.size].add(0.1),
    "dynamic slice": lambda v, n: jnp.roll(lax.dynamic_slice(v, (jnp.int32(n % v.size),), (1,)), 0) + v * 0.1,
    "matmul": lambda v, n: jnp.full((v.size, v.size), 0.1, v.dtype) @ v,
    "solve": lambda v, n: jnp.linalg.solve(jnp.eye(v.size, dtype=v.dtype) * (n + 1), v),
    "sort": lambda v, n: jnp.sort(v),
    "cumsum": lambda v, n: jnp.cumsum(v) * 0.1,
    "outer": lambda v, n: jnp.outer(v, v).sum(axis=0) * 0.01,
    "einsum": lambda v, n: jnp.einsum("i,j->i", v, v) * 0.01,
    "reshape": lambda v, n: jnp.tile(v, 6).reshape(6, -1).T.mean(axis=1),
    "softmax": lambda v, n: jax.nn.softmax(v * n),
    "random": lambda v, n: v + 0.01 * jax.random.normal(jax.random.key(n), v.shape, v.dtype),
    "gradient": lambda v, n: jax.grad(lambda u: jnp.sum(jnp.tanh(u) ** 2))(v),
    "vmap": lambda v, n: jax.vmap(lambda u: u * jnp.cos(u))(v),
    "integers": lambda v, n: ((v * 100).astype(jnp.int32) // (n + 1) % 7).astype(v.dtype) * 0.1,
    "custom_jvp": lambda v, n: jax.nn.relu(v) - 0.1 * jax.nn.silu(v),
    "fft": lambda v, n: jnp.real(jnp.fft.fft(v)) * 0.1,
}


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    names = [str(name) for name in rng.choice(list(PIECES), int(rng.integers(1, 4)), replace=False)]
    size, number = int(rng.integers(1, 7)), int(rng.integers(1, 6))

    def f(v: Any) -> Any:
        for name in names:
            v = PIECES[name](v, number)
        return jnp.clip(v, -5, 5)

    problem = tc.problems.custom(
        lambda t, w, x: 0.1 * (t - f(t)) + 0.01 * x,
        lambda t, w, x: w - f(w) * 0.5,
        lambda k: jax.random.normal(k, (size,)),
        np.linspace(-1, 1, size),
        np.linspace(0.5, 1.5, size),
    )
    seeds, precision = int(rng.choice([1, 4, 9])), str(rng.choice(["float64", "float32"]))
    found: dict[str, Any] = {}

    def solve(engine: Any) -> None:
        found[engine] = tc.solve(problem, tc.Fast(), 300, seeds, [300], precision, engine=engine)  # type: ignore[arg-type]

    for engine in ("xla", "c"):
        if trouble := foreign(lambda engine=engine: solve(engine)):
            return "agree", f"{names}, {size}, {engine}: {trouble}"
    if "c" not in found:
        return "C is left out", None
    close = np.allclose(found["c"].theta, found["xla"].theta, rtol=2e-3 if precision == "float32" else 1e-9, atol=1e-6)
    return "agree", None if close else f"{names}, {size} entries, {seeds} seeds, {precision}: another end"
