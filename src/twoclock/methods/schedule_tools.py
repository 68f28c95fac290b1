"""The clocks of a method: how fast each of its step sizes falls, and the same method with all of them scaled."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator

import jax.numpy as jnp
from jaxtyping import Array, Float

from twoclock.protocols import Method, Scalar, Schedule, pytree


def exponents(method: Method, k: Scalar, *, weights: bool) -> dict[str, Float[Array, ""]]:
    """How fast each schedule falls over the last half of k steps, p̂ in α_k ~ k^−p̂; NaN where nothing can be told.

    Measured rather than read off, so that a floor, a shift or a function of one's own counts for what it does.

    Args:
        weights: tell of the averaging weights (λ ≤ 1) in place of the step sizes.
    """
    later = jnp.asarray(k, jnp.int32)
    sooner = later // 2
    found = {}
    for path, schedule, is_weight in _schedules(method):
        if is_weight == weights:
            now, then = schedule(later), schedule(sooner)
            told = (later > 1) & (now > 0) & (then > 0)
            ratio = jnp.where(told, then, 1) / jnp.where(told, now, 1)
            span = (jnp.asarray(later, float) + 1) / (jnp.asarray(sooner, float) + 1)
            found[path] = jnp.where(told, jnp.log(ratio) / jnp.log(jnp.maximum(span, 1.1)), jnp.nan)
    return found


def scaled(method: Method, factor: float) -> Method:
    """The method with every step size, those inside a wrapped method too, times a factor; averaging weights stay."""
    new = copy.copy(method)
    for field in _fields(method):
        value = getattr(method, field.name)
        if isinstance(value, Method):
            object.__setattr__(new, field.name, scaled(value, factor))
        elif _is_schedule(field, value) and not _is_weight(field):
            object.__setattr__(new, field.name, _Scaled(value, factor))
    return new


@pytree
class _Scaled:
    schedule: Schedule
    factor: Scalar

    def __call__(self, k: Scalar) -> Array:
        return jnp.asarray(self.factor, float) * self.schedule(k)


def _schedules(method: object, prefix: str = "") -> Iterator[tuple[str, Schedule, bool]]:
    """Path, schedule and whether it is an averaging weight, of a method and those inside it."""
    for field in _fields(method):
        value = getattr(method, field.name)
        if isinstance(value, Method):
            yield from _schedules(value, f"{prefix}{field.name}.")
        elif _is_schedule(field, value):
            yield prefix + field.name, value, _is_weight(field)


def _fields(method: object) -> tuple[dataclasses.Field[object], ...]:
    return dataclasses.fields(method) if dataclasses.is_dataclass(method) else ()


def _is_schedule(field: dataclasses.Field[object], value: object) -> bool:
    return callable(value) and not field.metadata.get("static")


def _is_weight(field: dataclasses.Field[object]) -> bool:
    return field.metadata.get("most", math.inf) < math.inf
