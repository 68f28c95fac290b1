"""Passes over the parts of a log: on this machine's cores or as Ray tasks, with checkpoints of the sums."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from twoclock import storage
from twoclock.executor import TaskBatch, Threads
from twoclock.executor.ray_cluster import on_ray
from twoclock.logs.features.state_features import to_dense
from twoclock.logs.sufficient_stats import Estimand, LogSums

EVERY = 20.0  # seconds
_TRIES = 4

T = TypeVar("T")
Progress = Callable[[int, int], None]


class Mapper(Protocol):
    """A map over the parts of a log."""

    def __call__(self, function: Callable[..., T], arguments: tuple[object, ...], parts: range) -> Iterator[T]:
        """``function(*arguments, part)`` for each of the parts, in their order."""


@contextmanager
def mapper(on: str, address: str | None = None, progress: Progress | None = None) -> Iterator[Mapper]:
    """Make a map over parts, on "local" threads or on "ray"."""
    from threadpoolctl import threadpool_limits

    local = on == "local"
    place = nullcontext(Threads()) if local else on_ray(address, "`policy` or `features`", tries=_TRIES, ordered=True)

    def over_parts(function: Callable[..., T], arguments: tuple[object, ...], parts: range) -> Iterator[T]:
        batch = TaskBatch(lambda shared, part, channel: function(*shared, part), arguments, parts)
        outcomes = executor.map(batch)
        with closing(outcomes):
            for number, outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
                if progress is not None:
                    progress(parts[number] + 1, parts.stop)

    # A core each: BLAS's own threads beside ours would wait for cores by spinning, and take ten times as long.
    with threadpool_limits(1 if local else None, user_api="blas"), place as executor:
        yield over_parts


@dataclass
class PassCheckpoint:
    """The sums of passes in a folder; only those of the same log, policy, features and arguments are read."""

    folder: Path
    identity: str
    last: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, folder: Path, estimand: Estimand, *others: object) -> PassCheckpoint:
        """Identify the passes by a hash of the log and of what the policy and features give for some of its rows."""
        state, action = estimand.log.sample(64)
        phi = estimand.features.pairs(estimand.features.encode(state), action)
        rows = [estimand.policy.acts(state, (0, 0)).law, to_dense(phi)]
        numbers = (estimand.gamma, estimand.groups, estimand.clusters, estimand.stream, estimand.visited)
        start = b"" if estimand.start is None else estimand.start.tobytes()
        text = repr((estimand.log.fingerprint(), *numbers, others)).encode()
        return cls(folder, hashlib.sha256(b"".join([text, start, *(row.tobytes() for row in rows)])).hexdigest())

    def restore(self, name: str, sums: LogSums) -> int:
        """Fill the sums with the saved ones, and return the first part that is not in them."""
        try:
            with np.load(self._path(name), allow_pickle=False) as saved:
                if str(saved["identity"]) != self.identity:
                    return 0
                arrays = {key: saved[key] for key in sums.arrays()}
                done = int(saved["done"])
        except Exception:  # none, half of one, or of another version: the pass begins anew
            return 0
        for key, array in arrays.items():
            setattr(sums, key, array)
        return done

    def save(self, name: str, sums: LogSums, done: int, at_end: bool) -> None:
        """Write the sums over the first ``done`` parts, every 20 seconds and at the end of the pass."""
        arrays = sums.arrays()
        if not arrays or (not at_end and time.monotonic() - self.last < EVERY):
            return
        self.last = time.monotonic()
        file = io.BytesIO()
        np.savez(file, identity=self.identity, done=done, **arrays)  # type: ignore[arg-type]
        storage.put(self._path(name), file.getvalue())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}-{self.identity[:16]}.npz"


def discard(folder: Path) -> None:
    """Remove the sums of passes that ended, each known by the identity in its name and in its content."""
    for path in folder.glob("*.npz"):
        with suppress(Exception), np.load(path, allow_pickle=False) as saved:
            if path.stem.endswith(f"-{str(saved['identity'])[:16]}"):
                path.unlink()
    with suppress(OSError):  # not empty, or never made
        folder.rmdir()
