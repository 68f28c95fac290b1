"""Results on disk: three files that people can open, each with its digest. Nothing is pickled."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from twoclock.protocols import InputError, PyTree
from twoclock.storage import locks, pytree_codec
from twoclock.storage.atomic_file import absolute, is_part
from twoclock.storage.atomic_folder import recovered, whole_folder
from twoclock.storage.checksums import SPEC, Damaged, Unsealed, read_folder, read_spec, write_spec
from twoclock.storage.os_errors import first_line, one_line
from twoclock.storage.run_identity import FORMAT

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


def save(folder: str | Path, spec: dict[str, Any], history: pd.DataFrame, trees: dict[str, PyTree]) -> Path:
    """Write a result folder: ``spec.json``, ``history.parquet``, ``arrays.npz``. It appears whole or not at all."""
    with whole_folder(folder) as part:
        arrays: dict[str, np.ndarray] = {}
        shape = {name: pytree_codec.encode(tree, arrays) for name, tree in trees.items()}
        history.to_parquet(part / "history.parquet", index=False)
        np.savez(part / "arrays.npz", **arrays)  # type: ignore[arg-type]
        write_spec(part, {**spec, "format": FORMAT, "layout": shape})
    return absolute(folder)


def load(folder: str | Path) -> tuple[dict[str, Any], pd.DataFrame, dict[str, PyTree]]:
    """Read a result folder back; a byte that is not as it was written is refused."""
    import pandas as pd

    def read(root: Path) -> tuple[dict[str, Any], pd.DataFrame, dict[str, PyTree]]:
        spec, files = read_folder(root)
        with np.load(io.BytesIO(files["arrays.npz"]), allow_pickle=False) as arrays:
            trees = {name: pytree_codec.decode(shape, arrays) for name, shape in spec.pop("layout").items()}
        return spec, pd.read_parquet(io.BytesIO(files["history.parquet"])), trees

    spec, history, trees = _read(folder, read)
    if spec.pop("format") != FORMAT:
        raise Unsealed(f"`path` {folder}")
    return spec, history, trees


def spec(folder: str | Path) -> dict[str, Any]:
    """What a result folder says of itself, without its numbers; nothing if there is none of this version."""
    try:
        return _read(folder, read_spec) if is_complete(recovered(folder)) else {}
    except Unsealed:
        return {}


def is_complete(folder: str | Path) -> bool:
    """Whether the folder holds a result: one that was being written when its writer was killed does not count."""
    return (Path(folder) / SPEC).is_file() and not is_part(Path(folder))


def results_below(folder: str | Path) -> dict[str, Path]:
    """The complete result folders directly below a folder, by name."""
    root = absolute(folder)
    with one_line(root, "read"):
        if not root.is_dir():
            raise InputError(f"`DIR` must be a folder, {root} is none")
    seen = (path for path in sorted(root.iterdir()) if not path.name.startswith("."))
    return {path.name: path for path in seen if is_complete(path)}


def _read(folder: str | Path, read: Callable[[Path], T]) -> T:
    root = recovered(folder)
    with one_line(root, "read"):
        if not is_complete(root):
            raise InputError(f"`path` must be a folder that `result.save` wrote; {root!s:.200} has no spec.json")
    with suppress(Exception):
        return read(root)
    try:  # perhaps another process was moving its files in: wait until it is through
        with locks.wait_for(recovered(root)):
            return read(root)
    except Unsealed:
        raise Unsealed(f"`path` {root}") from None
    except Damaged as error:
        why = str(error)
    except Exception as error:  # its digests fit, so another program wrote it; the readers raise many kinds
        why = first_line(error)
    raise InputError(f"`path` {root} is damaged: {why}; remove it and run it again")
