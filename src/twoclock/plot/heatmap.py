"""Numbers in a grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes


def table(ax: Axes, values: np.ndarray, columns: Sequence[str], rows: Sequence[str], xlabel: str, ylabel: str) -> None:
    """Shares in [0, 1] as a shaded table, the number in each cell."""
    ax.grid(visible=False)
    ax.imshow(values, cmap="Greys", vmin=0, vmax=1.4, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        ax.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize="x-small", color="w" if value > 0.7 else "k")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_xticks(range(len(columns)), columns, fontsize="x-small", rotation=30)
    ax.set_yticks(range(len(rows)), rows, fontsize="x-small")
