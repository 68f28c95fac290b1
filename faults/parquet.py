"""Bits flipped in a log's Parquet, in every compression: a value, or one line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from faults._worker import foreign
from faults.odd_logs import table, value

NAME = "bits of a log"
TRIALS = 300
SECONDS = 120.0
COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "brotli", "lz4")


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    how = COMPRESSIONS[i % len(COMPRESSIONS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pq.write_table(pa.Table.from_pandas(table(1)), path, compression=how, row_group_size=200)
        content = bytearray(path.read_bytes())
        end = len(content) if rng.random() < 0.6 else 400  # the footer has most of the structure
        for at in rng.integers(max(len(content) - end, 0), len(content), int(rng.integers(1, 4))):
            content[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        return f"Parquet, {how}", foreign(lambda: value(str(path)))
