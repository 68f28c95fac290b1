"""Several features side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from twoclock.logs.features.protocol import Features, Matrix
from twoclock.logs.policies import Actions


@dataclass(frozen=True, eq=False)
class Stacked:
    """φ(s, a) = (φ₁(s, a), φ₂(s, a), …), dense."""

    parts: tuple[Features, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def encode(self, state: np.ndarray) -> Matrix:
        return _Encoded([part.encode(state) for part in self.parts])

    def pairs(self, encoded: Any, action: np.ndarray) -> Matrix:
        return np.hstack([_dense(part.pairs(e, action)) for part, e in zip(self.parts, encoded.parts, strict=True)])

    def mean(self, encoded: Any, actions: Actions) -> Matrix:
        return np.hstack([_dense(part.mean(e, actions)) for part, e in zip(self.parts, encoded.parts, strict=True)])


class _Encoded:
    """What each part made of the states; rows are picked from all."""

    def __init__(self, parts: list[Matrix]) -> None:
        self.parts = parts

    def __getitem__(self, rows: object) -> _Encoded:
        return _Encoded([part[rows] for part in self.parts])


def _dense(rows: Matrix) -> np.ndarray:
    return rows if isinstance(rows, np.ndarray) else rows.toarray()
