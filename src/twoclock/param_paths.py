"""Settings of a method by path: read them, change them, make a grid of them."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from twoclock.protocols import InputError, Method
from twoclock.schedules import Levels, as_schedule
from twoclock.validation import short_repr
from twoclock.validation.run_args import check_method

_MOST_VALUES = 100_000


def grid(method: Method, **values: Iterable[object]) -> dict[str, Method]:
    """Return every combination of settings of a method, labelled by the settings.

    Methods that differ only in numbers run as one program: ``tc.solve(problem, tc.grid(…))`` compiles once.

    Args:
        method: the source of every setting that is not named.
        values: path → the values to try, ``**{"alpha.c": [0.5, 1.0]}``. A path goes through the fields and into a
            wrapped method (``"method.alpha.c"`` for ``Polyak``); paths joined by commas (``"alpha.c,beta.c"``) take
            the same value together; a whole schedule may be set too (``"lam": ["1/(k+10)", 0.1]``).

    >>> import twoclock as tc
    >>> list(grid(tc.Fast(), **{"alpha.c": [0.5, 1], "lam.c": [40]}))
    ['alpha.c=0.5 lam.c=40', 'alpha.c=1 lam.c=40']
    """
    if not values:
        raise InputError("`grid` needs a setting to vary, got none; try `grid(method, **{'alpha.c': [0.5, 1.0]})`")
    check_method(method)
    lists = {path: _values(path, tried) for path, tried in values.items()}
    for path in lists:
        setting(method, path)
    out: dict[str, Method] = {}
    for chosen in itertools.product(*lists.values()):
        picked = dict(zip(lists, chosen, strict=True))
        changed = with_settings(method, picked)  # first, since a value that is refused may have no text
        label = " ".join(f"{path}={text(value)}" for path, value in picked.items())
        if label in out:
            raise InputError(f"`grid` has the setting {label} twice; name each value once")
        out[label] = changed
    return out


def with_settings(method: Method, values: Mapping[str, object]) -> Method:
    """Set the fields at some paths, all at once, with the checks of the method's constructor.

    They are set together, since an intermediate method could break a rule that both ends satisfy.

    >>> import twoclock as tc
    >>> str(with_settings(tc.Polyak(tc.Fast()), {"method.alpha.c": 0.5}).method.alpha)
    '0.5/(k+20)'
    """
    changes = {tuple(part.split(".")): value for path, value in values.items() for part in _split(path)}
    for names in changes:
        _at(method, ".".join(names))
    return _replace(method, changes)


def check_field(method: Method, path: str, value: object) -> None:
    """Raise an error if the field at the path does not take the value, whatever the method's other settings."""
    for part in _split(path):
        *owner, name = part.split(".")
        thing = _at(method, ".".join(owner)) if owner else method
        _with_parts(thing, {name: value})


def setting(method: Method, path: str) -> Any:
    """The setting at the path; of paths joined by commas, at the first.

    >>> import twoclock as tc
    >>> setting(tc.Fast(), "alpha.shift")
    20.0
    """
    first, *_ = [_at(method, part) for part in _split(path)]
    return first


def paths(method: object, prefix: str = "") -> dict[str, object]:
    """Everything that can be set, path → value: each field, and the fields of the dataclasses in them.

    >>> import twoclock as tc
    >>> [path for path in paths(tc.Polyak(tc.Standard(0.1, 0.2))) if path.startswith("method.alpha")]
    ['method.alpha', 'method.alpha.c']
    """
    found: dict[str, object] = {}
    for name, value in _parts(method).items():
        found[prefix + name] = value
        found.update(paths(value, f"{prefix}{name}."))
    return found


def text(value: object) -> str:
    """The text of a value in a label: six digits if that is exact."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def _values(path: str, tried: object) -> list[object]:
    if isinstance(tried, (str, bytes)) or not isinstance(tried, Iterable) or getattr(tried, "ndim", 1) == 0:
        raise InputError(f"`{path}` must be given a list of values, got {short_repr(tried)}; write [value, …]")
    given = list(itertools.islice(tried, _MOST_VALUES + 1))
    if not 0 < len(given) <= _MOST_VALUES:
        rule, got = (f"at most {_MOST_VALUES:,} values", "more") if given else ("at least one value", "an empty list")
        raise InputError(f"`{path}` must be given {rule}, got {got}")
    return [value.item() if isinstance(value, np.generic) else value for value in given]


def _split(path: str) -> list[str]:
    return [part.strip() for part in path.split(",")]


def _parts(thing: object) -> dict[str, Any]:
    """The fields of a method or a schedule by name; levels are numbered from 1."""
    if isinstance(thing, Levels):
        return {str(i): entry for i, entry in enumerate(thing.entries, 1)}
    return (
        {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else {}
    )


def _with_parts(thing: Any, changes: Mapping[str, object]) -> Any:
    if isinstance(thing, Levels):
        entries = {**_parts(thing), **changes}
        return Levels(tuple(as_schedule(entry, f"level {name}") for name, entry in entries.items()))
    return dataclasses.replace(thing, **changes)


def _at(method: Method, part: str) -> Any:
    thing: Any = method
    for name in part.split("."):
        if name not in _parts(thing):
            known = paths(method)
            near = difflib.get_close_matches(part, known, n=1, cutoff=0.5)
            remedy = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(known) or 'none'}"
            raise InputError(f"`{part}` is not a setting of {type(method).__name__}; {remedy}")
        thing = _parts(thing)[name]
    return thing


def _replace(thing: Any, changes: dict[tuple[str, ...], object]) -> Any:
    whole = {names[0]: value for names, value in changes.items() if len(names) == 1}
    inside: dict[str, dict[tuple[str, ...], object]] = {}
    for (first, *rest), value in changes.items():
        if rest:
            inside.setdefault(first, {})[tuple(rest)] = value
    if whole.keys() & inside.keys():  # a new schedule, and then a number in it
        thing, whole = _with_parts(thing, whole), {}
    parts = {name: _replace(_parts(thing)[name], change) for name, change in inside.items()}
    return _with_parts(thing, {**whole, **parts})
