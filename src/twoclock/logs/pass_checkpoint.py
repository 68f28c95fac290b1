"""Sums over a long log, kept on disk as they grow, so that a pass that was killed goes on."""

from __future__ import annotations

import hashlib
import io
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from twoclock import storage
from twoclock.logs.estimand import Target

EVERY = 20.0  # seconds


@dataclass
class Keeper:
    """What a pass has added up so far, in a folder; only what was added up for the same question is taken.

    A pass with sparse sums, which is short, is not kept.
    """

    folder: Path
    identity: str
    last: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, folder: Path, target: Target, *others: object) -> Keeper:
        """The question is told by numbers: the log, what the policy and the features make of some of its rows."""
        state, action = target.log.sample(64)
        encoded = target.features.encode(state)
        rows = [target.policy.acts(state, (0, 0)).law, target.features.pairs(encoded, action)]
        told = [np.asarray(row if isinstance(row, np.ndarray) else row.toarray()).tobytes() for row in rows]
        asked = (target.log.fingerprint(), target.gamma, target.groups, target.clusters, target.stream, target.visited)
        start = b"" if target.start is None else target.start.tobytes()
        text = repr((asked, others)).encode()
        return cls(folder, hashlib.sha256(b"".join([text, start, *told])).hexdigest())

    def restore(self, name: str, state: object) -> int:
        """Fill the state with what was kept, and return the first part that is not in it."""
        try:
            with np.load(self._path(name), allow_pickle=False) as kept:
                if str(kept["identity"]) != self.identity:
                    return 0
                found = {key: kept[key] for key in _arrays(state)}
                done = int(kept["done"])
        except Exception:  # none, half of one, or of another version: a pass begins anew
            return 0
        for key, array in found.items():
            setattr(state, key, tuple(array.tolist()) if key == "reward" else array)
        return done

    def keep(self, name: str, state: object, done: int, at_end: bool) -> None:
        if (not at_end and time.monotonic() - self.last < EVERY) or isinstance(getattr(state, "A", None), list):
            return
        self.last = time.monotonic()
        file = io.BytesIO()
        np.savez(file, identity=self.identity, done=done, **_arrays(state))  # type: ignore[arg-type]
        storage.put(self._path(name), file.getvalue())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}-{self.identity[:16]}.npz"


def discard(folder: Path) -> None:
    """Remove the sums of passes that are through, each known by the identity in its name and in its content."""
    for path in folder.glob("*.npz"):
        with suppress(Exception), np.load(path, allow_pickle=False) as kept:
            if path.stem.endswith(f"-{str(kept['identity'])[:16]}"):
                path.unlink()
    with suppress(OSError):  # not empty, or never made
        folder.rmdir()


def _arrays(state: object) -> dict[str, np.ndarray]:
    kept = {key: value for key, value in vars(state).items() if isinstance(value, np.ndarray)}
    return {**kept, "reward": np.array(state.reward)} if hasattr(state, "reward") else kept
