"""Solutions of the linear system of LSTD-Q, in the directions that the log has data for.

In a basis where C = I the numbers mean something: the condition of A there does not depend on how features are scaled,
and I − A is one step of fitted Q-evaluation. A direction without data gets θ = 0; how much of the target's path leads
there is a diagnostic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from twoclock.logs.features.state_features import Matrix
from twoclock.logs.sufficient_stats import Moments
from twoclock.protocols import InputError

_RANK = 1e-11
_DENSE_SPECTRUM = 400
_AT_ONCE = 1 << 23  # numbers

Vector = Float[np.ndarray, " d"]


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions with data: ``white`` [d, rank] with whiteᵀ C white = I, or the numbers of the features seen."""

    size: int
    white: Float[np.ndarray, "d r"] | None
    seen: np.ndarray | None

    @classmethod
    def of(cls, C: Matrix) -> Basis:
        diagonal = np.maximum(C.diagonal(), 0.0)
        if not np.isfinite(diagonal).all():
            raise InputError(
                "`features` must be finite, and so must their squares, summed over the log; scale them down"
            )
        if not diagonal.any():
            raise InputError("`features` are 0 for every pair of the log; take others")
        if not isinstance(C, np.ndarray):
            return cls(C.shape[0], None, np.flatnonzero(diagonal))
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

    def down(self, v: np.ndarray) -> np.ndarray:
        """Take vectors, along the last axis, to the basis."""
        return v @ self.white if self.white is not None else v[..., self.seen]

    def up(self, v: np.ndarray) -> np.ndarray:
        """Take solutions, along the last axis, back to all features."""
        if self.white is not None:
            return v @ self.white.T
        found = np.zeros((*v.shape[:-1], self.size))
        found[..., self.seen] = v
        return found


@dataclass(frozen=True, eq=False)
class LstdSolution:
    """θ = A⁻¹b and x = A⁻ᵀφ̄₀, so that φ̄₀ᵀθ = xᵀb = Σwr with the weights w = xᵀφ.

    Attributes:
        condition: of A in the basis (an estimate in the 1-norm for sparse sums). Where A cannot be inverted the
            least-squares solution is taken.
    """

    theta: Vector
    x: Vector
    condition: float


def solve_lstd(A: Matrix, b: np.ndarray, phi0: np.ndarray, basis: Basis) -> LstdSolution:
    """Solve both systems; rows of A without data, as in a part of the log, are left out."""
    A, b, phi0 = basis.matrix(A), basis.down(b), basis.down(phi0)
    if not isinstance(A, np.ndarray):
        return _solve_sparse(A, b, phi0, basis)
    A = fill_empty_rows(A)
    if len(A) <= _DENSE_SPECTRUM:
        spectrum = np.linalg.svd(A, compute_uv=False)
        condition = float(spectrum[0] / max(spectrum[-1], 1e-300))
    else:
        condition = float(np.linalg.cond(A, 1))
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
    from scipy.sparse import diags_array, eye_array
    from scipy.sparse.linalg import LinearOperator, norm, onenormest, splu

    n, empty = A.shape[0], np.abs(A).sum(axis=1) == 0
    if empty.any():
        A = (A + diags_array(empty.astype(float))).tocsc()
    try:
        factors: Matrix = splu(A)
        solve, back = factors.solve, lambda v: factors.solve(v, "T")
        inverse: Matrix = LinearOperator(A.shape, solve, back, solve, float, back)
        condition = float(norm(A, 1) * (onenormest(inverse) if n > 4 else np.abs(solve(np.eye(n))).sum(0).max()))
    except RuntimeError:  # exactly singular
        factors = splu((A + 1e-10 * float(np.abs(A.diagonal()).max()) * eye_array(n)).tocsc())
        condition = np.inf
    return LstdSolution(basis.up(factors.solve(b)), basis.up(factors.solve(phi0, "T")), condition)


def bootstrap_values(moments: Moments, basis: Basis, counts: Float[np.ndarray, "b g"]) -> Float[np.ndarray, " b"]:
    """Solve for φ̄₀ᵀθ on resamples of whole groups of episodes, of which each is counted so often."""
    if moments.is_sparse:
        totals = (moments.total(weights) for weights in counts)
        return np.array([phi0 @ solve_lstd(A, b, phi0, basis).theta for A, b, phi0 in totals])
    A = np.stack([basis.matrix(one) for one in moments.A])
    b, phi0 = basis.down(moments.b), basis.down(moments.phi0)
    values = []
    for some in np.array_split(counts, -(-len(counts) * basis.rank**2 // _AT_ONCE)):
        theta = np.linalg.solve(fill_empty_rows(np.tensordot(some, A, 1)), (some @ b)[..., None])[..., 0]
        if moments.start is not None:
            start = np.broadcast_to(basis.down(moments.start), theta.shape)
        else:
            start = some @ phi0 / np.maximum(some @ moments.starts, 1)[:, None]
        values.append((start * theta).sum(axis=1))
    return np.concatenate(values)


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
        if (abs(counts) - abs(diags_array(counts.diagonal()))).sum() > 0:  # tiles overlap: C is no diagonal
            factors = splu((counts + 1e-10 * diags_array(counts.diagonal())).tocsc())
            step = LinearOperator((n, n), matvec=lambda v: v - factors.solve(reduced @ v), dtype=float)
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
