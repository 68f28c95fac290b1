"""Records whose numbers were changed and sealed again: they load, or are refused in one line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import twoclock as tc
from faults._worker import foreign
from twoclock.storage import sealed_folder

NAME = "odd records"
TRIALS = 300
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\udcff",
    "a\nb",
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    "<script>",
    "../..",
    "1" * 5000,
)


def _paths(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(path for key, value in inner for path in _paths(value, (*at, key)))][: 2000 if not at else None]


def _put(tree: Any, path: tuple[Any, ...], rng: np.random.Generator) -> Any:
    """The tree with another value, or none, at a place."""
    if not path:
        deep: Any = 0
        for _ in range(int(rng.choice([50, 2000]))):
            deep = [deep]
        return deep if rng.random() < 0.05 else ODD[int(rng.integers(len(ODD)))]
    key, *rest = path
    if not rest and rng.random() < 0.3:
        del tree[key]
    else:
        tree[key] = _put(tree[key], tuple(rest), rng)
    return tree


def _make(kind: str, folder: str) -> tuple[Path, Any]:
    """A record, and how it is used."""
    if kind == "result":
        path = tc.solve(tc.problems.quadratic(dim=2), tc.Polyak(intervals=True), 50, 2).save(f"{folder}/saved")

        def use() -> Any:
            result = tc.load(path)
            return repr(result), result.summary("error"), result.interval(), result.plot("error")

        return path, use
    if kind == "checkpoint":
        path = Path(folder) / "kept"
        problem = tc.problems.quadratic(dim=2)
        tc.solve(problem, tc.Fast(), 50, 2, checkpoint=path)
        return path, lambda: tc.solve(problem, tc.Fast(), 80, 2, checkpoint=path)
    if kind == "sweep":
        path = Path(folder) / "swept"
        tc.sweep({"a": tc.problems.quadratic(dim=2)}, {"b": tc.Fast()}, 20, 2, out=path)
        return path, lambda: (repr(s := tc.Sweep.load(path)), s.final("error"), s.best("error"))
    if kind == "learner":
        learner = tc.Learner(lambda t, w, x: t - w, lambda t, w, x: w - x, tc.Fast(), 0.0, 0.0)
        learner.update_many(np.linspace(0, 1, 20))
        path = learner.save(f"{folder}/learnt")
        return path, lambda: tc.Learner.load(
            path, lambda t, w, x: t - w, lambda t, w, x: w - x, tc.Fast(), 0.0, 0.0
        ).update(0.5)
    agent = tc.agents.Regulator(np.eye(1), np.eye(1))
    path = agent.save(f"{folder}/agent")
    return path, lambda: tc.agents.Regulator.load(path).act(np.zeros(1))


def _words(kind: str) -> str:
    return f"{'an' if kind == 'agent' else 'a'} {kind}"


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    kind = ("result", "checkpoint", "sweep", "learner", "agent")[i % 5]
    with tempfile.TemporaryDirectory() as folder:
        path, use = _make(kind, folder)
        files = sorted(path.rglob("*.json"))
        file = files[int(rng.integers(len(files)))]
        try:
            tree, sealed = sealed_folder.unseal(file.read_bytes()), True
        except Exception:
            tree, sealed = json.loads(file.read_text()), False
        places = _paths(tree)
        place = places[int(rng.integers(len(places)))]
        tree = _put(tree, place, rng)
        try:
            text = sealed_folder.seal(tree) if sealed else json.dumps(tree)
        except Exception:  # what cannot be written cannot be read
            return _words(kind), None
        file.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
        trouble = foreign(use)
    return _words(kind), trouble and f"{file.name} at {'/'.join(map(str, place))}: {trouble}"
