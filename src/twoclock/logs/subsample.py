"""The operators' means over a whole log, a part at a time, and a bounded sample of its rows: memory of O(d)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from twoclock.logs.dice_operators import Dense, Listed, form
from twoclock.logs.estimand import Target
from twoclock.logs.estimator_context import EstimatorContext
from twoclock.logs.features.protocol import Matrix

NUMBERS = 1 << 22
"""So many numbers a sample holds of φ, and as many of φ̄': 64 MiB in all, however long the log is."""

Vector = Float[np.ndarray, " d"]


@dataclass
class Pass:
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

    back: Vector
    fast: Vector
    left: Vector
    earned: Vector
    squares: Vector
    starts: Vector
    rows: int
    drawn: list[tuple[Matrix, Matrix]]

    @classmethod
    def nothing(cls, d: int) -> Pass:
        back, fast, left, earned, squares = np.zeros((5, d))
        return cls(back, fast, left, earned, squares, np.zeros(d + 1), 0, [])

    @classmethod
    def over(cls, work: EstimatorContext, theta: Vector, omega: Vector, number: int, rows: int) -> Pass:
        """A pass over the log that draws about so many rows; ``number`` makes its draw another one."""
        d, log = work.target.features.size, work.target.log
        share = 1.0 if rows >= log.rows else 0.98 * rows / log.rows  # seldom more than fit
        total = cls.nothing(d)
        for found in work.mapped(part_pass, (work.target, theta, omega, share, number), work.parts):
            for name in ("back", "fast", "left", "earned", "squares", "starts", "rows"):
                setattr(total, name, getattr(total, name) + getattr(found, name))
            total.drawn += found.drawn
        return total

    def sample(self, scale: Vector, target: Target) -> tuple[Dense | Listed, Dense | Listed, int]:
        """The drawn rows, φ and γφ̄', scaled, and how many they are; the arrays always have the same size."""
        most = min(most_rows(target), target.log.rows)
        phi, after = (_stack([rows[i] for rows in self.drawn])[:most] for i in (0, 1))
        widths = (_entries_of_a_row(target) // n for n in (len(target.log.actions or (0,)), 1))
        one, other = (
            form(rows, scale * factor, most, width)
            for rows, factor, width in zip((phi, after), (1.0, target.gamma), widths, strict=True)
        )
        return one, other, phi.shape[0]

    def phi0(self, target: Target) -> Vector:
        return target.start if target.start is not None else self.starts[:-1] / self.starts[-1]


def part_pass(target: Target, theta: Vector, omega: Vector, share: float, number: int, part: int) -> Pass:
    """The sums over one part, and its rows that were drawn."""
    d = target.features.size
    found = Pass.nothing(d)
    rng = np.random.default_rng([number, part])
    for batch in target.log.batches(part):
        if not len(batch):
            continue
        phi, after = target.rows(batch)
        w, ahead = phi @ omega, phi @ theta - target.gamma * (after @ theta)
        found.back += w @ phi - target.gamma * (w @ after)
        found.fast += w @ phi
        found.left += ahead @ phi
        found.earned += batch.reward @ phi
        found.squares += np.asarray((phi**2 if isinstance(phi, np.ndarray) else phi.power(2)).sum(axis=0)).ravel()
        found.rows += len(batch)
        if target.begins(batch).any():
            starts = target.starts(batch)
            found.starts += np.append(np.asarray(starts.sum(axis=0)).ravel(), starts.shape[0])
        chosen = np.flatnonzero(rng.random(len(batch)) < share) if share < 1 else np.arange(len(batch))
        if len(chosen):
            found.drawn.append((phi[chosen], after[chosen]))
    return found


def scaling(squares: Vector, rows: int) -> Vector:
    """The scale in which each feature has mean square 1; 0 where the log has no data."""
    mean = squares / rows
    return np.divide(1.0, np.sqrt(mean), out=np.zeros(len(mean)), where=mean > 0)


def most_rows(target: Target) -> int:
    """How many rows a sample may have."""
    return max(NUMBERS // _entries_of_a_row(target), 1)


def _entries_of_a_row(target: Target) -> int:
    """Of φ̄', which has as many as φ, or as many for each action where rows are sparse."""
    states = target.log.sample(2)[0]
    encoded = target.features.encode(states[:1])
    found = target.features.mean(encoded, target.policy.acts(states[:1], (0, 0)))
    return max(int(found.nnz), 1) if hasattr(found, "indptr") else target.features.size


def _stack(parts: list[Any]) -> Matrix:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from scipy.sparse import vstack

    return vstack(parts, format="csr")
