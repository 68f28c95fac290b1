"""Where a log comes from: frames, tables, Parquet, Minari, episodes; all become columns in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from twoclock.protocols import InputError
from twoclock.storage import parquet
from twoclock.validation import shown

ROWS = 32_768
"""So many rows are worked on at a time."""

Columns = dict[str, np.ndarray]


@runtime_checkable
class Source(Protocol):
    """Columns by name, in parts that can be read each by itself."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def sizes(self) -> Sequence[int]:
        """The rows of each part."""

    def batches(self, part: int, names: Sequence[str]) -> Iterator[Columns]:
        """The named columns of a part, ``ROWS`` or fewer rows at a time."""


@dataclass(frozen=True, eq=False)
class InMemory:
    """Arrays side by side."""

    columns: Columns

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    @property
    def sizes(self) -> list[int]:
        rows = len(next(iter(self.columns.values())))
        return [min(ROWS, rows - first) for first in range(0, rows, ROWS)]

    def batches(self, part: int, names: Sequence[str]) -> Iterator[Columns]:
        rows = slice(part * ROWS, (part + 1) * ROWS)
        yield {name: self.columns[name][rows] for name in names}


@dataclass(frozen=True, eq=False)
class OnDisk:
    """A Parquet data set; a part is a row group."""

    names: list[str]
    parts: list[parquet.RowGroup]

    @property
    def sizes(self) -> list[int]:
        return [part.rows for part in self.parts]

    def batches(self, part: int, names: Sequence[str]) -> Iterator[Columns]:
        return parquet.batches(self.parts[part], names, ROWS)


def columns_of(given: Any) -> Source:
    """What was given, as columns in parts."""
    kind = type(given).__module__.split(".")[0]
    if isinstance(given, (str, Path)):
        names, parts = parquet.row_groups(given)
        _once(names)
        found: Source = OnDisk(names, parts)
    elif kind == "pandas" and hasattr(given, "columns"):
        _once(names := [str(name) for name in given.columns])
        found = InMemory({name: _plain(given.iloc[:, i].to_numpy()) for i, name in enumerate(names)})
    elif kind == "polars" and type(given).__name__ in ("DataFrame", "LazyFrame"):
        eager = given.collect() if hasattr(given, "collect") else given
        found = InMemory({name: parquet.array(eager[name].to_arrow()) for name in eager.columns})
    elif kind == "pyarrow" and hasattr(given, "column_names"):
        _once(given.column_names)
        found = InMemory({name: parquet.array(given[name]) for name in given.column_names})
    elif isinstance(given, Mapping):
        found = InMemory({str(name): _column(str(name), column) for name, column in given.items()})
    else:
        raise InputError(
            "`source` must be a pandas or polars frame, a pyarrow table, a Parquet file or folder, a Minari dataset or "
            f"its id, a dict of arrays or a list of episodes, got {shown(given)}"
        )
    if isinstance(found, InMemory):
        lengths = {name: len(column) if column.ndim else 0 for name, column in found.columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"`source` must have columns of one length, got {shown(lengths)}")
    if not sum(found.sizes if found.names else []):
        raise InputError("`source` has no rows")
    return found


def _once(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise InputError(f"`source` has two columns named {shown(twice)}; rename one")


def _column(name: str, given: object) -> np.ndarray:
    """A column of a dict."""
    try:
        found = np.asarray(given)
    except Exception as error:  # lists of different lengths, and whatever an object of the user's raises
        raise InputError(f"`source[{shown(name)}]` is no column: {' '.join(str(error).split()):.100}") from None
    if not found.ndim:
        raise InputError(f"`source[{shown(name)}]` must have an entry for each row, got {shown(given)}")
    return _plain(found)


def _plain(column: np.ndarray) -> np.ndarray:
    """Lists in a column become rows of an array, and text text; a missing entry stays an object."""
    if column.dtype != object or not len(column):
        return column
    if isinstance(column[0], (list, tuple, np.ndarray)):
        if len({np.shape(entry) for entry in column}) > 1:
            raise InputError("`source` has a column of lists of different lengths; make them alike")
        return np.stack([np.asarray(entry) for entry in column])
    if all(isinstance(entry, str) for entry in column):
        return column.astype(str)
    if all(isinstance(entry, (bool, int, float, np.number, np.bool)) for entry in column):
        return column.astype(float)
    return column
