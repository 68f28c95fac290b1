"""Records whose numbers were changed and sealed again: they load, or are refused in one line."""

from __future__ import annotations

import functools
import json
import shutil
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


@functools.cache
def _made(kind: str) -> Path:
    """A record of a kind, made once; trials damage copies of it."""
    path = Path(tempfile.mkdtemp(dir=".")).absolute() / "made"
    if kind == "result":
        tc.solve(tc.problems.quadratic(dim=2), tc.Polyak(intervals=True), 50, 2).save(path)
    elif kind == "checkpoint":
        tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 50, 2, checkpoint=path)
    elif kind == "sweep":
        tc.sweep({"a": tc.problems.quadratic(dim=2)}, {"b": tc.Fast()}, 20, 2, out=path)
    elif kind == "learner":
        learner = tc.Learner(*_OPERATORS, tc.Fast(), 0.0, 0.0)
        learner.update_many(np.linspace(0, 1, 20))
        learner.save(path)
    else:
        tc.agents.Regulator(np.eye(1), np.eye(1)).save(path)
    return path


_OPERATORS = (lambda t, w, x: t - w, lambda t, w, x: w - x)


def _use(kind: str, path: Path) -> None:
    """Read a record, and do what is done with it."""
    if kind == "result":
        result = tc.load(path)
        repr(result), result.summary("error"), result.interval(), result.plot("error")
    elif kind == "checkpoint":
        tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 80, 2, checkpoint=path)
    elif kind == "sweep":
        swept = tc.Sweep.load(path)
        repr(swept), swept.final("error"), swept.best("error"), repr(swept.result("a", "b"))
    elif kind == "learner":
        tc.Learner.load(path, *_OPERATORS, tc.Fast(), 0.0, 0.0).update(0.5)
    else:
        tc.agents.Regulator.load(path).act(np.zeros(1))


def _words(kind: str) -> str:
    return f"{'an' if kind == 'agent' else 'a'} {kind}"


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    kind = ("result", "checkpoint", "sweep", "learner", "agent")[i % 5]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(_made(kind), f"{folder}/record"))
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
        trouble = foreign(lambda: _use(kind, path))
    return _words(kind), trouble and f"{file.name} at {'/'.join(map(str, place))}: {trouble}"
