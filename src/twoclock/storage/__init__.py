"""Everything on disk: results that people can open, checkpoints that a run can go on from, the data set of a sweep."""

from twoclock.storage.atomic_file import (
    absolute,
    note,
    numbered,
    put,
    put_note,
    remove,
    temporary,
    text,
    unused,
    writable,
)
from twoclock.storage.checkpoints import Checkpoint, Checkpoints, StaleCheckpoint, discard, interrupted
from twoclock.storage.checksums import Damaged
from twoclock.storage.locks import Taken, is_held, lock
from twoclock.storage.result_store import is_complete, load, results_below, save, spec

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Damaged",
    "StaleCheckpoint",
    "Taken",
    "absolute",
    "discard",
    "interrupted",
    "is_complete",
    "is_held",
    "load",
    "lock",
    "note",
    "numbered",
    "put",
    "put_note",
    "remove",
    "results_below",
    "save",
    "spec",
    "temporary",
    "text",
    "unused",
    "writable",
]
