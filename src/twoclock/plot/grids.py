"""Shaded grids: a table of numbers, and a grid world with its values and policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from twoclock.protocols import InputError

#: Rows and columns that each action moves, in the order of Gymnasium's FrozenLake: left, down, right, up.
LEFT_DOWN_RIGHT_UP = ((0, -1), (1, 0), (0, 1), (-1, 0))
#: The same in the order of CliffWalking: up, right, down, left.
UP_RIGHT_DOWN_LEFT = ((-1, 0), (0, 1), (1, 0), (0, -1))

_MARKS = {"S": "start", "G": "goal", "H": "hole"}


def grid_world(
    ax: Axes,
    values: np.ndarray,
    policy: np.ndarray,
    cells: Sequence[str | bytes] | Sequence[Sequence[str | bytes]] | np.ndarray,
    moves: Sequence[tuple[int, int]] = LEFT_DOWN_RIGHT_UP,
) -> None:
    """A map with the value of each cell, and an arrow for each action as long as it is likely.

    Args:
        values: V, one number per state; states are numbered row by row.
        policy: π[s, a].
        cells: the map, a row of letters a line as in ``env.unwrapped.desc``: S start, G goal, H hole.
        moves: the (row, column) step that each action aims at.
    """
    cells = [row.decode() if isinstance(row, bytes) else row for row in cells]  # Gymnasium has its maps in bytes
    letters = np.array([[c.decode() if isinstance(c, bytes) else c for c in row] for row in cells])
    rows, cols = letters.shape
    if values.shape != (rows * cols,) or policy.shape != (rows * cols, len(moves)):
        raise InputError(
            f"`values` and `policy` must fit the {rows}×{cols} map and its {len(moves)} moves, got the shapes "
            f"{values.shape} and {policy.shape}"
        )
    worth = values.reshape(rows, cols)
    live = ~np.isin(letters, ["G", "H"])
    ax.grid(visible=False)
    ax.imshow(np.where(live, worth, np.nan), cmap="Blues", vmin=worth[live].min(), vmax=worth[live].max() * 1.8)
    for (i, j), letter in np.ndenumerate(letters):
        if letter in "GH":
            ax.fill_between([j - 0.5, j + 0.5], i - 0.5, i + 0.5, color="#E69F00" if letter == "G" else "0.25", lw=0)
        if letter in _MARKS:
            at = (j, i) if letter in "GH" else (j, i - 0.4)
            ax.text(*at, _MARKS[letter], ha="center", va="center", fontsize=7, color="w" if letter == "H" else "k")
        if live[i, j]:
            ax.text(j, i + 0.4, f"{worth[i, j]:.3g}", ha="center", va="center", fontsize=6)
    y, x = np.nonzero(live)
    shares = policy[np.flatnonzero(live.ravel())]
    for a, (down, right) in enumerate(moves):
        shown = shares[:, a] > 0.02
        length = 0.32 * shares[shown, a]
        ax.quiver(
            x[shown], y[shown] - 0.06, right * length, down * length, angles="xy", scale_units="xy", scale=1,
            width=0.005, headwidth=3.2, headlength=3.6, minlength=0.6, color="#D55E00",
        )  # fmt: skip
    ax.set_xticks(np.arange(cols + 1) - 0.5, [])
    ax.set_yticks(np.arange(rows + 1) - 0.5, [])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.grid(visible=True, color="w", linewidth=1)
    ax.set(xlim=(-0.5, cols - 0.5), ylim=(rows - 0.5, -0.5), aspect="equal")


def table(ax: Axes, values: np.ndarray, columns: Sequence[str], rows: Sequence[str], xlabel: str, ylabel: str) -> None:
    """Shares in [0, 1] as a shaded table, the number in each cell."""
    ax.grid(visible=False)
    ax.imshow(values, cmap="Greys", vmin=0, vmax=1.4, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        ax.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize="x-small", color="w" if value > 0.7 else "k")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_xticks(range(len(columns)), columns, fontsize="x-small", rotation=30)
    ax.set_yticks(range(len(rows)), rows, fontsize="x-small")
