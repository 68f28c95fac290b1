"""Parquet files and folders that others wrote, read part by part; Arrow columns as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twoclock.protocols import InputError
from twoclock.storage.paths import first_line, one_line

_AT_ONCE = 1 << 24  # numbers; a larger row group is decoded a piece at a time


class RowGroup(NamedTuple):
    """A part of a Parquet data set: the file, the number of the row group in it, and its rows."""

    path: str
    number: int
    rows: int


def row_groups(path: str | Path) -> tuple[list[str], list[RowGroup]]:
    """The columns of a Parquet file, or of the files below a folder in the order of their names, and their parts."""
    root = Path(path).expanduser()
    with one_line(root, "read"):
        files = sorted(root.rglob("*.parquet")) if root.is_dir() else [root]
        if not files:
            raise InputError(f"`source` {root} is a folder without Parquet files (*.parquet)")
        if not files[0].is_file():
            raise InputError(f"`source` {root} is neither a Parquet file nor a folder of them")
    found: list[RowGroup] = []
    names: list[str] = []
    for file in files:
        opened = _open(file)
        here = list(opened.schema_arrow.names)
        if names and here != names:
            raise InputError(f"`source` {file} has other columns than {files[0]}; write them alike")
        names = here
        sizes = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
        found += [RowGroup(str(file.absolute()), i, rows) for i, rows in enumerate(sizes) if rows]
    return names, found


def batches(part: RowGroup, names: Sequence[str], rows: int) -> Iterator[dict[str, np.ndarray]]:
    """The named columns of a row group, so many rows at a time.

    Without Arrow's threads: a caller that reads several parts at once has threads already, and the two can deadlock.
    """
    opened = _open(Path(part.path))
    if part.rows * len(names) <= _AT_ONCE:
        table = opened.read_row_group(part.number, columns=list(names), use_threads=False)
        whole = {name: array(table[name]) for name in names}
        for first in range(0, part.rows, rows):
            yield {name: column[first : first + rows] for name, column in whole.items()}
        return
    for batch in opened.iter_batches(rows, row_groups=[part.number], columns=list(names), use_threads=False):
        yield {name: array(batch.column(batch.schema.get_field_index(name))) for name in names}


def array(column: Any) -> np.ndarray:
    """An Arrow column as an array; lists of equal length become rows, a missing number NaN."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    kind = column.type
    if pa.types.is_dictionary(kind):
        return array(column.dictionary_decode())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        flat, count = array(column.flatten()), len(column)
        if column.null_count or (count and len(flat) % count):
            raise InputError("a column of lists must have lists of one length and none missing")
        return flat.reshape(count, -1)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.asarray(column.to_pylist(), dtype=object if column.null_count else str)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _open(path: Path) -> Any:
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, memory_map=True)
    except Exception as error:  # Arrow raises many kinds
        raise InputError(f"`source` {path} cannot be read as Parquet ({first_line(error)})") from None
