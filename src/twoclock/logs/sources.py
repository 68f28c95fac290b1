"""Sources of a log: frames, tables, Parquet, CSV, Minari, episodes; all become columns in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from twoclock.logs import dataset
from twoclock.logs.dataset import ColumnSource, in_memory
from twoclock.logs.row_checks import Columns
from twoclock.protocols import InputError
from twoclock.storage.atomic_file import first_line, one_line
from twoclock.validation import short_repr

_NUMBERS, _TEXT_BYTES = 1 << 24, 1 << 30  # of a column at a time
_WIDEST = 1 << 16  # numbers of a row

_STEP = ("state", "action", "reward", "next_state", "terminated", "truncated")
_EPISODE = ("observations", "actions", "rewards", "terminations", "truncations")


def _parquet(path: str | Path) -> ColumnSource:
    """A Parquet file, or the files below a folder in the order of their names; a part is a row group."""
    root = Path(path).expanduser()
    with one_line(root, "read"):
        files = sorted(root.rglob("*.parquet")) if root.is_dir() else [root]
        if not files:
            raise InputError(f"`source` {root} is a folder without Parquet files (*.parquet)")
        for file in files:
            if not file.is_file():  # a pipe would block
                raise InputError(f"`source` {file} is neither a Parquet file nor a folder of them")
    parts: list[tuple[Path, int]] = []
    names, sizes = list[str](), list[int]()
    for file in files:
        with _opened(file) as opened:
            here = list(opened.schema_arrow.names)
            if names and here != names:
                raise InputError(f"`source` {file} has other columns than {files[0]}; write them alike")
            names = here
            groups = {i: opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)}
        parts += [(file.absolute(), i) for i, rows in groups.items() if rows]
        sizes += filter(None, groups.values())

    def read(part: int, names: Sequence[str]) -> Iterator[Columns]:
        file, number = parts[part]
        with _opened(file) as opened:
            columns = [i for i in range(len(opened.schema)) if opened.schema.column(i).path.split(".")[0] in names]
            for _ in opened.reader.iter_batches(0, [number], columns, False):
                pass  # finds damage in the metadata, at which `column` below would end the process
            group, left = opened.metadata.row_group(number), sizes[part]
            widest = max(group.column(i).num_values for i in columns) // left
            rows = max(min(dataset.ROWS, _NUMBERS // max(widest, 1)), 1)
            # Without Arrow's threads: a caller may read several parts in threads, and the two can deadlock.
            for batch in opened.iter_batches(rows, row_groups=[number], columns=list(names), use_threads=False):
                batch.validate(full=True)
                left -= len(batch)
                yield {name: _array(batch.column(name)) for name in names}
            if left:
                raise InputError(f"`source` {file} is damaged, or was changed: it lacks rows")

    return ColumnSource(names, sizes, read)


def _csv(path: str | Path) -> ColumnSource:
    """A CSV file, compressed or not, its columns separated by commas, semicolons or tabs; read whole."""
    import pyarrow as pa
    from pyarrow import csv

    file = Path(path).expanduser()
    with one_line(file, "read"):
        if not file.is_file():
            raise InputError(f"`source` {file} is no file")
        size = file.stat().st_size
    try:
        with pa.input_stream(str(file)) as stream:
            header = stream.read(1 << 16).split(b"\n")[0]
        separator = max(",;\t", key=lambda mark: header.count(mark.encode()))
        block = min(max(40 * size, 1 << 20), 1 << 30)  # the first block sets a column's kind
        table = csv.read_csv(
            file,
            csv.ReadOptions(block_size=block),
            csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            csv.ConvertOptions(strings_can_be_null=True),
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"`source` {file} cannot be read as CSV ({first_line(error)})") from None
    _check_names(table.column_names)
    return in_memory({name: _array(table[name]) for name in table.column_names})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A Parquet file whose text stays a dictionary, so that a short file cannot fill the memory."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, memory_map=True) as opened:
            columns = [opened.schema.column(i) for i in range(len(opened.schema))]
        text = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        with pq.ParquetFile(path, memory_map=True, read_dictionary=text, page_checksum_verification=True) as opened:
            yield opened
    except (InputError, GeneratorExit):
        raise
    except Exception as error:  # Arrow raises many kinds
        raise InputError(f"`source` {path} cannot be read as Parquet ({first_line(error)})") from None


def _array(column: Any) -> np.ndarray:
    """An Arrow column as an array; lists of one length become rows, a missing float NaN, other missing entries None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind, count = column.type, len(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) > 1 or None in lengths:
            raise InputError("`source` has a column of lists of different lengths, or some missing; make them alike")
        if lengths and lengths[0] > _WIDEST:
            raise InputError(f"`source` has a column of lists of {lengths[0]:,} entries; make them shorter")
        return _array(column.flatten()).reshape(count, *lengths)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.large_string()).dictionary_encode()
    if pa.types.is_dictionary(column.type):
        used, at = np.unique(column.indices.drop_null().to_numpy(), return_inverse=True)
        labels = _as_column(np.asarray(column.dictionary.take(pa.array(used)).to_pylist(), dtype=object), count)
        if not column.null_count:
            return labels[at]
        found = np.full(count, None)
        found[column.is_valid().to_numpy(zero_copy_only=False)] = labels[at]
        return found
    if column.null_count and pa.types.is_integer(kind):  # as floats those above 2⁵³ would merge
        return np.array(column.to_pylist(), dtype=object)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def open_table(given: Any) -> ColumnSource:
    """Open a table whose columns the user names."""
    kind = type(given).__module__.split(".")[0]
    if isinstance(given, (str, Path)):
        table = _csv(given) if ".csv" in Path(given).suffixes or Path(given).suffix == ".tsv" else _parquet(given)
    elif kind == "pandas" and hasattr(given, "columns"):
        _check_names(names := [str(name) for name in given.columns])
        series = {name: given.iloc[:, i] for i, name in enumerate(names)}
        gaps = {name: one.dtype.kind in "iu" and one.hasnans for name, one in series.items()}  # floats merge large ids
        table = in_memory(
            {name: _as_column(one.to_numpy(object if gaps[name] else None)) for name, one in series.items()}
        )
    elif kind == "polars" and type(given).__name__ in ("DataFrame", "LazyFrame"):
        eager = given.collect() if hasattr(given, "collect") else given
        table = in_memory({name: _array(eager[name].to_arrow()) for name in eager.columns})
    elif kind == "pyarrow" and hasattr(given, "column_names"):
        _check_names(given.column_names)
        table = in_memory({name: _array(given[name]) for name in given.column_names})
    elif isinstance(given, Mapping):
        _check_names(list(map(str, given)))
        columns = {}
        for name, entry in given.items():
            where = f"`source[{short_repr(str(name))}]`"
            try:
                columns[str(name)] = _as_column(entry)
            except Exception as error:  # lists of different lengths, or any error of a user's object
                raise InputError(f"{where} is no column: {first_line(error)}") from None
            if not columns[str(name)].ndim:
                raise InputError(f"{where} must have an entry for each row, got {short_repr(entry)}")
        table = in_memory(columns)
    else:
        raise InputError(
            "`source` must be a pandas or polars frame, a pyarrow table, a Parquet file or folder, a CSV file, a "
            f"Minari dataset or its id, a dict of arrays or a list of episodes, got {short_repr(given)}"
        )
    _check_names(table.names)
    if not table.sizes:
        raise InputError("`source` has no rows")
    return table


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise InputError(f"`source` has two columns named {short_repr(twice)}; rename one")


def _as_column(given: Any, rows: int = 0) -> np.ndarray:
    """An array of numbers or text, or rows of them; a missing entry is NaN in floats, else None."""
    if isinstance(given, (list, tuple)):  # NumPy would convert numbers among text to text
        given = np.fromiter(given, object, len(given))
    elif isinstance(given, np.ma.MaskedArray):
        given = np.where(np.ma.getmaskarray(given), np.array(None), given.data.astype(object))
    column = np.asarray(given)
    if column.dtype != object or not column.size:
        return column
    entries = column.ravel().tolist()
    if isinstance(entries[0], (list, tuple, np.ndarray)):
        if len({np.shape(entry) for entry in entries}) > 1:
            raise InputError("`source` has a column of lists of different lengths; make them alike")
        return np.stack([_as_column(entry) for entry in entries])
    missing = ("NoneType", "NAType", "NaTType")
    entries = [None if type(e).__name__ in missing or (isinstance(e, float) and e != e) else e for e in entries]
    present = [entry for entry in entries if entry is not None]
    whole = len(present) == len(entries)
    if all(isinstance(entry, str) for entry in present):
        longest = max(map(len, present), default=0)
        if 4 * longest * max(rows, len(entries)) > _TEXT_BYTES:
            raise InputError(f"`source` has text of {longest:,} characters in a column; make shorter labels of it")
        if any(entry.endswith("\0") for entry in present):
            raise InputError("`source` has text that ends in a null character, which NumPy would drop; strip it")
        found = np.array(entries, str if whole else object)
    elif all(isinstance(entry, (bool, np.bool)) for entry in present) and whole:
        found = np.array(entries, bool)
    elif all(isinstance(entry, (int, np.integer)) and not isinstance(entry, bool) for entry in present):
        found = np.array(entries, None if whole else object)
        if found.dtype.kind == "f":
            raise InputError("`source` has whole numbers that 64 bits do not hold; give them as text")
    elif all(isinstance(entry, (int, float, np.number, np.bool)) for entry in present):
        found = np.array(entries, float)
    elif all(isinstance(entry, datetime) for entry in present):
        found = np.array([entry if entry is None else _without_zone(entry) for entry in entries], "datetime64[us]")
    else:
        found = np.array(entries, object)
    return found.reshape(column.shape)


def _without_zone(moment: datetime) -> datetime:
    """A time in UTC; unchanged if it has no zone."""
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def open_episodes(source: Any) -> ColumnSource | None:
    """Open a Minari dataset, the id of a local one, or a list of episodes; None if it is none of these.

    An episode has ``observations`` (T + 1), ``actions``, ``rewards``, ``terminations``, ``truncations`` and perhaps
    ``infos`` with ``action_log_prob`` as each step returned it, as attributes or keys; or it is a list of steps (state,
    action, reward, next_state, terminated, truncated). The columns are named by their roles.
    """
    if isinstance(source, str):
        stem, _, version = source.rpartition("-v")  # an id is name-v0 or namespace/name-v0, where no such file is
        if not stem or not version.isdigit() or Path(source).exists():
            return None
        try:
            import minari

            source = minari.load_dataset(source, download=False)
        except ImportError:
            raise InputError(
                f"`source` {source} is a Minari id; install it with `pip install 'minari[hdf5]'`"
            ) from None
        except (FileNotFoundError, ValueError) as error:
            raise InputError(
                f"`source` {source} is no local Minari dataset: {first_line(error)}; `minari download` it first"
            ) from None
    if hasattr(source, "iterate_episodes"):
        episodes: Iterable[object] = source.iterate_episodes()
    elif isinstance(source, Sequence) and not isinstance(source, bytes):
        episodes = source
    else:
        return None
    parts = [_episode_columns(number, episode) for number, episode in enumerate(episodes)]
    if not parts:
        raise InputError("`source` has no episodes")
    columns = {}
    for name in parts[0]:
        if all(name in part for part in parts):
            kinds = {(part[name].dtype.kind in "UO", part[name].shape[1:]) for part in parts if len(part[name])}
            if len(kinds) > 1:
                raise InputError(f"`source` must have episodes alike; `{name}` is of several shapes, or text in some")
            columns[name] = np.concatenate([part[name] for part in parts if len(part[name])] or [np.zeros(0)])
    return in_memory(columns)


def _episode_columns(number: int, episode: object) -> Columns:
    if isinstance(episode, Sequence) and not isinstance(episode, (str, bytes)):
        for step in episode:
            if not isinstance(step, (tuple, list)) or len(step) != len(_STEP):
                raise InputError(f"`source[{number}]` must be steps ({', '.join(_STEP)}), got {short_repr(step)}")
        columns = {name: _as_column([step[i] for step in episode]) for i, name in enumerate(_STEP)}
        return {**columns, "episode": np.full(len(episode), number)}
    given = {name: episode.get(name) if isinstance(episode, Mapping) else getattr(episode, name, None)
             for name in (*_EPISODE, "infos")}  # fmt: skip
    for name in _EPISODE:
        if given[name] is None:
            raise InputError(f"`source[{number}]` must have {name}, as Gymnasium's episodes in Minari have")
        if isinstance(given[name], (Mapping, tuple)):
            raise InputError(
                f"`source[{number}].{name}` is a {type(given[name]).__name__} of parts; flatten the space first, as "
                "with gymnasium.wrappers.FlattenObservation"
            )
    observations, actions, rewards, terminations, truncations = (_as_column(given[name]) for name in _EPISODE)
    steps = len(actions)
    if len(observations) != steps + 1:
        raise InputError(
            f"`source[{number}]` must have one observation more than actions, got {len(observations)} and {steps}"
        )
    values = (observations[:-1], actions, rewards, observations[1:], terminations, truncations)
    columns = {**dict(zip(_STEP, values, strict=True)), "episode": np.full(steps, number)}
    if given["infos"] and "action_log_prob" in given["infos"]:
        logs = np.asarray(given["infos"]["action_log_prob"], float)
        if logs.shape != (steps + 1,):
            raise InputError(
                f"`source[{number}].infos['action_log_prob']` must have {steps + 1} entries, got {logs.shape}"
            )
        columns["propensity"] = np.exp(logs[1:])  # the first entry, from reset, belongs to no action
    return columns
