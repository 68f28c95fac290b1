"""Sources of a log: frames, tables, Parquet, Minari, episodes; all become columns in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from twoclock.protocols import InputError
from twoclock.storage import parquet
from twoclock.validation import short_repr

ROWS = 32_768
"""So many rows are worked on at a time."""

Columns = dict[str, np.ndarray]
_STEP = ("state", "action", "reward", "next_state", "terminated", "truncated")
_EPISODE = ("observations", "actions", "rewards", "terminations", "truncations")


@runtime_checkable
class ColumnSource(Protocol):
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


def open_table(given: Any) -> ColumnSource:
    """Open a table whose columns the user names."""
    kind = type(given).__module__.split(".")[0]
    if isinstance(given, (str, Path)):
        names, parts = parquet.row_groups(given)
        _check_names(names)
        if not parts:
            raise InputError("`source` has no rows")
        return OnDisk(names, parts)
    if kind == "pandas" and hasattr(given, "columns"):
        _check_names(names := [str(name) for name in given.columns])
        columns = {name: _as_column(given.iloc[:, i].to_numpy()) for i, name in enumerate(names)}
    elif kind == "polars" and type(given).__name__ in ("DataFrame", "LazyFrame"):
        eager = given.collect() if hasattr(given, "collect") else given
        columns = {name: parquet.array(eager[name].to_arrow()) for name in eager.columns}
    elif kind == "pyarrow" and hasattr(given, "column_names"):
        _check_names(given.column_names)
        columns = {name: parquet.array(given[name]) for name in given.column_names}
    elif isinstance(given, Mapping):
        columns = {}
        for name, entry in given.items():
            try:
                column = np.asarray(entry)
            except Exception as error:  # lists of different lengths, and whatever an object of the user's raises
                why = " ".join(str(error).split())
                raise InputError(f"`source[{short_repr(str(name))}]` is no column: {why:.100}") from None
            if not column.ndim:
                where = f"`source[{short_repr(str(name))}]`"
                raise InputError(f"{where} must have an entry for each row, got {short_repr(entry)}")
            columns[str(name)] = _as_column(column)
    else:
        raise InputError(
            "`source` must be a pandas or polars frame, a pyarrow table, a Parquet file or folder, a Minari dataset or "
            f"its id, a dict of arrays or a list of episodes, got {short_repr(given)}"
        )
    lengths = {name: len(column) if column.ndim else 0 for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"`source` must have columns of one length, got {short_repr(lengths)}")
    if not any(lengths.values()):
        raise InputError("`source` has no rows")
    return InMemory(columns)


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise InputError(f"`source` has two columns named {short_repr(twice)}; rename one")


def _as_column(column: np.ndarray) -> np.ndarray:
    """Turn lists in a column into rows of an array, and text into text; a missing entry stays an object."""
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


def open_episodes(source: Any) -> InMemory | None:
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
                f"`source` {source} is a Minari id; install it with `pip install 'twoclock[minari]'`"
            ) from None
        except (FileNotFoundError, ValueError) as error:
            why = " ".join(str(error).split())
            raise InputError(
                f"`source` {source} is no local Minari dataset: {why:.150}; `minari download` it first"
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
    names = [name for name in parts[0] if name != "propensity" or all("propensity" in part for part in parts)]
    return InMemory({name: np.concatenate([part[name] for part in parts]) for name in names})


def _episode_columns(number: int, episode: object) -> Columns:
    if isinstance(episode, Sequence) and not isinstance(episode, (str, bytes)):
        for step in episode:
            if not isinstance(step, (tuple, list)) or len(step) != len(_STEP):
                raise InputError(f"`source[{number}]` must be steps ({', '.join(_STEP)}), got {short_repr(step)}")
        columns = {name: np.asarray([step[i] for step in episode]) for i, name in enumerate(_STEP)}
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
    observations, actions, rewards, terminations, truncations = (np.asarray(given[name]) for name in _EPISODE)
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
        columns["propensity"] = np.exp(logs[1:])  # what reset returned, the first, goes with no action
    return columns
