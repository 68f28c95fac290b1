"""DICE and TDC on a log as problems for ``solve``, and the passes that give their operators' means.

Both are linear in (θ, ω), so that a run may begin anywhere: f and g are the operators' means over the whole log where
it begins, and the rows of a sample say how they change from there.

    DICE:  F = f − (φ − γφ̄')(φᵀω)             G = g + φ(cφᵀω + (φ − γφ̄')ᵀθ)
    TDC:   F = f + φ(φ − γφ̄')ᵀθ + γφ̄'(φᵀω)      G = g + φ(φᵀω + (φ − γφ̄')ᵀθ)

At (0, 0) DICE has f = φ̄₀ and g = −E[φr], and TDC f = g = −E[φr]. A pass needs memory of O(d) beside its sample.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twoclock.logs.estimator_context import EstimatorContext
from twoclock.logs.features.state_features import Matrix
from twoclock.logs.sufficient_stats import Estimand
from twoclock.protocols import Key, Problem, PyTree, pytree, static

C = 1e-3
"""Of DICE; its dual value does not depend on it."""
NUMBERS = 1 << 22
"""So many numbers a sample holds of φ, and as many of φ̄': 64 MiB in all, however long the log is."""

Vector = Float[Array, " d"]
Sums = Float[np.ndarray, " d"]
Numbers = jax.Array | np.ndarray  # of the log as it is read; JAX's inside a program


@pytree
class DenseRows:
    """Rows of features, a matrix."""

    entries: Numbers

    def dot(self, v: jax.Array) -> jax.Array:
        return jnp.asarray(self.entries) @ v

    def back(self, u: jax.Array, d: int) -> jax.Array:
        return u @ self.entries


@pytree
class SparseRows:
    """Rows of features with few entries: their numbers and their values, as many for each row."""

    index: Numbers
    entries: Numbers

    def dot(self, v: jax.Array) -> jax.Array:
        return jnp.sum(self.entries * v[self.index], axis=1)

    def back(self, u: jax.Array, d: int) -> jax.Array:
        return jnp.zeros(d, u.dtype).at[self.index].add(self.entries * u[:, None])


Rows = DenseRows | SparseRows


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

    phi: Rows
    after: Rows
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

    def _rows(self, x: PyTree) -> tuple[Rows, Rows, jax.Array | float]:
        phi, after = jax.tree.map(jnp.asarray, (self.phi, self.after))
        if not self.batch:
            return phi, after, jnp.asarray(self.count, jnp.asarray(self.f).dtype)
        return *jax.tree.map(lambda column: column[x], (phi, after)), float(self.batch)


def scale_rows(rows: Matrix, scale: np.ndarray, size: int, width: int) -> Rows:
    """Scale each feature of the rows; pad them to ``size`` rows, with ``width`` entries each where they are sparse."""
    if isinstance(rows, np.ndarray):
        found = np.zeros((size, rows.shape[1]))
        np.multiply(rows, scale, out=found[: len(rows)])
        return DenseRows(found)
    count = np.diff(rows.indptr)
    index, entries = np.zeros((size, width), np.int32), np.zeros((size, width))
    at = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], count)
    row = np.repeat(np.arange(rows.shape[0]), count)
    index[row, at], entries[row, at] = rows.indices, rows.data * scale[rows.indices]
    return SparseRows(index, entries)


def curvatures(problem: LogProblem) -> tuple[float, float]:
    """Estimate the largest eigenvalues of E[φφᵀ] and E[(φ − γφ̄')(φ − γφ̄')ᵀ] by power iteration, plus 5 %.

    Where steps are on a batch, the longest row with its share of the batch is added: what one sample can do.
    """
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

    tops = top(lambda v: phi.back(phi.dot(v), d) / n), top(difference)
    if not problem.batch:
        return tops
    length, ahead = (np.square(rows.entries).sum(axis=1) for rows in (problem.phi, problem.after))
    difference_length = np.square(np.sqrt(length) + np.sqrt(ahead))
    return tops[0] + float(length.max()) / problem.batch, tops[1] + float(difference_length.max()) / problem.batch


@dataclass
class OperatorSums:
    """Sums over all rows at a point (θ, ω), and the rows that were drawn.

    Attributes:
        back: Σ(φ − γφ̄')(φᵀω).
        fast: Σφ(φᵀω).
        left: Σφ(φ − γφ̄')ᵀθ.
        earned: Σφr.
        squares: Σφ².
        starts: Σφ̄₀ over the starts, and how many there are behind it.
        drawn: φ and φ̄' of the rows drawn in each part.
    """

    back: Sums
    fast: Sums
    left: Sums
    earned: Sums
    squares: Sums
    starts: Sums
    rows: int = 0
    drawn: list[tuple[Matrix, Matrix]] = field(default_factory=list)

    @classmethod
    def over_log(cls, context: EstimatorContext, theta: Sums, omega: Sums, number: int, rows: int) -> OperatorSums:
        """Sum over the log and draw about so many rows; ``number`` makes its draw another one."""
        log_rows = context.estimand.log.rows
        share = 1.0 if rows >= log_rows else 0.98 * rows / log_rows  # seldom more than fit
        parts = context.map_parts(_part_sums, theta, omega, share, number)
        total = next(parts)
        for part in parts:
            for name in ("back", "fast", "left", "earned", "squares", "starts", "rows"):
                setattr(total, name, getattr(total, name) + getattr(part, name))
            total.drawn += part.drawn
        return total

    def sample(self, scale: Sums, estimand: Estimand) -> tuple[Rows, Rows, int]:
        """The drawn rows, φ and γφ̄', scaled, and how many they are; the arrays always have the same size."""
        most, width = min(most_rows(estimand), estimand.log.rows), _entries_of_a_mean(estimand)
        if isinstance(self.drawn[0][0], np.ndarray):
            stack: Callable[..., Matrix] = np.concatenate
        else:
            from scipy.sparse import vstack

            stack = functools.partial(vstack, format="csr")
        phi, after = (stack(rows)[:most] for rows in zip(*self.drawn, strict=True))
        one = scale_rows(phi, scale, most, width // len(estimand.log.actions or (0,)))
        return one, scale_rows(after, scale * estimand.gamma, most, width), phi.shape[0]

    def phi0(self, estimand: Estimand) -> Sums:
        return estimand.start if estimand.start is not None else self.starts[:-1] / self.starts[-1]

    def scale(self) -> Sums:
        """The scale in which each feature has mean square 1; 0 where the log has no data."""
        mean = self.squares / self.rows
        return np.divide(1.0, np.sqrt(mean), out=np.zeros(len(mean)), where=mean > 0)


def _part_sums(estimand: Estimand, theta: Sums, omega: Sums, share: float, number: int, part: int) -> OperatorSums:
    """Sum over one part, and draw a share of its rows."""
    gamma, d = estimand.gamma, estimand.features.size
    sums = OperatorSums(*np.zeros((5, d)), *np.zeros((1, d + 1)))
    rng = np.random.default_rng([number, part])
    for batch in estimand.log.batches(part):
        phi, after = estimand.rows(batch)
        w, ahead = phi @ omega, phi @ theta - gamma * (after @ theta)
        sums.back += w @ phi - gamma * (w @ after)
        sums.fast += w @ phi
        sums.left += ahead @ phi
        sums.earned += batch.reward @ phi
        sums.squares += np.asarray((phi**2 if isinstance(phi, np.ndarray) else phi.power(2)).sum(axis=0)).ravel()
        sums.rows += len(batch)
        if estimand.begins(batch).any():
            starts = estimand.starts(batch)
            sums.starts += np.append(np.asarray(starts.sum(axis=0)).ravel(), starts.shape[0])
        chosen = np.flatnonzero(rng.random(len(batch)) < share) if share < 1 else np.arange(len(batch))
        if len(chosen):
            sums.drawn.append((phi[chosen], after[chosen]))
    return sums


def most_rows(estimand: Estimand) -> int:
    """How many rows a sample may have."""
    return max(NUMBERS // _entries_of_a_mean(estimand), 1)


def _entries_of_a_mean(estimand: Estimand) -> int:
    """How many entries a row of φ̄' has: as many as φ, or as many for each action where rows are sparse."""
    state = estimand.log.sample(2)[0][:1]
    mean = estimand.features.mean(estimand.features.encode(state), estimand.policy.acts(state, (0, 0)))
    return estimand.features.size if isinstance(mean, np.ndarray) else max(int(mean.nnz), 1)
