"""Random bits in C: the Threefry-2x32 generator with 20 rounds, with the counters of JAX's partitionable keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np

from twoclock.codegen import arrays
from twoclock.codegen.arrays import Array, Equation, Keys, LoweringRule, Scalars
from twoclock.codegen.ir import Atom, Index, Lit, Unsupported, c_type, literal

if TYPE_CHECKING:
    from twoclock.codegen.lower import Lowering

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_WORD = np.dtype(np.uint32)


def _wrap(g: Lowering, eqn: Equation, words: Array) -> Keys:
    _check(eqn.outputs[0].dtype)

    part = jax.ShapeDtypeStruct(words.shape[:-1], _WORD)
    varying = arrays.varies(words)
    high = g.arrays.lazy(part, lambda index: g.arrays.entry(words, (*index, 0)), varying)
    return Keys((high, g.arrays.lazy(part, lambda index: g.arrays.entry(words, (*index, 1)), varying)))


def _unwrap(g: Lowering, eqn: Equation, keys: Keys) -> Array:
    if not g.arrays.is_small((*keys.shape, 2)):
        raise Unsupported("many random keys are taken apart")
    return Scalars(np.stack([g.arrays.to_scalars(half).entries for half in keys.halves], axis=-1), _WORD)


def _seed(g: Lowering, eqn: Equation, seeds: Array) -> Keys:
    _check(eqn.outputs[0].dtype)
    words = jax.ShapeDtypeStruct(seeds.shape, _WORD)
    low = g.arrays.lazy(words, lambda i: _as_word(g, g.arrays.entry(seeds, i)), arrays.varies(seeds), frozenset())
    return Keys((g.arrays.constant(np.zeros(seeds.shape, _WORD)), low))


def _derive(g: Lowering, eqn: Equation, words_at: Callable[[tuple[Index, ...]], tuple[Atom, Atom]]) -> Keys:
    """Make keys of the two words of each; what both halves compute is computed once."""
    _check(eqn.outputs[0].dtype)
    words = jax.ShapeDtypeStruct(tuple(eqn.outputs[0].shape), _WORD)
    high = g.arrays.lazy(words, lambda index: words_at(index)[0], True, frozenset())
    return Keys((high, g.arrays.lazy(words, lambda index: words_at(index)[1], True, frozenset())))


def _fold_in(g: Lowering, eqn: Equation, keys: Keys, data: Array) -> Keys:
    def words(index: tuple[Index, ...]) -> tuple[Atom, Atom]:
        count = _as_word(g, g.arrays.entry(data, index if data.shape else ()))
        return _threefry(g, keys, index if keys.shape else (), count)

    return _derive(g, eqn, words)


def _split(g: Lowering, eqn: Equation, keys: Keys) -> Keys:
    return _derive(g, eqn, lambda index: _words(g, keys, index, tuple(eqn.outputs[0].shape)))


def _bits(g: Lowering, eqn: Equation, keys: Keys) -> Array:
    _check(eqn.inputs[0].dtype)
    out = eqn.outputs[0]
    c = c_type(out.dtype)
    form = "((uint64_t){0}<<32)|(uint64_t){1}" if eqn.params["bit_width"] == 64 else f"({c})({{0}}^{{1}})"
    shape = tuple(out.shape)
    return g.arrays.lazy(out, lambda i: g.build.let(c, form, *_words(g, keys, i, shape)), True, frozenset())


def _words(g: Lowering, keys: Keys, index: tuple[Index, ...], shape: tuple[int, ...]) -> tuple[Atom, Atom]:
    """Compute the two words of an entry: the first axes of its index are those of the keys, the others count."""
    rank = len(keys.shape)
    place = g.arrays.linear_index(index[rank:], arrays.row_strides(shape[rank:]))
    count = literal(place, _WORD) if isinstance(place, int) else g.build.let("uint32_t", "(uint32_t){0}", place)
    return _threefry(g, keys, index[:rank], count)


def _threefry(g: Lowering, keys: Keys, index: tuple[Index, ...], count: Atom) -> tuple[Atom, Atom]:
    """Compute the two words of a key at the counter (0, count)."""
    k0, k1 = (g.arrays.entry(half, index) for half in keys.halves)

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


def _as_word(g: Lowering, atom: Atom) -> Atom:
    if isinstance(atom, Lit):
        return literal(int(atom.value) & 0xFFFFFFFF, _WORD)
    return atom if atom.c == "uint32_t" else g.build.let("uint32_t", "(uint32_t){0}", atom)


def _check(dtype: np.dtype) -> None:
    """Refuse keys of another generator; those of JAX give the same bits unless their counters are set otherwise."""
    name = str(dtype)
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if name != "key<tc>" and not (name == "key<fry>" and partitionable):
        raise Unsupported(f"random numbers of the kind {name} are not generated")


RULES: dict[str, LoweringRule] = {
    "random_wrap": _wrap,
    "random_unwrap": _unwrap,
    "random_seed": _seed,
    "random_fold_in": _fold_in,
    "random_split": _split,
    "random_bits": _bits,
}
