"""A method in words and numbers that JSON can hold, and back: for records, which pickle nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from twoclock.methods.auto import Auto
from twoclock.methods.fast import Fast
from twoclock.methods.intentional import Intentional
from twoclock.methods.matrix_free_zap import MatrixFreeZap
from twoclock.methods.obgd import ObGD
from twoclock.methods.polyak import Polyak
from twoclock.methods.richardson_romberg import RichardsonRomberg
from twoclock.methods.standard import Standard
from twoclock.methods.swift_td import SwiftTD
from twoclock.methods.tidbd import TIDBD
from twoclock.methods.vrtdc import VRTDC
from twoclock.methods.zap import Zap
from twoclock.protocols import InputError, Method
from twoclock.schedules import Constant, Power

_CLASSES = (
    Auto, Constant, Fast, Intentional, ObGD, Polyak, Power, RichardsonRomberg, Standard, SwiftTD, TIDBD, VRTDC, Zap,
    MatrixFreeZap,
)  # fmt: skip
_KNOWN = {kind.__name__: kind for kind in _CLASSES}


def spell(method: object) -> dict[str, Any] | None:
    """The class and the fields of a method of this library, to the last bit; None where it holds a function.

    >>> import twoclock as tc
    >>> read(spell(tc.Polyak(tc.Fast(alpha=0.1), power=2)))
    Polyak(method=Fast(α=0.1, β=8/(k+40), λ=40/(k+160)), power=2)
    """
    if type(method).__name__ not in _KNOWN or _KNOWN[type(method).__name__] is not type(method):
        return None
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if dataclasses.is_dataclass(value):
            value = spell(value)
            if value is None:
                return None
        elif hasattr(value, "dtype") and np.ndim(value) == 0:
            value = value.item()
        elif not (value is None or isinstance(value, (bool, int, float, str))):
            return None
        fields[field.name] = value
    return {"class": type(method).__name__, **fields}


def read(spelled: Mapping[str, Any]) -> Method:
    """The method that was spelled."""
    made: Method = _read(spelled)
    return made


def _read(spelled: Mapping[str, Any]) -> Any:
    fields = {name: _read(value) if isinstance(value, Mapping) else value for name, value in spelled.items()}
    kind = _KNOWN.get(fields.pop("class", ""))
    if kind is None:
        raise InputError(f"`method` {spelled.get('class')} is not known to this version of twoclock; pass it yourself")
    return kind(**fields)
