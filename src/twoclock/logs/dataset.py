"""A log of transitions in parts that fit in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from twoclock.logs.row_checks import Columns, Label, RawRows, Roles, check, in_roles
from twoclock.protocols import InputError, list_names
from twoclock.validation import short_repr
from twoclock.validation.arrays import check_distribution

ROWS = 32_768
"""The most rows that are processed at a time; fewer where rows are wide."""
_MOST_SORTED = 50_000_000  # numbers of a log that are sorted in memory


@dataclass(frozen=True, eq=False)
class ColumnSource:
    """Columns by name, in parts that can be read separately, ``ROWS`` or fewer rows at a time."""

    names: list[str]
    sizes: list[int]  # the rows of each part
    read: Callable[[int, Sequence[str]], Iterator[Columns]]  # the named columns of a part
    order: np.ndarray | None = None  # the number in the user's source of each row, where rows were sorted

    def row_number(self, row: int) -> int:
        """The number of a row in the user's source."""
        return row if self.order is None else int(self.order[row])


def in_memory(columns: Columns) -> ColumnSource:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"`source` must have columns of one length, got {short_repr(lengths)}")
    total, rows = max(lengths.values(), default=0), ROWS

    def read(part: int, names: Sequence[str]) -> Iterator[Columns]:
        yield {name: columns[name][part * rows : (part + 1) * rows] for name in names}

    return ColumnSource(list(columns), [min(rows, total - first) for first in range(0, total, rows)], read)


def sort_rows(table: ColumnSource, roles: Roles) -> ColumnSource:
    """Sort the rows by episode, in the order in which episodes first appear, and step; a log in order stays as it is.

    Only where each step of an episode is there once: otherwise rows are not just shuffled, and the checks of the rows
    report what is wrong. A log too large for memory stays unsorted too.
    """
    if roles.episode is None or roles.step is None or sum(table.sizes) * len(roles.columns) > _MOST_SORTED:
        return table
    episode, step = (_whole_column(table, name) for name in (roles.episode, roles.step))
    if episode is None or step is None or step.dtype.kind not in "iufM" or episode.dtype.kind not in "iufUM":
        return table
    _, first, number = np.unique(episode, return_index=True, return_inverse=True)
    order = np.lexsort((step, first[number]))
    if (order == np.arange(len(order))).all():
        return table
    same_episode = number[order][1:] == number[order][:-1]
    if (same_episode & ~(step[order][1:] > step[order][:-1])).any():  # a duplicate, or a step that is missing
        return table
    columns = {name: _whole_column(table, name) for name in roles.columns}
    whole = {name: column[order] for name, column in columns.items() if column is not None}
    return replace(in_memory(whole), order=order) if len(whole) == len(columns) else table


def _whole_column(table: ColumnSource, name: str) -> np.ndarray | None:
    """One column of all rows; None where its parts are of several shapes."""
    parts = [columns[name] for part in range(len(table.sizes)) for columns in table.read(part, [name])]
    if len({(part.shape[1:], part.dtype.kind) for part in parts}) > 1:
        return None
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some transitions (s, a, r, s')."""

    state: np.ndarray  # as it was written, one row per transition
    action: np.ndarray  # the number of the action in ``log.actions``, or the action itself where actions are continuous
    reward: np.ndarray
    next_state: np.ndarray  # s'; the state itself after a termination, where it means nothing
    terminated: np.ndarray  # no reward follows s'; a truncation is no termination
    episode: np.ndarray  # the number of the episode, from 0
    first: np.ndarray  # the transition begins its episode
    follows: np.ndarray  # s' is the state of the next row
    row: np.ndarray  # the number of the row in the source, from 0
    propensity: np.ndarray | None  # the behaviour's probability (or density) of the action, NaN where not known
    number: tuple[int, int]  # of the part and of the batch in it, for reproducible randomness

    def __len__(self) -> int:
        return len(self.reward)

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """All states of the batch without repetition, and the position of each s' among them."""
        n, apart = len(self), ~self.follows
        there = np.arange(1, n + 1)
        there[apart] = n + np.arange(apart.sum())
        return np.concatenate([self.state, self.next_state[apart]]), there


class LogPart(NamedTuple):
    """A part of the source: the rows around it, the numbers of its first episode and row, and its batches' digests."""

    before: RawRows | None
    after: RawRows | None
    episode: int
    row: int
    digests: list[bytes]


@dataclass(frozen=True, eq=False)
class Log:
    """Logged transitions, as :func:`read` checked them.

    Attributes:
        rows: the number of usable transitions.
        episodes: the number of episodes.
        actions: all actions, in the order of a policy's columns; None if they are continuous.
        dropped: for each rule, how many rows were left out.
        broken: the episodes in which a row was dropped.
        source: the file or table that the rows come from.
        roles: which column is the state, the action and so on.
        parts: where each part of the rows begins, for several processes.
        propensities: the number of transitions with a propensity.
        cut: the number of episodes that were cut off and did not terminate.
        time_limit: the length of all episodes, if each terminates at it whatever its state; else 0.
        codes: a sentence for each number such as −999 that lies far from the others of its column.

    >>> import twoclock as tc
    >>> tc.logs.read({"state": [0, 1], "action": [0, 1], "reward": [0.0, 1.0], "terminated": [False, True]})
    Log(2 transitions, 1 episodes, 2 actions: 0, 1)
    """

    source: ColumnSource
    roles: Roles
    parts: Sequence[LogPart]
    rows: int
    episodes: int
    actions: tuple[Label, ...] | None
    dropped: dict[str, int] = field(default_factory=dict)
    broken: frozenset[int] = frozenset()
    propensities: int = 0
    cut: int = 0
    time_limit: int = 0  # the length of all episodes, if each terminates at it whatever its state
    codes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        what = "continuous actions" if self.actions is None else f"{len(self.actions)} actions: {self.named_actions}"
        left = f", {sum(self.dropped.values()):,} rows left out" if self.dropped else ""
        ordered = f", sorted by {self.roles.episode} and {self.roles.step}" if self.source.order is not None else ""
        return f"Log({self.rows:,} transitions, {self.episodes:,} episodes, {what}{left}{ordered})"

    @property
    def named_actions(self) -> str:
        """The actions in the order of a policy's columns; if there are many, the first few."""
        return list_names([repr(action) for action in self.actions or ()])

    def batches(self, part: int) -> Iterator[Batch]:
        """The transitions of one part in batches; refused if they have changed since ``read``."""
        here = self.parts[part]
        number, row = here.episode - 1, here.row
        for i, raw, before, after in with_neighbours(enumerate(self._raw(part)), here.before, here.after):
            checked = check(raw, before, after, self.roles)
            episode = number + np.cumsum(checked.first)
            keep = checked.known & ~checked.bad
            follows = np.append(~checked.last[:-1] & ~raw.ended[:-1] & keep[1:], False)
            if keep.any():
                rows = slice(None) if keep.all() else keep
                state, action, next_state = (
                    np.array(column[rows].tolist()) if column.dtype == object else column[rows]  # none is missing now
                    for column in (raw.state, raw.action, checked.next_state)
                )
                yield Batch(
                    state, action if self.actions is None else encode_labels(action, self.actions), raw.reward[rows],
                    next_state, raw.terminated[rows], episode[rows], checked.first[rows], follows[rows],
                    np.arange(row, row + len(raw))[rows], None if raw.propensity is None else raw.propensity[rows],
                    (part, i),
                )  # fmt: skip
            number, row = int(episode[-1]), row + len(raw)

    def _raw(self, part: int) -> Iterator[RawRows]:
        expected = iter(self.parts[part].digests)
        for columns in self.source.read(part, self.roles.columns):
            if digest(columns) != next(expected, None):
                break
            yield in_roles(columns, self.roles)
        else:
            if next(expected, None) is None:
                return
        raise InputError("`log` is of a source that was changed since it was read; read it again")

    @property
    def length(self) -> int:
        """The number of rows of the source, dropped rows included."""
        return sum(self.source.sizes)

    def __iter__(self) -> Iterator[Batch]:
        for part in range(len(self.parts)):
            yield from self.batches(part)

    @cached_property
    def sample(self) -> tuple[np.ndarray, np.ndarray]:
        """About 2,000 states and their actions, from parts spread over the log."""
        parts, chosen = _spread(len(self.parts), 8), []
        for part in parts.tolist():
            batch = next(self.batches(part), None)
            if batch is not None:
                at = _spread(len(batch), 2_000 // len(parts))
                chosen.append((batch.state[at], batch.action[at]))
        return np.concatenate([state for state, _ in chosen]), np.concatenate([action for _, action in chosen])

    def start_states(self, start: object) -> tuple[np.ndarray, np.ndarray]:
        """The states of a user's start, an array of states or a distribution, and their probabilities."""
        example = self.sample[0][:1]
        try:
            states = np.asarray(start)
        except (ValueError, TypeError):  # lists of different lengths
            raise InputError(
                f"`start` must be an array of states, or a distribution over them, got {short_repr(start)}"
            ) from None
        if states.ndim == 1 and states.dtype.kind == "f" and example.dtype.kind in "iu" and example.ndim == 1:
            weights = check_distribution("start", states, len(states), "or give the states themselves as whole numbers")
            return np.flatnonzero(weights), weights[weights > 0]
        if states.dtype.kind == "O" or (states.dtype.kind == "U") != (example.dtype.kind == "U"):
            raise InputError(
                f"`start` must be states like the log's, such as {short_repr(example[0].tolist())}, or a distribution "
                f"over them, got {short_repr(start)}"
            )
        if states.ndim == example.ndim - 1 and states.shape == example.shape[1:]:
            states = states[None]
        if states.shape[1:] != example.shape[1:] or not len(states):
            raise InputError(
                f"`start` must be an array of states as the log has them, with one row of shape {example.shape[1:]} "
                f"each, got the shape {states.shape}"
            )
        return states, np.full(len(states), 1 / len(states))

    def fingerprint(self) -> str:
        """A digest of the rows and of the meaning of the columns."""
        text = repr((self.roles, self.actions, [part.digests for part in self.parts]))
        return hashlib.sha256(text.encode()).hexdigest()


def digest(columns: Columns) -> bytes:
    """A digest of the columns, their names and all entries."""
    found = hashlib.sha256()
    for name, column in columns.items():
        content = repr(column.tolist()).encode() if column.dtype == object else column.tobytes()
        found.update(f"{name!r} {column.dtype} {column.shape} ".encode() + content)
    return found.digest()


def encode_labels(labels: np.ndarray, known: Sequence[Label] | np.ndarray) -> np.ndarray:
    """Number each label by its place among the known ones, −1 for others."""
    table = np.asarray(known)
    if table.dtype.kind in "iu" and labels.dtype.kind in "iub" and np.array_equal(table, np.arange(len(table))):
        found = labels.astype(np.int64)
        return np.where((found >= 0) & (found < len(table)), found, -1)
    order = np.argsort(table)
    at = np.minimum(np.searchsorted(table, labels, sorter=order), len(table) - 1)
    return np.where(table[order[at]] == labels, order[at], -1)


def rows_as_labels(state: np.ndarray) -> np.ndarray:
    """Return states as labels that sort and compare: several columns become one record."""
    if state.ndim == 1:
        return state
    if state.shape[1] == 1:
        return state[:, 0]
    whole = np.ascontiguousarray(state)
    return whole.view([(f"f{i}", whole.dtype) for i in range(whole.shape[1])])[:, 0]


def _spread(count: int, most: int) -> np.ndarray:
    """At most ``most`` integers below ``count``, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))


def with_neighbours(
    raws: Iterable[tuple[int, RawRows]], before: RawRows | None, after: RawRows | None
) -> Iterator[tuple[int, RawRows, RawRows | None, RawRows | None]]:
    """Yield each numbered batch that has rows, with the row before it and the row after it."""
    held: tuple[int, RawRows] | None = None
    for number, raw in raws:
        if not len(raw):
            continue
        if held is not None:
            yield *held, before, raw.row(0)
            before = held[1].row(-1)
        held = number, raw
    if held is not None:
        yield *held, before, after
