"""Stochastic approximation on two and more time scales in JAX, with confidence intervals."""

from types import ModuleType
from typing import TYPE_CHECKING

from twoclock import agents, logs, methods, models, problems, theory
from twoclock import sampling as samplers
from twoclock.codegen.scan import scan
from twoclock.codegen.scan_loop import ScanWarning
from twoclock.comparison import table
from twoclock.engine.loop import ProgressEvent
from twoclock.intervals.stopping import Width
from twoclock.logs import evaluate
from twoclock.methods import Auto, Fast, MatrixFreeZap, PlugIn, Polyak, RichardsonRomberg, Standard, Zap
from twoclock.methods.auto import NotArrivedWarning
from twoclock.online import Learner
from twoclock.online.update_loop import DivergedWarning
from twoclock.param_paths import grid
from twoclock.protocols import InputError, Method, Problem
from twoclock.result import Result, load
from twoclock.schedules import Constant, Power
from twoclock.solve import solve
from twoclock.sweeps import Sweep, sweep
from twoclock.theory import certify
from twoclock.tuning import residual, tune
from twoclock.validation.run_args import log_marks
from twoclock.version import __version__

if TYPE_CHECKING:
    from twoclock import plot

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


def __getattr__(name: str) -> ModuleType:
    if name == "plot":  # matplotlib is not loaded before something is drawn
        import importlib

        return importlib.import_module("twoclock.plot")
    raise AttributeError(f"module 'twoclock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
