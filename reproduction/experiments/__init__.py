"""The experiments: one file per figure or table, found by looking."""

import importlib
import pkgutil
from types import ModuleType


def discover() -> dict[str, ModuleType]:
    """Import every experiment, by the name of its file; the files beside them have no ``cases``."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if "cases" in vars(module)}
