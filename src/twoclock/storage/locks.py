"""One writer a folder. The kernel keeps the lock and drops it when its holder dies, so none is ever stale."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twoclock.protocols import InputError
from twoclock.storage.os_errors import one_line

try:
    import fcntl
except ImportError:  # Windows: nobody is kept out there
    fcntl = None  # type: ignore[assignment]

NAME = ".twoclock.lock"
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


class Taken(InputError):
    """Another process, or another call in this one, writes to the folder."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep every other writer out of a folder, which is made if need be; it goes again if it ends empty."""
    with one_line(folder, "written"):
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        handle = _acquired(folder / NAME)
    try:
        yield
    finally:
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), (folder / NAME).lstat()):
                (folder / NAME).unlink()
        os.close(handle)
        with suppress(OSError):
            for path in made:
                path.rmdir()


def hold(handle: int) -> bool:
    """Lock an open file or folder for as long as it is open; false if somebody else has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _BUSY  # a file system without locks: nobody can be asked
    return True


def hold_new(handle: int, path: Path) -> bool:
    """Lock a file or folder that was just made; false if `clean` in another process came first, and it is lost."""
    return hold(handle) and path.exists()


@contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Whether nobody holds a file or folder open under a lock; if so, nobody can until the block ends."""
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
    """Hold the lock on a folder itself, once its present holder is through."""
    handle = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if handle is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def is_free(path: Path) -> bool:
    """Whether nobody holds a file or folder open under a lock."""
    with if_free(path) as free:
        return free


def is_held(folder: str | Path) -> bool:
    """Whether somebody writes to a folder, or to ``checkpoint`` and the numbered ones below it."""
    places = (place for depth in ("", "*/", "*/*/") for place in Path(folder).glob(f"{depth}{NAME}"))
    return any(path.is_file() and not is_free(path) for path in places)


def _acquired(path: Path) -> int:
    while True:
        # A symbolic link is not followed: what it leads to is not ours to write.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            holder = _holder(handle)
            if not hold(handle):
                raise Taken(f"another run writes to {path.parent}{holder}; wait for it, or choose another folder")
            if not holder and os.fstat(handle).st_size:
                raise InputError(f"the file {path} was not written by twoclock; move it away, or choose another folder")
            # Its last holder may have removed the file between our opening and our locking it.
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _holder(handle: int) -> str:
    try:
        known = json.loads(os.pread(handle, 1000, 0))
        return f" (process {int(known['pid'])} on {known['host']!s:.60})"
    except (ValueError, KeyError, TypeError, OSError):  # it has not signed yet
        return ""
