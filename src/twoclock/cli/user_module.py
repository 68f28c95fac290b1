"""A user's own problem on the command line: ``file.py:name``."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from twoclock import registry, validation
from twoclock.protocols import InputError, Problem


def problem(text: str) -> Callable[..., Any]:
    """The factory of a problem that a file defines: a problem itself, a factory with defaults, or one of a key."""
    path, _, name = text.rpartition(":")
    module = _loaded(Path(path).expanduser())
    public = {n: thing for n, thing in vars(module).items() if not n.startswith("_") and _may_be(thing)}
    found = validation.pick(public, name, path) if public else None
    if isinstance(found, Problem) and not isinstance(found, type):
        return lambda: found
    if found is None or not registry.is_plain(found):
        raise InputError(
            f"`PROBLEM` {text} must be a problem, a function of `key` that makes one, or a factory whose parameters "
            "have plain defaults"
        )
    return registry.factory(found)


def named(text: str, option: str) -> Any:
    """The object of that name that a file defines: ``file.py:name``."""
    path, _, name = text.rpartition(":")
    if not path:
        raise InputError(f"`{option}` must be written file.py:name, got {validation.shown(text)}")
    module = _loaded(Path(path).expanduser(), option)
    return validation.pick({n: thing for n, thing in vars(module).items() if not n.startswith("_")}, name, path)


def _may_be(thing: object) -> bool:
    return isinstance(thing, Problem) or inspect.isfunction(thing)


def _loaded(path: Path, option: str = "PROBLEM") -> ModuleType:
    if not path.is_file():
        raise InputError(f"`{option}` names the file {path}, which is not there; write path/to/file.py:name")
    spec = importlib.util.spec_from_file_location(f"_twoclock_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"`{option}` names the file {path}, which Python cannot load")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.absolute()))  # its neighbours can be imported, as for a script
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())
        raise InputError(
            f"`{option}` {path} fails when it is loaded, with {type(error).__name__}: {why:.200}"
        ) from error
    finally:
        sys.path.pop(0)
    return module
