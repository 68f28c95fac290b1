"""What a rule reads of an equation of a jaxpr: its name and parameters, and the shapes and types of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class ShapedType(Protocol):
    """Of an array."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...


class Variable(Protocol):
    """An operand, or what an equation makes."""

    @property
    def aval(self) -> ShapedType: ...


class Primitive(Protocol):
    """What an equation does."""

    @property
    def name(self) -> str: ...


class Sides(Protocol):
    """What goes in and what comes out, of an equation or a whole jaxpr."""

    @property
    def invars(self) -> Sequence[Variable]: ...
    @property
    def outvars(self) -> Sequence[Variable]: ...


class Equation(Sides, Protocol):
    """``outvars = primitive[params](*invars)``."""

    @property
    def primitive(self) -> Primitive: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
