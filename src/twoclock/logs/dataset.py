"""A log of transitions, checked, in parts that fit in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from twoclock.logs.row_checks import Checked, Raw, Roles, check, in_roles
from twoclock.logs.sources import Source


@dataclass(frozen=True, eq=False)
class Batch:
    """Some transitions (s, a, r, s').

    Attributes:
        state: as it was written, one row a transition.
        action: the number of the action in ``log.actions``, or the action itself where actions are continuous.
        next_state: s'; the state itself after a termination, where it means nothing.
        terminated: nothing is earned after s'. A truncation is no termination.
        episode: the number of the episode, from 0.
        first: the transition begins its episode.
        follows: s' is the state of the next row.
        propensity: the behaviour's probability (or density) of the action, NaN where not known; None without a column.
        row: the number of the row in the source, from 0.
        number: of the part and of the batch in it, for randomness that must be the same each time.
    """

    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_state: np.ndarray
    terminated: np.ndarray
    episode: np.ndarray
    first: np.ndarray
    follows: np.ndarray
    propensity: np.ndarray | None
    row: np.ndarray
    number: tuple[int, int]

    def __len__(self) -> int:
        return len(self.reward)

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Every state of the batch once, s' too where it is not the next row's, and where in it each s' is."""
        n, apart = len(self), ~self.follows
        there = np.arange(1, n + 1)
        there[apart] = n + np.arange(apart.sum())
        return np.concatenate([self.state, self.next_state[apart]]), there


@dataclass(frozen=True, eq=False)
class Part:
    """Where a part of the source stands among the others."""

    before: Raw | None
    after: Raw | None
    episode: int
    row: int


@dataclass(frozen=True, eq=False)
class Log:
    """Logged transitions, as :func:`read` checked them.

    Attributes:
        rows: how many transitions can be used.
        episodes: how many episodes.
        actions: the actions there are, in the order of a policy's columns; None if they are continuous.
        dropped: rule → how many rows were left out for it.
        broken: the episodes that lack a row because it was dropped.
    """

    source: Source
    roles: Roles
    parts: Sequence[Part]
    rows: int
    episodes: int
    terminated: int
    actions: tuple[Any, ...] | None
    dropped: dict[str, int] = field(default_factory=dict)
    broken: frozenset[int] = frozenset()
    propensities: int = 0
    cut: int = 0

    def __repr__(self) -> str:
        what = "continuous actions" if self.actions is None else f"{len(self.actions)} actions"
        left = f", {sum(self.dropped.values()):,} rows left out" if self.dropped else ""
        return f"Log({self.rows:,} transitions, {self.episodes:,} episodes, {what}{left})"

    def batches(self, part: int) -> Iterator[Batch]:
        """The transitions of one part."""
        here = self.parts[part]
        number, row = here.episode - 1, here.row
        read = (in_roles(columns, self.roles) for columns in self.source.batches(part, self.roles.columns))
        for i, (raw, before, after) in enumerate(neighbours(read, here.before, here.after)):
            checked = check(raw, before, after, self.roles)
            episode = number + np.cumsum(checked.first)
            yield self._batch(raw, checked, episode, row, (part, i))
            number, row = int(episode[-1]), row + len(raw)

    def _batch(self, raw: Raw, checked: Checked, episode: np.ndarray, row: int, number: tuple[int, int]) -> Batch:
        keep = checked.known & ~checked.bad
        follows = np.append(~checked.last[:-1] & ~raw.ended[:-1] & keep[1:], False)
        whole = keep.all()

        def kept(column: np.ndarray) -> np.ndarray:
            return column if whole else column[keep]

        action = raw.action if self.actions is None else encode_labels(raw.action, self.actions)
        propensity = None if raw.propensity is None else kept(raw.propensity)
        return Batch(
            kept(raw.state), kept(action), kept(raw.reward), kept(checked.next_state), kept(raw.terminated),
            kept(episode), kept(checked.first), kept(follows), propensity,
            kept(np.arange(row, row + len(raw))), number,
        )  # fmt: skip

    @property
    def length(self) -> int:
        """The rows of the source, those that were left out too."""
        return sum(self.source.sizes)

    def __iter__(self) -> Iterator[Batch]:
        for part in range(len(self.parts)):
            yield from self.batches(part)

    def sample(self, rows: int = 2_000) -> tuple[np.ndarray, np.ndarray]:
        """Some states and their actions, from parts spread over the log."""
        state, action = self._sample
        at = np.unique(np.linspace(0, len(state) - 1, min(rows, len(state))).astype(int))
        return state[at], action[at]

    @cached_property
    def _sample(self) -> tuple[np.ndarray, np.ndarray]:
        parts = np.unique(np.linspace(0, len(self.parts) - 1, min(len(self.parts), 8)).astype(int))
        found = []
        for part in parts.tolist():
            for batch in self.batches(part):
                if len(batch):
                    at = np.unique(np.linspace(0, len(batch) - 1, min(2_000 // len(parts), len(batch))).astype(int))
                    found.append((batch.state[at], batch.action[at]))
                    break
        return np.concatenate([state for state, _ in found]), np.concatenate([action for _, action in found])

    def fingerprint(self) -> str:
        """Differs where the log differs in its size, its columns, or a row at the seam of two parts."""
        seams = [vars(part.after or part.before) if part.after or part.before else {} for part in self.parts]
        text = repr((self.roles, self.rows, self.episodes, list(self.source.sizes), seams))
        return hashlib.sha256(text.encode()).hexdigest()


def encode_labels(labels: np.ndarray, known: Sequence[Any] | np.ndarray) -> np.ndarray:
    """The number of each label among the known ones, −1 for others."""
    table = np.asarray(known)
    if table.dtype.kind in "iu" and labels.dtype.kind in "iub" and np.array_equal(table, np.arange(len(table))):
        found = labels.astype(np.int64)
        return np.where((found >= 0) & (found < len(table)), found, -1)
    order = np.argsort(table)
    at = np.minimum(np.searchsorted(table, labels, sorter=order), len(table) - 1)
    return np.where(table[order[at]] == labels, order[at], -1)


def neighbours(
    raws: Iterator[Raw], before: Raw | None, after: Raw | None
) -> Iterator[tuple[Raw, Raw | None, Raw | None]]:
    """Each batch with the row before it and the row after it."""
    held = None
    for raw in raws:
        if not len(raw):
            continue
        if held is not None:
            yield held, before, raw.row(0)
            before = held.row(-1)
        held = raw
    if held is not None:
        yield held, before, after
