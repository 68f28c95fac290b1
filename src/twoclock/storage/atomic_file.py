"""Files and folders: each file appears whole or not at all, and each name is looked at before it is used."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from twoclock.protocols import InputError
from twoclock.storage import locks
from twoclock.storage.os_errors import one_line

_PART = re.compile(r"\.twoclock-part-([0-9a-f]{24})([0-9a-f]{8})")
_LARGEST_TEXT = 16 << 20


def put(path: str | Path, content: str | bytes, aside: Path | None = None) -> Path:
    """Write one file whole or not at all; until it is whole it lies in the folder ``aside``, or beside its place."""
    target = Path(path)
    for folder in {target.parent, aside or target.parent}:
        folder.mkdir(parents=True, exist_ok=True)
    part, file = _new_file(aside or target.parent)
    try:
        with file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target


def _new_file(folder: Path) -> tuple[Path, BinaryIO]:
    """A new file to write, locked, so that ``clean`` in another process leaves it alone."""
    while True:
        part = new_part(folder)
        file = part.open("xb")
        if locks.hold_new(file.fileno(), part):
            return part, file
        file.close()


def new_part(folder: Path) -> Path:
    """A name for what is being written: hidden, and such that `is_part` can prove who chose it."""
    token = uuid.uuid4().hex[:24]
    return folder / f".twoclock-part-{token}{_checksum(token)}"


def is_part(path: Path) -> bool:
    """Whether `new_part` chose this name; nothing else is ever taken for an unfinished write, and removed."""
    match = _PART.fullmatch(path.name)
    return match is not None and _checksum(match[1]) == match[2]


def _checksum(token: str) -> str:
    return hashlib.sha256(f"twoclock {token}".encode()).hexdigest()[:8]


def clean(folder: Path) -> None:
    """Drop what a killed writer left half-written; what is being written now is locked, and stays."""
    for path in filter(is_part, list(folder.iterdir())):
        with locks.if_free(path) as free:
            if free:
                remove(path)


def note(folder: str | Path, name: str) -> dict[str, Any]:
    """A small note kept in a folder; empty if there is none that can be read."""
    try:
        content = json.loads((Path(folder) / f"{name}.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def put_note(folder: str | Path, name: str, content: dict[str, Any]) -> None:
    put(Path(folder) / f"{name}.json", json.dumps(content) + "\n")


def text(path: str | Path) -> str:
    """What a text file says; a device, a pipe or something huge is not waited for."""
    with one_line(path, "read"):
        if Path(path).exists() and not Path(path).is_file():
            raise InputError(f"the file {path} cannot be read (it is no ordinary file)")
        if Path(path).stat().st_size > _LARGEST_TEXT:
            raise InputError(f"the file {path} cannot be read (it has more than {_LARGEST_TEXT >> 20} MiB)")
        return Path(path).read_text(encoding="utf-8")


def remove(path: str | Path) -> None:
    """Remove a file or a folder with all that is in it. Only for what this process made under a name of its own."""
    if Path(path).is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def writable(folder: str | Path) -> Path:
    """The folder as a path that can be written to, made if need be."""
    path = absolute(folder)
    with one_line(path, "written"):
        path.mkdir(parents=True, exist_ok=True)
        probe = new_part(path)
        probe.touch()
        probe.unlink(missing_ok=True)  # `clean` in another process may have come first
    return path


def unused(folder: str | Path, option: str, remedy: str) -> Path:
    """The folder as a path, if nothing is in it yet but what a killed writer left."""
    path = absolute(folder)
    with one_line(path, "read"):
        if path.exists() and not path.is_dir():
            raise InputError(f"`{option}` must be a folder, {path} is a file; choose another")
        if path.is_dir() and not all(is_part(entry) or entry.name == locks.NAME for entry in path.iterdir()):
            raise InputError(f"`{option}` must be an empty or new folder, {path} has files in it; {remedy}")
    return path


@contextmanager
def numbered(parent: Path, stem: str) -> Iterator[Path]:
    """The folder ``parent/stem-001``, or with the next number that is free, for this process alone."""
    with ExitStack() as held:
        for number in itertools.count(1):
            path = absolute(parent) / f"{stem}-{number:03d}"
            if not path.exists():
                try:
                    held.enter_context(locks.lock(path))
                except locks.Taken:  # another process was quicker
                    continue
                break
        yield path


def temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="twoclock-"))


def absolute(folder: str | Path) -> Path:
    with one_line(folder, "used"):
        return Path(folder).expanduser().absolute()
