"""What differs between two runs, in words: what it was there, what it is here, and the value to write instead."""

from __future__ import annotations

from twoclock.storage.run_identity import Json

_OPTIONS = ("steps", "seeds", "marks", "precision", "bound")
_FEW, _LONGEST = 6, 60


def told(name: str, there: Json, here: Json) -> str:
    """One clause. There and here are values of an option, or descriptions of a problem or a method.

    >>> told("steps", 1000, 2000)
    'its steps differ: 1,000 there, 2,000 here'
    >>> told("method", {"name": "Fast", "alpha": "1/(k+1)"}, {"name": "Fast", "alpha": "2/(k+1)"})
    'its method differs: alpha is 1/(k+1) there and 2/(k+1) here'
    """
    verb = "differ" if name.endswith("s") else "differs"
    field, then, now = _first_difference("", there, here)
    was, is_now = _short(then), _short(now)
    if was is None or is_now is None or was == is_now:
        unseen = "" if name in _OPTIONS else ", in numbers or code that its description leaves out"
        return f"its {name} {verb}{unseen if then == now else f', in {field}' if field else ''}"
    return f"its {name} {verb}: " + (
        f"{field} is {was} there and {is_now} here" if field else f"{was} there, {is_now} here"
    )


def remedy(name: str, there: Json) -> str:
    """How to call it so that it fits, where a short value does."""
    if name in _OPTIONS and not isinstance(there, (list, tuple)):
        return f"write `{name}={there!r}`"
    if isinstance(there, (list, tuple)) and len(there) <= _FEW and name in _OPTIONS:
        return f"write `{name}={list(there)}`"
    return "use the same arguments"


def _first_difference(field: str, there: Json, here: Json) -> tuple[str, Json, Json]:
    """The first place in two descriptions where they differ, and what they say there."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in (*there, *here):
            if there.get(name) != here.get(name):
                inside = field if name == "name" else f"{field}.{name}".lstrip(".")
                return _first_difference(inside, there.get(name), here.get(name))
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = [(a, b) for a, b in zip(there, here, strict=True) if a != b and isinstance(a, dict)]
        if pairs:
            return _first_difference(field, *pairs[0])
    return field, there, here


def _short(value: Json) -> str | None:
    """A value in a few words, None where it has too many."""
    if isinstance(value, (list, tuple)) and len(value) > _FEW:
        return f"{len(value):,} of them"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST else None
