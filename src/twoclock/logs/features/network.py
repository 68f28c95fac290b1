"""A JAX network as features: its last hidden layer, or its whole gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from twoclock.logs.features.protocol import Matrix
from twoclock.logs.policies import called
from twoclock.problems.custom import is_module, joining, numbers
from twoclock.protocols import InputError
from twoclock.validation import choice


@dataclass(frozen=True, eq=False)
class Network:
    """Features of a network that was trained before, such as an ``equinox.nn.MLP``.

    Args:
        model: a module that maps one state (a state and a continuous action, side by side) to numbers.
        part: "last" takes what the last layer sees, with a constant; "whole" the gradient of the first output in all
            parameters (the neural tangent features).
    """

    model: Any
    part: str = "last"
    size: int = 0

    def fit(self, sample: np.ndarray) -> Network:
        choice("part", self.part, ("last", "whole"))
        if not callable(self.model):
            raise InputError(f"`Network(model)` must be a function of one state, got {type(self.model).__name__}")
        if self.part == "whole" and not is_module(self.model):
            raise InputError("`Network(model, part='whole')` needs a module with parameters, such as an equinox.nn.MLP")
        return Network(self.model, self.part, Network(self.model, self.part, 1)(sample[:1]).shape[1])

    def __call__(self, x: np.ndarray) -> Matrix:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            rows = called("model", lambda x: np.asarray(_mapped(self.model, self.part)(jnp.asarray(x)), float), x)
        return np.hstack([np.ones((len(x), 1)), rows]) if self.part == "last" else rows


_programs: dict[tuple[int, str], Any] = {}


def _mapped(model: object, part: str) -> Any:
    """The features of a batch as one compiled function; the same model is compiled once."""
    key = id(model), part
    if key not in _programs:
        one = _hidden(model) if part == "last" else _gradient(model)
        _programs[key] = model, jax.jit(jax.vmap(one))  # the model is kept, so that its id is not given again
    return _programs[key][1]


def _hidden(model: Any) -> Any:
    layers = getattr(model, "layers", None)
    if not layers:  # a plain function: what it gives are the features
        return lambda x: jnp.atleast_1d(model(x))
    activation = getattr(model, "activation", lambda z: z)

    def hidden(x: jax.Array) -> jax.Array:
        for layer in layers[:-1]:
            z = layer(x)
            x = jax.vmap(lambda act, entry: act(entry))(activation, z) if is_module(activation) else activation(z)
        return x

    return hidden


def _gradient(model: object) -> Any:
    whole = joining(model)
    flat, back = ravel_pytree(numbers(model))
    return lambda x: jax.grad(lambda p: jnp.ravel(whole(back(p))(x))[0])(flat)
