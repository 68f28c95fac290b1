"""What looks wrong although each row by itself is right: codes for missing numbers, time limits as terminations.

A table often has −999 or 9999 where a number is missing. As a reward it is summed, and as a state it sets the scale of
the features. So a number that consists of nines is asked about if it lies far away from all others of its column.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from twoclock.logs.row_checks import CheckedRows, RawRows, Roles

_CODES = np.array([sign * (10.0**digits - 1) for digits in (3, 4, 5, 6, 9) for sign in (-1, 1)])
_SAMPLED = 200  # batches, and rows of each, of which the last states are compared with earlier ones
_BATCHES = 200  # that are looked at
_FAR = 5.0  # times the range of the other entries


class TimeLimit:
    """Find out whether every episode terminates after the same number of rows, in states that also occur earlier.

    That is a time limit written as a termination: the states do not determine when a reward is the last one.
    """

    def __init__(self) -> None:
        self.lengths, self.episodes, self._age = set[int](), 0, 0
        self._last, self._earlier = list[np.ndarray](), list[np.ndarray]()

    def add(self, raw: RawRows, checked: CheckedRows) -> None:
        if len(self.lengths) > 1:
            return
        at = np.arange(len(raw))
        begun = np.maximum.accumulate(np.where(checked.first, at, -self._age))
        age, last = at - begun + 1, checked.last
        self.episodes += int(last.sum())
        self.lengths |= set(age[last].tolist())
        if not raw.terminated[last].all():
            self.lengths |= {0, -1}  # an episode that was cut off
        self._age = 0 if last[-1] else int(age[-1])
        if len(self._last) < _SAMPLED:
            self._last.append(raw.state[last][:_SAMPLED])
            self._earlier.append(raw.state[~last][: 10 * _SAMPLED])

    def length(self) -> int:
        """The number of rows after which each episode terminates whatever its state; 0 if there is none."""
        if len(self.lengths) != 1 or self.episodes < 10 or self.lengths == {1}:
            return 0
        last, earlier = (np.concatenate(parts) for parts in (self._last, self._earlier))
        alike = not {str(row) for row in last.tolist()}.isdisjoint(str(row) for row in earlier.tolist())
        if not alike and last.dtype.kind == "f":
            (low, high), (least, most) = ((rows.min(axis=0), rows.max(axis=0)) for rows in (last, earlier))
            alike = bool(np.all((low <= most) & (least <= high)))
        return min(self.lengths) if alike else 0


class MissingCodes:
    """Find numbers such as −999 far away from the others of a column of rewards or states."""

    def __init__(self) -> None:
        self._batches, self._counts = 0, Counter[tuple[str, float]]()
        self._others = dict[str, tuple[float, float]]()

    def add(self, raw: RawRows, roles: Roles) -> None:
        """Look at some rows."""
        self._batches += 1
        if self._batches > _BATCHES:
            return
        columns = [(roles.reward, raw.reward)]
        if raw.state.dtype.kind in "iuf":
            matrix = raw.state.reshape(len(raw.state), -1)
            alone = len(roles.state) != matrix.shape[1]
            columns += [
                (f"{roles.state[0]}[{i}]" if alone else roles.state[i], matrix[:, i]) for i in range(matrix.shape[1])
            ]
        for name, entries in columns:
            self._look(name, entries[np.isfinite(entries)])

    def _look(self, name: str, entries: np.ndarray) -> None:
        if not len(entries):
            return
        ends = entries.min(), entries.max()
        if np.isin(ends, _CODES).any():
            coded = np.isin(entries, _CODES)
            for code, count in zip(*np.unique(entries[coded], return_counts=True), strict=True):
                self._counts[name, float(code)] += int(count)
            entries = entries[~coded]
            if not len(entries):
                return
            ends = entries.min(), entries.max()
        low, high = self._others.get(name, ends)
        self._others[name] = float(min(low, ends[0])), float(max(high, ends[1]))

    def found(self) -> tuple[str, ...]:
        """A sentence for each suspicious number."""
        sentences = []
        for (name, code), count in self._counts.items():
            low, high = self._others.get(name, (code, code))
            if max(low - code, code - high) > _FAR * (high - low) > 0:
                rows = f"{count:,} row{'' if count == 1 else 's'}"
                sentences.append(f"`{name}` is {code:g} in {rows} and between {low:.4g} and {high:.4g} in the others")
        return tuple(sentences)
