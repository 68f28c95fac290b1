"""Two-time-scale stochastic optimisation on JAX: two noisy operators in, a solution and its record out."""

from twoclock import startup as _startup  # noqa: F401  # isort: skip  (first: it minds Ctrl-C while the rest loads)

from typing import TYPE_CHECKING, Any

from twoclock import agents, logs, methods, models, problems, theory
from twoclock import sampling as samplers
from twoclock.core import InputError
from twoclock.engine.drive import Tick
from twoclock.learner import Learner
from twoclock.learner.course import DivergedWarning
from twoclock.logs import evaluate
from twoclock.methods import Auto, Fast, PlugIn, Polyak, RichardsonRomberg, Standard, Zap, ZapVectors
from twoclock.paths import grid
from twoclock.result import Result, load
from twoclock.schedules import Constant, Power
from twoclock.solve import solve
from twoclock.sweeps import Sweep, sweep
from twoclock.table import table
from twoclock.theory import certify
from twoclock.tuning import residual, tune
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
    "PlugIn",
    "Polyak",
    "Power",
    "Result",
    "RichardsonRomberg",
    "Standard",
    "Sweep",
    "Tick",
    "Zap",
    "ZapVectors",
    "__version__",
    "agents",
    "certify",
    "evaluate",
    "grid",
    "load",
    "logs",
    "methods",
    "models",
    "plot",
    "problems",
    "residual",
    "samplers",
    "solve",
    "sweep",
    "table",
    "theory",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "plot":  # matplotlib is not loaded before something is drawn
        import importlib

        return importlib.import_module("twoclock.plot")
    raise AttributeError(f"module 'twoclock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
