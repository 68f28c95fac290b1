"""Draw the files of each main function: those in which a function runs during one call, coloured by layer.

python docs/walks.py
"""

import ast
import os
import re
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import twoclock as tc

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "twoclock"
LAYERS = re.findall(r"^\| (\d \w+) \| (.+?) \|", (ROOT / "docs" / "architecture.md").read_text(), re.M)
COLOURS = ["#e8e3d3", "#cfe2f3", "#d9ead3", "#fce5cd", "#ead1dc"]


def doors():
    """A small call of each main function."""
    problem = tc.problems.quadratic(dim=2)
    rng = np.random.default_rng(0)
    state, action = rng.integers(0, 5, 4000), rng.integers(0, 2, 4000)
    table = pd.DataFrame(
        {
            "state": state,
            "action": action,
            "reward": 1.0 * (state == 4),
            "next_state": np.clip(state + 2 * action - 1, 0, 4),
            "terminated": np.tile(np.arange(20) == 19, 200),
            "episode": np.repeat(np.arange(200), 20),
        }
    )
    log = tc.logs.read(table, episode="episode")
    regulator = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[0.3]])
    return {
        "tc.solve": lambda: tc.solve(problem, tc.Fast(), 1000, 4, engine="xla"),
        "tc.evaluate": lambda: tc.evaluate(log, np.full((5, 2), 0.5), 0.9),
        "tc.agents.run": lambda: tc.agents.run(regulator, plant, 300, seeds=1, x0=np.zeros(1)),
        "tc.sweep": lambda: tc.sweep({"bowl": problem}, {"fast": tc.Fast()}, 1000, 4),
        "tc.tune": lambda: tc.tune(problem, tc.Fast(), steps=2000),
    }


def files_of_reproduction():
    """The modules of `reproduction`, and those of the library that they name: what `python -m reproduction` leads to.

    A profile would show the files of every problem and method besides, which a reader need not open.
    """
    own = sorted((ROOT / "reproduction").rglob("*.py"))
    named = set()
    for node in (node for path in own for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "twoclock":
            named.add(node.module)
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names if alias.name.split(".")[0] == "twoclock"}
    places = [SOURCE.parent.joinpath(*name.split(".")) for name in sorted(named)]
    library = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()]
    return [str(path.relative_to(ROOT)) for path in own], [str(file.relative_to(SOURCE)) for file in library]


def plant(x, u, rng):
    return 0.9 * x + 0.5 * u + rng.normal(size=1)


def files_of(call):
    """The files of the library in which a function runs, in the order of the first call."""
    seen = {}

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and frame.f_code.co_name != "<module>" and path.startswith(str(SOURCE)):
            seen.setdefault(str(Path(path).relative_to(SOURCE)))

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(seen)


def layer_of(file):
    part = file.split("/")[0].removesuffix(".py")
    return next(i for i, (_, parts) in enumerate(LAYERS) if f"`{part}`" in parts)


def main():
    import matplotlib.pyplot as plt

    walks = {door: files_of(call) for door, call in doors().items()}
    columns = 5
    rows = [(door, files[i : i + columns]) for door, files in walks.items() for i in range(0, len(files), columns)]
    fig, ax = plt.subplots(figsize=(13, 0.42 * len(rows) + 0.9))
    for y, (door, files) in enumerate(rows):
        if y == 0 or rows[y - 1][0] != door:
            ax.text(-0.06, y, f"{door}\n{len(walks[door])} files", ha="right", va="center", fontsize=9, weight="bold")
        for x, file in enumerate(files):
            box = {"boxstyle": "round,pad=0.3", "fc": COLOURS[layer_of(file)], "ec": "#777"}
            ax.text(x + 0.5, y, file, ha="center", va="center", fontsize=7.5, bbox=box)
    for i, (name, _) in enumerate(LAYERS[:4]):
        box = {"boxstyle": "round,pad=0.3", "fc": COLOURS[i], "ec": "#777"}
        ax.text(i * 1.2 + 0.5, len(rows) + 0.2, name, ha="center", va="center", fontsize=8, bbox=box)
    ax.set(xlim=(-0.9, columns), ylim=(len(rows) + 0.7, -0.7))
    ax.axis("off")
    fig.savefig(ROOT / "docs" / "images" / "walks.png", dpi=130, bbox_inches="tight")
    for door, files in walks.items():
        print(door, len(files))
    own, library = files_of_reproduction()
    print("python -m reproduction", len(own) + len(library))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
