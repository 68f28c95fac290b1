"""A user's paths, with errors of the operating system in one line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twoclock.protocols import InputError
from twoclock.validation import short_repr

_LARGEST_TEXT = 16 << 20
_ODD_PATH = (OSError, TypeError, ValueError, RuntimeError)  # no path, a null byte, a `~` of an unknown user


class SystemRefusal(InputError, OSError):
    """The system refuses a path; the message is one line, with the number of the system's error."""


@contextmanager
def one_line(path: str | Path, verb: str, errors: tuple[type[Exception], ...] = _ODD_PATH) -> Iterator[None]:
    """Report the system's errors in this block, or some of them, in one line that names the path."""
    try:
        yield
    except InputError:
        raise
    except errors as error:
        name = f"{path!s:.200}" if isinstance(path, (str, Path)) else short_repr(path)
        why = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        kind = "file" if verb == "read" else "folder"
        refusal = SystemRefusal(f"the {kind} {name} cannot be {verb} ({why}); choose another")
        refusal.errno = getattr(error, "errno", None)
        raise refusal from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def absolute(folder: str | Path) -> Path:
    """The path from the root of the file system, with ``~`` expanded."""
    with one_line(folder, "used"):
        return Path(folder).expanduser().absolute()


def temporary() -> Path:
    """Make an empty folder that the caller removes."""
    return Path(tempfile.mkdtemp(prefix="twoclock-"))


def text(path: str | Path) -> str:
    """Read a text file; refuse a device, a pipe or a huge file, which could block."""
    with one_line(path, "read"):
        if Path(path).exists() and not Path(path).is_file():
            raise InputError(f"the file {path} cannot be read (it is no ordinary file)")
        if Path(path).stat().st_size > _LARGEST_TEXT:
            raise InputError(f"the file {path} cannot be read (it has more than {_LARGEST_TEXT >> 20} MiB)")
        return Path(path).read_text(encoding="utf-8")
