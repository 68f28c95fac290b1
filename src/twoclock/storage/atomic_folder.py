"""Folders that change from one complete state to the next, and only in files that this library wrote.

A new folder is filled under another name and renamed. In a folder that exists, the new files are first gathered in a
subfolder, whose renaming is the commit; then they are moved into place, the specification last. A process killed
between two moves leaves the subfolder, and the next reader or writer completes the moves. Files that the
specification does not list are never moved, linked or removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twoclock.protocols import InputError
from twoclock.storage import locks
from twoclock.storage.atomic_file import absolute, clean, is_part, new_part, remove
from twoclock.storage.checksums import SPEC, Damaged, read_spec, verified
from twoclock.storage.os_errors import one_line

_COMMIT = ".twoclock-commit-"
_PART = ".twoclock-part-"


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """An empty folder to fill; when the block ends without an error, its files replace the record in ``folder``."""
    target = recovered(folder)
    with one_line(target, "written"):
        if target.is_symlink():
            target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        home = target if target.is_dir() else target.parent
        part, handle = _locked_part(home)
    try:
        clean(home)
        yield part
        for path in part.iterdir():
            _flush(path)
        _rename(part, target)
    finally:
        remove(part)
        if handle is not None:
            os.close(handle)


def recovered(folder: str | Path) -> Path:
    """The folder as a path; if a writer was killed between two moves, the others are made first."""
    target = absolute(folder)
    with suppress(OSError, ValueError):
        if commits := [path for path in target.iterdir() if _is_commit(path)]:
            with locks.if_free(target) as free:
                for commit in commits if free else ():
                    _move_in(commit, target)
    return target


def remove_record(folder: Path) -> None:
    """Remove the files that a sealed specification lists, then the folder if nothing else is in it."""
    try:
        names = [*read_spec(folder)["files"], SPEC]
    except Damaged:
        return
    with suppress(OSError):
        for name in names:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _locked_part(parent: Path) -> tuple[Path, int | None]:
    """A new folder, and the handle that holds its lock, so that ``clean`` in another process leaves it alone."""
    while True:
        part = new_part(parent)
        part.mkdir()
        if os.name != "posix":  # where a folder cannot be opened
            return part, None
        with suppress(FileNotFoundError):
            handle = os.open(part, os.O_RDONLY)
            if locks.hold_new(handle, part):
                return part, handle
            os.close(handle)


def _rename(part: Path, target: Path) -> None:
    if not target.exists():
        try:
            os.rename(part, target)
            return
        except OSError as error:  # another writer made the folder meanwhile
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    with locks.wait_for(target):
        for commit in filter(_is_commit, list(target.iterdir())):
            _move_in(commit, target)
        _check_written_here(part, target)
        commit = target / part.name.replace(_PART, _COMMIT)
        os.rename(part, commit)
        _move_in(commit, target)


def _check_written_here(part: Path, target: Path) -> None:
    """Refuse to replace a file that is not, byte for byte, what the folder's specification says was written."""
    try:
        written = read_spec(target)["files"]
    except Damaged:
        written = None
    for path in part.iterdir():
        there = target / path.name
        if not os.path.lexists(there) or (path.name == SPEC and written is not None):
            continue
        try:
            verified(there, (written or {})[path.name])
        except (Damaged, KeyError):
            raise InputError(
                f"the folder {target} has a {path.name} that twoclock did not write, or that was changed since; "
                "move it away, or choose another folder"
            ) from None


def _move_in(commit: Path, target: Path) -> None:
    """Complete a commit; each move may have been made before."""
    with suppress(Damaged):
        new = read_spec(commit)["files"]
        for name, expected in read_spec(target)["files"].items():
            with suppress(Damaged):
                if name not in new and verified(target / name, expected):
                    (target / name).unlink()
    for path in sorted(commit.iterdir(), key=lambda path: path.name == SPEC):
        with suppress(FileNotFoundError):  # another process completes it too
            os.replace(path, target / path.name)
    with suppress(FileNotFoundError):
        commit.rmdir()


def _is_commit(path: Path) -> bool:
    return path.name.startswith(_COMMIT) and is_part(path.with_name(path.name.replace(_COMMIT, _PART)))


def _flush(path: Path) -> None:
    """Have a file on the disk before its name: a power cut must not leave the name alone."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
