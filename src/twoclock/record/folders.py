"""A folder that appears whole: filled aside and put in place by one rename."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from twoclock.record import locks
from twoclock.record.digests import SPEC, Damaged, read_spec
from twoclock.record.files import absolute, clean, is_part, new_part, remove
from twoclock.record.names import one_line

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Linux
_MANY = 1000


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """An empty folder to fill; when the block ends without an error it takes the place of ``folder``.

    What was written there before goes in the same rename; files that were not (pictures, a checkpoint, the user's own)
    stay. A kill leaves the old folder or the new one, and debris that the next writer cleans.
    """
    target = recovered(folder)
    with one_line(target, "written"):
        if target.is_symlink():
            target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        part, handle, in_place = _new_folder(target)
    try:
        clean(part.parent)
        yield part
        for path in part.iterdir():
            _flush(path)
        _move_in(part, target) if in_place else _swap(part, target)
    finally:
        remove(part)
        if handle is not None:
            os.close(handle)


def recovered(folder: str | Path) -> Path:
    """The folder as a path; where a kill struck between two renames, the old one is put back first."""
    target = absolute(folder)
    if target.name:
        with suppress(OSError, ValueError):
            if _aside(target).is_dir() and not target.exists():
                os.rename(_aside(target), target)
    return target


def _new_folder(target: Path) -> tuple[Path, int | None, bool]:
    """A folder to fill, the handle that holds its lock, and whether its files must be moved in one by one.

    That is so where a folder cannot be renamed without harm: a mount point, a folder in a parent that cannot be
    written, the one that this process and the user's shell stand in, and one that holds a great many other things, a
    home folder perhaps. The specification then comes last, and its digests tell.
    """
    if not (os.path.ismount(target) or _is_here(target) or _is_large(target)):
        with suppress(PermissionError):
            return *_made(target.parent), False
    target.mkdir(exist_ok=True)
    return *_made(target), True


def _made(parent: Path) -> tuple[Path, int | None]:
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


def _is_here(target: Path) -> bool:
    try:
        return target.samefile(Path.cwd())
    except OSError:
        return False


def _is_large(target: Path) -> bool:
    """Whether there are too many things in a folder to link each of them into a new one."""
    entries = (name for _, folders, files in os.walk(target) for name in (*folders, *files))
    return next(itertools.islice(entries, _MANY, None), None) is not None


def _move_in(part: Path, target: Path) -> None:
    for path in sorted(part.iterdir(), key=lambda path: path.name == SPEC):
        os.replace(path, target / path.name)


def _swap(part: Path, target: Path) -> None:
    """Put the new folder in the old one's place, and the old one where the new one was."""
    try:
        os.rename(part, target)  # also onto an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    _keep_others(target, part)
    shutil.copymode(target, part)
    if not _exchange(part, target):
        remove(_aside(target))
        os.rename(target, _aside(target))
        os.rename(part, target)
        remove(_aside(target))


def _keep_others(old: Path, new: Path) -> None:
    """Links to all that is in the old folder and was not part of what is replaced."""
    try:
        replaced = {*read_spec(old)["files"], SPEC}
    except Damaged:
        replaced = {SPEC}
    for path in old.iterdir():
        if path.name in replaced or (new / path.name).exists() or is_part(path):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, new / path.name, symlinks=True, copy_function=_link)
        else:
            _link(path, new / path.name)


def _link(source: Any, target: Any) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without links
        shutil.copy2(source, target, follow_symlinks=False)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders so that both names exist at every moment; false where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


def _aside(target: Path) -> Path:
    """Where a folder lies between two renames."""
    return target.with_name(f".old-{target.name[:200]}")


def _flush(path: Path) -> None:
    """Have a file on the disk before its name: a power cut must not leave the name alone."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
