"""Records: one sealed folder format for results, checkpoints, learners, agents and values of logs.

``spec.json`` has the ``kind`` of the record and the layout of its pytrees; each table is a Parquet file;
``arrays.npz`` holds the arrays of all pytrees. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from twoclock.protocols import InputError, PyTree
from twoclock.storage.atomic_file import Document, absolute, first_line, is_part, one_line, wait_for
from twoclock.storage.run_identity import FORMAT
from twoclock.storage.sealed_folder import (
    SPEC,
    Damaged,
    Unsealed,
    checksum,
    read_spec,
    recovered,
    replacement,
    seal,
    verified,
)
from twoclock.storage.sweep_store import Shards

if TYPE_CHECKING:
    import pandas as pd

RESULT, CHECKPOINT, VALUE = "result", "checkpoint", "value"
_ARRAYS = "arrays.npz"
# For each kind: the argument that names its folder, what wrote it, and how to make another.
_WORDS = {
    RESULT: ("path", "a folder that `result.save` wrote", "run it again"),
    VALUE: ("folder", "one that `save` wrote", "evaluate again"),
}


class Record(NamedTuple):
    """The content of a record."""

    spec: Document
    tables: dict[str, pd.DataFrame]
    trees: dict[str, PyTree]


def save(
    folder: str | Path,
    spec: Document,
    tables: Mapping[str, pd.DataFrame],
    trees: Mapping[str, PyTree],
    kind: str = RESULT,
) -> Path:
    """Write a record atomically."""
    with replacement(folder) as part:
        arrays: dict[str, np.ndarray] = {}
        layout = {name: encode(tree, arrays, name) for name, tree in trees.items()}
        for name, table in tables.items():
            # Neither pyarrow, nor pandas 2 with a file that is open, writes below a folder whose name is not UTF-8.
            (part / f"{name}.parquet").write_bytes(table.to_parquet(index=False))
        np.savez(part / _ARRAYS, **arrays)  # type: ignore[arg-type]
        files = {path.name: checksum(path.read_bytes()) for path in sorted(part.iterdir())}
        about = {**spec, "kind": kind, "format": FORMAT, "layout": layout}
        (part / SPEC).write_text(seal({**about, "files": files}))
    return absolute(folder)


def read(folder: Path, kind: str | None = None) -> Record:
    """Read a record and verify every byte; ``Damaged`` if it was changed, or is of another kind."""
    spec = read_spec(folder)
    files = {name: verified(folder / name, expected) for name, expected in spec.pop("files").items()}
    if spec.pop("format", None) != FORMAT:
        raise Unsealed
    if (there := spec.pop("kind", None)) is None or there != (kind or there):
        raise Damaged(f"it holds a {there!s:.20}, not a {kind}")
    try:
        tables = {}
        for name, content in files.items():
            if name.endswith(".parquet"):
                import pandas as pd

                tables[name.removesuffix(".parquet")] = pd.read_parquet(io.BytesIO(content))
        with np.load(io.BytesIO(files[_ARRAYS]), allow_pickle=False) as arrays:
            trees = {name: decode(layout, arrays) for name, layout in spec.pop("layout").items()}
    except Exception as error:  # the checksums fit, so another program wrote it; the readers raise many kinds
        raise Damaged(first_line(error)) from None
    return Record(spec, tables, trees)


def load(folder: str | Path, kind: str = RESULT) -> Record:
    """Read a record that a user names; errors are one line with the remedy."""
    argument, written, again = _WORDS[kind]
    root = recovered(folder)
    with one_line(root, "read"):
        if not is_complete(root):
            raise InputError(f"`{argument}` must be {written}; {root!s:.200} has no spec.json")
    with suppress(Damaged):
        return read(root, kind)
    try:  # another process may be moving its files in: wait until it has finished
        with one_line(root, "read"), wait_for(recovered(root)):
            return read(root, kind)
    except Unsealed:
        raise Unsealed(f"`{argument}` {root}") from None
    except Damaged as error:
        raise InputError(f"`{argument}` {root} is damaged: {error}; remove it and {again}") from None


def spec(folder: str | Path) -> Document:
    """The specification of a record without its numbers; empty if there is no record of this version."""
    root = recovered(folder)
    if not is_complete(root):
        return {}
    try:
        return read_spec(root)
    except Unsealed:
        return {}
    except Damaged as error:
        raise InputError(f"`path` {root} is damaged: {error}; remove it and run it again") from None


def is_complete(folder: str | Path) -> bool:
    """Whether the folder holds a complete record."""
    return (Path(folder) / SPEC).is_file() and not is_part(Path(folder))


def results_below(folder: str | Path) -> dict[str, Path]:
    """The complete records directly below a folder, by name."""
    root = absolute(folder)
    with one_line(root, "read"):
        if not root.is_dir():
            raise InputError(f"`DIR` must be a folder, {root} is none")
    seen = (path for path in sorted(root.iterdir()) if not path.name.startswith("."))
    return {path.name: path for path in seen if is_complete(path)}


@dataclasses.dataclass(frozen=True)
class FolderCheck:
    """A verified record or shard, and its faults, if any."""

    path: Path
    kind: str
    files: int
    trouble: str | None = None


def verify(folder: str | Path) -> list[FolderCheck]:
    """Verify every record and sweep in a folder and below it, byte by byte."""
    root = recovered(folder)
    with one_line(root, "read"):
        if not root.is_dir():
            raise InputError(f"`DIR` must be a folder, {root!s:.200} is none")
    checks = list(_verify_below(root))
    if not checks:
        raise InputError(f"`DIR` must hold a run, a sweep, a reproduction or a checkpoint, {root} has none of them")
    return checks


def _verify_below(folder: Path) -> Iterator[FolderCheck]:
    if (folder / "sweep.json").is_file():
        shards = Shards(folder)
        done, damage = shards.done(), shards.damage()
        try:
            wanted, trouble = shards.spec["shards"], None
        except (Damaged, KeyError) as error:
            wanted, trouble = {}, str(error)
        yield FolderCheck(folder, f"sweep, {len(done)} of {len(wanted) or '?'} shards finished", 1, trouble)
        for name in sorted({*done, *damage}):
            stranger = f"shards/{name} is of another sweep" if wanted and name not in wanted else None
            files = 1 + len(done.get(name, {}).get("files", ()))
            yield FolderCheck(folder / "shards" / f"{name}.json", "shard", files, damage.get(name, stranger))
        return
    # Files without a specification were part of a record.
    if any((folder / name).is_file() for name in (SPEC, _ARRAYS, "history.parquet")):
        try:
            read(folder)
            known = read_spec(folder)
            yield FolderCheck(folder, known["kind"], 1 + len(known["files"]))
        except Damaged as error:
            yield FolderCheck(folder, CHECKPOINT if folder.name.isdecimal() else RESULT, 0, str(error))
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if is_part(path):
            yield FolderCheck(path, "left by a kill", 0)
        elif not path.name.startswith("."):
            yield from _verify_below(path)


def encode(tree: PyTree, arrays: dict[str, np.ndarray], path: str) -> PyTree:
    """The layout of a pytree as JSON; its arrays are added to ``arrays`` under their paths, such as ``theta.weight.0``.

    Dicts, lists and tuples keep their shape; other nodes become dicts of their fields.
    """
    if hasattr(tree, "_fields"):  # a named tuple
        tree = tree._asdict()
    elif dataclasses.is_dataclass(tree):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    if isinstance(tree, dict):
        return {"dict": {str(key): encode(value, arrays, f"{path}.{key}") for key, value in tree.items()}}
    if isinstance(tree, (list, tuple)):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [encode(value, arrays, f"{path}.{i}") for i, value in enumerate(tree)]}
    if tree is None:
        return None
    array = np.asarray(tree)
    if array.dtype == object:  # a function inside a network, say: part of the code, not of the numbers
        return None
    name = re.sub(r"[^\w.]", "_", path)  # a key may have characters that a file name cannot have
    while name in arrays:
        name += "_"
    if array.dtype.kind == "V":  # bfloat16 and its kin, which NumPy's files do not know
        arrays[name] = array.view(f"u{array.dtype.itemsize}")
        return {array.dtype.name: name}
    arrays[name] = array
    return name


def decode(layout: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """The pytree that ``encode`` was given, with NumPy arrays."""
    if layout is None:
        return None
    if isinstance(layout, str):
        return arrays[layout]
    ((kind, value),) = layout.items()
    if kind == "dict":
        return {key: decode(item, arrays) for key, item in value.items()}
    if isinstance(value, str):
        return arrays[value].view(np.dtype(kind))
    items = [decode(item, arrays) for item in value]
    return tuple(items) if kind == "tuple" else items


def shaped_like(name: str, saved: PyTree, like: PyTree, seeds: int) -> PyTree:
    """A pytree as it was before ``encode``, by an example without the seed axis.

    Leaves of the example that are no numbers (the activation of a network) are taken from it; ``seeds`` is the length
    of the saved leading axis.
    """
    used: set[int] = set()

    def fill(path: tuple[object, ...], leaf: PyTree) -> PyTree:
        is_array = hasattr(leaf, "shape")
        if not (is_array or isinstance(leaf, (int, float))):
            return leaf
        where, there = name + jax.tree_util.keystr(path), saved
        try:
            for key in path:
                label = jax.tree_util.keystr((key,), simple=True)
                there = there[int(label)] if isinstance(there, (list, tuple)) else there[label]
        except (KeyError, IndexError, TypeError, ValueError):
            there = None
        shape = there.shape if isinstance(there, np.ndarray) else None
        if shape != (seeds, *np.shape(leaf)):
            if shape is None and not is_array:
                return leaf  # a plain number inside a module, which was no part of the variable
            has = "nothing" if shape is None else f"shape {shape[1:]}"
            raise InputError(
                f"`like` must have the structure of {name}: `{where}` has shape {np.shape(leaf)}, saved is {has}"
            )
        used.add(id(there))
        return there

    whole = jax.tree_util.tree_map_with_path(fill, like)
    for path, leaf in jax.tree_util.tree_leaves_with_path(saved):
        # Static parts of a module were saved too, without seeds.
        if id(leaf) not in used and leaf.dtype.kind in "fV" and leaf.shape[:1] == (seeds,):
            raise InputError(f"`like` must have the structure of {name}: it lacks `{name}{jax.tree_util.keystr(path)}`")
    return whole
