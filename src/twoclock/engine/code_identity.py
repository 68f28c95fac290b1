"""The identity of a Python function: its code and every value that it reads."""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib.util
import operator
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.protocols import InputError
from twoclock.validation import short_repr

# Code in these folders is identified by its name; all other code is the user's own and identified by what it does.
_FOLDERS = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))
_LIBRARIES = (*(f"{folder}{os.sep}" for folder in _FOLDERS), "<frozen")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: no static type of C
# Entries of a class that say nothing of what it computes, or change from one process to the next.
_NOISE = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__classdictcell__", "_abc_impl",
    "__abstractmethods__", "__parameters__", "__orig_bases__",
}  # fmt: skip


class Unidentified(InputError):
    """An object without an identity, such as an open file, a lock, or a C function without a name."""


def code_identity(thing: object) -> str:
    """Return a digest that is the same, in every process, for functions that compute the same.

    It covers bytecode, constants, closures, defaults, the globals that are read (and so on in functions and classes of
    the user's own modules), bound objects, `functools.partial`, objects with ``__call__``, and what a jitted function
    wraps. Names of local variables, comments and line numbers do not matter. A function or class of an installed
    library is identified by its name. Raises `Unidentified` for an object that cannot be identified.

    >>> gain = 2.0
    >>> first, again = code_identity(lambda x: gain * x), code_identity(lambda y: gain * y)
    >>> gain = 3.0
    >>> first == again, first == code_identity(lambda x: gain * x)
    (True, False)
    """
    try:
        return _Walk().digest(thing).hex()[:32]
    except RecursionError:
        raise Unidentified(f"{short_repr(thing)} cannot be identified: it is nested too deeply") from None


class _Walk:
    """One traversal of an object and all that it refers to; a cycle is identified by its depth."""

    def __init__(self) -> None:
        self._above: list[object] = []
        self._known: dict[int, tuple[object, bytes]] = {}  # holds the object too, so that no other takes its id

    def digest(self, thing: object) -> bytes:
        if isinstance(thing, _PLAIN):
            return _hash(type(thing).__name__, repr(thing))
        if id(thing) in self._known:
            return self._known[id(thing)][1]
        for height, above in enumerate(reversed(self._above)):
            if above is thing:
                return _hash("above", str(height))
        self._above.append(thing)
        found = _hash(type(thing).__name__, *self._parts(thing))
        self._above.pop()
        self._known[id(thing)] = thing, found
        return found

    def _parts(self, thing: object) -> Iterator[str | bytes]:
        """Return the parts that identify an object."""
        inner: list[object]
        if isinstance(thing, (np.ndarray, np.generic, jax.Array)):
            if isinstance(thing, jax.Array) and jnp.issubdtype(thing.dtype, jax.dtypes.prng_key):
                thing = jax.random.key_data(thing)
            array = np.asarray(thing)
            yield f"{array.dtype} {array.shape}"
            if array.dtype != object:
                yield np.ascontiguousarray(array).tobytes()
                return
            inner = array.ravel().tolist()
        elif isinstance(thing, jax.tree_util.PyTreeDef):
            yield str(thing)
            return
        elif isinstance(thing, (tuple, list)) and type(thing) in (tuple, list):
            inner = list(thing)
        elif isinstance(thing, (set, frozenset)):
            yield from sorted(self.digest(entry) for entry in thing)
            return
        elif isinstance(thing, Mapping):
            inner = [*thing.keys(), *thing.values(), *([] if type(thing) is dict else [type(thing)])]
        elif isinstance(thing, CodeType):
            yield thing.co_code
            yield f"{thing.co_names} {thing.co_argcount} {thing.co_posonlyargcount} {thing.co_kwonlyargcount}"
            inner = [thing.co_flags, getattr(thing, "co_exceptiontable", b""), *thing.co_consts]
        elif isinstance(thing, CellType):
            inner = [thing.cell_contents] if thing != CellType() else []
        elif isinstance(thing, FunctionType):
            inner = [thing.__defaults__, thing.__kwdefaults__, *(thing.__closure__ or ())]
            if _is_library(thing.__code__.co_filename):
                yield f"{thing.__module__}.{thing.__qualname__}"
            else:
                code = thing.__code__
                if code.co_consts and code.co_consts[0] is thing.__doc__:
                    code = code.replace(co_consts=(None, *code.co_consts[1:]))
                cells = {
                    name: cell.cell_contents
                    for name, cell in zip(code.co_freevars, thing.__closure__ or (), strict=True)
                    if cell != CellType()
                }
                inner += [code, *_globals_read(code, thing.__globals__, cells)]
        elif isinstance(thing, MethodType):
            inner = [thing.__func__, thing.__self__]
        elif isinstance(thing, functools.partial):
            inner = [thing.func, thing.args, thing.keywords]
        elif isinstance(thing, (staticmethod, classmethod)):
            inner = [thing.__func__]
        elif isinstance(thing, property):
            inner = [thing.fget, thing.fset, thing.fdel]
        elif isinstance(thing, ModuleType):
            yield thing.__name__
            file = getattr(thing, "__file__", None)
            inner = [Path(file).read_bytes()] if file is not None and _is_own_module(thing) else []
            if file is None and _is_own_module(thing):
                inner = [{name: value for name, value in vars(thing).items() if not name.startswith("__")}]
        elif isinstance(thing, type):
            yield f"{thing.__module__}.{thing.__qualname__}"
            library = _is_library_class(thing)
            own = {} if library else {name: value for name, value in vars(thing).items() if name not in _NOISE}
            inner = [] if library else [*thing.__bases__, own]
        elif not isinstance(thing, type) and callable(getattr(thing, "__wrapped__", None)):
            inner = [thing.__wrapped__]  # type: ignore[attr-defined]
        else:
            inner = [_reduced(thing)]
        for part in inner:
            yield self.digest(part)


def _hash(*parts: str | bytes) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        whole.update(len(content).to_bytes(8, "little") + content)
    return whole.digest()


def _is_library(file: str) -> bool:
    if file.startswith(_LIBRARIES) or file in sys.builtin_module_names:
        return True
    return any(f"{os.sep}{name}-packages{os.sep}" in file for name in ("site", "dist"))


def _is_library_class(thing: type) -> bool:
    """Whether its library has it by its name: one that `exec` or `make_dataclass` made only names a library."""
    home = sys.modules.get(thing.__module__)
    if not _is_library(getattr(home, "__file__", None) or thing.__module__):
        return False
    if "<locals>" in thing.__qualname__ or not thing.__flags__ & _MADE_BY_PYTHON:
        return True
    try:
        return operator.attrgetter(thing.__qualname__)(home) is thing
    except AttributeError:
        return False


def _is_own_module(thing: object) -> bool:
    return isinstance(thing, ModuleType) and not _is_library(getattr(thing, "__file__", None) or thing.__name__)


def _globals_read(code: CodeType, known: Mapping[str, object], cells: Mapping[str, object]) -> list[object]:
    """Return the globals, and the entries of the user's modules, that some code and its inner functions read.

    Entries of a module in a closure are included. A built-in that is not shadowed, and a global without a value yet,
    are identified by name, which the code holds.
    """
    values: list[object] = []
    reads = {"LOAD_GLOBAL": known, "LOAD_NAME": known, "LOAD_DEREF": cells, "LOAD_CLASSDEREF": cells}
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            name = "." * int(steps[i - 2].argval or 0) + step.argval
            values.append(_source(name, str(known.get("__package__") or "")))
        elif step.argval in (names := reads.get(step.opname, {})):
            value = names[step.argval]
            for after in steps[i + 1 :]:
                if not _is_own_module(value) or after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                value = getattr(value, after.argval, None)
            values.append(value)
    for inside in code.co_consts:
        if isinstance(inside, CodeType):
            values += _globals_read(inside, known, cells)
    return values


def _source(module: str, package: str) -> bytes:
    """The source of a module of the user's own that a function imports when it is called."""
    try:
        spec = importlib.util.find_spec(importlib.util.resolve_name(module, package))
        file = spec.origin if spec is not None else None
        return b"" if file is None or _is_library(file) else Path(file).read_bytes()
    except (ImportError, ValueError, OSError):  # no such module, or one without a file
        return b""


def _reduced(thing: object) -> object:
    """Return the parts into which pickle takes an object; open, locked and running objects refuse this."""
    try:
        taken = copyreg.dispatch_table.get(type(thing), lambda thing: thing.__reduce_ex__(4))(thing)
        if isinstance(taken, str):
            homes = [getattr(thing, "__module__", None), "numpy", "scipy.special"]  # ufuncs do not say where they live
            if not any(getattr(sys.modules.get(str(home)), taken, None) is thing for home in homes):
                raise TypeError("its name leads elsewhere")
            return [home for home in homes[:1] if home], taken
    except Exception as error:
        named = type(thing).__name__ if not isinstance(thing, BuiltinFunctionType) else thing.__name__
        raise Unidentified(f"an object of the kind `{named}` cannot be identified ({error})") from None
    return [list(part) if i > 2 and part is not None else part for i, part in enumerate(taken)]
