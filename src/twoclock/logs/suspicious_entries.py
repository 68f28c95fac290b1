"""Entries that look wrong although each row by itself is right: codes for missing numbers, actions spelt twice.

A table often has −999 or 9999 where a number is missing. As a reward it is summed, and as a state it sets the scale of
the features. So a number that consists of nines is asked about if it lies far away from all others of its column.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from twoclock.logs.diagnostics import Diagnostic
from twoclock.protocols import list_names

if TYPE_CHECKING:
    from twoclock.logs.dataset import Log
    from twoclock.logs.row_checks import RawRows, Roles

_CODES = np.array([sign * (10.0**digits - 1) for digits in (3, 4, 5, 6, 9) for sign in (-1, 1)])
_BATCHES = 200  # that are looked at
_FAR = 5.0  # times the range of the other entries
_SPELT = "write an action alike in all rows, as with `.str.strip().str.lower()`"
_CODED = "if it stands for a missing number, write NaN there and read with on_bad='drop'"


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


def suspicious_entries(log: Log) -> list[Diagnostic]:
    """A warning for each code of a missing number, and for actions that differ only in blanks or capitals."""
    found = [("missing_codes", sentence, _CODED) for sentence in log.codes]
    spelt = dict[str, list[str]]()
    for action in log.actions or ():
        spelt.setdefault(" ".join(str(action).lower().split()), []).append(repr(action))
    if twice := [" and ".join(names) for names in spelt.values() if len(names) > 1]:
        found.append(("spelling", f"actions differ only in blanks or capitals: {list_names(twice)}", _SPELT))
    return [Diagnostic(name, 1.0, 0.0, float("inf"), "warning", sentence, remedy) for name, sentence, remedy in found]
