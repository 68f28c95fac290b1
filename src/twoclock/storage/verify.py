"""Any folder put to the test: every file against the digest that was written with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twoclock.protocols import InputError
from twoclock.storage import checkpoints
from twoclock.storage.atomic_file import is_part
from twoclock.storage.atomic_folder import recovered
from twoclock.storage.checksums import SPEC, Damaged, read_folder
from twoclock.storage.os_errors import one_line
from twoclock.storage.sweep_store import Shards


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what is wrong with it, if anything."""

    path: Path
    kind: str
    files: int
    trouble: str | None = None


def verify(folder: str | Path) -> list[Finding]:
    """Look at all that twoclock wrote in a folder and below it: results, checkpoints, sweeps."""
    root = recovered(folder)
    with one_line(root, "read"):
        if not root.is_dir():
            raise InputError(f"`DIR` must be a folder, {root!s:.200} is none")
    found = list(_below(root))
    if not found:
        raise InputError(f"`DIR` must hold a run, a sweep, a reproduction or a checkpoint, {root} has none of them")
    return found


def _below(folder: Path) -> Iterator[Finding]:
    if (folder / "sweep.json").is_file():
        yield from _sweep(folder)
        return
    # Files without their specification were part of something.
    if any((folder / name).is_file() for name in (SPEC, "arrays.npz", "history.parquet")):
        yield _sealed(folder)
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if is_part(path):
            yield Finding(path, "left by a kill", 0)
        elif not path.name.startswith("."):
            yield from _below(path)


def _sealed(folder: Path) -> Finding:
    try:
        spec, files = read_folder(folder)
        if "step" not in spec:
            return Finding(folder, "result", 1 + len(files))
        checkpoints.read(folder)
        return Finding(folder, "checkpoint", 1 + len(files))
    except Damaged as error:
        return Finding(folder, "checkpoint" if folder.name.isdecimal() else "result", 0, str(error))


def _sweep(folder: Path) -> Iterator[Finding]:
    kept = Shards(folder)
    done, damage = kept.done(), kept.damage()
    try:
        wanted, trouble = kept.spec["shards"], None
    except (Damaged, KeyError) as error:
        wanted, trouble = {}, str(error)
    yield Finding(folder, f"sweep, {len(done)} of {len(wanted) or '?'} shards finished", 1, trouble)
    for name in sorted({*done, *damage}):
        stranger = f"shards/{name} is of another sweep" if wanted and name not in wanted else None
        files = 1 + len(done.get(name, {}).get("files", ()))
        yield Finding(folder / "shards" / f"{name}.json", "shard", files, damage.get(name, stranger))
