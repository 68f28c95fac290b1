"""The table of a bench: printed, and stored for README and docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

STORED = Path(__file__).parents[1] / "docs" / "bench"


def report(name: str, title: str, rows: Sequence[Mapping[str, object]], store: bool = True) -> None:
    """Print a table of one question, and write it to docs/bench as ``name``.csv."""
    frame = pd.DataFrame(rows)
    if store:
        STORED.mkdir(exist_ok=True)
        frame.to_csv(STORED / f"{name}.csv", index=False, float_format="%.4g")
    table = Table(title=f"{name}: {title}", title_justify="left")
    for column in frame:
        table.add_column(str(column), justify="right" if pd.api.types.is_numeric_dtype(frame[column]) else "left")
    for row in frame.itertuples(index=False):
        table.add_row(
            *(f"{v:,.3g}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else str(v) for v in row)
        )
    Console(width=140).print(table)
