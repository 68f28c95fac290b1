"""Features of states that are vectors: radial, Fourier and tiles, scaled by a sample of the log."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from twoclock.logs.features.protocol import Matrix
from twoclock.protocols import InputError
from twoclock.validation import number, seed_number, whole

X = Float[np.ndarray, "n k"]
_MOST = 20_000


@dataclass(frozen=True, eq=False)
class Rbf:
    """exp(−‖x − c_j‖²/2w²) around states c_j of the log, with the columns scaled alike, and a constant.

    Args:
        centres: how many.
        width: w; the median distance of the centres' sample if None.
        seed: which states are centres.
    """

    centres: int = 50
    width: float | None = None
    seed: int = 0
    where: X | None = field(default=None, repr=False)
    scale: X | None = field(default=None, repr=False)

    def fit(self, sample: X) -> Rbf:
        centres = whole("centres", self.centres, 1, _MOST)
        shift, scale = sample.mean(axis=0), np.where(sample.std(axis=0) > 0, sample.std(axis=0), 1.0)
        z = np.unique((sample - shift) / scale, axis=0)
        rng = np.random.default_rng(seed_number("seed", self.seed))
        z = z[rng.permutation(len(z))]
        some = z[:500]
        apart = np.sqrt(((some[:, None] - some[None]) ** 2).sum(-1))[np.triu_indices(len(some), 1)]
        width = (
            (float(np.median(apart)) if apart.size else 1.0)
            if self.width is None
            else number("width", self.width, 1e-100, 1e100)
        )
        return Rbf(min(centres, len(z)), width or 1.0, self.seed, z[:centres], np.stack([shift, scale]))

    @property
    def size(self) -> int:
        return self.centres + 1

    def __call__(self, x: np.ndarray) -> Matrix:
        if self.where is None or self.scale is None or self.width is None:
            raise InputError("`Rbf(…)` has no centres yet; give it to `evaluate(…, features=…)`, or call `fit`")
        z = (x - self.scale[0]) / self.scale[1]
        # −‖z − c‖²/2w² as one product, (z, ‖z‖², 1) with (c, −½, −½‖c‖²)/w²; the constant's column is 0.
        long = np.column_stack([z, (z**2).sum(axis=1), np.ones(len(z))])
        ends = np.full(len(self.where), -0.5), -0.5 * (self.where**2).sum(axis=1)
        of_centres = np.column_stack([self.where, *ends]).T / self.width**2
        found = long @ np.column_stack([np.zeros(len(of_centres)), of_centres])
        return np.exp(found, out=found)


@dataclass(frozen=True, eq=False)
class Fourier:
    """cos(π c·x) for every vector of whole numbers c ≥ 0 with Σc ≤ order, x scaled to [0, 1].

    Reference: Konidaris, Osentoski & Thomas, *Value function approximation in RL using the Fourier basis*, 2011.
    """

    order: int = 3
    waves: Float[np.ndarray, "m k"] | None = field(default=None, repr=False)
    scale: X | None = field(default=None, repr=False)

    def fit(self, sample: X) -> Fourier:
        order, k = whole("order", self.order, 0, 50), sample.shape[1]
        _few(_combinations(order, k), "`Fourier(order=…)`")
        picks = itertools.combinations_with_replacement(range(k + 1), order)  # entry k is what is not spent
        waves = np.array([[pick.count(i) for i in range(k)] for pick in picks], float)
        return Fourier(order, waves, _ends(sample))

    @property
    def size(self) -> int:
        return 0 if self.waves is None else len(self.waves)

    def __call__(self, x: np.ndarray) -> Matrix:
        if self.waves is None or self.scale is None:
            raise InputError("`Fourier(…)` is not scaled yet; give it to `evaluate(…, features=…)`, or call `fit`")
        return np.cos(np.pi * (np.clip((x - self.scale[0]) / self.scale[1], 0, 1) @ self.waves.T))


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tile coding: grids of ``bins`` cells a column, each shifted by a share of a cell; sparse.

    Args:
        tilings: how many grids.
        bins: cells of a grid along each column.
    """

    tilings: int = 8
    bins: int = 6
    scale: X | None = field(default=None, repr=False)

    def fit(self, sample: X) -> Tiles:
        tilings, bins = whole("tilings", self.tilings, 1, _MOST), whole("bins", self.bins, 1, _MOST)
        _few(tilings * (bins + 1) ** sample.shape[1], "`Tiles(tilings=…, bins=…)`")
        return Tiles(tilings, bins, _ends(sample))

    @property
    def size(self) -> int:
        return 0 if self.scale is None else self.tilings * (self.bins + 1) ** self.scale.shape[1]

    def __call__(self, x: np.ndarray) -> Matrix:
        from scipy.sparse import csr_array  # slow to load

        if self.scale is None:
            raise InputError("`Tiles(…)` is not scaled yet; give it to `evaluate(…, features=…)`, or call `fit`")
        n, k = x.shape
        z = np.clip((x - self.scale[0]) / self.scale[1], 0, 1) * self.bins
        # Column i is shifted by an odd number of shares, 2i + 1, so that the grids do not line up along a diagonal.
        shift = (np.arange(self.tilings)[:, None] * (2 * np.arange(k) + 1) % self.tilings) / self.tilings
        cell = np.minimum((z[:, None, :] + shift).astype(int), self.bins)
        index = cell @ (self.bins + 1) ** np.arange(k) + np.arange(self.tilings) * (self.bins + 1) ** k
        return csr_array(
            (np.ones(n * self.tilings), index.ravel(), np.arange(n + 1) * self.tilings), shape=(n, self.size)
        )


def _ends(sample: X) -> X:
    low, high = sample.min(axis=0), sample.max(axis=0)
    return np.stack([low, np.where(high > low, high - low, 1.0)])


def _combinations(order: int, k: int) -> int:
    from math import comb

    return comb(order + k, k)


def _few(count: int, what: str) -> None:
    if count > _MOST:
        raise InputError(f"{what} makes {count:,} features for this state, more than {_MOST:,}; take fewer, or Rbf")
