"""How things show themselves: a small HTML table for a notebook, a list that stays short at the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A table of plain text with a line above it and, where there is one, a note below."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    below = f"<p><small>{escape(note)}</small></p>" if note else ""
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a row, of many the first few.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
