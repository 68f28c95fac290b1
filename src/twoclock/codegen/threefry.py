"""Random bits in C: Threefry-2x32 with 20 rounds, the generator and the counters of ``engine.keys``, to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.codegen.arrays import Array, EntryAt, Rule, Scalars, Strided, row_strides, varies
from twoclock.codegen.equation import Equation, Primitive, ShapedType, Variable
from twoclock.codegen.ir import Atom, Index, Lit, Unsupported, c_type, literal

if TYPE_CHECKING:
    from twoclock.codegen.lower import Generator

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_WORD = np.dtype(np.uint32)


@dataclass(eq=False)
class Keys:
    """An array of keys: its first words and its second."""

    halves: tuple[Array, Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.halves[0].shape


def is_keys(value: object) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


@dataclass(frozen=True)
class _Word:
    aval: ShapedType


@dataclass(frozen=True)
class _OnWords:
    primitive: Primitive
    params: Mapping[str, Any]
    invars: Sequence[Variable]
    outvars: Sequence[Variable]


def as_words(eqn: Equation) -> Equation:
    """The equation with words in place of keys, for rules that ask for the type of what they make."""
    outvars = [_Word(jax.ShapeDtypeStruct(v.aval.shape, _WORD)) for v in eqn.outvars]
    return _OnWords(eqn.primitive, eqn.params, eqn.invars, outvars)


def threefry(g: Generator, k0: Atom, k1: Atom, count: Atom) -> tuple[Atom, Atom]:
    """The two words that the key (k0, k1) makes of the counter (0, count)."""

    def word(form: str, *atoms: Atom) -> Atom:
        return g.build.let("uint32_t", form, *atoms)

    schedule = (k0, k1, word("{0}^{1}^0x1BD11BDAu", k0, k1))
    x, y = k0, word("{0}+{1}", count, k1)
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x = word("{0}+{1}", x, y)
            y = word(f"{{0}}^rotate({{1}},{r})", x, y)
        x = word("{0}+{1}", x, schedule[(i + 1) % 3])
        y = word(f"{{0}}+{{1}}+{i + 1}u", y, schedule[(i + 2) % 3])
    return x, y


def wrap(g: Generator, eqn: Equation, words: Array) -> Keys:
    _check(eqn.outvars[0].aval.dtype)
    *shape, _ = words.shape
    return Keys((_half(g, words, 0, tuple(shape)), _half(g, words, 1, tuple(shape))))


def unwrap(g: Generator, eqn: Equation, keys: Keys) -> Array:
    shape = (*keys.shape, 2)
    if not g.shape.is_small(shape):
        raise Unsupported("many random keys are taken apart")
    entries = np.stack([g.shape.every(half).entries for half in keys.halves], axis=-1)
    return Scalars(entries, _WORD)


def seed(g: Generator, eqn: Equation, seeds: Array) -> Keys:
    _check(eqn.outvars[0].aval.dtype)
    low = _over(g, seeds.shape, lambda index: _as_word(g, g.shape.at(seeds, index)), varies(seeds))
    return Keys((g.shape.constant(np.zeros(seeds.shape, _WORD)), low))


def fold_in(g: Generator, eqn: Equation, keys: Keys, data: Array) -> Keys:
    _check(eqn.outvars[0].aval.dtype)
    shape = tuple(eqn.outvars[0].aval.shape)
    if not g.shape.is_small(shape):
        raise Unsupported("many random keys are made at once")
    halves = np.empty((2, *shape), object)
    for i in np.ndindex(*shape):
        count = _as_word(g, g.shape.at(data, i if data.shape else ()))
        for half, word in enumerate(threefry(g, *_key(g, keys, i if keys.shape else ()), count)):
            halves[(half, *i)] = word
    return Keys((Scalars(halves[0, ...], _WORD), Scalars(halves[1, ...], _WORD)))


def split(g: Generator, eqn: Equation, keys: Keys) -> Keys:
    _check(eqn.outvars[0].aval.dtype)
    shape = tuple(eqn.outvars[0].aval.shape)

    def half(which: int) -> Array:
        return _over(g, shape, lambda index: _words(g, keys, index, shape)[which], True)

    return Keys((half(0), half(1)))


def bits(g: Generator, eqn: Equation, keys: Keys) -> Array:
    _check(eqn.invars[0].aval.dtype)
    out = eqn.outvars[0].aval
    width, c = eqn.params["bit_width"], c_type(out.dtype)

    def entry(index: tuple[Index, ...]) -> Atom:
        x, y = _words(g, keys, index, tuple(out.shape))
        if width == 64:
            return g.build.let(c, "((uint64_t){0}<<32)|(uint64_t){1}", x, y)
        return g.build.let(c, f"({c})({{0}}^{{1}})", x, y)

    return _over(g, tuple(out.shape), entry, True, np.dtype(out.dtype))


def _words(g: Generator, keys: Keys, index: tuple[Index, ...], shape: tuple[int, ...]) -> tuple[Atom, Atom]:
    """The words that a key makes at an index: the first axes are those of the keys, the others count."""
    rank = len(keys.shape)
    place = g.shape.combined(index[rank:], row_strides(shape[rank:]), 0)
    count = literal(place, _WORD) if isinstance(place, int) else g.build.let("uint32_t", "(uint32_t){0}", place)
    return threefry(g, *_key(g, keys, index[:rank]), count)


def _key(g: Generator, keys: Keys, index: tuple[Index, ...]) -> tuple[Atom, Atom]:
    return g.shape.at(keys.halves[0], index), g.shape.at(keys.halves[1], index)


def _half(g: Generator, words: Array, half: int, shape: tuple[int, ...]) -> Array:
    if isinstance(words, Scalars):
        return Scalars(words.entries[..., half], _WORD)
    if isinstance(words, Strided):
        return Strided(words.memory, shape, words.strides[:-1], words.offset + half * words.strides[-1], _WORD)
    return Rule(shape, _WORD, lambda index: words.entry((*index, half)), words.varies)


def _over(g: Generator, shape: tuple[int, ...], entry: EntryAt, varying: bool, dtype: np.dtype = _WORD) -> Array:
    rule = Rule(shape, dtype, entry, varying, frozenset())
    return g.shape.every(rule) if g.shape.is_small(shape) else rule


def _as_word(g: Generator, atom: Atom) -> Atom:
    if isinstance(atom, Lit):
        return literal(int(atom.value) & 0xFFFFFFFF, _WORD)
    return atom if atom.c == "uint32_t" else g.build.let("uint32_t", "(uint32_t){0}", atom)


def _check(dtype: np.dtype) -> None:
    """JAX's own keys make the same bits as ours, unless they are set to count otherwise."""
    name = str(dtype)
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if name != "key<tc>" and not (name == "key<fry>" and partitionable):
        raise Unsupported(f"random numbers of the kind {name} are not generated")


RULES = {
    "random_wrap": wrap,
    "random_unwrap": unwrap,
    "random_seed": seed,
    "random_fold_in": fold_in,
    "random_split": split,
    "random_bits": bits,
}
