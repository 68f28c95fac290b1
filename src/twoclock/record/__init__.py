"""Everything on disk: results that people can open, and checkpoints that a run can go on from. Nothing is pickled."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twoclock.core import InputError, PyTree
from twoclock.record.identity import FORMAT, Identity

if TYPE_CHECKING:
    import pandas as pd


class StaleCheckpoint(InputError):
    """A checkpoint that this run cannot go on from."""


def save(folder: str | Path, spec: dict[str, Any], history: pd.DataFrame, trees: dict[str, PyTree]) -> Path:
    """Write a result folder: ``spec.json``, ``history.parquet``, ``arrays.npz``. It appears whole or not at all."""
    target = writable(folder)
    part = target.with_name(target.name + f".part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {}
    layout = {name: _encode(tree, arrays) for name, tree in trees.items()}
    history.to_parquet(part / "history.parquet", index=False)
    np.savez(part / "arrays.npz", **arrays)  # type: ignore[arg-type]
    (part / "spec.json").write_text(json.dumps({**spec, "format": FORMAT, "layout": layout}, indent=1) + "\n")
    target.mkdir(exist_ok=True)
    for name in ("arrays.npz", "history.parquet", "spec.json"):  # the spec comes last: with it the folder is complete
        os.replace(part / name, target / name)
    part.rmdir()
    return target


def load(folder: str | Path) -> tuple[dict[str, Any], pd.DataFrame, dict[str, PyTree]]:
    """Read a result folder back."""
    import pandas as pd

    root = Path(folder)
    if not is_complete(root):
        raise InputError(f"`path` must be a folder that `result.save` wrote; {root} has no spec.json")
    try:
        spec = json.loads((root / "spec.json").read_text())
        if spec.pop("format") != FORMAT:
            raise InputError(f"`path` {root} was written by another version of twoclock, in its format; run it again")
        history = pd.read_parquet(root / "history.parquet")
        with np.load(root / "arrays.npz", allow_pickle=False) as arrays:
            trees = {name: _decode(layout, arrays) for name, layout in spec.pop("layout").items()}
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"`path` {root} is damaged ({_first_line(error)}); run it again") from error
    return spec, history, trees


def spec(folder: str | Path) -> dict[str, Any]:
    """What a result folder says of itself, without its numbers."""
    return note(folder, "spec")


def put(path: str | Path, content: str | bytes, aside: Path | None = None) -> Path:
    """Write one file whole or not at all; until it is whole it lies in the folder ``aside``, or beside its place."""
    target = Path(path)
    for folder in {target.parent, aside or target.parent}:
        folder.mkdir(parents=True, exist_ok=True)
    part = (aside or target.parent) / f".{target.name}.part-{uuid.uuid4().hex}"
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(part, target)
    return target


def note(folder: str | Path, name: str) -> dict[str, Any]:
    """A small note kept in a folder, empty if there is none."""
    try:
        return json.loads((Path(folder) / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}


def put_note(folder: str | Path, name: str, content: dict[str, Any]) -> None:
    put(Path(folder) / f"{name}.json", json.dumps(content) + "\n")


def text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InputError(f"the file {path} cannot be read ({error.strerror})") from None


def remove(folder: str | Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def is_complete(folder: str | Path) -> bool:
    return (Path(folder) / "spec.json").is_file()


def writable(folder: str | Path) -> Path:
    """The folder as a path that can be written to, made if need be."""
    path = Path(folder).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"the folder {path} cannot be written ({error.strerror}); choose another") from None
    return path


def unused(folder: str | Path, option: str, remedy: str) -> Path:
    """The folder as a path, if nothing is in it yet."""
    path = Path(folder).expanduser().absolute()
    if path.is_file():
        raise InputError(f"`{option}` must be a folder, {path} is a file; choose another")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"`{option}` must be an empty or new folder, {path} has files in it; {remedy}")
    return path


def next_free(parent: Path, stem: str) -> Path:
    """The path ``parent/stem-001``, or with the next number that is free."""
    numbered = (parent.absolute() / f"{stem}-{number:03d}" for number in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="twoclock-"))


def results_below(folder: str | Path) -> dict[str, Path]:
    """The complete result folders directly below a folder, by name."""
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"`DIR` must be a folder, {root} is none")
    return {path.name: path for path in sorted(root.iterdir()) if is_complete(path)}


class Checkpoints:
    """The latest state of a run, kept by orbax: written aside and renamed, so a kill leaves the one before.

    Args:
        folder: where to keep it.
        identity: what the run is; a checkpoint with another identity is refused, by the name of what differs.
    """

    def __init__(self, folder: str | Path, identity: Identity) -> None:
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.folder = writable(folder)
        self.identity = identity
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """The step and the arrays to go on from, or None for a fresh start."""
        step = self._manager.latest_step()
        if step is None:
            return None
        args = self._ocp.args
        try:
            kept = self._manager.restore(
                step, args=args.Composite(run=args.StandardRestore(), identity=args.JsonRestore())
            )
            differs, tree = self.identity.difference(kept["identity"]), kept["run"]
        except Exception as error:  # orbax raises many kinds; each means the same to the user
            raise StaleCheckpoint(
                f"the checkpoint in {self.folder} is damaged ({_first_line(error)}); remove the folder to start again"
            ) from error
        if differs == "format":
            raise StaleCheckpoint(
                f"the checkpoint in {self.folder} was written by another version of twoclock, in its format; "
                "remove the folder to start again"
            )
        if differs is not None:
            raise StaleCheckpoint(
                f"the checkpoint in {self.folder} belongs to another run: its {differs} differs; "
                "use the same arguments or another folder"
            )
        return step, tree

    def save(self, step: int, tree: dict[str, Any]) -> None:
        if step == self._manager.latest_step():
            return
        args = self._ocp.args
        content = args.Composite(run=args.StandardSave(tree), identity=args.JsonSave(self.identity.kept()))
        try:
            self._manager.save(step, args=content, force=True)
        except ValueError as error:  # the storage library's word for a full disk
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder)) from error

    def close(self) -> None:
        self._manager.close()


def _encode(tree: PyTree, arrays: dict[str, np.ndarray]) -> Any:
    """A layout of dicts, lists, tuples and array names that JSON can hold; other nodes become dicts of their fields."""
    if isinstance(tree, dict):
        return {"dict": {str(key): _encode(value, arrays) for key, value in tree.items()}}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return {type(tree).__name__: [_encode(value, arrays) for value in tree]}
    if tree is None:
        return None
    if hasattr(tree, "__dataclass_fields__"):
        return _encode({name: getattr(tree, name) for name in tree.__dataclass_fields__}, arrays)
    if hasattr(tree, "_fields"):
        return _encode(tree._asdict(), arrays)
    array = np.asarray(tree)
    if array.dtype == object:  # a function or the like inside a network: part of the code, not of the numbers
        return None
    name = f"a{len(arrays)}"
    arrays[name] = array
    return name


def _decode(layout: Any, arrays: Any) -> PyTree:
    if layout is None:
        return None
    if isinstance(layout, str):
        return arrays[layout]
    ((kind, value),) = layout.items()
    if kind == "dict":
        return {key: _decode(item, arrays) for key, item in value.items()}
    items = [_decode(item, arrays) for item in value]
    return tuple(items) if kind == "tuple" else items


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
