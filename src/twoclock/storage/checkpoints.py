"""Checkpoints that a run can go on from: the last two, so that one that is damaged costs little."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twoclock.protocols import InputError, PyTree
from twoclock.storage import explain_mismatch, locks, pytree_codec
from twoclock.storage.atomic_file import absolute, clean
from twoclock.storage.atomic_folder import remove_record, whole_folder
from twoclock.storage.checksums import SPEC, Damaged, read_folder, write_spec
from twoclock.storage.run_identity import Identity, Json


class StaleCheckpoint(InputError):
    """A checkpoint that this run cannot go on from."""


@dataclass(frozen=True)
class Checkpoint:
    """One state of a run.

    Attributes:
        step: the step that it is at.
        identity: of the run, as it was kept.
        what: what is run, for people: ``problem``, and ``method`` with a description for each label.
        tree: the named arrays.
    """

    step: int
    identity: Mapping[str, Json]
    what: Mapping[str, Json]
    tree: dict[str, PyTree]


class Checkpoints:
    """The last two states of a run, ``<step>/`` each: written aside and renamed, so a kill leaves those before.

    Args:
        folder: where to keep them; this process alone writes there until ``close``.
        identity: what the run is; a checkpoint with another identity is refused, by the name of what differs.
        what: the same for people: descriptions of ``problem`` and of ``method``, by label.
    """

    def __init__(self, folder: str | Path, identity: Identity, what: Mapping[str, Json]) -> None:
        self.folder = absolute(folder)
        self.identity, self.what = identity, what
        self._held = ExitStack()
        self._held.enter_context(locks.lock(self.folder))
        clean(self.folder)
        self._good: int | None = None

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """The step and the arrays to go on from, or None for a fresh start; a damaged one is passed over."""
        trouble: list[str] = []
        for step in reversed(steps(self.folder)):
            try:
                found = read(self.folder / str(step))
            except Damaged as error:
                trouble.append(str(error))
                continue
            self._check_same(found)
            self._good = step
            return step, found.tree
        if trouble:
            raise StaleCheckpoint(
                f"the checkpoint in {self.folder} cannot be used: {trouble[0]}; remove the folder to start again"
            )
        return None

    def _check_same(self, found: Checkpoint) -> None:
        differs = self.identity.difference(found.identity)
        if differs == "format":
            raise StaleCheckpoint(
                f"the checkpoint in {self.folder} was written by another version of twoclock, in its format; "
                "remove the folder to start again"
            )
        if differs is not None:
            there, here = ({**of.identity, **of.what}.get(differs) for of in (found, self._here(found.step)))
            raise StaleCheckpoint(
                f"the checkpoint in {self.folder} belongs to another run: "
                f"{explain_mismatch.told(differs, there, here)}; "
                f"{explain_mismatch.remedy(differs, there)} to go on from it, or use another folder"
            )

    def _here(self, step: int) -> Checkpoint:
        """This run as a checkpoint of it is read."""
        return Checkpoint(step, self.identity.kept(), json.loads(json.dumps(self.what)), {})

    def save(self, step: int, tree: dict[str, Any]) -> None:
        """Keep this state and the one before it."""
        if step == self._good:
            return
        arrays: dict[str, np.ndarray] = {}
        with whole_folder(self.folder / str(step)) as part:
            shape = pytree_codec.encode(tree, arrays)
            np.savez(part / "arrays.npz", **arrays)  # type: ignore[arg-type]
            here = self._here(step)
            write_spec(part, {"step": step, "identity": here.identity, "what": here.what, "layout": shape})
        for old in steps(self.folder):
            if old not in (step, self._good):
                remove_record(self.folder / str(old))
        self._good = step

    def close(self) -> None:
        self._held.close()


def discard(folder: str | Path) -> None:
    """Remove the checkpoints in a folder, of one run or of several methods, and whatever that leaves empty."""
    home = absolute(folder)
    if home.is_dir():
        for step in steps(home):
            remove_record(home / str(step))
            if (home / str(step)).is_dir():
                discard(home / str(step))
        with suppress(OSError):
            home.rmdir()


def interrupted(folder: str | Path) -> list[Checkpoint]:
    """The latest sound checkpoint of each run that keeps them in a folder, or in ``checkpoint`` below it."""
    root = absolute(folder)
    homes = [home for home in (root, root / "checkpoint") if home.is_dir()]
    groups = [home / str(number) for home in homes for number in steps(home)]  # of several methods: a folder each
    inside = [group for group in groups if not (group / SPEC).exists()]
    return [found for home in (*homes, *inside) if (found := _latest(home)) is not None]


def _latest(home: Path) -> Checkpoint | None:
    for step in reversed(steps(home)):
        try:
            return read(home / str(step))
        except Damaged:
            continue
    return None


def steps(folder: Path) -> list[int]:
    """The steps that there are checkpoints of, whole or damaged."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())


def read(folder: Path) -> Checkpoint:
    """One checkpoint."""
    spec, files = read_folder(folder)
    try:
        with np.load(io.BytesIO(files["arrays.npz"]), allow_pickle=False) as arrays:
            tree = pytree_codec.decode(spec["layout"], arrays)
        return Checkpoint(spec["step"], spec["identity"], spec.get("what", {}), tree)
    except (KeyError, ValueError, TypeError) as error:  # the digests fit: another program wrote it
        raise Damaged(f"{folder.name} is no checkpoint of this version ({error!s:.80})") from None
