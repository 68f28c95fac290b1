"""One-hot features: a table of the states that occur, whatever they are called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twoclock.logs.dataset import Log, codes
from twoclock.logs.features.protocol import Matrix
from twoclock.protocols import InputError
from twoclock.validation import shown

_MOST = 200_000


@dataclass(frozen=True, eq=False)
class OneHot:
    """ψ(s) = e_s for the states of a log, whole numbers or text; in sparse form."""

    states: np.ndarray

    @classmethod
    def of(cls, log: Log, others: np.ndarray | None = None) -> OneHot:
        """The states of the log, next states too, and some others."""
        found: np.ndarray | None = None if others is None else rows_as_labels(others)
        for batch in log:
            some = [rows_as_labels(batch.state), rows_as_labels(batch.next_state[~batch.follows & ~batch.terminated])]
            found = np.unique(
                np.concatenate([np.unique(labels) for labels in some] + ([] if found is None else [found]))
            )
            if len(found) > _MOST:
                raise InputError(
                    f"`features` 'onehot' needs states that come back; this log has more than {_MOST:,} different "
                    f"ones, such as {shown(found[0])}; try features='rbf'"
                )
        assert found is not None
        return cls(found)

    @property
    def size(self) -> int:
        return len(self.states)

    def rows(self) -> np.ndarray:
        """The states as the log has them."""
        fields = self.states.dtype.names
        return self.states if fields is None else np.column_stack([self.states[name] for name in fields])

    def __call__(self, x: np.ndarray) -> Matrix:
        from scipy.sparse import csr_array  # slow to load

        found = codes(rows_as_labels(x), self.states)
        known = found >= 0
        start = np.concatenate([[0], np.cumsum(known)])
        return csr_array((np.ones(int(start[-1])), found[known], start), shape=(len(x), self.size))


def rows_as_labels(state: np.ndarray) -> np.ndarray:
    """States as labels that sort and compare: several columns become one record."""
    if state.ndim == 1:
        return state
    if state.shape[1] == 1:
        return state[:, 0]
    whole = np.ascontiguousarray(state)
    return whole.view([(f"f{i}", whole.dtype) for i in range(whole.shape[1])])[:, 0]
