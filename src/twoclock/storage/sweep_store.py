"""The data set of a sweep on disk, which grows shard by shard."""

from __future__ import annotations

import io
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twoclock.protocols import InputError
from twoclock.storage.atomic_file import Document, absolute, clean, lock, note, put, remove, unused, writable
from twoclock.storage.run_identity import FORMAT, Identity
from twoclock.storage.sealed_folder import Damaged, Unsealed, check_files, checksum, reading, seal, unseal, verified
from twoclock.validation import short_repr

if TYPE_CHECKING:
    import pandas as pd

_LONGEST_NAME = 200
_SPEC = "sweep.json"

Columns = Mapping[str, np.ndarray | None]  # None for a metric that a problem does not measure


class Shards:
    """A data set that grows shard by shard, and the state of the sweep that writes it.

    ``history/problem=…/method=…/<shard>.parquet`` is the data set; ``sweep.json`` describes it. A shard is finished
    when its ``shards/<shard>.json`` exists, which is written last and has the digests of its files. ``progress.json``
    is the present state of the sweep.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = absolute(folder)

    @property
    def spec(self) -> Document:
        try:
            spec = unseal((self.folder / _SPEC).read_bytes())
        except Unsealed:
            raise self._of_another_version() from None
        except Damaged as error:
            raise Damaged(
                f"`DIR` {self.folder} is damaged: {_SPEC}: {error}; the same sweep into this folder repairs it"
            ) from None
        except (OSError, ValueError):
            raise InputError(f"`DIR` must be the folder of a sweep, {self.folder} has no {_SPEC}") from None
        with reading(self.folder, "DIR"):
            if spec["identity"].get("format") != FORMAT:
                raise self._of_another_version()
            sum(spec["shards"].values())
        return spec

    def _of_another_version(self) -> InputError:
        return InputError(
            f"the sweep in {self.folder} was written by another version of twoclock, in its format; "
            "run it again in another folder"
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other sweeps out, and clean up after one that was killed."""
        with lock(self.folder):
            clean(writable(self.folder))
            self.tidy()
            yield

    def claim(self, spec: Document, identity: Identity) -> None:
        """Assign the folder to this sweep; refuse that of another, with the part that differs."""
        if not (self.folder / _SPEC).exists():
            unused(self.folder, "out", "choose another")
            self._describe(spec, identity)
        try:
            differ = identity.difference(self.spec["identity"])
        except Damaged as error:
            if not self._names() <= set(spec["shards"]):  # the name of a shard identifies its computation
                raise InputError(f"`out` {self.folder} holds another sweep, and {error}; choose another") from None
            self._describe(spec, identity)
            return
        if differ is not None:
            raise InputError(
                f"`out` {self.folder} holds another sweep: its {differ} differ; "
                "use the same arguments or another folder"
            )

    def _describe(self, spec: Document, identity: Identity) -> None:
        put(self.folder / _SPEC, seal({**spec, "identity": identity.as_json()}))

    def add(self, name: str, tables: Mapping[tuple[str, str], Columns], info: Mapping[str, object]) -> None:
        """Write the results of a shard, (problem, method) → columns; its own record comes last."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = {}
        for (problem, method), columns in tables.items():
            rows = max(len(column) for column in columns.values() if column is not None)
            table = pa.table(
                {name: pa.nulls(rows, pa.float64()) if v is None else pa.array(v) for name, v in columns.items()}
            )
            buffer = io.BytesIO()
            pq.write_table(table, buffer)
            labels = partition_name("problem", problem), partition_name("method", method)
            path = Path("history", *labels, f"{name}.parquet")
            put(self.folder / path, buffer.getvalue(), aside=self.folder / ".parts")
            files[path.as_posix()] = checksum(buffer.getvalue())
        put(self.folder / "shards" / f"{name}.json", seal({**info, "files": files}), aside=self.folder / ".parts")

    def done(self) -> dict[str, Document]:
        """The records of finished shards, by name; a shard counts only if all its files are complete."""

        def is_there(path: str, size: int) -> bool:
            with suppress(OSError):
                return (self.folder / path).stat().st_size == size
            return False

        found = {name: info for name, info in self._records() if not isinstance(info, Damaged)}
        return {n: i for n, i in found.items() if all(is_there(path, f["bytes"]) for path, f in i["files"].items())}

    def damage(self) -> dict[str, str]:
        """The damage in finished shards, by name; every byte is read."""
        trouble = {}
        for name, info in self._records():
            try:
                if isinstance(info, Damaged):
                    raise info
                for path, expected in info["files"].items():
                    verified(self.folder / path, expected)
            except Damaged as error:
                trouble[name] = f"shards/{name}: {error}"
        return trouble

    def drop(self, names: Iterable[str]) -> None:
        """Remove these shards, so that they are computed again."""
        for name in names:
            remove(self.folder / "shards" / f"{name}.json")

    def progress(self) -> Document:
        return note(self.folder, "progress")

    def tidy(self) -> None:
        """Remove the unfinished files of a killed sweep."""
        parts = self.folder / ".parts"
        if parts.is_dir():
            clean(parts)
            with suppress(OSError):  # not empty
                parts.rmdir()

    def history(self) -> pd.DataFrame:
        """The finished shards as one table: problem, method, seed, step, diverged, and the metrics."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if damage := self.damage():
            raise Damaged(
                f"the sweep in {self.folder} is damaged: {next(iter(damage.values()))}; "
                "the same sweep into this folder computes that shard again"
            )
        tables = []
        for path in sorted(path for info in self.done().values() for path in info["files"]):
            with pa.memory_map(os.fsencode(self.folder / path)) as file:  # as text, the name would have to be UTF-8
                table = pq.ParquetFile(file).read()
            for place, folder in enumerate(Path(path).parts[1:3]):
                column, _, label = folder.partition("=")
                table = table.add_column(place, column, pa.repeat(urllib.parse.unquote(label), len(table)))
            tables.append(table)
        return pa.concat_tables(tables, promote_options="default").to_pandas()  # metrics differ between problems

    def _names(self) -> set[str]:
        found = (path.stem for path in (self.folder / "shards").glob("*.json"))
        return {name for name in found if re.fullmatch("[0-9a-f]{16}", name)}  # others are not ours

    def _records(self) -> Iterator[tuple[str, Document | Damaged]]:
        for name in sorted(self._names()):
            try:
                info = unseal((self.folder / "shards" / f"{name}.json").read_bytes())
                check_files(info)
                if not info["files"]:
                    raise Damaged("it lists no file of rows")
                if not all(isinstance(info.get(count), int) for count in ("lanes", "diverged")):
                    raise Damaged("it does not say how many runs it has")
                yield name, info
            except OSError as error:
                yield name, Damaged(f"it cannot be read: {error.strerror}")
            except Damaged as error:
                yield name, error


def partition_name(column: str, label: str) -> str:
    """The name of a folder that holds the rows with one label, as pandas, polars and duckdb read it."""
    try:
        name = f"{column}={urllib.parse.quote(label, safe=' ,')}"
    except (TypeError, UnicodeEncodeError):
        raise InputError(f"the label of a {column} must be text, got {short_repr(label)}") from None
    if label == "__HIVE_DEFAULT_PARTITION__":
        raise InputError(
            f"the label of a {column} must be another than {label}, which readers of data sets take for none"
        )
    if not label or len(name) > _LONGEST_NAME:
        raise InputError(f"the label of a {column} must have 1 to about {_LONGEST_NAME} letters, got {label[:60]!r}")
    return name
