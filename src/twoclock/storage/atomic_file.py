"""A user's paths, atomic file writes, and locks that keep a second writer out of a folder.

A file is written under a hidden name that carries a checksum, then renamed. The kernel drops a lock when its holder
dies, so no lock is ever stale.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from twoclock.protocols import InputError
from twoclock.validation import short_repr

try:
    import fcntl
except ImportError:  # Windows: there are no locks there
    fcntl = None  # type: ignore[assignment]

Document = dict[str, Any]  # a JSON object

LOCK = ".twoclock.lock"
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)
PART = ".twoclock-part-"
_ABANDONED = 86_400.0  # seconds without a change after which an unfinished write counts as abandoned


def put(path: str | Path, content: str | bytes, aside: Path | None = None) -> Path:
    """Write one file atomically; until it is complete it is in the folder ``aside``, or beside its final place."""
    target = Path(path)
    with one_line(target.parent, "written", (OSError,)):
        for folder in {target.parent, aside or target.parent}:
            folder.mkdir(parents=True, exist_ok=True)
        while True:
            part = new_part(aside or target.parent)
            file = part.open("xb")
            if hold_new(file.fileno(), part):  # so that ``clean`` in another process leaves it alone
                break
            file.close()
        try:
            with file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return target


def new_part(folder: Path) -> Path:
    """Choose a hidden name for an unfinished write that `is_part` recognises."""
    return folder / _part_name(uuid.uuid4().hex[:24])


def is_part(path: Path) -> bool:
    """Whether `new_part` chose this name; no other file counts as an unfinished write, which may be removed."""
    return path.name == _part_name(path.name.removeprefix(PART)[:24])


def _part_name(token: str) -> str:
    digest = hashlib.sha256(f"twoclock {token}".encode(errors="replace"))  # a name may be no text, as b"\\xff" is none
    return f"{PART}{token}{digest.hexdigest()[:8]}"


def clean(folder: Path) -> None:
    """Remove the unfinished files of killed writers; files that are being written are locked and stay."""
    for path in filter(is_part, list(folder.iterdir())):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                free = _try_lock(handle)
                # Without locks only the age decides.
                if free or (free is None and time.time() - os.fstat(handle).st_mtime > _ABANDONED):
                    remove(path)
            finally:
                os.close(handle)


def remove(path: str | Path) -> None:
    """Remove a file, or a folder with its content; only for names that this process chose."""
    if Path(path).is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def note(folder: str | Path, name: str) -> Document:
    """Read a small unsealed JSON file of a folder; empty if there is none that can be read."""
    try:
        content = json.loads((Path(folder) / f"{name}.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def put_note(folder: str | Path, name: str, content: Document) -> None:
    """Write a small unsealed JSON file."""
    put(Path(folder) / f"{name}.json", json.dumps(content) + "\n")


def writable(folder: str | Path) -> Path:
    """Make the folder if necessary, and check that it can be written to."""
    path = absolute(folder)
    with one_line(path, "written"):
        path.mkdir(parents=True, exist_ok=True)
        probe = new_part(path)
        probe.touch()
        probe.unlink(missing_ok=True)  # `clean` in another process may have come first
    return path


def unused(folder: str | Path, option: str, remedy: str) -> Path:
    """The folder as a path, if it is empty except for unfinished files of a killed writer."""
    path = absolute(folder)
    with one_line(path, "read"):
        if path.exists() and not path.is_dir():
            raise InputError(f"`{option}` must be a folder, {path} is a file; choose another")
        if path.is_dir() and not all(is_part(entry) or entry.name == LOCK for entry in path.iterdir()):
            raise InputError(f"`{option}` must be an empty or new folder, {path} has files in it; {remedy}")
    return path


@contextmanager
def numbered(parent: Path, stem: str) -> Iterator[Path]:
    """Lock the folder ``parent/stem-001``, or the one with the next free number."""
    with ExitStack() as held:
        for number in itertools.count(1):
            path = absolute(parent) / f"{stem}-{number:03d}"
            if not path.exists():
                try:
                    held.enter_context(lock(path))
                except Taken:  # another process took this number
                    continue
                break
        yield path


class Taken(InputError):
    """Another process, or another call in this one, writes to the folder."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep every other writer out of a folder; it is made if necessary, and removed if it is empty at the end."""
    with one_line(folder, "written"):
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        handle = _acquire(folder / LOCK)
    try:
        yield
    finally:
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), (folder / LOCK).lstat()):
                (folder / LOCK).unlink()
        os.close(handle)
        with suppress(OSError):
            for path in made:
                path.rmdir()


def hold(handle: int) -> bool:
    """Lock an open file or folder for as long as it is open; false if another process holds it."""
    return _try_lock(handle) is not False


def _try_lock(handle: int) -> bool | None:
    """Lock an open file or folder; None if there are no locks, on Windows or on this file system."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


def hold_new(handle: int, path: Path) -> bool:
    """Lock a file or folder that was just made; false if `clean` in another process came first and removed it."""
    return hold(handle) and path.exists()


@contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Lock a file or folder for this block if no other process holds it; yield whether it was free."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield hold(handle)
    finally:
        os.close(handle)


@contextmanager
def wait_for(folder: Path) -> Iterator[None]:
    """Lock the folder itself, once its present holder has released it."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_held(folder: str | Path) -> bool:
    """Whether a process writes to a folder, or to ``checkpoint`` and the numbered folders below it."""
    for depth in ("", "*/", "*/*/"):
        for path in Path(folder).glob(f"{depth}{LOCK}"):
            with if_free(path) as free:
                if path.is_file() and not free:
                    return True
    return False


def _acquire(path: Path) -> int:
    while True:
        # A symbolic link is not followed: its target may belong to others.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            holder = ""
            with suppress(ValueError, KeyError, TypeError, OSError):  # it has not written its name yet
                known = json.loads(os.read(handle, 1000))
                holder = f" (process {int(known['pid'])} on {known['host']!s:.60})"
            if not hold(handle):
                raise Taken(f"another run writes to {path.parent}{holder}; wait for it, or choose another folder")
            if not holder and os.fstat(handle).st_size:
                raise InputError(f"the file {path} was not written by twoclock; move it away, or choose another folder")
            # Its last holder may have removed the file between our opening and our locking it.
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                os.ftruncate(handle, 0)
                os.lseek(handle, 0, os.SEEK_SET)
                os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


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
