"""What a figure needs to know of a run or a sweep: frames, and the words for its caption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pandas as pd


@runtime_checkable
class Summarised(Protocol):
    """A run that can be summed up over its seeds, such as a ``Result``."""

    @property
    def spec(self) -> dict[str, Any]: ...

    def summary(self, metric: str) -> pd.DataFrame:
        """One row a step: mean, median, iqm, low, high, seeds, diverged."""


@runtime_checkable
class Swept(Protocol):
    """Runs over settings and problems, such as a ``Sweep``."""

    @property
    def spec(self) -> dict[str, Any]: ...

    def best(self, metric: str) -> pd.DataFrame:
        """The best setting of each family on each problem."""

    def final(self, metric: str) -> pd.DataFrame:
        """One row a setting and problem: the metric at the last step."""

    def result(self, problem: str, method: str) -> Summarised:
        """One of its runs."""
