"""Odd logs: the same log in another container has the same value, one that cannot be read is refused in one line."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import twoclock as tc
from faults._worker import differs, foreign

NAME = "odd logs"
TRIALS = 400
SECONDS = 120.0


def table(seed: int = 0, episodes: int = 60) -> pd.DataFrame:
    """Random walks over four states in a row."""
    rng = np.random.default_rng(seed)
    n = 10 * episodes
    action, state = rng.integers(0, 2, n), np.zeros(n, int)
    for i in range(n):
        state[i] = rng.integers(0, 4) if i % 10 == 0 else np.clip(state[i - 1] + 2 * action[i - 1] - 1, 0, 3)
    return pd.DataFrame(
        {
            "state": state, "action": action, "reward": 1.0 * (state == 3) + 0.1 * rng.normal(size=n),
            "next_state": np.clip(state + 2 * action - 1, 0, 3), "terminated": np.tile(np.arange(10) == 9, episodes),
            "episode": np.repeat(np.arange(episodes), 10), "step": np.tile(np.arange(10), episodes),
        }
    )  # fmt: skip


def value(source: Any, **how: Any) -> float:
    log = tc.logs.read(source, episode="episode", step="step", next_state=how.pop("next_state", "next_state"), **how)
    policy = how.pop("policy", None) or (lambda s: np.tile([0.4, 0.6], (len(s), 1)))
    return float(tc.evaluate(log, policy, 0.9, bootstrap=0, compare=False).table["value"].iloc[0])


@functools.cache
def truth() -> float:
    return value(table())


def _mapped(code: Callable[[Any], Any]) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(t: pd.DataFrame) -> pd.DataFrame:
        return t.assign(state=[code(s) for s in t["state"]], next_state=[code(s) for s in t["next_state"]])

    return change


def _ids(code: Callable[[int], Any]) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda t: t.assign(episode=[code(e) for e in t["episode"]])


def _missing_id(t: pd.DataFrame) -> pd.DataFrame:
    return t.assign(episode=pd.array(t["episode"] + 2**60, dtype="Int64"))


# The same log: every one of these has the value of the plain one, or is refused.
SAME: dict[str, Callable[[pd.DataFrame], Any]] = {
    "text states": _mapped(lambda s: f"s{s}"),
    "huge states": _mapped(lambda s: 2**60 + int(s)),
    "negative states": _mapped(lambda s: -int(s)),
    "trailing NULs": _mapped(lambda s: "a" + "\0" * int(s)),
    "NULs inside": _mapped(lambda s: f"a\0{s}"),
    "similar text": _mapped(lambda s: ("a", "A", "á", "ａ")[int(s)]),
    "huge ids": _ids(lambda e: 2**60 + int(e)),
    "text ids": _ids(lambda e: f"e{e}"),
    "huge nullable ids": _missing_id,
    "unsigned ids": lambda t: t.assign(episode=t["episode"].to_numpy().astype(np.uint64) + np.uint64(2**63)),
    "small integers": lambda t: t.astype({"state": "int8", "next_state": "int8", "action": "uint8"}),
    "categories": lambda t: t.astype({"state": "category", "next_state": "category"}),
    "another order of rows": lambda t: t.sample(frac=1.0, random_state=3),
    "another order of columns": lambda t: t[t.columns[::-1]],
    "a dict": lambda t: {name: t[name].to_numpy() for name in t},
    "lists": lambda t: {name: t[name].tolist() for name in t},
    "an odd index": lambda t: t.set_index(np.zeros(len(t))),
    "more columns": lambda t: t.assign(note="x", more=[{"a": 1}] * len(t)),
}
# Logs that no one can read: a value or one line, and never another exception or a hang.
WRONG: dict[str, Callable[[pd.DataFrame], Any]] = {
    "mixed states": lambda t: t.assign(state=[1, "a", None, 2.5] * (len(t) // 4)),
    "structs": lambda t: t.assign(state=[{"x": int(s)} for s in t["state"]]),
    "ragged lists": lambda t: t.assign(state=[[0.0] * (1 + i % 3) for i in range(len(t))]),
    "dates": lambda t: t.assign(reward=pd.Timestamp("2026-01-01")),
    "complex rewards": lambda t: t.assign(reward=t["reward"] + 1j),
    "text rewards": lambda t: t.assign(reward="1,5"),
    "nan ids": lambda t: t.assign(episode=np.where(np.arange(len(t)) == 5, np.nan, t["episode"])),
    "surrogates": lambda t: {n: [f"\udcff{s}" for s in t[n]] if "state" in n else t[n].to_numpy() for n in t},
    "a long text": lambda t: t.assign(state=["x" * 100_000, *["y"] * (len(t) - 1)]),
    "masked": lambda t: {n: np.ma.array(t[n].to_numpy(), mask=np.arange(len(t)) == 3) for n in t},
    "no rows": lambda t: t.iloc[:0],
    "doubled columns": lambda t: pd.concat([t, t[["state"]]], axis=1),
    "infinite rewards": lambda t: t.assign(reward=np.inf),
    "other lengths": lambda t: {n: t[n].to_numpy()[: 5 if n == "reward" else None] for n in t},
}


def _folder(rng: np.random.Generator) -> tuple[str, str | None]:
    """A folder of Parquet files with other files beside them."""
    t, odd = (
        table(),
        str(rng.choice(["fifo", "other types", "empty file", "link to itself", "text", "nothing", "folder"])),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        t.iloc[:300].to_parquet(folder / "a.parquet", index=False)
        last = t.iloc[300:]
        last = last.astype({"state": str, "next_state": str}) if odd == "other types" else last
        last.to_parquet(folder / "b.parquet", index=False)
        if odd == "fifo":
            os.mkfifo(folder / "c.parquet")
        elif odd == "empty file":
            (folder / "c.parquet").touch()
        elif odd == "link to itself":
            (folder / "c.parquet").symlink_to(folder / "c.parquet")
        elif odd == "text":
            (folder / "c.parquet").write_text("PAR1 no, PAR1")
        elif odd == "folder":
            (folder / "c.parquet").mkdir()
        found: list[float] = []
        trouble = foreign(lambda: found.append(value(str(folder))))
    if trouble is None and found and odd in ("nothing", "folder"):
        trouble = differs(found[0], truth(), 1e-9)
    return "folders", trouble and f"{odd}: {trouble}"


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    if i % 4 == 3:
        return _folder(rng)
    same = i % 4 != 1
    name = str(rng.choice(list(SAME if same else WRONG)))
    found: list[float] = []
    source = (SAME if same else WRONG)[name](table())
    if rng.random() < 0.3 and isinstance(source, pd.DataFrame):
        name = f"{name}, in Parquet"
        with tempfile.TemporaryDirectory() as folder:
            try:
                source.to_parquet(f"{folder}/log.parquet", index=False)
            except Exception:  # pandas itself cannot
                return "the same log" if same else "wrong logs", None
            trouble = foreign(lambda: found.append(value(f"{folder}/log.parquet")))
    else:
        trouble = foreign(lambda: found.append(value(source)))
    if same and trouble is None and found:
        trouble = differs(found[0], truth(), 1e-9)
    return "the same log" if same else "wrong logs", trouble and f"{name}: {trouble}"
