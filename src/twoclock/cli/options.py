"""Command-line options from dataclasses and signatures, by argparse; and objects from a user's file."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from twoclock import registry, validation
from twoclock.protocols import InputError, Method, Problem, ProblemSource

T = TypeVar("T")
EngineOption = Literal["auto", "c", "cuda", "xla"]

Annotation = Any  # a type as an annotation spells it: int, float | None, Literal[…]

_PLAIN = (bool, int, float, str, float | None, int | None, str | None)


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a command: ``problem.dim`` is given as ``--problem.dim``, a positional one by its position.

    Its kind is bool, int (also written 1e5), float, str, Path or a Literal; also a union with None, or a tuple. Without
    a default the option is required.
    """

    name: str
    kind: Annotation
    default: object
    help: str = ""
    positional: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare the option to argparse."""
        required = self.default is dataclasses.MISSING
        how: dict[str, Any] = {"default": self.default, "help": self.help.replace("%", "%%")}
        if self.kind is bool:
            parser.add_argument(self.flag, dest=self.name, action="store_true", **how)
            how["help"] = argparse.SUPPRESS
            no = re.sub(r"(--|\.)([^.]*)$", r"\1no-\2", self.flag)
            parser.add_argument(no, dest=self.name, action="store_false", **how)
            return
        if not required and self.default is not None:
            shown = " ".join(self.default) if isinstance(self.default, tuple) else self.default
            how["help"] += f" (default: {shown})".replace("%", "%%")
        many = next((k for k in (self.kind, *get_args(self.kind)) if get_origin(k) is tuple), None)
        if many:
            how["nargs"] = "*" if self.positional and not required else "+"
        one = get_args(many)[0] if many else self.kind
        how["type"] = partial(_read, one)
        if self.positional:
            parser.add_argument(self.name, metavar=self.name.upper(), **how)
        else:
            kinds = [k.__name__.upper() for k in get_args(one) or [one] if isinstance(k, type) and k is not NoneType]
            metavar = "|".join(kinds) or "{" + ",".join(get_args(one)) + "}"
            parser.add_argument(self.flag, dest=self.name, required=required, metavar=metavar, **how)


def _read(kind: Annotation, word: str) -> object:
    """Read one word as a value of this kind."""
    if NoneType in get_args(kind):
        if word == "None":
            return None
        kind = get_args(kind)[0]
    if _is_literal(kind):
        if word not in get_args(kind):
            raise argparse.ArgumentTypeError(f"invalid choice {word!r}, it must be one of {', '.join(get_args(kind))}")
        return word
    try:
        if kind is int and re.search("[.e]", word):
            return int(word) if (number := float(word)) % 1 else int(number)  # "1.5" fails, "1e5" does not
        return kind(word)
    except (ValueError, OverflowError):
        words = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"{word!r} is not a {words}") from None


def _is_literal(kind: Annotation) -> bool:
    origin: object = get_origin(kind)
    return origin is Literal


def option(help: str = "", default: object = dataclasses.MISSING, *, positional: bool = False) -> Any:
    """Declare a field of a dataclass of options; the arguments are those of ``Option``."""
    return dataclasses.field(default=default, metadata={"help": help, "positional": positional})


def options_of(kind: type) -> list[Option]:
    """An option for each field of a dataclass."""
    hints = get_type_hints(kind)
    return [Option(f.name, hints[f.name], f.default, **f.metadata) for f in dataclasses.fields(kind)]


def parse(kind: type[T], args: Sequence[str], prog: str) -> T:
    """Read arguments into a dataclass of options; a wrong argument is reported in one line."""
    return kind(**read_values(options_of(kind), args, prog))


def read_values(options: Sequence[Option], args: Sequence[str], prog: str) -> dict[str, object]:
    """Read arguments into a dict from name to value."""
    parser = _Parser(prog=prog, allow_abbrev=False)
    for each in options:
        each.add_to(parser)
    words = [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in args]
    values, unknown = parser.parse_known_args(words)
    if unknown:
        near = difflib.get_close_matches(unknown[0].partition("=")[0], [each.flag for each in options], n=1)
        parser.error(f"unrecognized option {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in vars(values).items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")

    def print_help(self, file: object = None) -> None:
        print(self.format_help(), end="", flush=True)  # argparse hides that the disk is full


def options_of_factory(factory: Callable[..., object], prefix: str = "") -> list[Option]:
    """An option for each parameter of a function that makes a problem or a method."""
    hints, words = get_type_hints(inspect.unwrap(factory)), _argument_help(factory.__doc__)
    return [
        Option(prefix + name, _word_kind(hints.get(name), p.default), p.default, words.get(name, ""))
        for name, p in inspect.signature(factory).parameters.items()
    ]


def options_of_method(method: Callable[..., Method], prefix: str = "") -> list[Option]:
    """An option for each field of a method. Schedules are text; the fields of an inner method have a dotted name."""
    hints, words, options = get_type_hints(method), _argument_help(method.__doc__), list[Option]()
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        name = prefix + field.name
        if isinstance(field.default, Method):
            options += options_of_method(type(field.default), f"{name}.")
        elif not (field.metadata.get("static") and field.default is None):  # a function or an object
            kind = _word_kind(hints[field.name], field.default)
            options.append(Option(name, kind, field.default, words.get(field.name, "")))
    return options


def _word_kind(hint: Annotation, default: object) -> Annotation:
    """The kind of a command-line word, for a parameter that also takes other values."""
    if hint in _PLAIN or _is_literal(hint):
        return hint
    return type(default) if isinstance(default, (bool, int, float, str)) else str | None


def _argument_help(docstring: str | None) -> dict[str, str]:
    """The description of each argument in the Args section of a docstring."""
    section = re.search(r"Args:\n(.*?)(?:\n\s*\n|\Z)", inspect.cleandoc(docstring or ""), re.DOTALL)
    entries = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     +.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(words.split()) for names, words in entries for name in names.split(", ")}


def load_object(text: str, option: str) -> object:
    """Load the object that a user's file defines, written ``file.py:name``."""
    path, _, name = text.rpartition(":")
    if not path:
        raise InputError(f"`{option}` must be written file.py:name, got {validation.short_repr(text)}")
    return validation.lookup(_public_names(Path(path).expanduser(), option), name, path)


def load_problem(text: str, option: str = "PROBLEM") -> Callable[..., ProblemSource]:
    """Load a factory of problems from ``file.py:name``: a problem itself, a factory with defaults, or one of a key."""
    found = _load_one(text, option, Problem)
    if isinstance(found, Problem):
        return lambda: found
    if found is None or not registry.is_plain(found):
        raise InputError(
            f"`{option}` {text} must be a problem, a function of `key` that makes one, or a factory whose parameters "
            "have plain defaults"
        )
    return registry.factory(found)


def load_method(text: str, option: str = "METHOD") -> Callable[..., Method]:
    """Load a factory of methods from ``file.py:name``: a method itself, a class of methods, or a factory."""
    found = _load_one(text, option, Method)
    if isinstance(found, Method):
        return lambda: found
    if found is None or not (isinstance(found, type) or registry.is_plain(found)):
        raise InputError(
            f"`{option}` {text} must be a method, a class of methods, or a factory whose parameters have plain defaults"
        )
    return found


def _load_one(text: str, option: str, kind: type) -> Any:
    """Load an object of a kind from a user's file, a class of that kind, or a function; None if there is none."""
    path, _, name = text.rpartition(":")
    public = {
        name: thing
        for name, thing in _public_names(Path(path).expanduser(), option).items()
        if isinstance(thing, kind)
        or inspect.isfunction(thing)
        or (isinstance(thing, type) and kind is Method and issubclass(thing, Method) and thing is not Method)
    }
    return validation.lookup(public, name, path) if public else None


@contextmanager
def user_code(failure: str) -> Iterator[None]:
    """Report in one line when a user's code fails or calls sys.exit."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        why = " ".join(str(error).split())
        raise InputError(f"{failure}, with {type(error).__name__}: {why:.200}") from error


def _public_names(path: Path, option: str) -> dict[str, object]:
    """Run a user's file and return its public names."""
    if not path.is_file():
        raise InputError(f"`{option}` names the file {path}, which is not there; write path/to/file.py:name")
    spec = importlib.util.spec_from_file_location(f"_twoclock_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"`{option}` names the file {path}, which Python cannot load")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.absolute()))  # its neighbours can be imported, as by a script
    try:
        with user_code(f"`{option}` {path} fails when it is loaded"):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.absolute()))
    return {name: thing for name, thing in vars(module).items() if not name.startswith("_")}
