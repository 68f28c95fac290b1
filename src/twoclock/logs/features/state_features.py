"""Features ψ(s) of a state that is a vector: radial, Fourier, tiles, a network."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from math import comb
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from twoclock.logs.policies import call_on_batch
from twoclock.problems.custom import is_module, split_module
from twoclock.protocols import InputError
from twoclock.validation import check_process, choice, number, seed_number, trace_anew, whole

Matrix = Any
"""A NumPy array, or a scipy.sparse CSR array where most entries are 0."""

X = Float[np.ndarray, "n k"]
_MOST_FEATURES = 20_000


@runtime_checkable
class StateFeatures(Protocol):
    """Features of a state alone (or of a state and a continuous action, side by side)."""

    @property
    def size(self) -> int: ...
    def __call__(self, x: np.ndarray) -> Matrix: ...


@runtime_checkable
class Fittable(Protocol):
    """Settings of features that a sample of states scales."""

    def fit(self, sample: np.ndarray) -> StateFeatures: ...


@dataclass(frozen=True, eq=False)
class Rbf:
    """exp(−‖x − c_j‖²/2w²) around states c_j of the log, with the columns scaled alike, and a constant.

    Args:
        centres: the number of centres.
        width: w; the median distance of the centres' sample if None.
        seed: which states are centres.
        where, scale: the centres, and the mean and standard deviation of the columns; set by ``fit``.

    >>> states = np.random.default_rng(0).normal(size=(100, 2))
    >>> Rbf(centres=10).fit(states)(states).shape
    (100, 11)
    """

    centres: int = 50
    width: float | None = None
    seed: int = 0
    where: X | None = field(default=None, repr=False)
    scale: X | None = field(default=None, repr=False)

    def fit(self, sample: X) -> Rbf:
        centres = whole("centres", self.centres, 1, _MOST_FEATURES)
        shift, scale = sample.mean(axis=0), np.where(sample.std(axis=0) > 0, sample.std(axis=0), 1.0)
        z = np.unique((sample - shift) / scale, axis=0)
        rng = np.random.default_rng(seed_number("seed", self.seed))
        z = z[rng.permutation(len(z))]
        some = z[:500]
        apart = np.sqrt(((some[:, None] - some[None]) ** 2).sum(-1))[np.triu_indices(len(some), 1)]
        width = float(np.median(apart)) if apart.size else 1.0
        if self.width is not None:
            width = number("width", self.width, 1e-100, 1e100)
        return Rbf(min(centres, len(z)), width or 1.0, self.seed, z[:centres], np.stack([shift, scale]))

    @property
    def size(self) -> int:
        return self.centres + 1

    def __call__(self, x: np.ndarray) -> Matrix:
        if self.where is None or self.scale is None or self.width is None:
            raise InputError("`Rbf(…)` has no centres yet; give it to `evaluate(…, features=…)`, or call `fit`")
        z = (x - self.scale[0]) / self.scale[1]
        # −‖z − c‖²/2w² as one product, (z, ‖z‖², 1) with (c, −½, −½‖c‖²)/w²; the constant's column is 0.
        long = np.column_stack([z, (z**2).sum(axis=1), np.ones(len(z))])
        ends = np.full(len(self.where), -0.5), -0.5 * (self.where**2).sum(axis=1)
        of_centres = np.column_stack([self.where, *ends]).T / self.width**2
        found = long @ np.column_stack([np.zeros(len(of_centres)), of_centres])
        return np.exp(found, out=found)


@dataclass(frozen=True, eq=False)
class Fourier:
    """cos(π c·x) for every vector of whole numbers c ≥ 0 with Σc ≤ order, x scaled to [0, 1].

    Args:
        order: the largest sum of the entries of c.
        waves, scale: the vectors c, and the range of the columns; set by ``fit``.

    >>> states = np.random.default_rng(0).normal(size=(100, 2))
    >>> Fourier(order=2).fit(states)(states).shape
    (100, 6)

    Reference: Konidaris, Osentoski & Thomas, *Value function approximation in RL using the Fourier basis*, 2011.
    """

    order: int = 3
    waves: Float[np.ndarray, "m k"] = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    scale: X | None = field(default=None, repr=False)

    def fit(self, sample: X) -> Fourier:
        order, k = whole("order", self.order, 0, 50), sample.shape[1]
        scale = _ends(sample, comb(order + k, k), "`Fourier(order=…)`")
        picks = itertools.combinations_with_replacement(range(k + 1), order)  # entry k is the unused rest
        waves = np.array([[pick.count(i) for i in range(k)] for pick in picks], float)
        return Fourier(order, waves, scale)

    @property
    def size(self) -> int:
        return len(self.waves)

    def __call__(self, x: np.ndarray) -> Matrix:
        return np.cos(np.pi * (_to_unit_cube(x, self) @ self.waves.T))


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tile coding: grids of ``bins`` cells per column, each shifted by a share of a cell; sparse.

    Args:
        tilings: the number of grids.
        bins: the number of cells of a grid along each column.
        scale: the range of the columns; set by ``fit``.

    >>> states = np.random.default_rng(0).normal(size=(100, 2))
    >>> Tiles(tilings=2, bins=3).fit(states)(states).shape
    (100, 32)
    """

    tilings: int = 8
    bins: int = 6
    scale: X | None = field(default=None, repr=False)

    def fit(self, sample: X) -> Tiles:
        tilings, bins = whole("tilings", self.tilings, 1, _MOST_FEATURES), whole("bins", self.bins, 1, _MOST_FEATURES)
        count = tilings * (bins + 1) ** sample.shape[1]
        return Tiles(tilings, bins, _ends(sample, count, "`Tiles(tilings=…, bins=…)`"))

    @property
    def size(self) -> int:
        return 0 if self.scale is None else self.tilings * (self.bins + 1) ** self.scale.shape[1]

    def __call__(self, x: np.ndarray) -> Matrix:
        from scipy.sparse import csr_array  # slow to load

        n, k = x.shape
        z = _to_unit_cube(x, self) * self.bins
        # Column i is shifted by an odd number of shares, 2i + 1, so that the grids do not line up along a diagonal.
        shift = (np.arange(self.tilings)[:, None] * (2 * np.arange(k) + 1) % self.tilings) / self.tilings
        cell = np.minimum((z[:, None, :] + shift).astype(int), self.bins)
        index = cell @ (self.bins + 1) ** np.arange(k) + np.arange(self.tilings) * (self.bins + 1) ** k
        entries = np.ones(n * self.tilings), index.ravel(), np.arange(n + 1) * self.tilings
        return csr_array(entries, shape=(n, self.size))


def _ends(sample: X, count: int, what: str) -> X:
    """Return the least entry of each column and its range, 1 where it is constant; refuse to make too many features."""
    if count > _MOST_FEATURES:
        raise InputError(
            f"{what} makes {count:,} features for this state, more than {_MOST_FEATURES:,}; take fewer, or Rbf"
        )
    low, high = sample.min(axis=0), sample.max(axis=0)
    return np.stack([low, np.where(high > low, high - low, 1.0)])


def _to_unit_cube(x: X, features: Fourier | Tiles) -> X:
    if features.scale is None:
        name = type(features).__name__
        raise InputError(f"`{name}(…)` is not scaled yet; give it to `evaluate(…, features=…)`, or call `fit`")
    return np.clip((x - features.scale[0]) / features.scale[1], 0, 1)


@dataclass(frozen=True, eq=False)
class Network:
    """Features of a network that was trained before, such as an ``equinox.nn.MLP``.

    Args:
        model: a module that maps one state (a state and a continuous action, side by side) to numbers.
        part: "last" takes the input of the last layer, with a constant; "whole" the gradient of the first output with
            respect to all parameters (the neural tangent features).
        size: the number of features; set by ``fit``.

    >>> states = np.random.default_rng(0).normal(size=(100, 2))
    >>> Network(lambda x: jnp.tanh(x[0] - x)).fit(states).size
    3
    """

    model: Callable[..., jax.Array]
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
            rows = call_on_batch("model", lambda x: np.asarray(_batch_features(self)(jnp.asarray(x)), float), x)
        return np.hstack([np.ones((len(x), 1)), rows]) if self.part == "last" else rows


Row = Callable[[jax.Array], jax.Array]
_compiled: WeakKeyDictionary[Network, Row] = WeakKeyDictionary()


def _batch_features(network: Network) -> Row:
    """Compile the features of a batch, once per fitted object, since a constant of the model may change in between."""
    if network in _compiled:
        return _compiled[network]
    check_process()
    model, part = network.model, network.part
    layers, activation = getattr(model, "layers", None), getattr(model, "activation", lambda z: z)

    def features(x: jax.Array) -> jax.Array:
        if part == "whole":
            arrays, whole = split_module(model)
            flat, back = ravel_pytree(arrays)
            return jax.grad(lambda p: jnp.ravel(whole(back(p))(x))[0])(flat)
        if not layers:  # a plain function has no layers; its output is the features
            return jnp.atleast_1d(model(x))
        for layer in layers[:-1]:
            z = layer(x)
            x = jax.vmap(lambda act, entry: act(entry))(activation, z) if is_module(activation) else activation(z)
        return x

    def rows(x: jax.Array) -> jax.Array:
        with trace_anew():
            return jax.vmap(features)(x)

    return _compiled.setdefault(network, jax.jit(rows))
