"""Estimators of a policy's value: every function under ``@estimator(title)`` in these modules, found by looking."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from twoclock.logs.estimator_context import Estimator


@functools.cache
def estimators() -> dict[str, Estimator]:
    """Every estimator, by the name of its function."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    entries = [entry for module in modules for entry in vars(module).values() if isinstance(entry, Estimator)]
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}
