"""Checkpoints of a run: the last two, so that little is lost if one is damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from twoclock.protocols import InputError, PyTree
from twoclock.storage import record
from twoclock.storage.atomic_file import absolute, clean, lock
from twoclock.storage.run_identity import Identity, Json, explain_mismatch
from twoclock.storage.sealed_folder import SPEC, Damaged, remove_record


class StaleCheckpoint(InputError):
    """A checkpoint that this run cannot resume from."""


@dataclass(frozen=True)
class Checkpoint:
    """One state of a run."""

    step: int
    identity: Mapping[str, Json]  # of the run, as it was saved
    what: Mapping[str, Json]  # the same as text: ``problem``, and ``method`` with a description for each label
    tree: dict[str, PyTree]  # the named arrays


class Checkpoints:
    """The last two states of a run, one record ``<step>/`` per state; a kill leaves earlier ones intact.

    This process alone writes to the folder until ``close``. A checkpoint with another identity is refused with the part
    that differs; ``what`` describes the problem and each method as text.
    """

    def __init__(self, folder: str | Path, identity: Identity, what: Mapping[str, Json]) -> None:
        self.folder = absolute(folder)
        self.identity, self.what = identity, what
        self._held = ExitStack()
        self._held.enter_context(lock(self.folder))
        clean(self.folder)
        self._good: int | None = None

    def latest(self) -> tuple[int, dict[str, PyTree]] | None:
        """The step and the arrays to resume from, or None for a fresh start; a damaged checkpoint is skipped."""
        trouble: list[str] = []
        for step in reversed(_steps(self.folder)):
            try:
                checkpoint = _read(self.folder / str(step))
            except Damaged as error:
                trouble.append(str(error))
                continue
            check_same_run(self.folder, self.identity, self.what, checkpoint.identity, checkpoint.what)
            self._good = step
            return step, checkpoint.tree
        if trouble:
            raise StaleCheckpoint(
                f"the checkpoint in {self.folder} cannot be used: {trouble[0]}; remove the folder to start again"
            )
        return None

    def save(self, step: int, tree: dict[str, PyTree]) -> None:
        """Write this state, and remove those older than the last good one."""
        if step == self._good:
            return
        spec = {"step": step, "identity": self.identity.as_json(), "what": self.what}
        record.save(self.folder / str(step), spec, {}, tree, record.CHECKPOINT)
        for old in _steps(self.folder):
            if old not in (step, self._good):
                remove_record(self.folder / str(old))
        self._good = step

    def close(self) -> None:
        self._held.close()


def check_same_run(
    folder: Path,
    identity: Identity,
    what: Mapping[str, Json],
    saved_identity: Mapping[str, Json],
    saved_what: Mapping[str, Json],
) -> None:
    """Refuse a checkpoint of another run, with what differs and the argument that would fit."""
    differs = identity.difference(saved_identity)
    if differs == "format":
        raise StaleCheckpoint(
            f"the checkpoint in {folder} was written by another version of twoclock, in its format; "
            "remove the folder to start again"
        )
    if differs is not None:
        there = {**saved_identity, **saved_what}.get(differs)
        here = {**identity.as_json(), **json.loads(json.dumps(what))}.get(differs)
        clause, remedy = explain_mismatch(differs, there, here)
        raise StaleCheckpoint(
            f"the checkpoint in {folder} belongs to another run: {clause}; {remedy} to continue it, or use another "
            "folder"
        )


def discard(folder: str | Path) -> None:
    """Remove the checkpoints in a folder, of one run or of several methods, and folders that are then empty."""
    home = absolute(folder)
    if home.is_dir():
        for step in _steps(home):
            remove_record(home / str(step))
            if (home / str(step)).is_dir():
                discard(home / str(step))
        with suppress(OSError):
            home.rmdir()


def interrupted(folder: str | Path) -> list[Checkpoint]:
    """The latest undamaged checkpoint of each run in a folder, or in ``checkpoint`` below it."""
    root = absolute(folder)
    homes = [home for home in (root, root / "checkpoint") if home.is_dir()]
    groups = [home / str(number) for home in homes for number in _steps(home)]  # of several methods: a folder each
    inside = [group for group in groups if not (group / SPEC).exists()]
    checkpoints = []
    for home in (*homes, *inside):
        for step in reversed(_steps(home)):
            with suppress(Damaged):
                checkpoints.append(_read(home / str(step)))
                break
    return checkpoints


def _steps(folder: Path) -> list[int]:
    """The steps that have checkpoints, complete or damaged."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())


def _read(folder: Path) -> Checkpoint:
    spec, _, tree = record.read(folder, record.CHECKPOINT)
    kinds = {"step": int, "identity": dict, "what": dict}
    if not all(isinstance(spec.get(name), kind) for name, kind in kinds.items()):
        raise Damaged("it does not say what it is a checkpoint of")
    return Checkpoint(spec["step"], spec["identity"], spec["what"], tree)
