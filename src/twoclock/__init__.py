"""Stochastic approximation on two and more time scales in JAX, with confidence intervals."""

import importlib
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING


def _fit_addresses() -> None:
    """Load within a limit on addresses (ulimit -v), or refuse: libraries that get none end the process silently.

    OpenBLAS, which NumPy and SciPy load once each, reserves 40 MiB for every core; JAX refuses such limits later.
    """
    with suppress(ModuleNotFoundError, OSError, ValueError):  # Windows has no limits
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return
        if limit < (2 << 30) + min(os.cpu_count() or 1, 64) * (100 << 20):
            os.environ["OPENBLAS_NUM_THREADS"] = "1"
        with open("/proc/self/statm") as pages:
            left = limit - int(pages.read().split()[0]) * resource.getpagesize()
        if "jax" not in sys.modules and left < 1 << 30:
            raise ImportError(
                f"the limit on addresses (ulimit -v) leaves {max(left, 0) >> 20} MiB and twoclock reserves 1 GiB to "
                "load; raise it, or limit the memory of a container instead"
            )


_fit_addresses()

from twoclock import methods, models, problems
from twoclock import sampling as samplers
from twoclock.codegen.scan import scan
from twoclock.codegen.scan_loop import ScanWarning
from twoclock.engine.loop import ProgressEvent
from twoclock.intervals.stopping import Width
from twoclock.methods import Auto, Fast, MatrixFreeZap, PlugIn, Polyak, RichardsonRomberg, Standard, Zap
from twoclock.methods.auto import NotArrivedWarning
from twoclock.online import Learner
from twoclock.online.update_loop import DivergedWarning
from twoclock.param_paths import grid
from twoclock.protocols import InputError, Method, Problem
from twoclock.result import Result, load
from twoclock.schedules import Constant, Power
from twoclock.solve import solve
from twoclock.validation.run_args import log_marks
from twoclock.version import __version__

if TYPE_CHECKING:
    from twoclock import agents, logs, plot, theory
    from twoclock.comparison import table
    from twoclock.logs.evaluate import evaluate
    from twoclock.sweeps import Sweep, sweep
    from twoclock.theory.certify import certify
    from twoclock.tuning import tune
    from twoclock.tuning.residual import residual

__all__ = [
    "Auto",
    "Constant",
    "DivergedWarning",
    "Fast",
    "InputError",
    "Learner",
    "MatrixFreeZap",
    "Method",
    "NotArrivedWarning",
    "PlugIn",
    "Polyak",
    "Power",
    "Problem",
    "ProgressEvent",
    "Result",
    "RichardsonRomberg",
    "ScanWarning",
    "Standard",
    "Sweep",
    "Width",
    "Zap",
    "__version__",
    "agents",
    "certify",
    "evaluate",
    "grid",
    "load",
    "log_marks",
    "logs",
    "methods",
    "models",
    "plot",
    "problems",
    "residual",
    "samplers",
    "scan",
    "solve",
    "sweep",
    "table",
    "theory",
    "tune",
]


# What a run does not need is loaded at its first use; a name that is no module is found in the module given beside it.
_LATER = {
    "agents": "",
    "certify": "twoclock.theory",
    "evaluate": "twoclock.logs",
    "logs": "",
    "plot": "",
    "residual": "twoclock.tuning",
    "sweep": "twoclock.sweeps",
    "Sweep": "twoclock.sweeps",
    "table": "twoclock.comparison",
    "theory": "",
    "tune": "twoclock.tuning",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'twoclock' has no attribute {name!r}")
    home = _LATER[name]
    found: object = (
        getattr(importlib.import_module(home), name) if home else importlib.import_module(f"twoclock.{name}")
    )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
