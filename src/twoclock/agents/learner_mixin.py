"""What agents around one learner share: what it has seen is what they have seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twoclock.online import Learner
from twoclock.result import Result

if TYPE_CHECKING:
    import pandas as pd


class Learning:
    """Of an agent that learns by one learner, ``_learner``."""

    _learner: Learner

    @property
    def steps(self) -> int:
        """How many samples it has learnt from."""
        return self._learner.steps

    @property
    def diverged(self) -> bool:
        """Whether it left the finite numbers; what was learnt then stays as it was before."""
        return self._learner.diverged

    @property
    def history(self) -> pd.DataFrame:
        """``step`` and what it measures, at ten marks a decade and now."""
        return self._learner.history

    def result(self) -> Result:
        """What it has learnt so far as a `Result` of one seed, with its intervals where it keeps them."""
        return self._learner.result()
