"""Reasons to doubt the answer of a regulator: its state, its actions, its goal."""

from __future__ import annotations

import numpy as np
import scipy  # loads its parts when they are used
from jaxtyping import Float

from twoclock.agents.plant_statistics import PlantStatistics
from twoclock.protocols import PyTree
from twoclock.validation import short_repr

_RECENT = 1024  # outputs that are stored
_NEAR = 0.01  # of a Gaussian's samples lie nearer to its mean than what counts as near the goal


class PlantWarning(UserWarning):
    """A regulator's plant is not what its model says, or a guard had to act."""


class PlantWarnings:
    """Counts and recent outputs of a plant, and the warnings that follow from them.

    Args:
        p: the size of an output.
    """

    def __init__(self, p: int) -> None:
        self.recent = np.full((_RECENT, p), np.nan)  # minus the goal
        self.count = self.cut = 0

    def add(self, output: np.ndarray, cut: bool) -> None:
        """Add a sample: its output minus the goal, and whether the applied action differs from the chosen one."""
        self.recent[self.count % _RECENT] = output
        self.count += 1
        self.cut += cut

    def lines(self, statistics: PlantStatistics, goal: Float[np.ndarray, " p"], lags: int) -> dict[str, str]:
        """Warnings by topic."""
        found: dict[str, str] = {}
        share, matters = statistics.memory_gain()
        if matters:
            found["memory"] = (
                f"the state is incomplete: the sample before it explains {share:.0%} of what it leaves unexplained; "
                f"something is not seen, or the plant changes or is not linear; try `lags={max(2 * lags, 4)}`"
            )
        if self.cut > max(10, 0.01 * self.count):
            found["cut"] = (
                f"{self.cut / self.count:.0%} of the actions were not applied as asked: the plant was learnt from what "
                "was applied, and the gain is the best without such limits, not with them; lower `sigma` or raise `R`"
            )
        if (nearest := self._nearest()) is not None:
            found["goal"] = (
                f"no output of the last {_RECENT:,} came near the goal {short_repr(goal.tolist())}, the nearest was "
                f"{short_repr(np.round(nearest + goal, 4).tolist())}: it cannot be reached, or not at this cost; "
                "a `reference` is held whatever it costs, if the plant can be held there"
            )
        return found

    def _nearest(self) -> Float[np.ndarray, " p"] | None:
        """The recent output nearest to the goal, if even that one is far away compared with their spread."""
        if self.count < _RECENT:
            return None
        unit = np.sqrt(np.mean(self.recent**2, axis=0))
        scaled = self.recent / np.where(unit > 0, unit, 1.0)
        spread = scaled.T @ scaled / len(scaled)
        distance = np.einsum("ij,jk,ik->i", scaled, np.linalg.pinv(spread, rcond=1e-9, hermitian=True), scaled)
        rank = np.linalg.matrix_rank(spread, tol=1e-9, hermitian=True)
        nearest = int(np.argmin(distance))
        far = rank > 0 and distance[nearest] > scipy.special.chdtri(rank, 1 - _NEAR)
        return self.recent[nearest] if far else None

    def snapshot(self) -> dict[str, PyTree]:
        """All of it as arrays."""
        return {"recent": self.recent, "counts": np.asarray([self.count, self.cut])}

    def restore(self, snapshot: dict[str, PyTree]) -> None:
        self.recent = snapshot["recent"].copy()
        self.count, self.cut = (int(count) for count in snapshot["counts"])
