"""Names that the system does not take, and errors that go on for pages: one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twoclock.protocols import InputError
from twoclock.validation import shown


@contextmanager
def one_line(path: str | Path, verb: str) -> Iterator[None]:
    """A name that the system does not take is the user's to change."""
    kind = "file" if verb == "read" else "folder"
    name = f"{path!s:.200}" if isinstance(path, (str, Path)) else shown(path)
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"the {kind} {name} cannot be {verb} ({error.strerror}); choose another") from None
    except (TypeError, ValueError, RuntimeError) as error:  # no path at all, a null byte, a `~` of nobody
        raise InputError(f"the {kind} {name} cannot be {verb} ({first_line(error)}); choose another") from None


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
