"""Everything on disk: records, checkpoints and sweeps; atomic, checksummed, locked."""

from twoclock.storage.atomic_file import is_held, lock, note, numbered, put, put_note, remove, unused, writable
from twoclock.storage.checkpoints import Checkpoints, StaleCheckpoint, discard, interrupted
from twoclock.storage.paths import absolute, temporary, text
from twoclock.storage.record import VALUE, is_complete, load, results_below, save, spec
from twoclock.storage.run_identity import FORMAT, Identity, RunSpec, environment, identify, provenance
from twoclock.storage.sealed_folder import reading

__all__ = [
    "FORMAT",
    "VALUE",
    "Checkpoints",
    "Identity",
    "RunSpec",
    "StaleCheckpoint",
    "absolute",
    "discard",
    "environment",
    "identify",
    "interrupted",
    "is_complete",
    "is_held",
    "load",
    "lock",
    "note",
    "numbered",
    "provenance",
    "put",
    "put_note",
    "reading",
    "remove",
    "results_below",
    "save",
    "spec",
    "temporary",
    "text",
    "unused",
    "writable",
]
