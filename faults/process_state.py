"""The state of the user's process before and after a call: random numbers, filters, handlers, settings, environment."""

from __future__ import annotations

import decimal
import gc
import locale
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Imported before a first call is watched, since their effects are not the library's: SciPy adds two filters of
# warnings, and threadpoolctl sets KMP_DUPLICATE_LIB_OK in the environment.
import scipy.optimize
import scipy.special  # noqa: F401
import threadpoolctl  # noqa: F401

import twoclock as tc
from faults._worker import foreign
from faults.odd_logs import table, value

NAME = "the user's process"
TRIALS = 40


def _state() -> dict[str, Any]:
    return {
        "random": random.getstate(),
        "numpy's random": repr(np.random.get_state()),  # noqa: NPY002
        "numpy's errors": np.geterr(),
        "print options": repr(np.get_printoptions()),
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "handlers": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)],
        "JAX": {k: v for k, v in jax.config.values.items() if "cache_dir" not in k},
        "gc": (gc.isenabled(), gc.get_threshold()),
        "folder": os.getcwd(),
        "mask": _umask(),
        "decimal": repr(decimal.getcontext()),
        "locale": locale.setlocale(0),
        "recursion": sys.getrecursionlimit(),
        "hooks": (sys.excepthook, threading.excepthook, sys.displayhook),
        "streams": (sys.stdout, sys.stderr),
        "path": list(sys.path),
        "x64": jnp.zeros(1).dtype,
        "profile": sys.getprofile(),
    }


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def _calls() -> dict[str, Callable[[], Any]]:
    problem = tc.problems.quadratic(dim=2)
    one = Path("one")
    return {
        "solve": lambda: tc.solve(problem, tc.Fast(), 300, 2),
        "solve, progress": lambda: tc.solve(problem, tc.Fast(), 300, 2, progress=True),
        "solve, float32": lambda: tc.solve(problem, tc.Fast(), 300, 2, precision="float32"),
        "save and load": lambda: tc.load(tc.solve(problem, tc.Fast(), 30, 2).save(one)),
        "checkpoint": lambda: tc.solve(problem, tc.Fast(), 300, 2, checkpoint="kept"),
        "sweep": lambda: tc.sweep({"a": problem}, {"b": tc.Fast()}, 50, 2),
        "tune": lambda: tc.tune(problem, tc.Fast(), steps=200),
        "evaluate": lambda: value(table()),
        "agents.run": lambda: tc.agents.run(
            tc.agents.Regulator(np.eye(1), np.eye(1)), lambda x, u, rng: 0.5 * x + u, 30, 1, x0=np.zeros(1), processes=1
        ),
        "plot": lambda: tc.solve(problem, tc.Fast(), 30, 2).plot("error"),
        "certify": lambda: tc.certify("pl", L=1.0, mu_g=0.9, mu_h=0.9),
        "refused": lambda: tc.solve(problem, tc.Fast(), -3),
        "residual": lambda: tc.residual(problem, tc.solve(problem, tc.Fast(), 300, 2)),
    }


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    calls = _calls()
    name = list(calls)[i % len(calls)]
    random.seed(int(rng.integers(1000)))
    np.seterr(over=str(rng.choice(["warn", "ignore", "raise"])))
    decimal.getcontext().prec = int(rng.integers(5, 50))
    double = jax.jit(lambda x: x * 2)
    double(1.0)
    before = _state()
    trouble = foreign(calls[name])
    after = _state()
    changed = [part for part in before if before[part] != after[part]]
    if double._cache_size() != 1:
        changed.append("a compiled function of the user's own")
    return name, trouble or (f"changed: {', '.join(changed)}" if changed else None)
