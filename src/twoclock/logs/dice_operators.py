"""Two operators of a log: DICE and TDC as problems for ``solve``.

Both are linear in (θ, ω), so that a run may begin anywhere: f and g are the operators' means over the whole log where
it begins, and the rows of a sample tell how they change from there.

    DICE:  F = f − (φ − γφ̄')(φᵀω)             G = g + φ(cφᵀω + (φ − γφ̄')ᵀθ)
    TDC:   F = f + φ(φ − γφ̄')ᵀθ + γφ̄'(φᵀω)      G = g + φ(φᵀω + (φ − γφ̄')ᵀθ)

At (0, 0) DICE has f = φ̄₀ and g = −E[φr], and TDC f = g = −E[φr].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twoclock.logs.features.protocol import Matrix
from twoclock.protocols import Key, Problem, PyTree, pytree, static

C = 1e-3
"""Of DICE; its dual value does not depend on it."""

Vector = Float[Array, " d"]
Numbers = jax.Array | np.ndarray  # of the log as it is read; JAX's inside a program


@pytree
class Dense:
    """Rows of features, a matrix."""

    rows: Numbers

    def dot(self, v: jax.Array) -> jax.Array:
        return jnp.asarray(self.rows) @ v

    def back(self, u: jax.Array, d: int) -> jax.Array:
        return u @ self.rows

    def at(self, rows: jax.Array) -> Dense:
        return Dense(self.rows[rows])


@pytree
class Listed:
    """Rows of features with few entries: their numbers and their values, as many for each row."""

    index: Numbers
    entries: Numbers

    def dot(self, v: jax.Array) -> jax.Array:
        return jnp.sum(self.entries * v[self.index], axis=1)

    def back(self, u: jax.Array, d: int) -> jax.Array:
        return jnp.zeros(d, u.dtype).at[self.index].add(self.entries * u[:, None])

    def at(self, rows: jax.Array) -> Listed:
        return Listed(self.index[rows], self.entries[rows])


@pytree
class LogProblem(Problem):
    """The operators on rows of a log: on all of them at each step, or on ``batch`` drawn from them.

    Args:
        phi: φ of each row.
        after: γφ̄' of each row.
        f, g: the operators where the run begins, at (0, 0).
        count: how many rows there are; those after them are 0, so that samples of several sizes make one program.
        kind: "dice" or "tdc".
        batch: rows a step; all of them if 0.
    """

    phi: Dense | Listed
    after: Dense | Listed
    f: Numbers
    g: Numbers
    count: float | jax.Array
    kind: Literal["dice", "tdc"] = static(default="dice")
    batch: int = static(default=0)

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        nothing = jnp.zeros_like(jnp.asarray(self.f))
        return nothing, nothing, None

    def noise(self, key: Key) -> PyTree:
        return jax.random.randint(key, (self.batch,), 0, self.count) if self.batch else ()

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return u, env

    def F(self, theta: Vector, omega: Vector, x: PyTree) -> Vector:
        phi, after, n = self._rows(x)
        w, d = phi.dot(omega), self.f.shape[0]
        if self.kind == "dice":
            return jnp.asarray(self.f) - (phi.back(w, d) - after.back(w, d)) / n
        return jnp.asarray(self.f) + (phi.back(phi.dot(theta) - after.dot(theta), d) + after.back(w, d)) / n

    def G(self, theta: Vector, omega: Vector, x: PyTree) -> Vector:
        phi, after, n = self._rows(x)
        c = jnp.asarray(C if self.kind == "dice" else 1.0, theta.dtype)
        ahead = phi.dot(theta) - after.dot(theta)
        return jnp.asarray(self.g) + phi.back(c * phi.dot(omega) + ahead, self.f.shape[0]) / n

    def _rows(self, x: PyTree) -> tuple[Dense | Listed, Dense | Listed, jax.Array | float]:
        phi, after = jax.tree.map(jnp.asarray, (self.phi, self.after))
        if not self.batch:
            return phi, after, jnp.asarray(self.count, jnp.asarray(self.f).dtype)
        return phi.at(x), after.at(x), float(self.batch)


def form(rows: Matrix, scale: np.ndarray, size: int, width: int) -> Dense | Listed:
    """Rows as a problem takes them, each feature scaled; so many, with so many entries each where they are sparse."""
    if isinstance(rows, np.ndarray):
        found = np.zeros((size, rows.shape[1]))
        np.multiply(rows, scale, out=found[: len(rows)])
        return Dense(found)
    count = np.diff(rows.indptr)
    index, entries = np.zeros((size, width), np.int32), np.zeros((size, width))
    at = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], count)
    row = np.repeat(np.arange(rows.shape[0]), count)
    index[row, at], entries[row, at] = rows.indices, rows.data * scale[rows.indices]
    return Listed(index, entries)


def longest(problem: LogProblem) -> tuple[float, float]:
    """The largest ‖φ‖² of a row, and of ‖φ − γφ̄'‖² a bound: what one sample can do."""
    phi, after = (np.square(kept(rows)).sum(axis=1) for rows in (problem.phi, problem.after))
    return float(phi.max()), float(np.square(np.sqrt(phi) + np.sqrt(after)).max())


def kept(rows: Dense | Listed) -> Numbers:
    """What is kept of the rows."""
    return rows.rows if isinstance(rows, Dense) else rows.entries


def largest(problem: LogProblem) -> tuple[float, float]:
    """The largest eigenvalues of E[φφᵀ] and of E[(φ − γφ̄')(φ − γφ̄')ᵀ], by power iteration, a little enlarged."""
    n, d = float(problem.count), problem.f.shape[0]

    def top(step: Callable[[jax.Array], jax.Array]) -> float:
        def once(v: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            new = step(v)
            size = jnp.linalg.norm(new)
            return new / jnp.maximum(size, 1e-30), size

        with jax.enable_x64(True):
            start = jnp.asarray(np.random.default_rng(0).standard_normal(d))
            return 1.05 * float(jax.lax.scan(once, start / jnp.linalg.norm(start), None, length=100)[1][-1])

    with jax.enable_x64(True):
        phi, after = jax.tree.map(jnp.asarray, (problem.phi, problem.after))

    def difference(v: jax.Array) -> jax.Array:
        u = phi.dot(v) - after.dot(v)
        return (phi.back(u, d) - after.back(u, d)) / n

    return top(lambda v: phi.back(phi.dot(v), d) / n), top(difference)
