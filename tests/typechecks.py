"""Types and shapes held at run time, by jaxtyping's hook and beartype, in all that is imported after ``install()``."""

import dataclasses
import functools
import inspect
import sys
from types import SimpleNamespace, UnionType
from typing import Union, get_args, get_origin, get_type_hints

import jaxtyping
from beartype.roar import BeartypeCallHintParamViolation
from jaxtyping import _typeguard

# Where arrays are handed on. What handles text (generated code, files, the command line) only gets slower by it.
MODULES = [
    *("protocols", "prng", "schedules", "tree_math"),
    *("engine.run_batch", "engine.protocol"),
    *("intervals", "methods", "models", "problems", "sampling"),
    # A search calls those of theory.lyapunov_search, with four numbers each, half a million times.
    *(f"theory.{name}" for name in ("certificate", "certify", "check", "constants")),
]
jaxtyped = jaxtyping.jaxtyped
# Functions inside others that were checked already: each is made again at each call, and to write its checks again and
# again took a quarter of the time of all tests.
inside = set()


def install():
    jaxtyping.jaxtyped = lambda typechecker: functools.partial(checked, typechecker=typechecker)
    _typeguard.typechecked = leaf_checked
    jaxtyping.install_import_hook([f"twoclock.{module}" for module in MODULES], "beartype.beartype")


def checked(thing, typechecker):
    """A function or a class as the hook decorates it."""
    if inspect.isclass(thing):
        init = vars(thing).get("__init__")
        if dataclasses.is_dataclass(thing) and inspect.isfunction(init):
            thing.__init__ = typed(init, typechecker)
        return thing
    if ".<locals>" in thing.__qualname__:
        if thing.__code__ in inside:
            return thing
        inside.add(thing.__code__)
    return typed(thing, typechecker)


def typed(function, typechecker):
    """Checks a call as jaxtyping's own decorator does, which goes through the arguments twice, before and after it."""
    function.__annotations__ = {name: resolved(function, hint) for name, hint in function.__annotations__.items()}
    inner = typechecker(function)

    @functools.wraps(function)
    def in_scope(*args, **kwargs):
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        try:
            with jaxtyped("context"):  # within which a name of an axis stands for one length
                return inner(*args, **kwargs)
        except BeartypeCallHintParamViolation:
            if not is_front_door(function):
                raise
        return function(*args, **kwargs)  # it must refuse a wrong argument itself, in one line

    return in_scope


def is_front_door(function):
    """Whether users call it: what a public package names in ``__all__``, constructors of methods, the exact models."""
    if not hasattr(sys.modules["twoclock"], "__all__"):  # it is being imported: defaults of fields are made
        return True
    package = ".".join(function.__module__.split(".")[:2])
    name, _, method = function.__qualname__.partition(".")
    public = {*sys.modules["twoclock"].__all__, *getattr(sys.modules[package], "__all__", ())}
    thing = getattr(sys.modules[function.__module__], name, None)
    if method == "__init__" and isinstance(thing, type) and issubclass(thing, sys.modules["twoclock.protocols"].Method):
        return True  # a schedule may be given as text or a number
    return name in public and (method in ("", "__init__") or package == "twoclock.models")


def resolved(function, hint):
    """A hint that is not text. One that cannot be read stands for anything, as it does in jaxtyping."""
    try:
        alone = SimpleNamespace(__annotations__={"it": hint})
        found = get_type_hints(alone, function.__globals__, include_extras=True)["it"]
    except Exception:
        return object
    # Arrays and states are held to their types. Numbers and names are checked where users give them, in one line.
    ours = isinstance(found, type) and found.__module__.startswith("twoclock.")
    return found if ours or ("jaxtyping" in repr(found) and "ForwardRef" not in repr(found)) else object


def leaf_checked(accepts):
    """What jaxtyping asks of each leaf of a tree, without the search for its signature."""
    hint = accepts.__annotations__["x"]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not all(isinstance(kind, type) for kind in kinds):
        return leaf_checked_at_length(accepts)

    def checked_leaf(leaf):
        if not any(isinstance(leaf, kind) for kind in kinds):
            raise TypeError

    return checked_leaf


leaf_checked_at_length = _typeguard.typechecked
