"""Two operators of a log: DICE and TDC as problems for ``solve``.

The log's rows are data; beside them a run keeps two vectors, θ and ω.

    DICE:  F = φ̄₀ − (φ − γφ̄')(φᵀω)             G = cφ(φᵀω) − φ(r − (φ − γφ̄')ᵀθ)
    TDC:   F = −(δφ − γφ̄'(φᵀω))               G = φ(φᵀω − δ),        δ = r + γφ̄'ᵀθ − φᵀθ
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twoclock.core import Key, PyTree, pytree, static
from twoclock.logs.features.contract import Matrix
from twoclock.logs.target import Target

Vector = Float[Array, " d"]


@pytree
class Dense:
    """Rows of features, a matrix."""

    rows: Any

    def dot(self, v: Any) -> Any:
        return self.rows @ v

    def back(self, u: Any, d: int) -> Any:
        return u @ self.rows

    def at(self, rows: Any) -> Dense:
        return Dense(self.rows[rows])


@pytree
class Listed:
    """Rows of features with few entries: their numbers and their values, as many for each row."""

    index: Any
    entries: Any

    def dot(self, v: Any) -> Any:
        return jnp.sum(self.entries * v[self.index], axis=1)

    def back(self, u: Any, d: int) -> Any:
        return jnp.zeros(d, u.dtype).at[self.index].add(self.entries * u[:, None])

    def at(self, rows: Any) -> Listed:
        return Listed(self.index[rows], self.entries[rows])


@pytree
class LogProblem:
    """Operators averaged over the whole log, or over ``batch`` of its rows drawn at each step.

    Args:
        phi: φ of each row.
        after: γφ̄' of each row.
        reward: r of each row.
        phi0: φ̄₀.
        c: of DICE; its dual value does not depend on it.
        kind: "dice" or "tdc".
        batch: rows a step; all of them if 0.
    """

    phi: Any
    after: Any
    reward: Any
    phi0: Any
    c: Any = 1e-3
    kind: Literal["dice", "tdc"] = static(default="dice")
    batch: int = static(default=0)

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        nothing = jnp.zeros_like(jnp.asarray(self.phi0))
        return nothing, nothing, None

    def noise(self, key: Key) -> PyTree:
        return jax.random.randint(key, (self.batch,), 0, len(self.reward)) if self.batch else ()

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return u, env

    def F(self, theta: Vector, omega: Vector, x: PyTree) -> Vector:
        phi, after, reward, n = self._rows(x)
        w = phi.dot(omega)
        if self.kind == "dice":
            return jnp.asarray(self.phi0) - (phi.back(w, self._size) - after.back(w, self._size)) / n
        delta = reward + after.dot(theta) - phi.dot(theta)
        return (after.back(w, self._size) - phi.back(delta, self._size)) / n

    def G(self, theta: Vector, omega: Vector, x: PyTree) -> Vector:
        phi, after, reward, n = self._rows(x)
        delta = reward + after.dot(theta) - phi.dot(theta)
        c = jnp.asarray(self.c, theta.dtype) if self.kind == "dice" else jnp.ones((), theta.dtype)
        return phi.back(c * phi.dot(omega) - delta, self._size) / n

    @property
    def _size(self) -> int:
        return self.phi0.shape[0]

    def _rows(self, x: PyTree) -> tuple[Any, Any, Any, float]:
        phi, after, reward = jax.tree.map(jnp.asarray, (self.phi, self.after, self.reward))
        if not self.batch:
            return phi, after, reward, float(len(self.reward))
        return phi.at(x), after.at(x), reward[x], float(self.batch)


def rows_of(target: Target, phi0: np.ndarray) -> tuple[LogProblem, np.ndarray]:
    """DICE of a log, and the scale of its features: each has mean square 1, or is 0 where the log has no data."""
    parts = [(target.rows(batch), batch.reward) for batch in target.log if len(batch)]
    phi, after = (_stack([rows[i] for rows, _ in parts]) for i in (0, 1))
    reward = np.concatenate([earned for _, earned in parts])
    square = (phi**2 if isinstance(phi, np.ndarray) else phi.power(2)).mean(axis=0)
    scale = np.divide(1.0, np.sqrt(square), out=np.zeros(len(square)), where=square > 0)
    return LogProblem(_form(phi, scale), _form(after, target.gamma * scale), reward, phi0 * scale), scale


def _stack(parts: list[Matrix]) -> Matrix:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from scipy.sparse import vstack

    return vstack(parts, format="csr")


def _form(rows: Matrix, scale: np.ndarray) -> Dense | Listed:
    if isinstance(rows, np.ndarray):
        return Dense(rows * scale)
    n, count = rows.shape[0], np.diff(rows.indptr)
    index, entries = np.zeros((n, max(int(count.max()), 1)), np.int32), np.zeros((n, max(int(count.max()), 1)))
    at = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], count)
    row = np.repeat(np.arange(n), count)
    index[row, at], entries[row, at] = rows.indices, rows.data * scale[rows.indices]
    return Listed(index, entries)


def longest(problem: LogProblem) -> tuple[float, float]:
    """The largest ‖φ‖² of a row, and of ‖φ − γφ̄'‖² a bound: what one sample can do."""
    phi, after = (np.square(_entries(rows)).sum(axis=1) for rows in (problem.phi, problem.after))
    return float(phi.max()), float(np.square(np.sqrt(phi) + np.sqrt(after)).max())


def _entries(rows: Dense | Listed) -> np.ndarray:
    return rows.rows if isinstance(rows, Dense) else rows.entries


def largest(problem: LogProblem) -> tuple[float, float]:
    """The largest eigenvalues of E[φφᵀ] and of E[(φ − γφ̄')(φ − γφ̄')ᵀ], by power iteration, a little enlarged."""
    n, d = len(problem.reward), problem.phi0.shape[0]

    def top(step: Any) -> float:
        def once(v: Any, _: Any) -> tuple[Any, Any]:
            new = step(v)
            size = jnp.linalg.norm(new)
            return new / jnp.maximum(size, 1e-30), size

        with jax.enable_x64(True):
            start = jnp.asarray(np.random.default_rng(0).standard_normal(d))
            return 1.05 * float(jax.lax.scan(once, start / jnp.linalg.norm(start), None, length=100)[1][-1])

    with jax.enable_x64(True):
        phi, after = jax.tree.map(jnp.asarray, (problem.phi, problem.after))

    def difference(v: Any) -> Any:
        u = phi.dot(v) - after.dot(v)
        return (phi.back(u, d) - after.back(u, d)) / n

    return top(lambda v: phi.back(phi.dot(v), d) / n), top(difference)
