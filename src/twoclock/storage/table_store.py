"""Tables and arrays in a folder with their digests, for what is no result of a run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twoclock.protocols import InputError
from twoclock.storage.atomic_file import absolute
from twoclock.storage.atomic_folder import recovered, whole_folder
from twoclock.storage.checksums import Damaged, Unsealed, read_folder, write_spec
from twoclock.storage.os_errors import first_line, one_line
from twoclock.storage.result_store import is_complete
from twoclock.storage.run_identity import FORMAT

if TYPE_CHECKING:
    import pandas as pd


def save(
    folder: str | Path,
    kind: str,
    content: dict[str, Any],
    tables: dict[str, pd.DataFrame],
    arrays: dict[str, np.ndarray],
) -> Path:
    """Write ``spec.json``, a Parquet file a table and ``arrays.npz``. It appears whole or not at all."""
    with whole_folder(folder) as part:
        for name, table in tables.items():
            table.to_parquet(part / f"{name}.parquet", index=False)
        np.savez(part / "arrays.npz", **arrays)  # type: ignore[arg-type]
        write_spec(part, {"kind": kind, "format": FORMAT, "content": content})
    return absolute(folder)


def load(folder: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, pd.DataFrame], dict[str, np.ndarray]]:
    """Read such a folder back."""
    import pandas as pd

    with one_line(folder, "read"):
        root = recovered(folder)
        complete = is_complete(root)
    if not complete:
        raise InputError(f"`folder` must be one that `save` wrote; {root!s:.200} has no spec.json")
    try:
        spec, files = read_folder(root)
        if spec.get("kind") != kind:
            raise InputError(f"`folder` {root} holds something else than a {kind}")
        with np.load(io.BytesIO(files["arrays.npz"]), allow_pickle=False) as arrays:
            found = dict(arrays.items())
        tables = {
            name.removesuffix(".parquet"): pd.read_parquet(io.BytesIO(content))
            for name, content in files.items()
            if name.endswith(".parquet")
        }
    except Unsealed:
        raise Unsealed(f"`folder` {root}") from None
    except Damaged as error:
        raise InputError(f"`folder` {root} is damaged: {error}; remove it and evaluate again") from None
    except (KeyError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"`folder` {root} is damaged: {first_line(error)}; remove it and evaluate again") from None
    return spec["content"], tables, found
