"""Command-line options: dataclasses read by argparse, made from signatures too, and objects in a user's file."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib.util
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar

from twoclock import registry, validation
from twoclock.engine.select_engine import VARIABLE as ENGINE_VARIABLE
from twoclock.protocols import InputError, Method, Problem, ProblemSource

T = TypeVar("T")
EngineOption = Literal["auto", "c", "cuda", "xla"]

_PLAIN = (bool, int, float, str, float | None, int | None, str | None)


def option(help: str = "", default: object = dataclasses.MISSING, *, positional: bool = False) -> Any:
    """Declare a field of an options dataclass.

    Args:
        help: its line in ``--help``.
        default: without one the option must be given.
        positional: it is given by its place and not by its name.
    """
    metadata = {"help": help, "positional": positional}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def parse(kind: type[T], args: Sequence[str], prog: str) -> T:
    """Read arguments into a dataclass of options; a wrong one is one line.

    Fields are bool, int (also written 1e5), float, str, Path or a Literal, one of them or None, or a tuple of them. The
    options of a field that is itself a dataclass stand behind its name and a dot: ``--problem.dim``.
    """
    parser = _Parser(prog=prog, allow_abbrev=False)
    flags = _add_options(parser, parser.add_argument, kind, "")
    words = [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in args]
    values, unknown = parser.parse_known_args(words)
    if unknown:
        near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, n=1)
        parser.error(f"unrecognized option {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
    return _build(kind, vars(values), "")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def _add_options(parser: _Parser, add: Callable[..., object], kind: type, prefix: str) -> list[str]:
    """Add an option for each field, and return their names."""
    flags, hints = [], typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, hint = prefix + field.name, hints[field.name]
        if _is_nested(hint):
            flags += _add_options(parser, parser.add_argument_group(name).add_argument, hint, f"{name}.")
            continue
        required, positional = field.default is dataclasses.MISSING, field.metadata.get("positional")
        words = field.metadata.get("help", "").replace("%", "%%")
        if not required and field.default is not None and hint is not bool:
            words += f" (default: {field.default})".replace("%", "%%")
        flag = "--" + name.replace("_", "-")
        if hint is bool:
            no = "--" + f"{prefix}no_{field.name}".replace("_", "-")
            add(flag, dest=name, action="store_true", default=field.default, help=words)
            add(no, dest=name, action="store_false", default=field.default, help=argparse.SUPPRESS)
            flags += [flag, no]
            continue
        many = next((k for k in (hint, *typing.get_args(hint)) if typing.get_origin(k) is tuple), None)
        one = typing.get_args(many)[0] if many else hint
        how: dict[str, Any] = {"type": partial(_read, one), "default": field.default, "help": words}
        how["metavar"] = field.name.upper() if positional else _metavar(one)
        if positional:
            add(name, **how, nargs=("+" if required else "*") if many else None)
        else:
            add(flag, dest=name, **how, required=required, nargs="+" if many else None)
            flags.append(flag)
    return flags


def _read(kind: Any, word: str) -> object:
    """Read one word as a value of this kind."""
    if NoneType in typing.get_args(kind):
        if word == "None":
            return None
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is Literal:
        if word not in typing.get_args(kind):
            known = ", ".join(typing.get_args(kind))
            raise argparse.ArgumentTypeError(f"invalid choice {word!r}, it must be one of {known}")
        return word
    try:
        if kind is int and re.search("[.e]", word):
            return int(word) if (number := float(word)) % 1 else int(number)  # "1.5" fails, "1e5" does not
        return kind(word)
    except (ValueError, OverflowError):
        words = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"{word!r} is not a {words}") from None


def _metavar(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(typing.get_args(kind)) + "}"
    return "|".join(
        getattr(k, "__name__", str(k)).upper() for k in typing.get_args(kind) or [kind] if k is not NoneType
    )


def _build(kind: type[T], values: dict[str, Any], prefix: str) -> T:
    built = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name, hint = prefix + field.name, typing.get_type_hints(kind)[field.name]
        value = _build(hint, values, f"{name}.") if _is_nested(hint) else values[name]
        built[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**built)


def _is_nested(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def use_engine(name: EngineOption) -> None:
    """Use an engine for the rest of the process and in its child processes; "auto" changes nothing."""
    if name != "auto":
        os.environ[ENGINE_VARIABLE] = name


def options_of_factory(factory: Callable[..., ProblemSource]) -> type:
    """Make a dataclass with a field for each parameter of a problem factory."""
    hints = typing.get_type_hints(inspect.unwrap(factory))
    parameters = inspect.signature(factory).parameters.values()
    kinds = {p.name: (_word_kind(hints.get(p.name), p.default), p.default) for p in parameters}
    return _make_options("ProblemOptions", kinds, factory.__doc__)


def options_of_method(method: Callable[..., Method]) -> type:
    """Make a dataclass with a field for each field of a method: schedules as text, a method inside a method nested."""
    hints, kinds = typing.get_type_hints(method), dict[str, tuple[Any, object]]()
    for field in _plain_fields(method):
        if isinstance(field.default, Method):
            kinds[field.name] = (options_of_method(type(field.default)), None)
        else:
            kinds[field.name] = (_word_kind(hints[field.name], field.default), field.default)
    return _make_options("MethodOptions", kinds, method.__doc__)


def build_method(method: Callable[..., Method], options: object) -> Method:
    """Build the method that the options describe."""
    values = {}
    for field in _plain_fields(method):
        value = getattr(options, field.name)
        values[field.name] = build_method(type(field.default), value) if isinstance(field.default, Method) else value
    return method(**values)


def _plain_fields(method: Callable[..., Method]) -> list[dataclasses.Field[Any]]:
    """The fields that a word on a command line can stand for; others hold functions or objects."""
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    return [field for field in fields if not (field.metadata.get("static") and field.default is None)]


def _word_kind(hint: Any, default: object) -> Any:
    """What a word on the command line is read as, for a parameter that may take more than such words."""
    if hint in _PLAIN or typing.get_origin(hint) is Literal:
        return hint
    return type(default) if isinstance(default, (bool, int, float, str)) else str | None


def _make_options(name: str, kinds: dict[str, tuple[Any, object]], docstring: str | None) -> type:
    """Make a dataclass of options from field → (kind, default), with the help that a docstring's Args section gives."""
    section = re.search(r"Args:\n(.*?)(?:\n\s*\n|\Z)", inspect.cleandoc(docstring or ""), re.DOTALL)
    words, last = dict.fromkeys(kinds, ""), ""
    for line in section[1].splitlines() if section else ():
        if entry := re.match(r"    (\w+): (.*)", line):
            last, words[entry[1]] = entry[1], entry[2]
        elif last:
            words[last] += " " + line.strip()
    fields = [
        (name, kind, dataclasses.field(default_factory=kind) if _is_nested(kind) else
         option(words[name], default)) for name, (kind, default) in kinds.items()
    ]  # fmt: skip
    return dataclasses.make_dataclass(name, fields)


def load_object(text: str, option: str) -> Any:
    """Load the object that a user's file defines, written ``file.py:name``."""
    path, _, name = text.rpartition(":")
    if not path:
        raise InputError(f"`{option}` must be written file.py:name, got {validation.shown(text)}")
    return validation.pick(_public_names(Path(path).expanduser(), option), name, path)


def load_problem(text: str) -> Callable[..., ProblemSource]:
    """Load a factory of problems from ``file.py:name``: a problem itself, a factory with defaults, or one of a key."""
    path, _, name = text.rpartition(":")
    public = {
        name: thing
        for name, thing in _public_names(Path(path).expanduser(), "PROBLEM").items()
        if isinstance(thing, Problem) or inspect.isfunction(thing)
    }
    found = validation.pick(public, name, path) if public else None
    if isinstance(found, Problem):
        return lambda: found
    if found is None or not registry.is_plain(found):
        raise InputError(
            f"`PROBLEM` {text} must be a problem, a function of `key` that makes one, or a factory whose parameters "
            "have plain defaults"
        )
    return registry.factory(found)


def _public_names(path: Path, option: str) -> dict[str, Any]:
    """Run a user's file and return its public names."""
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
    return {name: thing for name, thing in vars(module).items() if not name.startswith("_")}
