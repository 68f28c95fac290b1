"""Off-policy evaluation: read logged data, evaluate another policy on it, and judge how far to trust the estimate."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from twoclock.logs import features
from twoclock.logs.dataset import ColumnSource, Log, LogPart, digest, sort_rows, with_neighbours
from twoclock.logs.estimators import estimators
from twoclock.logs.evaluate import evaluate
from twoclock.logs.ope_result import Value, load
from twoclock.logs.policies import Gaussian
from twoclock.logs.row_checks import NEXT, Label, RawRows, Roles, check, in_roles, is_text
from twoclock.logs.sources import open_episodes, open_table
from twoclock.logs.suspicious_entries import MissingCodes, TimeLimit
from twoclock.protocols import InputError
from twoclock.validation import choice, function, short_repr

__all__ = ["Gaussian", "Log", "Value", "estimators", "evaluate", "features", "load", "read"]

estimators()  # imports all of them now, so that no call has to

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
    actions: Sequence[Label] | None = None,
    on_bad: str = "raise",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Log:
    """Read a log of transitions and check it row by row.

    Args:
        source: a pandas or polars frame, a pyarrow table, a dict of arrays, a CSV file, or a Parquet file or folder
            (streamed, so it may be larger than memory). Or a Minari dataset, the id of a local one, or a list of
            episodes in the form of Gymnasium and Minari; these three name their columns themselves.
        state: its column, or several of numbers (or of text) that together are the state.
        action: its column; whole numbers or text are discrete actions, floats continuous ones. Several are a vector.
        reward: its column.
        next_state: its column or columns; taken from the following row of the episode if None.
        terminated: the flag of the end of an episode, after which no reward follows; None where episodes never end.
        truncated: the flag of an episode that was cut off; this is no termination.
        episode: a column with an episode's identifier; without it an episode lasts until a flag.
        step: the number of the step in its episode, to find gaps and duplicates, or its time. With ``episode`` and
            ``step`` shuffled rows are sorted.
        propensity: the probability (or density) with which the behaviour took the action; NaN where it is not known.
        actions: all discrete actions, in the order of a policy's columns; found in the log if None.
        on_bad: "raise" names the first bad row; "drop" leaves bad rows out and counts them in ``log.dropped``.
        progress: called with the number of rows done and of all rows.

    >>> import twoclock as tc
    >>> log = tc.logs.read({"state": [0, 1, 0, 1], "action": [0, 1, 1, 0], "reward": [0.0, 1.0, 0.0, 1.0],
    ...                     "terminated": [False, True, False, True]})
    >>> log
    Log(4 transitions, 2 episodes, 2 actions: 0, 1)
    """
    choice("on_bad", on_bad, ("raise", "drop"))
    function("progress", progress, "done", "total")
    known: tuple[Label, ...] | None = None
    if actions is not None:
        rule = "`actions` must be a list of numbers or one of text, each action once"
        if (
            isinstance(actions, (str, bytes))
            or not isinstance(actions, (Sequence, np.ndarray))
            or getattr(actions, "ndim", 1) != 1
        ):
            raise InputError(f"{rule}, got {short_repr(actions)}")
        known = tuple(action.item() if isinstance(action, np.generic) else action for action in actions)
        alike = all(isinstance(a, str) for a in known) or all(isinstance(a, (int, float)) for a in known)
        if not known or not alike or len(set(known)) < len(known) or not all(a == a for a in known):
            raise InputError(f"{rule}, got {short_repr(list(known))}")
    columns: dict[str, str | Sequence[str] | None] = {
        "state": state, "action": action, "reward": reward, "next_state": next_state, "terminated": terminated,
        "truncated": truncated, "episode": episode, "step": step, "propensity": propensity,
    }  # fmt: skip
    table = open_episodes(source)
    if table is not None:
        roles = _roles(table.names, {role: role if role in table.names else None for role in columns}, known)
    else:
        table = open_table(source)
        roles = _roles(table.names, columns, known)
        # Without a column that shows where episodes are cut off, they would be joined, which changes the answer.
        unused = [role for role in ("episode", "truncated") if role in table.names]
        if unused and episode is None and truncated is None:
            warnings.warn(
                f"the log has a column `{unused[0]}` that nothing reads, so an episode lasts until `terminated`; write "
                f'{unused[0]}="{unused[0]}" if it numbers the episodes, or leave it out of the source',
                stacklevel=2,
            )
    return _scan(sort_rows(table, roles), roles, on_bad == "drop", progress)


def _roles(
    names: Sequence[str], columns: Mapping[str, str | Sequence[str] | None], actions: tuple[Label, ...] | None
) -> Roles:
    """Check that every role's column is there."""
    several, needed = ("state", "action", "next_state"), ("state", "action", "reward")
    found: dict[str, tuple[str, ...]] = {}
    for role, value in columns.items():
        listed = isinstance(value, (list, tuple)) and role in several
        found[role] = tuple(value or ()) if listed or value is None else (value,)  # type: ignore[assignment]
        optional = value is None and role not in needed
        if not optional and not (found[role] and all(isinstance(name, str) for name in found[role])):
            what = "the name of a column, or a list of them" if role in several else "the name of a column"
            raise InputError(f"`{role}` must be {what}, got {short_repr(value)}")
        for name in found[role]:
            if name not in names:
                hint = "; write terminated=None if episodes never terminate" if role == "terminated" else ""
                raise InputError(
                    f"`{role}` names the column {short_repr(name)}, which is not there; there are: "
                    f"{', '.join(map(str, names))}{hint}"
                )
    states, after = len(found["state"]), len(found["next_state"])
    if columns["next_state"] is not None and after != states:
        raise InputError(f"`next_state` must have as many columns as `state`, {states}, got {after}")
    given: dict[str, Any] = {
        role: names if role in several else next(iter(names), None) for role, names in found.items()
    }
    return Roles(**given, stacked=not isinstance(columns["state"], str), actions=actions)


def _entry(table: ColumnSource, name: str, part: int, row: int) -> str:
    """The entry of a row, for a message; nothing where a rule concerns several columns."""
    if name not in table.names:
        return ""
    entry = np.concatenate([columns[name] for columns in table.read(part, [name])])[row : row + 1].tolist()[0]
    return f", got {short_repr(entry)}"


def _scan(table: ColumnSource, roles: Roles, drop: bool, progress: Callable[[int, int], None]) -> Log:
    """Read all rows once: check them, number the episodes, find the actions."""
    counts, parts, digests, kinds = Counter[str](), list[LogPart](), list[list[bytes]](), dict[str, object]()
    seen, broken, labels = set[object](), set[int](), set[Label]()
    rows = row = known = cut = 0
    episode, continuous, limit, codes = -1, False, TimeLimit(), MissingCodes()

    def raws() -> Iterator[tuple[int, RawRows]]:
        for part in range(len(table.sizes)):
            digests.append([])
            for columns in table.read(part, roles.columns):
                digests[part].append(digest(columns))
                raw = in_roles(columns, roles)
                for role, column in (("state", raw.state), ("action", raw.action), ("episode", raw.episode)):
                    kind = None if column is None else (is_text(column), column.shape[1:])
                    if kind and kind[0] is not None and kinds.setdefault(role, kind) != kind:
                        raise InputError(f"`{role}` must be of one kind and length in all of `source`; write it alike")
                yield part, raw

    for part, raw, before, after in with_neighbours(raws(), None, None):
        if part == len(parts):
            parts.append(LogPart(before, None, episode + 1, row, digests[part]))
        parts[part] = parts[part]._replace(after=after)
        checked = check(raw, before, after, roles)
        limit.add(raw, checked)
        codes.add(raw, roles)
        episodes = episode + np.cumsum(checked.first)
        if raw.episode is not None:
            for at in np.flatnonzero(checked.first).tolist():
                number = raw.episode[at : at + 1].tolist()[0]
                if number in seen:
                    raise InputError(
                        f"`source` row {table.row_number(row + at)}, column `{roles.episode}`: the episode "
                        f"{short_repr(number)} comes back after others; sort the rows by episode and step"
                    )
                seen.add(number)
        if checked.faults and not drop:
            (name, words), wrong = min(checked.faults.items(), key=lambda fault: int(np.argmax(fault[1])))
            at = row + int(np.argmax(wrong))
            many = f" ({int(wrong.sum()):,} such rows among {len(wrong):,})" if wrong.sum() > 1 else ""
            entry = "" if words.startswith(NEXT) else _entry(table, name, part, at - parts[part].row)
            raise InputError(
                f"`source` row {table.row_number(at)}, column `{name}`: {words}{entry}{many}; correct it, or read with "
                "on_bad='drop'"
            )
        counted = np.zeros(len(raw), bool)  # a row that breaks two rules is left out once
        for (name, words), wrong in checked.faults.items():
            counts[f"{name} {words}"] += int((wrong & ~counted).sum())
            counted |= wrong
        keep = checked.known & ~counted
        broken |= set(episodes[counted].tolist())
        counts[NO_NEXT] += int((~checked.known & ~counted).sum())
        if (raw.action.dtype.kind == "f" and roles.actions is None) or raw.action.ndim > 1:
            continuous = True
        elif roles.actions is None:
            labels |= set(np.unique(raw.action[~counted]).tolist())
        rows += int(keep.sum())
        cut += int((checked.last & ~raw.terminated).sum())
        known += 0 if raw.propensity is None else int((~np.isnan(raw.propensity) & keep).sum())
        episode, row = int(episodes[-1]), row + len(raw)
        progress(row, sum(table.sizes))
    counts = +counts
    if not rows:
        lost = "; ".join(f"{n:,} {why}" for why, n in counts.items())
        raise InputError(f"`source` has no row that can be used: {lost}")
    if continuous and labels:
        raise InputError(
            f"`source` column `{roles.action[0]}` has floats in some parts and whole numbers in others; write "
            "them alike, or name the actions with `read(…, actions=[…])`"
        )
    numbers = [label for label in labels if isinstance(label, int)]
    if labels and len(numbers) == len(labels) and min(numbers) >= 0 and max(numbers) < _LARGEST_INTEGER_ACTION:
        labels = set(range(max(numbers) + 1))  # numbers are their own names
    actions = None if continuous else roles.actions or tuple(np.unique(list(labels)).tolist())
    incomplete, length, odd = frozenset(broken), limit.length(), codes.found()
    return Log(table, roles, parts, rows, episode + 1, actions, dict(counts), incomplete, known, cut, length, odd)
