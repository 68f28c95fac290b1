"""Numbers and lists as a reader wants them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twoclock.intervals import Estimate


def span(values: Iterable[float | int], form: str = ".3g") -> str:
    """The range of some numbers; one number where both ends read the same.

    >>> span([1.0, 1.301, 1.1]), span([1.0, 1.0004])
    ('1 to 1.3', '1')
    """
    found = list(values)
    low, high = f"{min(found):{form}}", f"{max(found):{form}}"
    return low if low == high else f"{low} to {high}"


def listed(items: Sequence[str]) -> str:
    """a, b and c

    >>> listed(["one"]), listed(["one", "two", "three"])
    ('one', 'one, two and three')
    """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def number(value: object) -> str:
    """Numbers to four figures, intervals in brackets, anything else as it is.

    >>> number(Estimate(1.23456, 1.0, 1.5)), number(12345), number([0.1, 0.25])
    ('1.235 [1, 1.5]', '12,345', '[0.1, 0.25]')
    """
    if isinstance(value, Estimate):
        return f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(number(item) for item in value)}]"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
