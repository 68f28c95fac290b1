"""Estimators of a policy's value, one file each, found by looking.

A file has ``TITLE``, one line, and ``estimate(work) -> Estimated``, which raises ``DoesNotApply`` where it cannot be
used.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType


@functools.cache
def estimators() -> dict[str, ModuleType]:
    """Every estimator by the name of its file."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "estimate")}
