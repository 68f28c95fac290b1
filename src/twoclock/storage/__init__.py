"""Everything on disk: records, checkpoints and sweeps; atomic, checksummed, locked."""

from twoclock.storage.atomic_file import (
    absolute,
    is_held,
    lock,
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
from twoclock.storage.checkpoints import Checkpoints, StaleCheckpoint, discard, interrupted
from twoclock.storage.record import VALUE, is_complete, load, results_below, save, spec
from twoclock.storage.run_identity import FORMAT, Identity, RunSpec, environment, identify, provenance
from twoclock.storage.sealed_folder import reading

__all__ = ["is_held", "lock", "note", "numbered", "put", "put_note", "remove", "unused", "writable"]
__all__ += ["Checkpoints", "StaleCheckpoint", "absolute", "discard", "interrupted", "temporary", "text"]
__all__ += ["VALUE", "is_complete", "load", "reading", "results_below", "save", "spec"]
__all__ += ["FORMAT", "Identity", "RunSpec", "environment", "identify", "provenance"]
