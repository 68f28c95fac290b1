"""Compiled programs on disk, in the user's own cache folder.

A program is native code, so nothing is loaded that another user could have put there: the folder must belong to this
user and be closed to all others. Files are written under another name and moved into place, and each is loaded only if
its digest is the one noted beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

# All programs together; the ones used longest ago go first.
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Cache:
    """A folder of programs.

    Attributes:
        folder: where they are; one that ends with this process where the user's cannot be trusted.
        trouble: why it is not the user's own cache folder.
    """

    folder: Path
    trouble: str | None = None

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.so"

    def holds(self, key: str) -> bool:
        """Whether a whole program is there; a torn one is thrown away."""
        path, note = self.path(key), self._note(key)
        try:
            noted = note.read_text().split()
            whole = noted[0] == hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, IndexError):
            return False
        if not whole:
            self.forget(key)
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def keep(self, key: str, made: Path) -> Path:
        """Move a program that was just made into place."""
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        made.chmod(0o700)
        os.replace(made, self.path(key))
        self._write(key, digest)
        self._trim(self.path(key))
        return self.path(key)

    def forget(self, key: str) -> None:
        for path in (self._note(key), self.path(key)):
            with contextlib.suppress(OSError):
                path.unlink()

    def checked(self, key: str) -> bool:
        """Whether the program agreed with XLA when it was first used."""
        with contextlib.suppress(OSError):
            return self._note(key).read_text().split()[1:] == ["checked"]
        return False

    def mark_checked(self, key: str) -> None:
        with contextlib.suppress(OSError, IndexError):
            self._write(key, f"{self._note(key).read_text().split()[0]} checked")

    def _note(self, key: str) -> Path:
        return self.folder / f"{key}.sha256"

    def _write(self, key: str, words: str) -> None:
        handle, name = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(handle, "w") as file:
            file.write(words)
        os.replace(name, self._note(key))

    def _trim(self, newest: Path) -> None:
        with contextlib.suppress(OSError):
            found = sorted(
                (p.stat().st_mtime, p.stat().st_size, p)
                for p in self.folder.glob("*.so")
                if self._note(p.stem).exists()
            )
            total = sum(size for _, size, _ in found)
            for _, size, path in found:
                if total <= MOST_BYTES:
                    break
                if path != newest:
                    self.forget(path.stem)
                    total -= size


def users() -> Cache:
    """The user's cache; a temporary one where that cannot be made, belongs to someone else or is open to others."""
    base = os.environ.get("TWOCLOCK_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "twoclock"
    )
    folder = Path(base) / "programs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trouble = _not_ours(folder)
    except OSError as error:
        trouble = f"{folder} cannot be made ({error.strerror})"
    return Cache(folder) if trouble is None else Cache(_temporary(), trouble)


def _not_ours(folder: Path) -> str | None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is no folder"
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        return f"{folder} belongs to someone else"
    if found.st_mode & 0o077:
        return f"{folder} is open to others; close it with chmod 700"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written to"
    return None


_folder: tempfile.TemporaryDirectory[str] | None = None


def _temporary() -> Path:
    global _folder
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="twoclock-")
    return Path(_folder.name)
