"""Linear systems of LSTD-Q, in the directions that the log has data for.

In a basis where C = I the condition of A does not depend on how features are scaled,
and I − A is one step of fitted Q-evaluation. A direction without data gets θ = 0; the share of the target's path that
leads there is a diagnostic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from twoclock.logs.features import Matrix
from twoclock.logs.sufficient_stats import Moments
from twoclock.protocols import InputError

Vector = Float[np.ndarray, " d"]
_RANK = 1e-11
_RIDGE = 1e-10  # for overlapping sparse features, relative to their squares; replaces a rank cut-off
_REFINEMENTS, _POWER_STEPS = 2, 12
_STAGES = (20, 1, 1e-2), (50, 4, 1e-12)  # steps and cycles of GMRES, and the residual by then, or LU is faster
_DENSE_SPECTRUM = 400
_AT_ONCE = 1 << 23  # numbers
_EXACT = 1e-9  # of the value
_LEAST_SHARE = 0.2  # of the standard error; a resample without the rare event that carries it would have none


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions with data: ``white`` [d, rank] with whiteᵀ C white = I, or the numbers of the features seen.

    Of sparse features that overlap, such as tiles, some combinations may be 0 on all of the log. ``overlap`` is then C,
    and a negligible ridge puts θ = 0 in those directions, as the dense basis does.
    """

    size: int
    white: Float[np.ndarray, "d r"] | None
    seen: np.ndarray | None
    overlap: Matrix = None

    @classmethod
    def of(cls, C: Matrix) -> Basis:
        diagonal = np.maximum(C.diagonal(), 0.0)
        if not np.isfinite(diagonal).all():
            raise InputError("`features` must be finite, and so must the sums of their squares; scale them down")
        if not diagonal.any():
            raise InputError("`features` are 0 for every pair of the log; take others")
        if not isinstance(C, np.ndarray):
            seen = np.flatnonzero(diagonal)
            overlaps = C.count_nonzero() > len(seen)
            return cls(C.shape[0], None, seen, C[seen][:, seen].tocsc() if overlaps else None)
        scale = np.sqrt(diagonal)
        scale[scale == 0] = 1.0
        values, vectors = np.linalg.eigh(C / scale / scale[:, None])
        keep = values > _RANK * max(values[-1], 1e-300)
        return cls(len(C), vectors[:, keep] / np.sqrt(values[keep]) / scale[:, None], None)

    @property
    def rank(self) -> int:
        return self.white.shape[1] if self.white is not None else len(self.seen)  # type: ignore[arg-type]

    def matrix(self, M: Matrix) -> Matrix:
        if self.white is not None:
            return self.white.T @ M @ self.white
        return M[self.seen][:, self.seen].tocsc()

    @property
    def ridge(self) -> Matrix:
        """The ridge of sparse features that overlap."""
        from scipy.sparse import diags_array

        return _RIDGE * diags_array(self.overlap.diagonal())

    def down(self, v: np.ndarray) -> np.ndarray:
        """Transform vectors, along the last axis, to the basis."""
        return v @ self.white if self.white is not None else v[..., self.seen]

    def up(self, v: np.ndarray) -> np.ndarray:
        """Transform solutions, along the last axis, back to all features."""
        if self.white is not None:
            return v @ self.white.T
        found = np.zeros((*v.shape[:-1], self.size))
        found[..., self.seen] = v
        return found


@dataclass(frozen=True, eq=False)
class LstdSolution:
    """θ = A⁻¹b and x = A⁻ᵀφ̄₀, so that φ̄₀ᵀθ = xᵀb = Σwr with the weights w = xᵀφ; by least squares if A is singular."""

    theta: Vector
    x: Vector
    condition: float  # of A in the basis; an estimate in the 1-norm for sparse sums


def solve_lstd(A: Matrix, b: np.ndarray, phi0: np.ndarray, basis: Basis) -> LstdSolution:
    """Solve both systems; rows of A without data, as in a part of the log, are left out."""
    A, b, phi0 = basis.matrix(A), basis.down(b), basis.down(phi0)
    if not isinstance(A, np.ndarray):
        return _solve_sparse(A, b, phi0, basis)
    A = fill_empty_rows(A)
    condition = float(np.linalg.cond(A, None if len(A) <= _DENSE_SPECTRUM else 1))
    if condition > 1e14:
        theta, x = (np.linalg.lstsq(M, v, rcond=1e-12)[0] for M, v in ((A, b), (A.T, phi0)))
    else:
        theta, x = np.linalg.solve(A, b), np.linalg.solve(A.T, phi0)
    return LstdSolution(basis.up(theta), basis.up(x), condition)


def fill_empty_rows(A: np.ndarray) -> np.ndarray:
    """Put 1 on the diagonal of rows of A that are all 0; ``A`` may be a stack."""
    empty = ~A.any(axis=-1)
    if empty.any():
        A = A.copy()
        A[(*np.nonzero(empty), np.nonzero(empty)[-1])] = 1.0
    return A


def _solve_sparse(A: Matrix, b: np.ndarray, phi0: np.ndarray, basis: Basis) -> LstdSolution:
    from scipy.sparse import diags_array

    if basis.overlap is not None:
        return _solve_overlapping(A, b, phi0, basis)
    empty = np.abs(A).sum(axis=1) == 0
    if empty.any():
        A = (A + diags_array(empty.astype(float))).tocsc()
    theta, x, condition = solve_sparse(A, b, phi0)
    return LstdSolution(basis.up(theta), basis.up(x), condition)


def solve_sparse(A: Matrix, b: np.ndarray, phi0: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """θ = A⁻¹b, x = A⁻ᵀφ̄₀ and the condition in the 1-norm, by iteration if A is an M-matrix, otherwise by LU."""
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import LinearOperator, norm, onenormest, splu

    if (found := _iterate(A, b, phi0)) is not None:
        return found
    n = A.shape[0]
    try:
        factors: Matrix = splu(A)
        solve, back = factors.solve, lambda v: factors.solve(v, "T")
        inverse: Matrix = LinearOperator(A.shape, solve, back, solve, float, back)
        condition = float(norm(A, 1) * (onenormest(inverse) if n > 4 else np.abs(solve(np.eye(n))).sum(0).max()))
    except RuntimeError:  # exactly singular
        factors = splu((A + 1e-10 * float(np.abs(A.diagonal()).max()) * eye_array(n)).tocsc())
        condition = np.inf
    return factors.solve(b), factors.solve(phi0, "T"), condition


def _iterate(A: Matrix, b: np.ndarray, phi0: np.ndarray) -> tuple[np.ndarray, np.ndarray, float] | None:
    """Solve by GMRES; None if A is no M-matrix, or if that takes many steps.

    A table's A is an M-matrix, counts times I − γP. Its LU fills in where successors are far apart, and there the
    iteration is fast. Without positive entries off the diagonal, y = A⁻ᵀ1 ≥ 0 shows that A⁻¹ ≥ 0, so ‖A⁻¹‖₁ = max y.
    """
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import gmres, norm

    diagonal = A.diagonal()
    if not (diagonal > 0).all() or (A - diags_array(diagonal)).max() > 0:
        return None
    near, back, found = diags_array(1 / diagonal), A.T.tocsr(), []
    for M, right in ((A.tocsr(), b), (back, phi0), (back, np.ones(len(b)))):
        v = np.zeros(len(b))
        for steps, cycles, limit in _STAGES:
            v, _ = gmres(M, right, v, rtol=limit / 10, restart=steps, maxiter=cycles, M=near)
            if not np.linalg.norm(right - M @ v) <= limit * np.linalg.norm(right):
                return None
        found.append(v)
    theta, x, y = found
    return (theta, x, float(norm(A, 1) * y.max())) if y.min() >= 0 else None


def _solve_overlapping(A: Matrix, b: np.ndarray, phi0: np.ndarray, basis: Basis) -> LstdSolution:
    """Solve with a ridge, then remove its effect where there is data; the condition is ‖A‖‖A⁻¹‖ in the metric C."""
    from scipy.sparse.linalg import splu

    C: Matrix = basis.overlap
    factors: Matrix = splu((A + basis.ridge).tocsc())
    theta, x = factors.solve(b), factors.solve(phi0, "T")
    for _ in range(_REFINEMENTS):
        theta, x = theta + factors.solve(b - A @ theta), x + factors.solve(phi0 - A.T @ x, "T")
    metric: Matrix = splu((C + basis.ridge).tocsc())
    norms, v = [], np.random.default_rng(0).standard_normal(len(b))
    steps: list[tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]] = [
        (lambda u: factors.solve(C @ u), lambda u: factors.solve(C @ u, "T")),
        (lambda u: metric.solve(A @ u), lambda u: metric.solve(A.T @ u)),
    ]
    for there, back in steps:  # power iteration for the largest singular value in the metric C
        u = metric.solve(C @ v)
        for _ in range(_POWER_STEPS):
            u = u / (float(np.sqrt(max(u @ (C @ u), 0.0))) or 1.0)
            # C removes what rounding adds in directions without data, which would grow by 1/_RIDGE in each step.
            w = metric.solve(C @ there(u))
            u = metric.solve(C @ back(w))
        norms.append(float(np.sqrt(max(w @ (C @ w), 0.0))))
    return LstdSolution(basis.up(theta), basis.up(x), norms[0] * norms[1])


def bootstrap_values(moments: Moments, basis: Basis, counts: Float[np.ndarray, "r g"]) -> Float[np.ndarray, " r"]:
    """Solve for φ̄₀ᵀθ on resamples of whole groups of episodes, given the count of each group."""
    if moments.is_sparse:
        totals = (moments.total(weights) for weights in counts)
        return np.array([phi0 @ solve_lstd(A, b, phi0, basis).theta for A, b, phi0 in totals])
    A = np.stack([basis.matrix(one) for one in moments.A])
    solved = (_resampled(moments, basis, A, some) for some in _few_at_once(counts, basis))
    return np.concatenate([(start * theta).sum(axis=1) for _, theta, start in solved])


def studentized_values(moments: Moments, basis: Basis, counts: Float[np.ndarray, "r g"]) -> Float[np.ndarray, " r"]:
    """(v* − v̂)/se* on resamples of groups of episodes: v* and its standard error se* are those of the resample.

    The standard error is from the sums of groups, Σ_g (xᵀ(b_g − A_gθ) + start)², with the resample's own θ and x. So
    the law of this ratio includes how the error of the estimate and its standard error depend on each other.
    """
    A, b, phi0 = np.stack([basis.matrix(one) for one in moments.A]), basis.down(moments.b), basis.down(moments.phi0)
    found = []
    for some in _few_at_once(np.vstack([np.ones(counts.shape[1]), counts]), basis):
        sums, theta, start = _resampled(moments, basis, A, some)
        x = _solve_each(sums.swapaxes(1, 2), start)
        value = (start * theta).sum(axis=1)
        scores = x @ b.T - (np.tensordot(x, A, (1, 1)) * theta[:, None]).sum(axis=2)
        if moments.start is None:
            scores += (theta @ phi0.T - np.outer(value, moments.starts)) / np.maximum(some @ moments.starts, 1)[:, None]
        mean = (some * scores).sum(axis=1, keepdims=True) / some.sum(axis=1, keepdims=True)
        found.append(np.stack([value, np.sqrt((some * (scores - mean) ** 2).sum(axis=1))]))
    value, se = np.hstack(found)
    if not se[0] > _EXACT * abs(float(value[0])):  # ratios of rounding errors
        return np.zeros(len(counts))
    return (value[1:] - value[0]) / np.maximum(se[1:], _LEAST_SHARE * se[0])


def _resampled(
    moments: Moments, basis: Basis, A: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, θ and φ̄₀ of each resample; a row of A that a resample lacks is that of the whole log."""
    b = basis.down(moments.b)
    sums, right = np.tensordot(counts, A, 1), counts @ b
    lacking = ~np.asarray(sums.any(axis=2))
    sums = np.where(lacking[..., None], A.sum(axis=0), sums)
    right = np.where(lacking, b.sum(axis=0), right)
    start = counts @ basis.down(moments.phi0) / np.maximum(counts @ moments.starts, 1)[:, None]
    if moments.start is not None:
        start = np.broadcast_to(basis.down(moments.start), start.shape)
    return sums, _solve_each(sums, right), start


def _few_at_once(counts: np.ndarray, basis: Basis) -> list[np.ndarray]:
    """Parts of the resamples whose matrices fit in memory together."""
    return np.array_split(counts, -(-len(counts) * basis.rank * max(basis.rank, counts.shape[1]) // _AT_ONCE))


def _solve_each(matrices: np.ndarray, right: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.solve(matrices, right[..., None])[..., 0]
    except np.linalg.LinAlgError:  # a resample that lacks a combination of features
        return (np.linalg.pinv(matrices, 1e-12) @ right[..., None])[..., 0]


def step_radius(A: Matrix, C: Matrix, basis: Basis) -> float:
    """The spectral radius of a step of fitted Q-evaluation, ρ(I − C⁻¹A); from 1 on it diverges."""
    reduced = basis.matrix(A)
    n = reduced.shape[0]
    if isinstance(reduced, np.ndarray):
        step: Matrix = np.eye(n) - reduced
        if n <= _DENSE_SPECTRUM:
            return float(np.abs(np.linalg.eigvals(step)).max(initial=0.0))
    else:
        from scipy.sparse import diags_array, eye_array
        from scipy.sparse.linalg import LinearOperator, splu

        counts = basis.matrix(C)
        if basis.overlap is not None:
            factors = splu((counts + basis.ridge).tocsc())
            step = LinearOperator((n, n), matvec=lambda v: factors.solve(counts @ v - reduced @ v), dtype=float)
        else:
            step = eye_array(n) - diags_array(1 / counts.diagonal()) @ reduced
        if n < 4:
            return float(np.abs(np.linalg.eigvals(step @ np.eye(n))).max())
    from scipy.sparse.linalg import ArpackError, eigs

    try:
        top = eigs(step, k=1, return_eigenvectors=False, maxiter=2_000, tol=1e-4, v0=np.ones(n))
    except ArpackError:
        return float("nan")
    return float(np.abs(top)[0])
