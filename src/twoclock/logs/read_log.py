"""Reading a log: which column is what, every row checked, nothing left out without a count."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from twoclock.logs import episodes
from twoclock.logs.dataset import Log, Part, neighbours
from twoclock.logs.row_checks import Checked, Raw, Roles, check, in_roles
from twoclock.logs.sources import InMemory, Source, columns_of
from twoclock.protocols import InputError
from twoclock.validation import choice, function, shown

_LARGEST_INTEGER_ACTION = 10_000
NO_NEXT = "no next state: the last row of an episode that was cut off"


def read(
    source: object,
    *,
    state: str | Sequence[str] = "state",
    action: str | Sequence[str] = "action",
    reward: str = "reward",
    next_state: str | Sequence[str] | None = None,
    terminated: str | None = "terminated",
    truncated: str | None = None,
    episode: str | None = None,
    step: str | None = None,
    propensity: str | None = None,
    actions: Sequence[Any] | None = None,
    on_bad: str = "raise",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Log:
    """A log of transitions, checked row by row.

    Args:
        source: a pandas or polars frame, a pyarrow table, a dict of arrays, a Parquet file or a folder of them
            (streamed, it may be larger than memory), a Minari dataset or the id of a local one, or a list of episodes
            as Gymnasium and Minari keep them. The last three name their columns themselves.
        state: its column, or several of numbers (or of text) that together are the state.
        action: its column; whole numbers or text are discrete actions, floats continuous ones. Several are a vector.
        reward: its column.
        next_state: its column or columns; taken from the following row of the episode if None.
        terminated: the flag after which nothing is earned any more; None where episodes never end by themselves.
        truncated: the flag of an episode that was cut off, which is no termination.
        episode: a column that tells episodes apart; without it an episode lasts until a flag.
        step: the number of the step in its episode, to find gaps and duplicates.
        propensity: the behaviour's probability (or density) of the action; NaN where it is not known.
        actions: the discrete actions there are, in the order of a policy's columns; found in the log if None.
        on_bad: "raise" names the first bad row; "drop" leaves bad rows out and counts them in ``log.dropped``.
        progress: called with the rows done and the rows there are.

    >>> import twoclock as tc
    >>> log = tc.logs.read({"state": [0, 1, 0, 1], "action": [0, 1, 1, 0], "reward": [0.0, 1.0, 0.0, 1.0],
    ...                     "terminated": [False, True, False, True]})
    >>> log
    Log(4 transitions, 2 episodes, 2 actions)
    """
    choice("on_bad", on_bad, ("raise", "drop"))
    function("progress", progress, "done", "total")
    known = None if actions is None else _known(actions)
    if episodes.is_episodes(source):
        table: Source = InMemory(episodes.columns(source))
        named = {name: name for name in episodes.NAMES if name in table.names}
        roles = _roles(table, {**named, "step": None}, known)
    else:
        table = columns_of(source)
        named_columns = {
            "state": state, "action": action, "reward": reward, "next_state": next_state, "terminated": terminated,
            "truncated": truncated, "episode": episode, "step": step, "propensity": propensity,
        }  # fmt: skip
        roles = _roles(table, named_columns, known)
        _warn_of_unused(table, named_columns)
    return _scan(table, roles, on_bad == "drop", progress)


def _known(actions: object) -> tuple[Any, ...]:
    """The actions that were named: numbers or text, each once."""
    rule = "`actions` must be a list of numbers or one of text, each action once"
    if isinstance(actions, (str, bytes)) or not isinstance(actions, (Sequence, np.ndarray)):
        raise InputError(f"{rule}, got {shown(actions)}")
    known = tuple(action.item() if isinstance(action, np.generic) else action for action in actions)
    kinds = {"text" if isinstance(a, str) else "number" if isinstance(a, (int, float)) else "other" for a in known}
    if len(kinds) != 1 or "other" in kinds or len(set(known)) < len(known) or not all(a == a for a in known):
        raise InputError(f"{rule}, got {shown(list(known))}")
    return known


_SEVERAL, _NEEDED = ("state", "action", "next_state"), ("state", "action", "reward")


def _roles(table: Source, named: dict[str, Any], actions: tuple[Any, ...] | None) -> Roles:
    def several(role: str) -> tuple[str, ...]:
        value = named.get(role)
        if value is None and role not in _NEEDED:
            return ()
        if isinstance(value, (list, tuple)) and value and role in _SEVERAL:
            if all(isinstance(name, str) for name in value):
                return tuple(value)
        elif isinstance(value, str):
            return (value,)
        what = "the name of a column, or a list of them" if role in _SEVERAL else "the name of a column"
        raise InputError(f"`{role}` must be {what}, got {shown(value)}")

    for role in named:
        for name in several(role):
            if name not in table.names:
                hint = "; write terminated=None if episodes never end by themselves" if role == "terminated" else ""
                raise InputError(
                    f"`{role}` names the column {shown(name)}, which is not there; there are: "
                    f"{', '.join(map(str, table.names))}{hint}"
                )
    if named.get("next_state") is not None and len(several("next_state")) != len(several("state")):
        raise InputError(
            f"`next_state` must have as many columns as `state`, {len(several('state'))}, "
            f"got {len(several('next_state'))}"
        )
    alone: dict[str, Any] = {
        role: named.get(role) for role in ("reward", "terminated", "truncated", "episode", "step", "propensity")
    }
    return Roles(
        state=several("state"),
        action=several("action"),
        next_state=several("next_state"),
        stacked=not isinstance(named["state"], str),
        actions=actions,
        **alone,
    )


def _warn_of_unused(table: Source, named: dict[str, Any]) -> None:
    """Without a column that says where episodes are cut off they run into each other, which changes the answer."""
    unused = [role for role in ("episode", "truncated") if role in table.names]
    if unused and named["episode"] is None and named["truncated"] is None:
        warnings.warn(
            f"the log has a column `{unused[0]}` that nothing reads, so an episode lasts until `terminated`; write "
            f'{unused[0]}="{unused[0]}" if it tells episodes apart, or leave it out of the source',
            stacklevel=3,
        )


def _scan(table: Source, roles: Roles, drop: bool, progress: Callable[[int, int], None]) -> Log:
    """Walk over all rows once: check them, number the episodes, find the actions."""
    total, parts = sum(table.sizes), list(table.sizes)
    counts: dict[str, int] = {}
    found: list[Part] = []
    seen, broken, labels = set[Any](), set[int](), set[Any]()
    rows = row = terminated = known = cut = 0
    episode, continuous = -1, False

    def all_batches() -> Iterator[tuple[int, Raw]]:
        for part in range(len(parts)):
            for columns in table.batches(part, roles.columns):
                yield part, in_roles(columns, roles)

    belongs: list[int] = []

    def raws() -> Iterator[Raw]:
        for part, raw in all_batches():
            if len(raw):
                belongs.append(part)
                yield raw

    current = -1
    for raw, before, after in neighbours(raws(), None, None):
        part = belongs.pop(0)
        if part != current:
            current = part
            found.append(Part(before, None, episode + 1, row))
        found[-1] = Part(found[-1].before, after, found[-1].episode, found[-1].row)
        checked = check(raw, before, after, roles)
        numbers = episode + np.cumsum(checked.first)
        if raw.episode is not None:
            for at in np.flatnonzero(checked.first).tolist():
                name = raw.episode[at].item() if hasattr(raw.episode[at], "item") else raw.episode[at]
                if name in seen:
                    raise InputError(
                        f"`source` row {row + at}, column `{roles.episode}`: the episode {shown(name)} comes back "
                        "after others; sort the rows by episode and step"
                    )
                seen.add(name)
        if checked.faults and not drop:
            _complain(checked, row)
        counted = np.zeros(len(raw), bool)  # a row that breaks two rules is left out once
        for (column, words), wrong in checked.faults.items():
            why, new = f"{column} {words}", int((wrong & ~counted).sum())
            counted |= wrong
            if new:
                counts[why] = counts.get(why, 0) + new
        bad = checked.bad
        keep = checked.known & ~bad
        broken |= set(numbers[bad].tolist())
        if not checked.known.all():
            counts[NO_NEXT] = counts.get(NO_NEXT, 0) + int((~checked.known & ~bad).sum())
        if (raw.action.dtype.kind == "f" and roles.actions is None) or raw.action.ndim > 1:
            continuous = True
        elif roles.actions is None:
            labels |= set(np.unique(raw.action[~bad]).tolist())
        rows += int(keep.sum())
        terminated += int((raw.terminated & keep).sum())
        cut += int((checked.last & ~raw.terminated).sum())
        known += 0 if raw.propensity is None else int((~np.isnan(raw.propensity) & keep).sum())
        episode, row = int(numbers[-1]), row + len(raw)
        progress(row, total)
    if not rows:
        raise InputError(
            "`source` has no row that can be used: " + "; ".join(f"{n:,} {why}" for why, n in counts.items())
        )
    known_actions = None if continuous else _actions(labels) if roles.actions is None else roles.actions
    return Log(
        table, roles, tuple(found), rows, episode + 1, terminated, known_actions, counts, frozenset(broken), known, cut
    )


def _complain(checked: Checked, row: int) -> None:
    """Name the first bad row; ``row`` is the number of the first one here."""
    (column, words), wrong = min(checked.faults.items(), key=lambda fault: int(np.argmax(fault[1])))
    raise InputError(
        f"`source` row {row + int(np.argmax(wrong))}, column `{column}`: {words} ({int(wrong.sum()):,} such rows among "
        f"{len(wrong):,}); mend it, or read with on_bad='drop'"
    )


def _actions(labels: set[Any]) -> tuple[Any, ...]:
    """The actions in order; whole numbers from 0 stand for themselves, so that an array policy needs no names."""
    order = sorted(labels)
    whole = all(isinstance(label, (int, np.integer)) for label in order)
    if whole and order[0] >= 0 and order[-1] < _LARGEST_INTEGER_ACTION:
        return tuple(range(int(order[-1]) + 1))
    return tuple(order)
