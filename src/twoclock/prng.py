"""Randomness by index: step k of seed s draws from a key that depends on (s, k) alone.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, 2011) and
its bits are those of ``jax.random.key(s)``. JAX rolls the rounds into a loop on the CPU, which passes over memory five
times; unrolled they fuse into the code that uses them, at about a fifth of the cost, which makes a key per seed and
step affordable. An instance is drawn once, by a long program with many draws: there the rounds stay in a loop, with the
same bits, which halves the time to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from twoclock.protocols import Key, Scalar

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

# One stream per use, so that a problem's start never shares bits with its steps.
_INSTANCE, _START, _STEPS = range(3)


def instance_key(seed: Scalar) -> Key:
    """The key of seed s for drawing the problem itself, where each seed has its own."""
    return jax.random.fold_in(jax.random.key(seed, impl=_ROLLED), _INSTANCE)


def start_key(seed: Scalar) -> Key:
    """The key of seed s for the starting point."""
    return jax.random.fold_in(jax.random.key(seed, impl=_IMPLEMENTATION), _START)


def key_shape() -> jax.ShapeDtypeStruct:
    """The shape of such a key, where nothing is drawn from it."""
    return jax.eval_shape(start_key, 0)


def step_stream(seed: Scalar) -> Key:
    """The key that the steps of seed s fold their number into."""
    return jax.random.fold_in(jax.random.key(seed, impl=_IMPLEMENTATION), _STEPS)


def step_key(seed: Scalar, k: Scalar) -> Key:
    """The key of step k of seed s."""
    return jax.random.fold_in(step_stream(seed), k)


def stream_words(seeds: Sequence[int]) -> np.ndarray:
    """The streams of many seeds as two words of 32 bits each, by NumPy: JAX would compile a program for it."""
    low = np.asarray(seeds, np.uint32)
    return np.stack(written_out(np.stack([np.zeros_like(low), low]), np.full_like(low, _STEPS)), axis=-1)


def stream_of(words: jax.Array) -> Key:
    """The stream of two such words."""
    return jax.random.wrap_key_data(words, impl=_IMPLEMENTATION)


Array = Any  # of JAX, or of NumPy
Block = Callable[[Array, Array], tuple[Array, Array]]


def written_out(key: Array, count: Array) -> tuple[Array, Array]:
    state = _before(key, count)
    for i in range(5):
        state = _four_rounds(i, state)
    return state[0], state[1]


def _rolled(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    state = jax.lax.fori_loop(0, 5, _four_rounds, jax.tree.map(jnp.uint32, _before(key, count)))
    return state[0], state[1]


def _before(key: Array, count: Array) -> tuple[Any, ...]:
    """The two words, and in the order of their use the key's three words and the two sets of rotations."""
    k0, k1, xp = key[0], key[1], count.__array_namespace__()
    schedule = (k0, k1, k0 ^ k1 ^ xp.uint32(0x1BD11BDA))
    return xp.zeros_like(count) + k0, count + k1, schedule, _ROTATIONS


def _four_rounds(i: Scalar, state: tuple[Any, ...]) -> tuple[Any, ...]:
    x, y, (a, b, c), (rotations, others) = state
    xp = x.__array_namespace__()
    u32 = xp.uint32
    for r in rotations:
        x = x + y
        y = x ^ ((y << u32(r)) | (y >> u32(32 - r)))
    return x + b, y + c + xp.asarray(i + 1, u32), (b, c, a), (others, rotations)


def _count(shape: tuple[int, ...]) -> jax.Array:
    return jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)


def _seed(seed: Scalar) -> jax.Array:
    low = jnp.asarray(seed).astype(jnp.uint32)
    return jnp.stack([jnp.zeros_like(low), low])


def _implementation(block: Block, name: str) -> Hashable:
    block = jax.jit(block)  # traced and lowered once for all draws of a program

    def bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
        x, y = block(key, _count(shape))
        if width == 64:
            return (x.astype(jnp.uint64) << jnp.uint64(32)) | y.astype(jnp.uint64)
        return (x ^ y).astype({32: jnp.uint32, 16: jnp.uint16, 8: jnp.uint8}[width])

    return define_prng_impl(
        key_shape=(2,),
        seed=_seed,
        split=lambda key, shape: jnp.stack(block(key, _count(shape)), axis=-1),
        random_bits=bits,
        fold_in=lambda key, data: jnp.stack(block(key, jnp.asarray(data).astype(jnp.uint32))),
        name=name,
        tag="tc",
    )


_IMPLEMENTATION = _implementation(written_out, "twoclock_threefry2x32")
_ROLLED = _implementation(_rolled, "twoclock_threefry2x32_rolled")
