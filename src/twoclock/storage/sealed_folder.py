"""Sealed folders: checksums of every file, and atomic replacement of the files that this library wrote.

``spec.json`` lists the size and SHA-256 of each file; its own last entry is the SHA-256 of the rest. An edit that also
rewrites the checksums is not noticed. A new folder is filled under another name and renamed. In a folder that exists
the new files are gathered in a subfolder, whose renaming is the commit, then moved into place, the specification last;
after a kill between two moves the next reader or writer completes them. Files that are not listed are left alone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twoclock.protocols import InputError
from twoclock.storage.atomic_file import (
    PART,
    Document,
    absolute,
    clean,
    first_line,
    hold_new,
    if_free,
    is_part,
    new_part,
    one_line,
    remove,
    wait_for,
)

SPEC = "spec.json"
_SEAL = "sha256"
_COMMIT = ".twoclock-commit-"


class Damaged(InputError):
    """A file on disk differs from what was written."""


class Unsealed(Damaged):
    """A document without a checksum, as earlier versions wrote it."""

    def __init__(self, what: str = "it") -> None:
        super().__init__(f"{what} was written by another version of twoclock, in its format")


@contextmanager
def reading(folder: str | Path, argument: str = "path", again: str = "run it again") -> Iterator[None]:
    """Report errors from odd values of a record in one line: its seal fits, so another program wrote it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a wrong type or a missing entry can raise anything
        what = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(
            f"`{argument}` {folder} is damaged: it holds odd values ({what}); remove it and {again}"
        ) from None


def checksum(content: bytes) -> Document:
    """Size and SHA-256 of a file's content."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def seal(content: Document) -> str:
    """Write a JSON document with the checksum of its content as the last entry.

    >>> unseal(seal({"steps": 10}).encode())
    {'steps': 10}
    """
    return json.dumps({**content, _SEAL: checksum(json.dumps(content).encode())["sha256"]}, indent=1) + "\n"


def unseal(document: bytes) -> Document:
    """Read a sealed document and verify every byte."""
    try:
        content = json.loads(document)
    except (ValueError, RecursionError):
        raise Damaged("it cannot be read") from None
    if not isinstance(content, dict) or _SEAL not in content:
        raise Unsealed
    del content[_SEAL]
    if seal(content).encode() != document:
        raise Damaged("its digest does not fit, it is not what was written")
    return content


def read_spec(folder: Path) -> Document:
    """The specification of a folder, with the checksums of its files as ``files``."""
    try:
        content = unseal((folder / SPEC).read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{SPEC} is missing") from None
    except OSError as error:
        raise Damaged(f"{SPEC} cannot be read: {error.strerror}") from None
    except Unsealed:
        raise
    except Damaged as error:
        raise Damaged(f"{SPEC}: {error}") from None
    check_files(content)
    if any(Path(name).name != name for name in content["files"]):
        raise Damaged(f"{SPEC} names files outside its folder")
    return content


def check_files(document: Document) -> None:
    """Refuse a document that does not list its files with their checksums."""
    files = document.get("files")
    kinds = {"bytes": int, "sha256": str}
    if not isinstance(files, dict) or not all(
        isinstance(file, dict) and all(isinstance(file.get(name), kind) for name, kind in kinds.items())
        for file in files.values()
    ):
        raise Damaged("it does not list its files with their checksums")


def verified(path: Path, expected: Document) -> bytes:
    """The bytes of a file, verified by its checksum."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) != expected["bytes"]:
        raise Damaged(f"{path.name} has {len(content):,} bytes where {expected['bytes']:,} were written")
    if checksum(content) != expected:
        raise Damaged(f"{path.name} is not what was written, its SHA-256 differs")
    return content


@contextmanager
def replacement(folder: str | Path) -> Iterator[Path]:
    """An empty folder to fill; when the block ends without an error, its files replace the record in ``folder``."""
    target = recovered(folder)
    with one_line(target, "written"):
        with suppress(FileNotFoundError):
            target.lstat()  # raises if the system refuses the name; `exists` would only return False
        if target.is_symlink():
            target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        home = target if target.is_dir() else target.parent
        part, handle = _new_folder(home)
    try:
        with one_line(target, "written", (OSError,)):
            clean(home)
            yield part
            for path in (
                part.iterdir()
            ):  # the content is on the disk before the name: a power cut must not leave the name alone
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            _rename(part, target)
    finally:
        remove(part)
        if handle is not None:
            os.close(handle)


def recovered(folder: str | Path) -> Path:
    """The folder as a path; if a writer was killed between two moves, the remaining moves are made first."""
    target = absolute(folder)
    with suppress(OSError, ValueError):
        if commits := [path for path in target.iterdir() if _is_commit(path)]:
            with if_free(target) as free:
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


def _new_folder(parent: Path) -> tuple[Path, int | None]:
    """Make a folder; the handle holds its lock, so that ``clean`` in another process leaves it alone."""
    while True:
        part = new_part(parent)
        part.mkdir()
        if os.name != "posix":  # where a folder cannot be opened
            return part, None
        try:
            handle = os.open(part, os.O_RDONLY)
            if hold_new(handle, part):
                return part, handle
            os.close(handle)
        except FileNotFoundError:
            continue
        except OSError:
            part.rmdir()
            raise


def _rename(part: Path, target: Path) -> None:
    if not target.exists():
        try:
            os.rename(part, target)
            return
        except OSError as error:  # another writer made the folder meanwhile
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    with wait_for(target):
        for commit in filter(_is_commit, list(target.iterdir())):
            _move_in(commit, target)
        _check_written_here(part, target)
        commit = target / part.name.replace(PART, _COMMIT)
        os.rename(part, commit)
        _move_in(commit, target)


def _check_written_here(part: Path, target: Path) -> None:
    """Refuse to replace a file that differs in any byte from the folder's specification."""
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
    """Complete a commit; some moves may have been made already."""
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
    return path.name.startswith(_COMMIT) and is_part(path.with_name(path.name.replace(_COMMIT, PART)))
