"""Sources of batches: finite data in minibatches without replacement, and streams.

A sampler has ``init(key) -> env``, ``noise(key) -> u`` and ``draw(u, env) -> (batch, env)``, as a problem has; a plain
function ``key -> batch`` is a stream. The draw at step k of seed s depends on (s, k) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, Int32, UInt32

from twoclock.protocols import IndexedBatch, InputError, Key, PyTree, pytree, static
from twoclock.validation import flag, function, whole
from twoclock.validation.arrays import Array, State, as_numpy

_ROUNDS = 16
_SALTS = np.asarray([(0x9E3779B9 * (2 * r + 1)) & 0xFFFFFFFF for r in range(_ROUNDS)], np.uint32)

Word = UInt32[Array, ""]
# The word that orders this epoch, that of the next, the position in this epoch, and the next items.
Epoch = tuple[Word, Word, State, Int32[Array, " size"]]


@runtime_checkable
class Sampler(Protocol):
    """A source of batches, with its own state and randomness that is independent of the iterates."""

    def init(self, key: Key) -> PyTree: ...
    def noise(self, key: Key) -> PyTree: ...
    def draw(self, u: PyTree, env: PyTree) -> tuple[PyTree, PyTree]: ...


# A sampler, a function of a key, or a pair (inner, outer) of these.
Source = Sampler | Callable[[Key], PyTree] | tuple["Source", "Source"]


@pytree
class Stream:
    """A fresh batch per step, ``function(key)``.

    Args:
        function: makes a batch from a key of ``jax.random``.

    >>> stream = Stream(lambda key: jax.random.normal(key, (8, 3)))
    >>> stream.draw(stream.noise(jax.random.key(0)), None)[0].shape
    (8, 3)
    """

    function: Callable[[Key], PyTree] = static()

    def init(self, key: Key) -> None:
        return None

    def noise(self, key: Key) -> PyTree:
        return self.function(key)

    def draw(self, u: PyTree, env: None) -> tuple[PyTree, None]:
        return u, env


@pytree
class Minibatches:
    """Finite data in minibatches, every item exactly once per epoch.

    Each epoch has a new order, and a batch is the next ``size`` items. If the size does not divide the data, the last
    batch of an epoch continues into the next epoch, so that all batches are full. The order is a keyed bijection of 0 …
    n−1 (swap-or-not: Hoang, Morris & Rogaway, *An enciphering scheme based on a card shuffle*, 2012), so the cost of a
    batch is its size, and no permutation of the data is stored.

    Args:
        data: a pytree of arrays whose common first axis runs over the items.
        size: items per batch.
        replace: draw every item independently from all data; then there are no epochs.

    >>> batches = Minibatches(np.arange(5), size=2)
    >>> env, seen = batches.init(jax.random.key(0)), []
    >>> for k in range(5):
    ...     batch, env = batches.draw(batches.noise(jax.random.key(k)), env)
    ...     seen += batch.tolist()
    >>> sorted(seen[:5]), sorted(seen[5:])
    ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    """

    data: PyTree
    size: int = static()
    replace: bool = static(default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", as_numpy("data", self.data))
        if jax.tree.leaves(self.data) and not any(leaf.ndim for leaf in jax.tree.leaves(self.data)):
            raise InputError("`data` must have arrays whose first axis runs over the items, got scalars alone")
        items = common_length(self.data, "data")
        object.__setattr__(self, "size", whole("size", self.size, 1, items))
        flag("replace", self.replace)

    @property
    def items(self) -> int:
        """The number of items in the data."""
        return len(jax.tree.leaves(self.data)[0])

    def init(self, key: Key) -> Epoch | None:
        # With the items of the next batch: if the step computed them itself, XLA would repeat that for every number
        # fetched.
        if self.replace:
            return None
        now, then = jax.random.bits(key, (2,), jnp.uint32)
        at = jnp.zeros((), jnp.int32)
        return now, then, at, self._indices(now, then, at)

    def noise(self, key: Key) -> jax.Array:
        if self.replace:
            return jax.random.randint(key, (self.size,), 0, self.items, jnp.int32)
        return jax.random.bits(key, (), jnp.uint32)

    def draw(self, u: UInt32[Array, ""] | Int32[Array, " size"], env: Epoch | None) -> tuple[PyTree, Epoch | None]:
        drawn, env = self.draw_indexed(u, env)
        return drawn.batch, env

    def draw_indexed(
        self, u: UInt32[Array, ""] | Int32[Array, " size"], env: Epoch | None
    ) -> tuple[IndexedBatch, Epoch | None]:
        """The result of ``draw``, and the indices of its items.

        Args:
            u: the random numbers of one step, from ``noise``.
            env: where the epoch is, from ``init`` or the last draw.
        """
        if env is None:
            return self._items(u), None
        now, then, at, indices = env
        end = at + self.size
        done = end >= self.items
        now, then, at = jnp.where(done, then, now), jnp.where(done, u, then), jnp.where(done, end - self.items, end)
        return self._items(indices), (now, then, at, self._indices(now, then, at))

    def _items(self, indices: Array) -> IndexedBatch:
        batch = jax.tree.map(lambda column: jnp.asarray(column)[indices], self.data)
        return IndexedBatch(batch, jnp.asarray(indices), self.items, self.replace)

    def _indices(self, now: Word, then: Word, at: State) -> Int32[jax.Array, " size"]:
        place = at + jnp.arange(self.size, dtype=jnp.int32)
        if self.items % self.size == 0:
            return shuffle(now, place, self.items)
        over = place >= self.items
        return shuffle(now, jnp.where(over, place - self.items, place), self.items, then, over)

    def epoch(self) -> PyTree:
        """Full batches that hold every item equally often, stacked: a mean over them is the mean over the data."""
        rows = np.arange(math.lcm(self.items, self.size)).reshape(-1, self.size) % self.items
        return jax.tree.map(lambda column: jnp.asarray(column)[rows], self.data)


@pytree
class Separate:
    """Two independent samplers, for the inner batch and the outer one.

    Args:
        inner, outer: the samplers.

    >>> pair = Separate(Stream(lambda key: 1.0), Stream(lambda key: 2.0))
    >>> pair.draw(pair.noise(jax.random.key(0)), pair.init(jax.random.key(1)))[0]
    (1.0, 2.0)
    """

    inner: Sampler
    outer: Sampler

    def init(self, key: Key) -> tuple[PyTree, PyTree]:
        inner, outer = jax.random.split(key)
        return self.inner.init(inner), self.outer.init(outer)

    def noise(self, key: Key) -> tuple[PyTree, PyTree]:
        inner, outer = jax.random.split(key)
        return self.inner.noise(inner), self.outer.noise(outer)

    def draw(self, u: tuple[PyTree, PyTree], env: tuple[PyTree, PyTree]) -> tuple[tuple[PyTree, PyTree], PyTree]:
        inner, env_inner = self.inner.draw(u[0], env[0])
        outer, env_outer = self.outer.draw(u[1], env[1])
        return (inner, outer), (env_inner, env_outer)


def as_sampler(sampler: object) -> Sampler:
    """Make a sampler of a sampler, a function of a key, or a pair (inner, outer) of these.

    Args:
        sampler: a sampler, a function key → batch, or a pair of these.

    >>> type(as_sampler(lambda key: jax.random.normal(key, (8,)))).__name__
    'Stream'
    """
    if isinstance(sampler, tuple) and len(sampler) == 2:
        return Separate(as_sampler(sampler[0]), as_sampler(sampler[1]))
    if isinstance(sampler, Sampler):
        return sampler
    if not callable(sampler):
        raise InputError(
            f"`sampler` must be a function of a key or a pair (inner, outer), got {type(sampler).__name__}; "
            "for finite data try `(samplers.Minibatches(train, 32), samplers.Minibatches(valid, 32))`"
        )
    function("sampler", sampler, "key")
    return Stream(sampler)


def draw_indexed(sampler: Sampler, u: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
    """Draw a sample, with the indices of its items if the data are finite.

    Args:
        sampler: a sampler.
        u: its noise, from ``sampler.noise(key)``.
        env: its state, from ``sampler.init(key)``.

    >>> batches = Minibatches(np.arange(4), size=2)
    >>> env, u = batches.init(jax.random.key(0)), batches.noise(jax.random.key(1))
    >>> batch, env = draw_indexed(batches, u, env)
    >>> batch.batch.tolist() == batch.index.tolist()
    True
    """
    if isinstance(sampler, Separate):
        inner, env_inner = draw_indexed(sampler.inner, u[0], env[0])
        outer, env_outer = draw_indexed(sampler.outer, u[1], env[1])
        return (inner, outer), (env_inner, env_outer)
    return sampler.draw_indexed(u, env) if isinstance(sampler, Minibatches) else sampler.draw(u, env)


def epoch(sampler: Sampler) -> PyTree:
    """All of the finite data as stacked batches, (inner, outer) for a pair of samplers; None for a stream.

    Args:
        sampler: a sampler.

    >>> epoch(Minibatches(np.arange(4), size=2)).shape  # batches × items
    (2, 2)
    """
    if isinstance(sampler, Separate):
        both = epoch(sampler.inner), epoch(sampler.outer)
        return None if both[0] is None or both[1] is None else both
    return sampler.epoch() if isinstance(sampler, Minibatches) else None


def common_length(batch: PyTree, name: str) -> int:
    """The length of the first axis, which all arrays share; scalars are ignored.

    Args:
        batch: a pytree of arrays.
        name: the name of the argument, for the error.

    >>> common_length({"x": np.zeros((5, 2)), "y": np.zeros(5)}, "data")
    5
    """
    lengths = sorted({leaf.shape[0] for leaf in jax.tree.leaves(batch) if leaf.ndim})
    if len(lengths) > 1:
        raise InputError(
            f"`{name}` must have one length along the first axis of all its arrays, the items; got "
            f"{' and '.join(map(str, lengths))}; give every item an entry in each array"
        )
    if not jax.tree.leaves(batch) or (lengths and lengths[0] == 0):
        raise InputError(f"`{name}` must hold at least one item, got none")
    return lengths[0] if lengths else 1


@partial(jax.jit, static_argnames="items", inline=True)  # traced once for all the programs that it is written into
def shuffle(
    word: Word, place: Int[Array, " n"], items: int, then: Word | None = None, over: Bool[Array, " n"] | None = None
) -> Int32[jax.Array, " n"]:
    """The item at each position in the order of 0 … items−1 given by the 32-bit word; beyond the end in that of
    ``then``.

    A round pairs i with K−i modulo n and swaps the two if a hash of the larger one says so: a bijection for any n.

    Args:
        word: 32 bits that choose the order.
        place: positions.
        items: n, the number of items.
        then: the word of the next order.
        over: whether a position is in the next order.

    >>> order = shuffle(jnp.uint32(7), jnp.arange(5), 5)
    >>> sorted(order.tolist())
    [0, 1, 2, 3, 4]
    """
    if items == 1:  # nothing to shuffle, and XLA of JAX 0.12 fails on the program below
        return jnp.zeros(place.shape, jnp.int32)
    n, i = jnp.uint32(items), jnp.asarray(place, jnp.uint32)
    rounds = [((keys := _mix(jnp.asarray(w) + _SALTS)) % n, _mix(keys)) for w in (word, then) if w is not None]
    for r in range(_ROUNDS):
        K, mask = (
            rounds[0][part][r] if over is None else jnp.where(over, rounds[1][part][r], rounds[0][part][r])
            for part in (0, 1)
        )
        partner = jnp.where(i <= K, K - i, K + n - i)
        swap = _mix(jnp.maximum(i, partner) ^ mask) >= jnp.uint32(1 << 31)
        i = jnp.where(swap, partner, i)
    return i.astype(jnp.int32)


def _mix(x: UInt32[jax.Array, "*shape"]) -> UInt32[jax.Array, "*shape"]:
    """A hash of 32 bits to 32 bits in which each bit depends on all (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> jnp.uint32(16))
