"""A worker process: ``python -m faults._worker CAMPAIGN SEED FIRST LAST``; a line of JSON for each trial."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import twoclock as tc
from faults._children import limit_memory


def foreign(call: Callable[[], Any]) -> str | None:
    """What is wrong with the answer to a call that may be refused in one line: None if nothing."""
    try:
        call()
    except tc.InputError as error:
        return None if "\n" not in str(error) and str(error).strip() else "more than one line"
    except ZeroDivisionError as error:  # what the user's own function raises is the user's to see
        return None if "own making" in str(error) else repr(error)
    except BaseException as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return None


def differs(ours: Any, truth: Any, tolerance: float = 1e-6) -> str | None:
    """Describe how far a number is from the truth; None if it is not."""
    away = float(np.max(np.abs(np.asarray(ours, float) - truth)))
    return None if away <= tolerance else f"{np.ravel(ours)[:3]} for {np.ravel(truth)[:3]}"


def main() -> None:
    name, seed, first, last = sys.argv[1], *map(int, sys.argv[2:5])
    warnings.simplefilter("ignore")
    limit_memory()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a trial prints is not part of the answer
    module = importlib.import_module(f"faults.{name}")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        home = Path(folder) / "a" / "b"  # what goes to "..", or to a wrong name taken as a path, goes there too
        home.mkdir(parents=True)
        os.chdir(home)
        for i in range(first, last):
            print(json.dumps({"begins": i}), file=out, flush=True)
            try:
                what, trouble = module.trial(i, np.random.default_rng([seed, i]))
            except Exception as error:
                what, trouble = module.NAME, f"the trial failed: {type(error).__name__}: {error!s:.200}"
            print(json.dumps({"trial": i, "what": what, "trouble": trouble}), file=out, flush=True)


if __name__ == "__main__":
    main()
