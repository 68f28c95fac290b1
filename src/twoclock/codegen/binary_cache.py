"""A cache of compiled programs on disk, in the user's own cache folder.

A program is native code, so one that another user could have written is never loaded: the folder must belong to this
user and be closed to all others. Files are written under another name and moved into place, and each is loaded only if
its digest is the one in the file beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Size of all programs together; the least recently used are deleted first.
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class BinaryCache:
    """A folder of programs.

    Attributes:
        folder: the user's cache folder; a temporary one where that cannot be trusted.
        trouble: why it is not the user's cache folder; None if it is.
    """

    folder: Path
    trouble: str | None = None

    def path(self, key: str) -> Path:
        """Return where the program of a key is, or would be."""
        return self.folder / f"{key}.so"

    def holds(self, key: str) -> bool:
        """Say whether the program is there and undamaged; delete a damaged one."""
        path, note = self.path(key), self._note(key)
        try:
            noted = note.read_text().split()
            whole = noted[0] == hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, IndexError):
            return False
        if not whole:
            self.delete(key)
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def add(self, key: str, program: Path) -> Path:
        """Move a new program into the cache, and delete old ones if the cache is full."""
        digest = hashlib.sha256(program.read_bytes()).hexdigest()
        program.chmod(0o700)
        os.replace(program, self.path(key))
        self._write(key, digest)
        self._trim(self.path(key))
        return self.path(key)

    def delete(self, key: str) -> None:
        """Delete a program; it is fine if there is none."""
        for path in (self._note(key), self.path(key)):
            with contextlib.suppress(OSError):
                path.unlink()

    def is_checked(self, key: str) -> bool:
        """Say whether the program passed its check when it was first used."""
        with contextlib.suppress(OSError):
            return self._note(key).read_text().split()[1:] == ["checked"]
        return False

    def mark_checked(self, key: str) -> None:
        """Record that the program passed its check."""
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
                if total <= MAX_BYTES:
                    break
                if path != newest:
                    self.delete(path.stem)
                    total -= size


def open_cache() -> BinaryCache:
    """Open the user's cache, or a temporary one if it cannot be made, belongs to someone else or is open to others."""
    base = os.environ.get("TWOCLOCK_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "twoclock"
    )
    folder = Path(base) / "programs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trouble = _why_untrusted(folder)
    except OSError as error:
        trouble = f"{folder} cannot be made ({error.strerror})"
    return BinaryCache(folder) if trouble is None else BinaryCache(Path(_temporary_folder().name), trouble)


def _why_untrusted(folder: Path) -> str | None:
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


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Make one folder for this process; it is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="twoclock-")
