"""Estimators by two-time-scale iteration with ``solve`` on rows of a log: DICE, and TDC by the fast method.

Both are linear in (θ, ω), so a run may begin anywhere: f and g are the operators' means over the whole log at the
start, and the rows of a sample show how the means change from there.

    DICE:  F = f − (φ − γφ̄')(φᵀω)             G = g + φ(cφᵀω + (φ − γφ̄')ᵀθ)
    TDC:   F = f + φ(φ − γφ̄')ᵀθ + γφ̄'(φᵀω)      G = g + φ(φᵀω + (φ − γφ̄')ᵀθ)

At (0, 0) DICE has f = φ̄₀ and g = −E[φr], and TDC f = g = −E[φr]. A pass needs O(d) memory besides its sample.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twoclock.logs.estimators import DoesNotApply, EstimatorContext, ValueEstimate, estimator
from twoclock.logs.features import Matrix
from twoclock.logs.sufficient_stats import Estimand
from twoclock.methods import Fast, Polyak, Standard
from twoclock.protocols import Key, Problem, PyTree, pytree, static
from twoclock.schedules import Constant
from twoclock.solve import solve
from twoclock.validation import check_process

TOLERANCE = 1e-10
DICE_STEPS, DICE_ROUNDS = 5_000, 64
DICE_BUDGET = 1 << 33  # numbers that DICE may process if it was not chosen by name: about half a minute
TDC_STEPS, TDC_BATCH, TDC_SEEDS = 20_000, 256, 4
NUMBERS = 1 << 22  # numbers of φ in a sample, and as many of φ̄': 64 MiB in all, however long the log is
_C = 1e-3  # the c of DICE; its dual value does not depend on it
_LOOSE = 1e-3
_PATIENCE = 24  # rounds in which the residual must halve
_WILD = 1e4  # weights overshoot by 1/c before they settle; beyond this the sample was too small
_A_STEP = 1 << 18  # numbers; of a larger sample each step draws a batch

Vector = Float[Array, " d"]
Sums = Float[np.ndarray, " d"]
Numbers = jax.Array | np.ndarray  # NumPy's while the log is read; JAX's inside a program


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
    """Rows of features with few entries: their indices and values, the same number for each row."""

    index: Numbers
    entries: Numbers

    def dot(self, v: jax.Array) -> jax.Array:
        return jnp.sum(self.entries * v[self.index], axis=1)

    def back(self, u: jax.Array, d: int) -> jax.Array:
        return jnp.zeros(d, u.dtype).at[self.index].add(self.entries * u[:, None])


Rows = DenseRows | SparseRows


@pytree
class LogProblem(Problem):
    """The operators on rows of a log: on all of them at each step, or on ``batch`` drawn from them."""

    phi: Rows  # φ of each row
    after: Rows  # γφ̄' of each row
    f: Numbers  # the operators at the start of the run, (0, 0)
    g: Numbers
    count: float | jax.Array  # rows; those after them are 0, so that all sizes share a program
    kind: Literal["dice", "tdc"] = static(default="dice")
    batch: int = static(default=0)  # rows per step; all of them if 0

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
        c = jnp.asarray(_C if self.kind == "dice" else 1.0, theta.dtype)
        ahead = phi.dot(theta) - after.dot(theta)
        return jnp.asarray(self.g) + phi.back(c * phi.dot(omega) + ahead, self.f.shape[0]) / n

    def _rows(self, x: PyTree) -> tuple[Rows, Rows, jax.Array | float]:
        phi, after = jax.tree.map(jnp.asarray, (self.phi, self.after))
        if not self.batch:
            return phi, after, jnp.asarray(self.count, jnp.asarray(self.f).dtype)
        return *jax.tree.map(lambda column: column[x], (phi, after)), float(self.batch)


def _scale_rows(rows: Matrix, scale: np.ndarray, size: int, width: int) -> Rows:
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


def _curvatures(problem: LogProblem) -> tuple[float, float]:
    """Estimate the largest eigenvalues of E[φφᵀ] and E[(φ − γφ̄')(φ − γφ̄')ᵀ] by power iteration, plus 5 %.

    If steps use a batch, the longest row with its share of the batch is added: the largest effect of one sample.
    """
    check_process()
    n, d = float(problem.count), problem.f.shape[0]

    def top(step: Callable[[jax.Array], jax.Array]) -> float:
        def once(v: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            new = step(v)
            size = jnp.linalg.norm(new)
            return new / jnp.maximum(size, 1e-30), size

        start = jnp.asarray(np.random.default_rng(0).standard_normal(d))
        return 1.05 * float(jax.lax.scan(once, start / jnp.linalg.norm(start), None, length=100)[1][-1])

    def difference(v: jax.Array) -> jax.Array:
        u = phi.dot(v) - after.dot(v)
        return (phi.back(u, d) - after.back(u, d)) / n

    with jax.enable_x64(True):
        phi, after = jax.tree.map(jnp.asarray, (problem.phi, problem.after))
        tops = top(lambda v: phi.back(phi.dot(v), d) / n), top(difference)
    if not problem.batch:
        return tops
    length, ahead = (np.square(rows.entries).sum(axis=1) for rows in (problem.phi, problem.after))
    difference_length = np.square(np.sqrt(length) + np.sqrt(ahead))
    return tops[0] + float(length.max()) / problem.batch, tops[1] + float(difference_length.max()) / problem.batch


class OperatorSums(NamedTuple):
    """Sums over rows at a point (θ, ω), and the rows that were drawn."""

    back: Sums  # Σ(φ − γφ̄')(φᵀω)
    fast: Sums  # Σφ(φᵀω)
    left: Sums  # Σφ(φ − γφ̄')ᵀθ
    earned: Sums  # Σφr
    squares: Sums  # Σφ²
    starts: Sums  # Σφ̄₀ over the starts, and their number
    rows: int  # the number of rows
    drawn: list[tuple[Matrix, Matrix]]  # φ and φ̄' of the rows drawn in each part

    @classmethod
    def over_log(cls, context: EstimatorContext, theta: Sums, omega: Sums, number: int, rows: int) -> OperatorSums:
        """Sum over the log and draw about ``rows`` rows; ``number`` seeds the draw."""
        log_rows = context.estimand.log.rows
        share = 1.0 if rows >= log_rows else 0.98 * rows / log_rows  # seldom more than fit
        parts = context.map_parts(_part_sums, theta, omega, share, number)
        return functools.reduce(lambda one, other: cls(*map(operator.add, one, other)), parts)

    def sample(self, scale: Sums, estimand: Estimand) -> tuple[Rows, Rows, int]:
        """The drawn rows, φ and γφ̄', scaled, and their number; the arrays always have the same size."""
        most, width = _sample_size(estimand)
        most = min(most, estimand.log.rows)
        if isinstance(self.drawn[0][0], np.ndarray):
            stack: Callable[..., Matrix] = np.concatenate
        else:
            from scipy.sparse import vstack

            stack = functools.partial(vstack, format="csr")
        phi, after = (stack(rows)[:most] for rows in zip(*self.drawn, strict=True))
        one = _scale_rows(phi, scale, most, width // len(estimand.log.actions or (0,)))
        return one, _scale_rows(after, scale * estimand.gamma, most, width), phi.shape[0]

    def start_and_scale(self, estimand: Estimand) -> tuple[Sums, Sums]:
        """φ̄₀, and the scale in which each feature has mean square 1; 0 where the log has no data."""
        mean = self.squares / self.rows
        scale = np.divide(1.0, np.sqrt(mean), out=np.zeros(len(mean)), where=mean > 0)
        return estimand.start if estimand.start is not None else self.starts[:-1] / self.starts[-1], scale


def _part_sums(estimand: Estimand, theta: Sums, omega: Sums, share: float, number: int, part: int) -> OperatorSums:
    """Sum over one part, and draw a share of its rows."""
    gamma, d = estimand.gamma, estimand.features.size
    back, fast, left, earned, squares = np.zeros((5, d))
    starts, rows, drawn = np.zeros(d + 1), 0, []
    rng = np.random.default_rng([number, part])
    for batch in estimand.log.batches(part):
        phi, after = estimand.rows(batch)
        w, ahead = phi @ omega, phi @ theta - gamma * (after @ theta)
        back += w @ phi - gamma * (w @ after)
        fast += w @ phi
        left += ahead @ phi
        earned += batch.reward @ phi
        squares += np.asarray((phi**2 if isinstance(phi, np.ndarray) else phi.power(2)).sum(axis=0)).ravel()
        rows += len(batch)
        if estimand.begins(batch).any():
            first = estimand.starts(batch)
            starts += np.append(np.asarray(first.sum(axis=0)).ravel(), first.shape[0])
        chosen = np.flatnonzero(rng.random(len(batch)) < share) if share < 1 else np.arange(len(batch))
        if len(chosen):
            drawn.append((phi[chosen], after[chosen]))
    return OperatorSums(back, fast, left, earned, squares, starts, rows, drawn)


def _sample_size(estimand: Estimand) -> tuple[int, int]:
    """The number of rows of a sample, and of entries in a row of φ̄': if sparse, those of φ for each action."""
    state = estimand.log.sample[0][:1]
    mean = estimand.features.mean(estimand.features.encode(state), estimand.policy.acts(state, (0, 0)))
    width = estimand.features.size if isinstance(mean, np.ndarray) else max(int(mean.nnz), 1)
    return max(NUMBERS // width, 1), width


@estimator("DICE, two operators on two clocks")
def dice(context: EstimatorContext) -> ValueEstimate:
    """The saddle of φ̄₀ᵀθ + E[(φᵀω)(r + (γφ̄' − φ)ᵀθ)] − (c/2)E[(φᵀω)²]; v̂ = E[(φᵀω)r], the dual value.

    It equals LSTD-Q's for every c. A round is a pass over the log and a run of ``solve``. The pass computes the
    operators' means at the start of the round and draws a sample of rows; the run finds the remaining correction on
    that sample. The smaller the correction, the smaller its noise, so rounds converge geometrically to the solution on
    the whole log. The memory holds some vectors and the sample, whose size does not depend on the log. ω gives the
    weights and
    with θ the influence.

    Reference: Nachum, Chow, Dai & Li, *DualDICE*, 2019; Yang et al., *Off-policy evaluation via the regularized
    Lagrangian*, 2020; the rounds: Johnson & Zhang, *Accelerating stochastic gradient descent using predictive variance
    reduction*, 2013.
    """
    estimand, most = context.estimand, _sample_size(context.estimand)[0]
    theta, omega = np.zeros((2, estimand.features.size))
    first = sums = OperatorSums.over_log(context, theta, omega, 0, most)
    n, (phi0, scale) = first.rows, first.start_and_scale(estimand)
    size = max(float(np.linalg.norm(scale * phi0)), 1e-300)
    best = np.inf, theta, omega, theta
    residuals: list[float] = []
    pace, sample, spent = 1.0, None, 0
    for number in range(DICE_ROUNDS):
        if number:
            sums = OperatorSums.over_log(context, scale * theta, scale * omega, number, most if sample is None else 0)
        f = scale * (phi0 - sums.back / n)
        g = scale * (_C * sums.fast - sums.earned + sums.left) / n
        residual = float(np.linalg.norm(f) / size)
        if residual < best[0]:
            best = residual, theta, omega, f
        residuals.append(residual)
        if not residual < _WILD * best[0]:  # return to the best point, and try again from there with smaller steps
            theta, omega = best[1:3]
            pace, sample = pace / 2, None
            continue
        if residual < TOLERANCE or (number >= _PATIENCE and not residual < residuals[-1 - _PATIENCE] / 2):
            break
        if sums.drawn:
            sample = sums.sample(scale, estimand)
        assert sample is not None
        phi, after, rows = sample
        width = phi.entries.shape[1]
        batch = max(_A_STEP // width, 1) if rows * width > _A_STEP else 0
        spent += DICE_STEPS * (batch or rows) * width
        if context.thrifty and spent > DICE_BUDGET:
            break
        problem = LogProblem(phi, after, f, g, rows, batch=batch)
        top, top_difference = _curvatures(problem)  # a step size is 1/L of its operator
        method = Standard(alpha=Constant(0.5 * pace * _C / top_difference), beta=Constant(pace / (_C * top)))
        result = solve(problem, method, DICE_STEPS, [number], marks=[DICE_STEPS], engine="xla")
        theta, omega = theta + result.theta[0], omega + result.omega[0]
        if estimand.log.rows > most:
            sample = None
    residual, theta, omega, f = best
    if not residual < _LOOSE and context.thrifty and spent > DICE_BUDGET:
        raise DoesNotApply(f"it has not converged within its budget, residual {residual:.1e}; ask for estimator='dice'")
    if not residual < _LOOSE:
        raise DoesNotApply(
            f"it has not converged after {number + 1} rounds, residual {residual:.1e}: the features are too alike"
        )
    # θᵀf is the remaining error of the dual value, up to the product of both errors.
    value = float(scale * omega @ first.earned / n + theta @ f)
    passes = f"{number + 1} passes over the log"
    note = passes if residual < TOLERANCE else f"residual {residual:.1e} after {passes}: fewer digits are right"
    scores = context.sum_scores("dice", (theta * scale)[:, None], (omega * scale)[:, None] / n)
    starts = scores.starts.sum()
    influence = scores.score[:, 0] - scores.score[:, 0].mean()
    if starts:
        influence = influence + (scores.start[:, 0] - scores.starts * scores.start[:, 0].sum() / starts) / starts
    return ValueEstimate(value, influence, None, (note,))


@estimator("Fast TDC on samples of the log")
def fast_tdc(context: EstimatorContext) -> ValueEstimate:
    """TDC's operators on ``TDC_BATCH`` rows of the log a step, averaged iterates; v̂ = φ̄₀ᵀθ.

    Its fixed point is LSTD-Q's, so its influence is the same; its note says how far the iteration is from it.

    Reference: Zeng & Doan, Algorithm 1; Sutton et al., *Fast gradient-descent methods for TD learning*, 2009.
    """
    context.require_matrix()
    estimand, zero = context.estimand, np.zeros(context.estimand.features.size)
    if (rows := _sample_size(estimand)[0]) < estimand.log.rows:
        raise DoesNotApply(f"it holds all rows in memory, with these features at most {rows:,}; take LSTD-Q")
    sums = OperatorSums.over_log(context, zero, zero, 0, rows)
    phi0, scale = sums.start_and_scale(estimand)
    begins = -scale * sums.earned / sums.rows
    phi, after, count = sums.sample(scale, estimand)
    problem = LogProblem(phi, after, begins, begins, count, kind="tdc", batch=TDC_BATCH)
    top, top_difference = _curvatures(problem)
    # Stable for means over a batch: a step must not overshoot on the mean, nor on the longest row with its share of it.
    beta = 0.2 / top
    alpha = min(0.1 / top_difference, beta)
    method = Polyak(Fast(alpha=Constant(alpha), beta=Constant(beta), lam=Constant(0.25)), power=1.0)
    result = solve(problem, method, TDC_STEPS, TDC_SEEDS, marks=[TDC_STEPS], engine="xla")
    value = float((np.asarray(result.theta) @ (scale * phi0)).mean())
    short = abs(value - float(phi0 @ context.solution.theta))
    if not short < float(np.sqrt(np.square(context.scores.score[:, 0]).sum())):
        raise DoesNotApply(f"it has not converged, it ends {short:.2g} from its fixed point; take LSTD-Q")
    note = f"ends {short:.2g} from its fixed point"
    return dataclasses.replace(context.fixed_point_estimate(value, note, bootstrap=False), comparable=False)
