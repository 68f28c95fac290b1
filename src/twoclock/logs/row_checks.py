"""Rules that each row of a log must meet; a row that breaks one is named by its number, its column and the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from twoclock.protocols import InputError
from twoclock.validation import short_repr

Columns = dict[str, np.ndarray]
_LARGEST = 1e70  # the fourth powers of larger numbers overflow when they are summed
_FINITE = "is missing, not finite or larger than 1e70"
NEXT = "gives a next state"  # a rule of the next row, whatever is in this one
Label = str | int | float
"""A discrete action."""


@dataclass(frozen=True, eq=False)
class Roles:
    """The columns of each role; ``state`` and ``next_state`` may have several."""

    state: tuple[str, ...]
    action: tuple[str, ...]
    reward: str
    next_state: tuple[str, ...] = ()
    terminated: str | None = None
    truncated: str | None = None
    episode: str | None = None
    step: str | None = None
    propensity: str | None = None
    stacked: bool = False  # whether `state` was given as a list, and stays a matrix with one column
    actions: tuple[Label, ...] | None = None

    @property
    def columns(self) -> list[str]:
        named = (self.reward, self.terminated, self.truncated, self.episode, self.step, self.propensity)
        return list(dict.fromkeys([*self.state, *self.action, *self.next_state, *filter(None, named)]))


@dataclass(frozen=True, eq=False)
class RawRows:
    """Some consecutive rows, by role, unchanged."""

    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_state: np.ndarray | None
    terminated: np.ndarray
    ended: np.ndarray
    unclear: np.ndarray  # whether each of the two flags is missing, or neither true nor false
    episode: np.ndarray | None
    step: np.ndarray | None
    propensity: np.ndarray | None

    def __len__(self) -> int:
        return len(self.reward)

    def row(self, i: int) -> RawRows:
        """Return one row alone."""
        at = slice(i, i + 1 or None)
        one: dict[str, Any] = {name: None if value is None else value[at] for name, value in vars(self).items()}
        return RawRows(**one)


def _comparable(name: str, column: np.ndarray) -> np.ndarray:
    """Refuse labels that cannot be compared, or written as text."""
    text = column
    if column.dtype == object:
        try:
            text = np.array(sorted(entry for entry in column.ravel().tolist() if entry is not None))
        except TypeError:
            raise InputError(f"`source` column `{name}` must be all numbers or all text; make it one of them") from None
    if text.dtype.kind == "U" and text.size and text.dtype.itemsize:
        codes = np.ascontiguousarray(text).view(np.uint32)
        if ((codes >= 0xD800) & (codes < 0xE000)).any():
            raise InputError(f"`source` column `{name}` has text that is no Unicode, a lone surrogate; correct it")
    return column


def is_text(column: np.ndarray) -> bool | None:
    """Whether labels are text; None where all are missing."""
    if column.dtype != object:
        return column.dtype.kind == "U"
    return next((isinstance(entry, str) for entry in column.ravel() if entry is not None), None)


def is_written_number(column: np.ndarray) -> bool:
    """Whether labels are text and each is a number."""
    entries = [entry for entry in column.ravel().tolist() if entry is not None]
    try:
        return bool(entries) and all(isinstance(entry, str) and np.isfinite(float(entry)) for entry in entries)
    except ValueError:
        return False


def _numbers(name: str, column: np.ndarray) -> np.ndarray:
    """Convert to floats; an entry that is no number becomes NaN, which the rules then report."""
    if column.dtype.kind == "O":
        numbers = (int, float, np.number, np.bool, Decimal)
        entries = [entry for entry in column.ravel().tolist() if entry is not None]
        if entries and all(isinstance(entry, str) for entry in entries):
            raise InputError(_not_numbers(name, f"text such as {short_repr(entries[0])}"))
        column = np.array([entry if isinstance(entry, numbers) else np.nan for entry in column], object)
    elif column.dtype.kind not in "biuf":
        kind = {"U": "text", "M": "timestamps", "m": "durations"}.get(column.dtype.kind, str(column.dtype))
        raise InputError(_not_numbers(name, f"{kind} such as {short_repr(str(column[0]))}" if len(column) else kind))
    found = column.astype(float)
    if column.dtype.kind in "iuO" and (np.abs(found) >= 2**53).any():
        raise InputError(
            f"`source` column `{name}` has whole numbers from 2⁵³ on, which floats merge; give them as "
            "floats, or identifiers as text"
        )
    return found


def _not_numbers(name: str, what: str) -> str:
    return f"`source` column `{name}` must have numbers, got {what}; convert it, as with `pandas.to_numeric`"


def _flags(name: str, column: np.ndarray) -> np.ndarray:
    """Convert to floats; text is refused, since every nonempty text would count as true."""
    if is_text(column):
        entries = [entry for entry in column.ravel().tolist() if entry is not None]
        if not all(isinstance(entry, str) for entry in entries):
            return np.full(len(column), np.nan)
        raise InputError(
            f"`source` column `{name}` must have true and false, or 1 and 0, got text such as "
            f"{short_repr(entries[0])}; convert it, as with `frame[column] == 'True'`"
        )
    return _numbers(name, column)


def _steps(name: str, column: np.ndarray) -> np.ndarray:
    """Numbers of steps as floats; timestamps unchanged."""
    if column.dtype.kind == "M":
        return column.astype("datetime64[us]")
    if is_text(column):
        what = short_repr(next(entry for entry in column.ravel().tolist() if entry is not None))
        raise InputError(
            f"`source` column `{name}` must have numbers or timestamps, got text such as {what}; convert it, as with "
            "`pandas.to_numeric` or `pandas.to_datetime`"
        )
    return _numbers(name, column)


def in_roles(columns: Columns, roles: Roles) -> RawRows:
    """Assign the columns of a table to their roles."""

    def one_column(name: str, convert: Callable[[str, np.ndarray], np.ndarray] = _numbers) -> np.ndarray:
        column = columns[name]
        if column.ndim == 2 and column.shape[1] == 1:
            column = column[:, 0]
        if column.ndim != 1:
            raise InputError(f"`source` column `{name}` must have one entry per row, got the shape {column.shape}")
        return convert(name, column)

    def labels(names: tuple[str, ...], stacked: bool) -> np.ndarray:
        """Return one column as it is; several as a matrix of numbers, or of text where all are text."""
        some = [columns[name] for name in names]
        for name, column in zip(names, some, strict=True):
            if column.ndim > 2 or (len(some) > 1 and column.ndim > 1):
                raise InputError(
                    f"`source` column `{name}` must have a number in each row or, as the only column, "
                    f"a flat list of them; got the shape {column.shape}, so flatten it"
                )
            _comparable(name, column)
        if len(some) == 1 and not (stacked and some[0].ndim == 1):
            return some[0]
        for kinds in ("U", "i", "u"):  # as floats, whole numbers above 2⁵³ would merge
            if all(column.dtype.kind == kinds for column in some):
                return np.column_stack(some)
        text = [is_text(column) for column in some]
        if True in text:
            if False in text:
                one, other = names[text.index(True)], names[text.index(False)]
                remedy = f"make all of them text, as with `frame[{short_repr(other)}].astype(str)`, or all numbers"
                if is_written_number(some[text.index(True)]):
                    remedy = f"`{one}` has numbers written as text: convert it, as with `pandas.to_numeric`"
                raise InputError(
                    f"`source` columns `{one}` and `{other}` are text and numbers, and together they are no state of "
                    f"one kind; {remedy}"
                )
            return np.column_stack([column.astype(object) for column in some])
        return np.column_stack([_numbers(name, column) for name, column in zip(names, some, strict=True)])

    reward, state = one_column(roles.reward), labels(roles.state, roles.stacked)
    after = labels(roles.next_state, roles.stacked) if roles.next_state else None
    if after is not None and (after.shape != state.shape or {is_text(after), is_text(state)} >= {True, False}):
        raise InputError("`next_state` must have states as `state` has them: of the same shape, and text if they are")
    flags = [
        one_column(name, _flags) if name else np.zeros(len(reward)) for name in (roles.terminated, roles.truncated)
    ]
    terminated, truncated = (flag == 1 for flag in flags)
    unclear = np.column_stack([(flag != 1) & (flag != 0) for flag in flags])
    return RawRows(
        state, labels(roles.action, len(roles.action) > 1), reward, after, terminated, terminated | truncated, unclear,
        one_column(roles.episode, _comparable) if roles.episode else None,
        one_column(roles.step, _steps) if roles.step else None,
        one_column(roles.propensity) if roles.propensity else None,
    )  # fmt: skip


class CheckedRows(NamedTuple):
    """Rows with information from their neighbours."""

    first: np.ndarray  # an episode begins with this row
    last: np.ndarray  # the episode or the log ends with this row
    next_state: np.ndarray  # the given one, or the state of the following row; the row's own state at the end
    known: np.ndarray  # whether there is a next state, or the episode terminated
    bad: np.ndarray  # whether it breaks a rule
    faults: dict[tuple[str, str], np.ndarray]  # (column, rule) → the rows that break it


def check(raw: RawRows, before: RawRows | None, after: RawRows | None, roles: Roles) -> CheckedRows:
    """Check the rules that concern a row and its neighbours only."""
    n = len(raw)
    ended_before = _shift(raw.ended, None if before is None else before.ended, False)
    first = ended_before.copy()
    continues = after is not None and not raw.ended[-1]
    if raw.episode is not None:
        first[1:] = raw.episode[1:] != raw.episode[:-1]
        first[:1] = before is not None and before.episode != raw.episode[:1]
        continues = after is not None and bool(np.all(after.episode == raw.episode[-1:]))
    first[0] |= before is None
    last = np.append(first[1:], not continues)
    following = np.concatenate([raw.state[1:], (after if after is not None and continues else raw.row(-1)).state])
    known, own, given = ~last | raw.terminated, raw.terminated | last, following
    if raw.next_state is not None:
        known, own, given = np.ones(n, bool), raw.terminated, raw.next_state
    next_state = np.where(own if given.ndim == 1 else own[:, None], raw.state, given)
    faults: dict[tuple[str, str], np.ndarray] = {}

    def rule(column: str | None, words: str, broken: np.ndarray) -> None:
        if broken.any():
            faults[column or "", words] = broken

    state, action = ", ".join(roles.state), ", ".join(roles.action)
    rule(state, _FINITE, _is_missing(raw.state))
    rule(action, _FINITE, _is_missing(raw.action))
    rule(roles.reward, _FINITE, _is_missing(raw.reward))
    lost = _is_missing(next_state) & known & ~_is_missing(raw.state)
    rule(", ".join(roles.next_state) or state, f"{NEXT} that {_FINITE}", lost)
    for name, unclear in zip((roles.terminated, roles.truncated), raw.unclear.T, strict=True):
        rule(name, "is missing, or neither true nor false", unclear)
    if raw.episode is not None:
        rule(roles.episode, "continues after its end", ended_before & ~first)
        rule(roles.episode, "is missing", _is_missing(raw.episode))
    gaps = np.zeros(n, bool)
    if raw.step is not None:
        step, timed = _as_time(raw.step), raw.step.dtype.kind == "M"
        jump = step - _shift(step, None if before is None or before.step is None else _as_time(before.step), np.nan)
        rule(roles.step, _FINITE, _is_missing(raw.step))
        rule(roles.step, "is a duplicate of the row before", ~first & (jump == 0))
        rule(roles.step, "is smaller than in the row before", ~first & (jump < 0))
        beyond = np.array([np.nan])
        if after is not None and after.step is not None and continues:
            beyond = _as_time(after.step)
        if not timed:  # times need not be evenly spaced
            gaps = ~last & (np.append(step[1:], beyond) - step > 1)
        rule(roles.step, "is not followed by the next one", gaps)
    if raw.next_state is not None:
        differs = ~_is_same(raw.next_state, following) & ~last & ~raw.ended & ~gaps & ~_is_missing(next_state)
        differs &= ~np.append(_is_missing(raw.state)[1:], after is not None and bool(_is_missing(after.state)[0]))
        rule(", ".join(roles.next_state), "is not the state of the following row", differs)
    if raw.propensity is not None:
        rule(roles.propensity, "must be above 0 for an action that was taken", raw.propensity <= 0)
        rule(roles.propensity, "must be finite", np.isinf(raw.propensity))
        if roles.actions is not None or raw.action.dtype.kind in "biuUO":
            rule(roles.propensity, "must be a probability, at most 1", raw.propensity > 1 + 1e-6)
    if roles.actions is not None and raw.action.ndim == 1:
        rule(
            action, "is not among `actions`", ~np.isin(raw.action, np.asarray(roles.actions)) & ~_is_missing(raw.action)
        )
    bad = np.logical_or.reduce([np.zeros(n, bool), *faults.values()])
    return CheckedRows(first, last, next_state, known, bad, faults)


def _as_time(step: np.ndarray) -> np.ndarray:
    """Numbers of steps unchanged; timestamps as microseconds."""
    if step.dtype.kind != "M":
        return step
    return np.where(np.isnat(step), np.nan, step.astype(np.int64).astype(float))


def _shift(column: np.ndarray, before: np.ndarray | None, otherwise: object) -> np.ndarray:
    """Shift the column by a row, so that each row has the entry before it."""
    return np.concatenate([[otherwise] if before is None else before, column[:-1]])


def _is_missing(column: np.ndarray) -> np.ndarray:
    """Mark the rows with an entry that is missing or not finite."""
    kind = column.dtype.kind
    if kind not in "fmMO":
        return np.zeros(len(column), bool)
    wrong = (
        ~(np.abs(column) <= _LARGEST)
        if kind == "f"
        else np.equal(column, np.array(None))
        if kind == "O"
        else np.isnat(column)
    )
    return wrong if wrong.ndim == 1 else wrong.any(axis=1)


def _is_same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether rows are equal; numbers up to the rounding of float32."""
    if one.dtype.kind == "f" or other.dtype.kind == "f":
        a, b = one.astype(float), other.astype(float)
        equal = np.abs(a - b) <= 1e-5 * (np.abs(a) + np.abs(b)) + 1e-8
    else:
        equal = one == other
    return equal if equal.ndim == 1 else equal.all(axis=1)
