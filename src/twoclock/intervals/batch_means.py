"""Batch means: error bars for the solution of a linear equation from sums of its scores over blocks of the samples.

    Jz + c = 0 on average, estimate ẑ:        G_b = Σ_{i in b} (J_i ẑ + c_i),   y_b = −(ΣJ)⁻¹(G_b − (n_b/n) ΣG)
    Cov(ẑ) ≈ Σ y_b y_bᵀ / (1 − Σ (n_b/n)²),        interval aᵀẑ ± t √(aᵀ Cov a),   t of Student with 1/Σ(n_b/n)² − 1

An episode is a block; one long stream is cut into at most 32 blocks of one length, also online (``BlockSums``). So the
length of blocks is proportional to n. In the end they are longer than the memory of any chain, and nothing has to be
known about it. Blocks of length n^⅓ would stay shorter than the memory of a slow chain for any realistic n. Until then
neighbouring blocks are alike, and their correlation r lengthens the interval (``memory_factor``): the mean of an
autoregression of blocks has (1 + r)/(1 − r) times the variance of independent ones. So 95 % intervals of an AR(1) mean
cover .93 to .94 at n = 10 τ, τ the integrated autocorrelation time, and .92 to .93 at 5 τ; without the factor .67 to
.80 and .51 to .68 (3,000 streams each, 16 to 32 blocks).

The variance is never known exactly. Student's t accounts for that, with freedom/√factor, which covers nearly as well as
freedom/factor at less than half of the mean length. Where blocks are independent, the interval has in the mean 1.17
times the oracle's length with 16 blocks, and 1.09 times with 32 (the median: 1.11 and 1.07).

Reference: Schmeiser, *Batch size effects in the analysis of simulation output*, 1982 (10 to 30 batches are enough);
Andrews & Monahan, *An improved heteroskedasticity and autocorrelation consistent covariance matrix estimator*, 1992
(prewhitening); Liang & Zeger 1986 (the sandwich, clustered).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from twoclock import tree_math
from twoclock.protocols import InputError, Scalar, pytree
from twoclock.tree_math import Sum, add
from twoclock.validation import number, whole
from twoclock.validation.arrays import Array, as_array

BLOCKS = 32
_FEWEST = 10
_FAR = 0.25  # in half-lengths: at this distance from the solution of its samples an average covers .92, not .95
ALIKE = 2.33  # of 1/√blocks: the lag-1 correlation of independent blocks is larger once in a hundred intervals
_LARGEST_CORRELATION = 0.95  # that is believed: 32 blocks hold no more than one independent one
_SLOW = 0.9  # from this correlation on the factor is a guess

_BITS = BLOCKS.bit_length() - 1
_HALF = BLOCKS >> 1
Whole = Int[jax.Array, "..."]

UNDETERMINED = "the samples do not determine the solution yet"


class BlockStatistics(NamedTuple):
    """Block statistics of each output, of one run or of several."""

    error: Float[Array, "*runs m"]  # inf where the samples do not determine the solution
    correlation: Float[Array, "*runs m"]  # of neighbouring blocks; if it is large, blocks are shorter than the memory
    shift: Float[Array, "*runs m"]  # the solution of the samples minus the estimate
    freedom: Float[Array, "*runs"]  # of the error: one less than the number of blocks if all have one length
    blocks: Float[Array, "*runs"]  # how many there are


class Intervals(NamedTuple):
    """An interval for each output, and a note with a reason to doubt it; "" if there is none."""

    estimate: Float[np.ndarray, "*runs m"]
    low: Float[np.ndarray, "*runs m"]
    high: Float[np.ndarray, "*runs m"]
    note: list[str]


def score_statistics(
    scores: Float[Array, "b d"],
    inverse: Float[Array, "d d"],
    weights: Float[Array, " b"],
    directions: Float[Array, "m d"],
) -> BlockStatistics:
    """Compute the block statistics of the outputs aᵀz, in NumPy or in JAX; a block of weight 0 is ignored.

    ``scores`` are G_b at the estimate, ``inverse`` (ΣJ)⁻¹, ``weights`` n_b/n and ``directions`` a, one row per output.
    """
    xp = scores.__array_namespace__()
    total = xp.sum(scores, axis=0)
    moved = -(scores - weights[:, None] * total[None, :]) @ inverse.T @ directions.T
    squares, lagged = xp.sum(moved**2, axis=0), xp.sum(moved[1:] * moved[:-1], axis=0)
    effective = 1 / xp.sum(weights**2)
    several = xp.where(effective > 1, effective, 2.0)
    error = xp.where(effective > 1, xp.sqrt(squares * several / (several - 1)), xp.inf)
    correlation = xp.where(squares > 0, lagged / xp.where(squares > 0, squares, 1.0), 0.0)
    blocks = xp.sum(xp.where(weights > 0, 1.0, 0.0))
    return BlockStatistics(error, correlation, -directions @ (inverse @ total), effective - 1, blocks)


def memory_factor(correlation: ArrayLike, blocks: ArrayLike) -> np.ndarray:
    """By how much the variance of a mean exceeds that from independent blocks, where neighbours are alike.

    Args:
        correlation: of neighbouring blocks; up to one standard error 1/√blocks it counts as chance.
        blocks: how many there are.
    """
    r = _without_bias(correlation, blocks)
    r = np.where(r > 1 / np.sqrt(np.maximum(blocks, 1)), np.minimum(r, _LARGEST_CORRELATION), 0.0)
    return (1 + r) / (1 - r)


def _without_bias(correlation: ArrayLike, blocks: ArrayLike) -> np.ndarray:
    """The correlation of neighbours without its bias, −(1 + 3r)/blocks for an autoregression (Marriott & Pope 1954)."""
    r = np.asarray(correlation, float)
    return r + (1 + 3 * np.maximum(r, 0)) / np.maximum(blocks, 1)


def intervals(
    estimate: Float[np.ndarray, "*runs m"], statistics: BlockStatistics, level: float = 0.95, *, ordered: bool = True
) -> Intervals:
    """The intervals of the estimates from blocks; ``ordered`` if blocks follow each other in one stream."""
    from scipy.special import stdtrit

    level = number("level", level, 0, 1, above=True, below=True, remedy="try 0.95")
    error = np.asarray(statistics.error, float)
    freedom = np.broadcast_to(np.asarray(statistics.freedom, float)[..., None], error.shape)
    blocks = np.broadcast_to(np.asarray(statistics.blocks, float)[..., None], error.shape)
    factor = memory_factor(statistics.correlation, blocks) if ordered else np.ones(error.shape)
    lower = np.minimum(freedom, np.maximum(freedom / np.sqrt(factor), 1.0))  # alike blocks are worth fewer
    with np.errstate(invalid="ignore"):
        half = stdtrit(np.maximum(lower, 1e-9), (1 + level) / 2) * error * np.sqrt(factor)
    half = np.where(freedom > 0, half, np.inf)
    each = zip(*map(np.ravel, (half, statistics.correlation, statistics.shift, blocks)), strict=True)
    notes = [_note(*map(float, of_output), ordered=ordered) for of_output in each]
    return Intervals(estimate, estimate - half, estimate + half, notes)


def _note(half: float, correlation: float, shift: float, blocks: float, *, ordered: bool) -> str:
    if not np.isfinite(half):
        return UNDETERMINED if blocks > 1 else "one block says nothing of its own error"
    notes = []
    if blocks < _FEWEST:
        notes.append(f"only {blocks:.0f} blocks")
    elif ordered and _without_bias(correlation, blocks) > _SLOW:
        alike = f"neighbouring blocks are alike (correlation {correlation:.2f})"
        notes.append(f"{alike}: too few samples for so slow a chain")
    if abs(shift) > _FAR * half:
        far = abs(shift) / half if half else np.inf
        notes.append(f"the estimate is {far:.2g} half-lengths from the solution of its own samples")
    return "; ".join(notes)


def sandwich(
    jacobian: ArrayLike,
    offset: ArrayLike,
    sizes: ArrayLike | None = None,
    estimate: ArrayLike | None = None,
    *,
    directions: ArrayLike | None = None,
    level: float = 0.95,
    ordered: bool = True,
) -> Intervals:
    """Intervals from the block sums of an affine operator Jz + c: its Jacobians, and its values at 0.

    Args:
        jacobian: ΣJ in each block, blocks × d × d.
        offset: Σc in each block, blocks × d.
        sizes: the number of samples in each block; all equal if None.
        estimate: ẑ; the solution of the samples if None.
        directions: the outputs aᵀz, one row each; the entries of z if None.
        level: the coverage.
        ordered: whether blocks follow each other in one stream; episodes need not.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(1.0, 1.0, size=(32, 100))  # 32 blocks of a stream whose mean is asked for: z − x = 0
    >>> found = sandwich(np.full((32, 1, 1), 100.0), -x.sum(axis=1, keepdims=True))
    >>> bool(found.low[0] < 1 < found.high[0])
    True
    """
    J, c = as_array("jacobian", jacobian), as_array("offset", offset)
    if J.ndim != 3 or not len(J) or c.shape != J.shape[:2] or J.shape[1] != J.shape[2]:
        raise InputError(
            f"`jacobian` and `offset` must have the shapes (blocks, d, d) and (blocks, d), got {J.shape} and {c.shape}"
        )
    d, total = J.shape[1], J.sum(axis=0)
    z = -np.linalg.pinv(total) @ c.sum(axis=0) if estimate is None else as_array("estimate", estimate)
    n = np.ones(len(J)) if sizes is None else as_array("sizes", sizes)
    a = np.eye(d) if directions is None else as_array("directions", directions)
    if z.shape != (d,):
        raise InputError(f"`estimate` must have {d} entries, got the shape {z.shape}")
    if n.shape != J.shape[:1] or a.shape[1:] != (d,):
        raise InputError(
            "`sizes` and `directions` must have the shapes (blocks,) and (outputs, d), "
            f"got {n.shape} and {a.shape} for {len(J)} blocks and d = {d}"
        )
    if not (n > 0).all():
        raise InputError(f"`sizes` must be positive, got {n.min():g}; leave out blocks without samples")
    statistics = score_statistics(J @ z + c, np.linalg.pinv(total), n / n.sum(), a)
    if np.linalg.matrix_rank(total) < d:
        statistics = statistics._replace(error=np.full(len(a), np.inf))
    return intervals(a @ z, statistics, level, ordered=ordered)


def in_blocks(stream: ArrayLike, blocks: int = BLOCKS) -> tuple[Float[np.ndarray, "b ..."], Float[np.ndarray, " b"]]:
    """Sum one long stream over ``blocks`` blocks; also return their sizes, which differ by at most one.

    Args:
        stream: a row for each sample, in order.
        blocks: the number of blocks.

    >>> sums, sizes = in_blocks(np.ones((100, 2)), blocks=8)
    >>> sums[:, 0].tolist() == sizes.tolist(), float(sizes.sum())
    (True, 100.0)
    """
    rows = as_array("stream", stream)
    if not rows.ndim or not len(rows):
        raise InputError(f"`stream` must have a row for each sample, one or more, got the shape {rows.shape}")
    edges = np.linspace(0, len(rows), min(whole("blocks", blocks, 1), len(rows)) + 1).astype(int)
    return np.add.reduceat(rows, edges[:-1], axis=0), np.diff(edges).astype(float)


@pytree
class BlockSums:
    """Sums of the rows of a stream over blocks of one length, without knowing how long it will be.

    When all 32 slots are in use, blocks become twice as long: neighbours are added up in pairs, one pair whenever a new
    block begins, and the new block takes the slot that becomes free. So the cost of a step is constant.

    With 2ᵇ slots and blocks of 2ʳ rows, row k lies in block i = ⌊k/2ʳ⌋. The slot of block i is i with its b bits
    rotated left r times. So blocks 2j and 2j+1 of length 2ʳ⁻¹ become block j of length 2ʳ in the slot of the first,
    and the slot of the second becomes free for block 2ᵇ⁻¹ + j.
    """

    current: Sum  # of the block that is being filled
    slots: Float[jax.Array, "slots n"]  # the sums of all blocks, this one included
    count: Int[jax.Array, ""]  # the rows so far


def empty_sums(row: Float[jax.Array, " n"]) -> BlockSums:
    """Empty sums for rows of this size."""
    nothing = jnp.zeros_like(row)
    return BlockSums(
        tree_math.start(nothing), jnp.zeros((BLOCKS, nothing.size), nothing.dtype), jnp.zeros((), jnp.int32)
    )


def add_row(sums: BlockSums, row: Float[jax.Array, " n"], k: Scalar) -> BlockSums:
    """Add row k. The count so far is an argument, since all lanes that run side by side share it."""
    k = jnp.asarray(k, jnp.int32)
    r = _doublings(k)
    i = k >> r
    first = k == i << r
    newest, partner = _turn_left(i, r), _turn_left(i ^ _HALF, r)
    slots = sums.slots.at[partner].add(jnp.where(first, sums.slots[newest], jnp.zeros_like(row)))
    # Where a block begins its sum is 0, and so is what rounding dropped from it.
    residue, value = jax.tree.map(
        lambda leaf: jnp.where(first, jnp.zeros_like(leaf), leaf), (sums.current.residue, sums.current.value)
    )
    current = add(Sum(value, residue), row)
    return BlockSums(current, slots.at[newest].set(current.value), k + 1)


def sums_in_order(sums: BlockSums) -> tuple[Float[jax.Array, "slots n"], Float[jax.Array, " slots"]]:
    """The sums of all blocks in the order of time, and how many rows each is of: 0 where there is no block yet."""
    last = jnp.maximum(sums.count - 1, 0)
    r = _doublings(last)
    i = jnp.arange(BLOCKS, dtype=jnp.int32)
    sizes = jnp.clip(sums.count - (i << r), 0, 1 << r)
    # A pair that has not been merged yet has its second half in the slot of block i + _HALF.
    later = (r > 0) & (i < _HALF) & (i + _HALF > last >> r)
    own, second = sums.slots[_turn_left(i, r)], sums.slots[_turn_left(i ^ _HALF, r)]
    full = own + jnp.where(later[:, None], second, jnp.zeros_like(second))
    return jnp.where((sizes > 0)[:, None], full, jnp.zeros_like(full)), sizes.astype(full.dtype)


def _doublings(k: Whole) -> Whole:
    """How often blocks have doubled before row k: the binary digits of k/BLOCKS, counted after filling them up."""
    k = k >> _BITS
    for shift in (1, 2, 4, 8, 16):
        k = k | k >> shift
    return jax.lax.population_count(k)


def _turn_left(i: Whole, r: Whole) -> Whole:
    turn = r % _BITS
    return ((i << turn) | (i >> (_BITS - turn))) & (BLOCKS - 1)


class BlockMean:
    """The mean of a stream of numbers with its block scores, in plain Python; at most 32 blocks, as ``BlockSums``.

    Args:
        saved: the ``numbers`` of an earlier one, to continue it: the count, the length of a block, the block sums.

    >>> mean = BlockMean()
    >>> for value in range(100):
    ...     mean.add(value)
    >>> mean.estimate, len(mean.sums)
    (49.5, 25)
    """

    def __init__(self, saved: Sequence[float] = (0.0, 1.0)) -> None:
        self.count, self.size, self.sums = int(saved[0]), int(saved[1]), [float(value) for value in saved[2:]]

    @property
    def numbers(self) -> list[float]:
        """The numbers to save."""
        return [float(self.count), float(self.size), *self.sums]

    def add(self, value: float) -> None:
        if self.count == BLOCKS * self.size:
            self.sums = [a + b for a, b in zip(self.sums[::2], self.sums[1::2], strict=True)]
            self.size *= 2
        if self.count % self.size == 0:
            self.sums.append(0.0)
        self.sums[-1] += value
        self.count += 1

    @property
    def estimate(self) -> float:
        return sum(self.sums) / max(self.count, 1)

    def statistics(self) -> BlockStatistics:
        """The block statistics of the mean, as of one output; before two blocks its error is infinite."""
        if len(self.sums) < 2:
            nothing = np.zeros(1)
            return BlockStatistics(
                np.full(1, np.inf), nothing, nothing, np.zeros(()), np.asarray(float(len(self.sums)))
            )
        sizes = np.full(len(self.sums), float(self.size))
        sizes[-1] = self.count - self.size * (len(self.sums) - 1)
        scores = sizes * self.estimate - np.asarray(self.sums)
        return score_statistics(scores[:, None], np.eye(1) / self.count, sizes / self.count, np.eye(1))
