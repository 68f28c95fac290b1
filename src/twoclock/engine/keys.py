"""Randomness by index: step k of seed s draws from a key made of (s, k) and of nothing else.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, 2011) and
its bits are those of ``jax.random.key(s)``. JAX rolls the rounds into a loop on the CPU, which passes over memory five
times; written out they fuse into the code that uses them, at about a fifth of the cost. That is what makes a key per
seed and step affordable.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

from twoclock.core import Key, Scalar

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

# One stream a use, so that a problem's start never shares bits with its steps.
_INSTANCE, _START, _STEPS = range(3)


def instance_key(seed: Scalar) -> Key:
    """The key of seed s for drawing the problem itself, where each seed has its own."""
    return jax.random.fold_in(_key(seed), _INSTANCE)


def start_key(seed: Scalar) -> Key:
    """The key of seed s for the starting point."""
    return jax.random.fold_in(_key(seed), _START)


def step_stream(seed: Scalar) -> Key:
    """The key that the steps of seed s fold their number into."""
    return jax.random.fold_in(_key(seed), _STEPS)


def step_key(seed: Scalar, k: Scalar) -> Key:
    """The key of step k of seed s."""
    return jax.random.fold_in(step_stream(seed), k)


def stream_words(seeds: jax.Array) -> jax.Array:
    """The streams of many seeds as two words of 32 bits each: what a generated program is handed."""
    return jax.random.key_data(jax.vmap(step_stream)(seeds))


def stream_of(words: jax.Array) -> Key:
    """The stream that two such words stand for."""
    return jax.random.wrap_key_data(words, impl=_IMPLEMENTATION)


def _threefry(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    u32 = jnp.uint32
    k0, k1 = key[0], key[1]
    schedule = (k0, k1, k0 ^ k1 ^ u32(0x1BD11BDA))
    x, y = jnp.zeros_like(count) + k0, count + k1
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << u32(r)) | (y >> u32(32 - r)))
        x, y = x + schedule[(i + 1) % 3], y + schedule[(i + 2) % 3] + u32(i + 1)
    return x, y


def _count(shape: tuple[int, ...]) -> jax.Array:
    return jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)


def _seed(seed: Scalar) -> jax.Array:
    low = jnp.asarray(seed).astype(jnp.uint32)
    return jnp.stack([jnp.zeros_like(low), low])


def _fold_in(key: jax.Array, data: Scalar) -> jax.Array:
    return jnp.stack(_threefry(key, jnp.asarray(data).astype(jnp.uint32)))


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.stack(_threefry(key, _count(shape)), axis=-1)


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    x, y = _threefry(key, _count(shape))
    if width == 64:
        return (x.astype(jnp.uint64) << jnp.uint64(32)) | y.astype(jnp.uint64)
    return (x ^ y).astype({32: jnp.uint32, 16: jnp.uint16, 8: jnp.uint8}[width])


_IMPLEMENTATION = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="twoclock_threefry2x32",
    tag="tc",
)


def _key(seed: Scalar) -> Key:
    return jax.random.key(seed, impl=_IMPLEMENTATION)
