"""A log or a policy changed under a checkpoint of ``tc.evaluate``, or after ``tc.logs.read``."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

import twoclock as tc
from faults._worker import differs
from faults.odd_logs import table

NAME = "logs and policies changed"
TRIALS = 120


def _policy(p: float, odd: int | None = None) -> Any:
    def pi(states: Any) -> np.ndarray:
        first = np.where(np.asarray(states) == odd, 1 - p, p)
        return np.stack([first, 1 - first], axis=1)

    return pi


def _value(log: Any, policy: Any, checkpoint: str | None = None) -> float:
    found = tc.evaluate(log, policy, 0.9, bootstrap=0, compare=False, checkpoint=checkpoint)
    return float(found.table["value"].iloc[0])


def _read(source: Any) -> Any:
    return tc.logs.read(source, next_state="next_state", episode="episode", step="step")


EDITS = {
    "rewards": lambda t, rng: t.assign(reward=t["reward"] + 100.0),
    "one reward": lambda t, rng: t.assign(reward=t["reward"] + 1e6 * (np.arange(len(t)) == rng.integers(len(t)))),
    "actions": lambda t, rng: t.assign(action=rng.permutation(t["action"].to_numpy())),
    "ends": lambda t, rng: t.assign(terminated=False),
    "half of the rows": lambda t, rng: t.iloc[: len(t) // 2],
    "nothing": lambda t, rng: t,
}


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    before, edit = table(int(rng.integers(100))), str(rng.choice(list(EDITS)))
    after = EDITS[edit](before, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/log.parquet"
        if i % 3 == 0:  # the log under a checkpoint
            what = "the log under a checkpoint"
            before.to_parquet(path, index=False, row_group_size=100)
            _value(_read(path), _policy(0.4), f"{folder}/kept")
            after.to_parquet(path, index=False, row_group_size=100)
            truth = _value(_read(after), _policy(0.4))
            call = lambda: _value(_read(path), _policy(0.4), f"{folder}/kept")  # noqa: E731
        elif i % 3 == 1:
            what, edit = "the policy under a checkpoint", str(rng.choice(["everywhere", "in one state", "a table"]))
            before.to_parquet(path, index=False)
            one, two = _policy(0.4), _policy(0.4, int(rng.integers(4))) if edit == "in one state" else _policy(0.8)
            if edit == "a table":
                one, two = np.full((4, 2), 0.5), np.tile([0.9, 0.1], (4, 1))
            _value(_read(path), one, f"{folder}/kept")
            truth = _value(_read(before), two)
            call = lambda: _value(_read(path), two, f"{folder}/kept")  # noqa: E731
        else:
            kind = str(rng.choice(["file", "frame", "dict", "arrays"]))
            what = "the log after it was read"
            source: Any = before.copy()
            if kind == "file":
                before.to_parquet(path, index=False)
                source = path
            elif kind != "frame":
                source = {name: before[name].to_numpy().copy() for name in before}
            log, truth = _read(source), _value(_read(before), _policy(0.4))
            if kind == "file":
                after.to_parquet(path, index=False)
            elif kind == "frame":
                source["reward"] = source["reward"] + 100.0
            else:
                source["reward"] += 100.0
            edit = f"{kind}, {edit}"
            call = lambda: _value(log, _policy(0.4))  # noqa: E731
        try:
            found = call()
        except tc.InputError:
            return what, None  # said, and not used
        except Exception as error:
            return what, f"{edit}: {type(error).__name__}: {error!s:.100}"
    trouble = differs(found, truth, 1e-9)
    return what, trouble and f"{edit}: {trouble}"
