"""A user's files beside a record, with names like the library's: none is lost or changed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import twoclock as tc
from faults._worker import foreign
from twoclock import cli

NAME = "files of the user's own"
TRIALS = 60
NAMES = (
    "dataset.part-1",
    "saved.part-12345",
    ".old-saved",
    ".old-mine",
    "saved.old",
    "saved.tmp",
    ".twoclock-notes",
    ".lock",
    ".twoclock-part-1",
    "making-1",
    "checkpoint.bak",
    "saved~",
    ".saved.swp",
    "spec.json.part-7",
    "history.parquet.part-3",
    ".twoclock.part-99999999",
    "shards.part-2",
)


def _solve(path: Path) -> None:
    tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 50, 2).save(path)


def _checkpoint(path: Path) -> None:
    tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 50, 2, checkpoint=path)


def _sweep(path: Path) -> None:
    tc.sweep({"a": tc.problems.quadratic(dim=2)}, {"b": tc.Fast()}, 20, 2, out=path)


def _learner(path: Path) -> None:
    learner = tc.Learner(lambda t, w, x: t - w, lambda t, w, x: w - x, tc.Fast(), 0.0, 0.0)
    learner.update(0.5)
    learner.save(path)


def _command(path: Path) -> None:
    cli.main(["run", "quadratic", "fast", "--steps", "50", "--seeds", "2", "--out", str(path)])


def _agent(path: Path) -> None:
    agent = tc.agents.Regulator(np.eye(1), np.eye(1))
    tc.agents.run(agent, lambda x, u, rng: 0.5 * x + u, 20, 1, x0=np.zeros(1), checkpoint=path, processes=1)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "result.save": _solve,
    "checkpoint": _checkpoint,
    "sweep": _sweep,
    "learner.save": _learner,
    "twoclock run": _command,
    "agents.run": _agent,
}


def _contents(root: Path, names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        for path in [root / name, *(root / name).rglob("*")]:
            if path.is_file():
                found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    what = list(WRITERS)[i % len(WRITERS)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        inside = bool(rng.random() < 0.4)
        home = root / "saved" if inside else root
        home.mkdir(exist_ok=True)
        names = [str(name) for name in rng.choice(NAMES, 4, replace=False)]
        for name in names:
            if rng.random() < 0.6:
                (home / name).mkdir()
                (home / name / "data.csv").write_text("mine")
            else:
                (home / name).write_text("mine")
        before = _contents(home, names)
        trouble = foreign(lambda: [WRITERS[what](root / "saved") for _ in range(2)])
        after = _contents(home, names)
        lost = [name for name in before if after.get(name) != before[name]]
        trouble = trouble or (f"lost or changed: {lost}" if lost else None)
    return what, trouble and f"{'inside' if inside else 'beside'}: {trouble}"
