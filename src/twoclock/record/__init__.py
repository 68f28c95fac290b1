"""Everything on disk: results that people can open, checkpoints that a run can go on from, the data set of a sweep."""

from twoclock.record.checkpoints import Checkpoints, StaleCheckpoint
from twoclock.record.digests import Damaged
from twoclock.record.files import (
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
from twoclock.record.locks import Taken, lock
from twoclock.record.results import is_complete, load, results_below, save, spec

__all__ = [
    "Checkpoints",
    "Damaged",
    "StaleCheckpoint",
    "Taken",
    "absolute",
    "is_complete",
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
