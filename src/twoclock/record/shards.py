"""The data set of a sweep on disk, which grows a shard at a time."""

from __future__ import annotations

import io
import json
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoclock.core import InputError
from twoclock.record import note, put, put_note, remove, unused, writable
from twoclock.record.identity import FORMAT, Identity

if TYPE_CHECKING:
    import pandas as pd

_LONGEST_NAME = 200


class Shards:
    """A data set that grows a shard at a time, and the state of the sweep that makes it.

    ``history/problem=…/method=…/<shard>.parquet`` is the data set; ``sweep.json`` says what it is of; a shard counts
    when its ``shards/<shard>.json`` is there, which is written last; ``progress.json`` is what the sweep is doing now.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().absolute()

    @property
    def spec(self) -> dict[str, Any]:
        try:
            spec = json.loads((self.folder / "sweep.json").read_text())
        except (OSError, ValueError):
            raise InputError(f"`DIR` must be the folder of a sweep, {self.folder} has no sweep.json") from None
        if spec["identity"].get("format") != FORMAT:
            raise InputError(
                f"the sweep in {self.folder} was written by another version of twoclock, in its format; "
                "run it again in another folder"
            )
        return spec

    def claim(self, spec: dict[str, Any], identity: Identity) -> None:
        """Make the folder this sweep's own; refuse that of another, by the name of what differs."""
        if not (self.folder / "sweep.json").exists():
            unused(self.folder, "out", "choose another")
            whole = {**spec, "identity": identity.kept()}
            put(writable(self.folder) / "sweep.json", json.dumps(whole, indent=1) + "\n")
        differ = identity.difference(self.spec["identity"])
        if differ is not None:
            raise InputError(
                f"`out` {self.folder} holds another sweep: its {differ} differ; "
                "use the same arguments or another folder"
            )

    def keep(self, name: str, tables: Mapping[tuple[str, str], Mapping[str, Any]], info: Mapping[str, Any]) -> None:
        """Write what a shard computed, (problem, method) → columns; its own record comes last."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for (problem, method), columns in tables.items():
            # A column of nothing is a number that this problem does not measure.
            rows = len(columns["seed"])
            table = pa.table(
                {name: pa.nulls(rows, pa.float64()) if v is None else pa.array(v) for name, v in columns.items()}
            )
            buffer = io.BytesIO()
            pq.write_table(table, buffer)
            home = self.folder / "history" / hive("problem", problem) / hive("method", method)
            put(home / f"{name}.parquet", buffer.getvalue(), aside=self.folder / ".parts")
        put(self.folder / "shards" / f"{name}.json", json.dumps(info), aside=self.folder / ".parts")

    def done(self) -> dict[str, dict[str, Any]]:
        """What is finished: shard → its record."""
        return {path.stem: json.loads(path.read_text()) for path in sorted((self.folder / "shards").glob("*.json"))}

    def note(self, progress: Mapping[str, Any]) -> None:
        put_note(self.folder, "progress", {**progress, "time": time.time()})

    def noted(self) -> dict[str, Any]:
        return note(self.folder, "progress")

    def tidy(self) -> None:
        """Nothing is being written any more: drop what a kill left half-written."""
        remove(self.folder / ".parts")

    def history(self) -> pd.DataFrame:
        """The finished shards as one frame: problem, method, seed, step, diverged, and the metrics."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        labels = pa.schema([("problem", pa.string()), ("method", pa.string())])
        done = set(self.done())
        files = [str(path) for path in sorted((self.folder / "history").rglob("*.parquet")) if path.stem in done]
        whole = ds.dataset(files, format="parquet", partitioning=ds.partitioning(labels, flavor="hive"))
        frame = whole.to_table().to_pandas()
        return frame[["problem", "method", *(c for c in frame.columns if c not in ("problem", "method"))]]


def hive(column: str, label: str) -> str:
    """The name of a folder that holds the rows with one label, as pandas, polars and duckdb read it."""
    name = f"{column}={urllib.parse.quote(label, safe=' ,')}"
    if not label or len(name) > _LONGEST_NAME:
        raise InputError(f"the label of a {column} must have 1 to about {_LONGEST_NAME} letters, got {label[:60]!r}")
    return name
