"""Checkpoints that a run can go on from: the last two, so that one that is damaged costs little."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from twoclock.core import InputError, PyTree
from twoclock.record import layout, locks
from twoclock.record.digests import Damaged, read_folder, write_spec
from twoclock.record.files import absolute, clean, remove
from twoclock.record.folders import whole_folder
from twoclock.record.identity import Identity


class StaleCheckpoint(InputError):
    """A checkpoint that this run cannot go on from."""


class Checkpoints:
    """The last two states of a run, ``<step>/`` each: written aside and renamed, so a kill leaves those before.

    Args:
        folder: where to keep them; this process alone writes there until ``close``.
        identity: what the run is; a checkpoint with another identity is refused, by the name of what differs.
    """

    def __init__(self, folder: str | Path, identity: Identity) -> None:
        self.folder = absolute(folder)
        self.identity = identity
        self._held = ExitStack()
        self._held.enter_context(locks.lock(self.folder))
        clean(self.folder)
        self._good: int | None = None

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """The step and the arrays to go on from, or None for a fresh start; a damaged one is passed over."""
        trouble: list[str] = []
        for step in reversed(steps(self.folder)):
            try:
                identity, tree = read(self.folder / str(step))
            except Damaged as error:
                trouble.append(str(error))
                continue
            differs = self.identity.difference(identity)
            if differs == "format":
                raise StaleCheckpoint(
                    f"the checkpoint in {self.folder} was written by another version of twoclock, in its format; "
                    "remove the folder to start again"
                )
            if differs is not None:
                raise StaleCheckpoint(
                    f"the checkpoint in {self.folder} belongs to another run: its {differs} differs; "
                    "use the same arguments or another folder"
                )
            self._good = step
            return step, tree
        if trouble:
            raise StaleCheckpoint(
                f"the checkpoint in {self.folder} cannot be used: {trouble[0]}; remove the folder to start again"
            )
        return None

    def save(self, step: int, tree: dict[str, Any]) -> None:
        """Keep this state and the one before it."""
        if step == self._good:
            return
        arrays: dict[str, np.ndarray] = {}
        with whole_folder(self.folder / str(step)) as part:
            shape = layout.encode(tree, arrays)
            np.savez(part / "arrays.npz", **arrays)  # type: ignore[arg-type]
            write_spec(part, {"step": step, "identity": self.identity.kept(), "layout": shape})
        for old in steps(self.folder):
            if old not in (step, self._good):
                remove(self.folder / str(old))
        self._good = step

    def close(self) -> None:
        self._held.close()


def steps(folder: Path) -> list[int]:
    """The steps that there are checkpoints of, whole or damaged."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())


def read(folder: Path) -> tuple[dict[str, Any], PyTree]:
    """The identity and the arrays of one checkpoint."""
    spec, files = read_folder(folder)
    try:
        with np.load(io.BytesIO(files["arrays.npz"]), allow_pickle=False) as arrays:
            return spec["identity"], layout.decode(spec["layout"], arrays)
    except (KeyError, ValueError, TypeError) as error:  # the digests fit: another program wrote it
        raise Damaged(f"{folder.name} is no checkpoint of this version ({error!s:.80})") from None
