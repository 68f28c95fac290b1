"""Typed command-line options made from the signatures of factories and methods."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import re
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import tyro

from twoclock.engine.select_engine import VARIABLE as ENGINE_VARIABLE
from twoclock.protocols import InputError, Method

EngineOption = Literal["auto", "c", "cuda", "xla"]
_BOX = re.compile("[─-╿]+")


def _whole(words: list[str]) -> int:
    try:
        return int(words[0])
    except ValueError:
        with contextlib.suppress(ValueError):
            if (number := float(words[0])).is_integer():
                return int(number)
    raise ValueError(f"{words[0]!r} is not a whole number")


# A whole number, also written 1e5.
Whole = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_whole,
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]


def parse(options: Any, args: Sequence[str], prog: str) -> Any:
    """Read the arguments; a wrong one is one line, not tyro's box."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            return tyro.cli(options, args=list(args), prog=prog)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        text = _BOX.sub(" ", stderr.getvalue())
        lines = [" ".join(line.split()) for line in text.splitlines()]
        body = " ".join(line for line in lines[1:] if line and not line.startswith("For full helptext"))
        body = re.sub(r" Argument helptext:.*", "", body)
        body = re.sub(r" Perhaps you meant: (--[\w.-]+).*", r"; did you mean \1?", body)
        raise InputError(f"{body.rstrip('. ')}; see `{prog} --help`") from None


def use_engine(name: EngineOption) -> None:
    """Have all that runs from here on, in processes of its own too, use an engine; "auto" leaves it as it is."""
    if name != "auto":
        os.environ[ENGINE_VARIABLE] = name


def of_factory(factory: Callable[..., Any]) -> type:
    """A dataclass with a field for each parameter of a problem factory."""
    hints = typing.get_type_hints(getattr(factory, "__wrapped__", factory))
    words = argument_help(factory.__doc__)
    parameters = inspect.signature(factory).parameters.values()
    kinds = {p.name: hints.get(p.name, str | None if p.default is None else type(p.default)) for p in parameters}
    fields = [(p.name, _with_help(kinds[p.name], words.get(p.name)), p.default) for p in parameters]
    return dataclasses.make_dataclass("ProblemOptions", fields)


def of_method(method: Any) -> type:
    """A dataclass with a field for each field of a method: schedules as text, a method inside a method nested."""
    words = argument_help(method.__doc__)
    hints = typing.get_type_hints(method, include_extras=True)
    fields: list[tuple[str, Any, Any]] = []
    for f in dataclasses.fields(method):
        if _is_object(f):
            continue
        if isinstance(f.default, Method):
            inner = of_method(type(f.default))
            fields.append((f.name, inner, dataclasses.field(default_factory=inner)))
            continue
        kind: Any = hints[f.name]
        if typing.get_origin(kind) is Annotated:  # core.Given, which holds the real type
            kind = kind.__metadata__[0]
        if kind not in (bool, int, float, str) and typing.get_origin(kind) is not typing.Literal:
            kind = _plain_kind(kind, f.default)
        fields.append((f.name, _with_help(kind, words.get(f.name)), f.default))
    return dataclasses.make_dataclass("MethodOptions", fields)


def _plain_kind(kind: object, default: object) -> Any:
    """What a word on the command line is read as, for a field that takes more than such words."""
    if isinstance(default, (bool, int, float, str)):
        return type(default)
    return kind if kind == (float | None) else str | None


def build_method(method: Any, options: Any) -> Any:
    """The method that the options describe."""
    values = {}
    for f in dataclasses.fields(method):
        if _is_object(f):
            continue
        value = getattr(options, f.name)
        values[f.name] = build_method(type(f.default), value) if dataclasses.is_dataclass(value) else value
    return method(**values)


def _is_object(field: Any) -> bool:
    """Whether a field is for a function or another object, which no word on a command line stands for."""
    return bool(field.metadata.get("static")) and field.default is None


def argument_help(docstring: str | None) -> dict[str, str]:
    """What the Args section of a docstring says of each argument."""
    section = re.search(r"Args:\n(.*?)(?:\n\s*\n|\Z)", inspect.cleandoc(docstring or ""), re.DOTALL)
    words: dict[str, str] = {}
    name = ""
    for line in section[1].splitlines() if section else ():
        if entry := re.match(r"    (\w+): (.*)", line):
            name, words[entry[1]] = entry[1], entry[2]
        elif name:
            words[name] += " " + line.strip()
    return words


def _with_help(kind: object, words: str | None) -> Any:
    kind = Whole if kind is int else kind
    return Annotated[kind, tyro.conf.arg(help=words)] if words else kind
