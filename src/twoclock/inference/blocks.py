"""Block scores: error bars for the solution of a linear equation from sums of its scores over blocks of the samples.

    Jz + c = 0 on average, estimate ẑ:        G_b = Σ_{i in b} (J_i ẑ + c_i),   y_b = −(ΣJ)⁻¹(G_b − (n_b/n) ΣG)
    Cov(ẑ) ≈ Σ y_b y_bᵀ / (1 − Σ (n_b/n)²),        interval cᵀẑ ± t √(cᵀ Cov c),   t of Student with 1/Σ(n_b/n)² − 1

Every score is taken at the final estimate. Blocks must be longer than the chain's memory and need nothing else: an
episode is a block, and one long stream is cut into at most ``block_sums.SLOTS`` of one length.

That number is the rule for the length. With a fixed number of blocks their length grows with n as fast as it can, so
that no chain is too slow in the end and nothing has to be known of it; that the variance is then never known exactly,
however long the run, is what Student's t accounts for. It costs little: with 16 blocks intervals are 7 % longer than
those of an oracle on average, with 32 they are 3 % longer. A length of n^⅓ would be shorter than the memory of a slow
chain for any n that one has.

Reference: Bradley, Fox & Schrage, *A guide to simulation*, 1987, Section 3.3 (a fixed number of batch means);
Liang & Zeger 1986 (the sandwich, clustered).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.arrays import as_array
from twoclock.core import Given, InputError
from twoclock.inputs import number, whole

FEWEST = 10  # blocks, below which an interval carries a note
_FAR = 0.25  # of half a length: an average that is so far from the solution of its samples covers .92, not .95
_ALIKE = 2.33  # of 1/√blocks: the lag-1 correlation of independent blocks is larger in one case of a hundred


@dataclass(frozen=True)
class Intervals:
    """Intervals of some outputs, and what speaks against each of them; empty where nothing does."""

    estimate: Float[np.ndarray, " m"]
    low: Float[np.ndarray, " m"]
    high: Float[np.ndarray, " m"]
    note: list[str]


@dataclass(frozen=True, eq=False)
class Sandwich:
    """An estimate and what each block says of its error.

    Attributes:
        estimate: ẑ.
        influence: y_b, a row a block: how much the block moved the estimate.
        shift: the solution of the samples minus the estimate; 0 where the estimate solves them.
        weights: n_b/n.
        ordered: whether blocks follow each other in time, so that neighbours could be alike.
    """

    estimate: Float[np.ndarray, " d"]
    influence: Float[np.ndarray, "b d"]
    shift: Float[np.ndarray, " d"]
    weights: Float[np.ndarray, " b"]
    ordered: bool = True

    @property
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """Of the estimate; no 1/n is left to apply."""
        return self.influence.T @ self.influence / (1 - np.sum(np.square(self.weights)))

    @property
    def freedom(self) -> float:
        """The degrees of freedom of Student's t, one less than the number of blocks where they are of one length."""
        return float(1 / np.sum(np.square(self.weights)) - 1)

    def correlation(self, directions: Float[np.ndarray, "m d"]) -> Float[np.ndarray, " m"]:
        """Of each block with the next; where it is positive, blocks are too short and intervals too."""
        moved = self.influence @ directions.T
        total = np.sum(np.square(moved), axis=0)
        lagged = np.sum(moved[1:] * moved[:-1], axis=0)
        return np.divide(lagged, total, out=np.zeros_like(total), where=total > 0)

    def interval(self, directions: Given[ArrayLike | None] = None, level: Given[float] = 0.95) -> Intervals:
        """Intervals for the outputs cᵀz, one row c each; for each entry of z where none are given."""
        from scipy.special import stdtrit

        number("level", level, 0, 1, above=True, below=True, remedy="try 0.95")
        c = np.eye(len(self.estimate)) if directions is None else as_array("directions", directions)
        if c.ndim != 2 or c.shape[1] != len(self.estimate):
            raise InputError(f"`directions` must have {len(self.estimate)} columns, got the shape {c.shape}")
        value = c @ self.estimate
        if not np.isfinite(self.influence).all():
            unknown = np.full(len(value), np.inf)
            return Intervals(value, -unknown, unknown, ["the samples do not determine the solution yet"] * len(value))
        if self.freedom <= 0:
            unknown = np.full(len(value), np.inf)
            return Intervals(value, -unknown, unknown, ["one block says nothing of its own error"] * len(value))
        half = stdtrit(self.freedom, (1 + level) / 2) * np.sqrt(np.einsum("md,de,me->m", c, self.covariance, c))
        notes = [self._note(*seen) for seen in zip(self.correlation(c), c @ self.shift, half, strict=True)]
        return Intervals(value, value - half, value + half, notes)

    def _note(self, correlation: float, shift: float, half: float) -> str:
        count, said = len(self.weights), []
        if count < FEWEST:
            said.append(f"only {count} blocks")
        elif self.ordered and correlation > _ALIKE / np.sqrt(count):
            said.append(f"neighbouring blocks are alike (correlation {correlation:.2f}): the chain is too slow for n")
        if abs(shift) > _FAR * half:
            said.append(f"the average is {abs(shift) / half:.2g} half-lengths from the solution of its own samples")
        return "; ".join(said)


def sandwich(
    jacobian: Given[ArrayLike],
    offset: Given[ArrayLike],
    sizes: Given[ArrayLike | None] = None,
    estimate: Given[ArrayLike | None] = None,
    *,
    ordered: bool = True,
) -> Sandwich:
    """From the block sums of an affine operator Jz + c, its Jacobians and its values at 0.

    Args:
        jacobian: ΣJ in each block, blocks × d × d.
        offset: Σc in each block, blocks × d.
        sizes: the samples in each block; all alike if None.
        estimate: ẑ; the solution of the samples if None.
        ordered: whether blocks follow each other in one stream (episodes need not).

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(1.0, 1.0, size=(32, 100))  # 32 blocks of a stream whose mean is asked for: z − x = 0
    >>> found = sandwich(np.full((32, 1, 1), 100.0), -x.sum(axis=1, keepdims=True)).interval()
    >>> bool(found.low[0] < 1 < found.high[0])
    True
    """
    J, c = as_array("jacobian", jacobian), as_array("offset", offset)
    if J.ndim != 3 or c.shape != J.shape[:2] or J.shape[1] != J.shape[2]:
        raise InputError(
            f"`jacobian` and `offset` must have the shapes (blocks, d, d) and (blocks, d), got {J.shape} and {c.shape}"
        )
    total = J.sum(axis=0)
    if estimate is None:
        determined = np.linalg.matrix_rank(total) == len(total)
        z = -np.linalg.solve(total, c.sum(axis=0)) if determined else np.full(len(total), np.nan)
    else:
        z = as_array("estimate", estimate)
    return from_scores(J @ z + c, total, z, sizes, ordered=ordered)


def from_scores(
    scores: Given[ArrayLike],
    jacobian: Given[ArrayLike],
    estimate: Given[ArrayLike],
    sizes: Given[ArrayLike | None] = None,
    *,
    ordered: bool = True,
) -> Sandwich:
    """From the block sums of the scores at the estimate, where the Jacobians of each block were not kept.

    Args:
        scores: G_b, blocks × d.
        jacobian: ΣJ over all samples, d × d.
        estimate: ẑ.
        sizes, ordered: as for ``sandwich``.
    """
    G, total, z = np.asarray(scores, float), as_array("jacobian", jacobian), np.asarray(estimate, float)
    weights = np.full(len(G), 1 / len(G)) if sizes is None else as_array("sizes", sizes) / np.sum(as_array("sizes", sizes))
    if weights.shape != G.shape[:1] or total.shape != (G.shape[1],) * 2 or z.shape != G.shape[1:]:
        raise InputError(
            f"`scores`, `jacobian`, `estimate` and `sizes` must have the shapes (blocks, d), (d, d), (d,) and (blocks,), "
            f"got {G.shape}, {total.shape}, {z.shape} and {weights.shape}"
        )
    if np.linalg.matrix_rank(total) < len(total):
        return Sandwich(z, np.full_like(G, np.nan), np.full_like(z, np.nan), weights, ordered)
    centred = G - weights[:, None] * G.sum(axis=0)
    influence = -np.linalg.solve(total, centred.T).T
    return Sandwich(z, influence, -np.linalg.solve(total, G.sum(axis=0)), weights, ordered)


def in_blocks(values: Given[ArrayLike], blocks: Given[int] = 32) -> tuple[Float[np.ndarray, "b *rest"], Float[np.ndarray, " b"]]:
    """The sums of a long stream over so many blocks of one length (up to one sample), and how many samples each has.

    >>> sums, sizes = in_blocks(np.ones((100, 2)), blocks=8)
    >>> sums[:, 0].tolist() == sizes.tolist() and sizes.sum() == 100
    True
    """
    stream = as_array("values", values)
    if not stream.ndim or not len(stream):
        raise InputError(f"`values` must have one row a sample and at least one, got the shape {stream.shape}")
    edges = np.linspace(0, len(stream), min(whole("blocks", blocks, 1), len(stream)) + 1).astype(int)
    return np.add.reduceat(stream, edges[:-1], axis=0), np.diff(edges).astype(float)
