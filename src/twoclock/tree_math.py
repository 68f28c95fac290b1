"""Arithmetic on pytrees of floating-point arrays, and sums that do not freeze in float32.

Below float64 a denoised step α·f soon falls under one unit in the last place of θ and the run would freeze. So sums
over the steps are a ``Sum``, which has a *residue*: the rounding error, added back at the next step (Kahan, *Further
remarks on reducing truncation errors*, 1965). In float64 the residue is None and costs nothing.

In a large float32 array the residue of an entry takes two bytes, the digits of bfloat16. Of the 24 digits that float32
loses it keeps 8, so that a sum still grows by steps of 2⁻³² of its size. They are stored as whole numbers, which every
engine and every file can hold.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from twoclock.protocols import Floats, InputError, Scalar, pytree

AnyArray = jax.Array | np.ndarray
# Entries of an array from which its residues are short: memory and its traffic are then what a step costs.
_LARGE = 1 << 16


@pytree
class Sum:
    """A pytree that is added to at every step, with its rounding error.

    >>> total = start(jnp.float32(1))
    >>> for _ in range(4):
    ...     total = add(total, jnp.float32(2**-25))
    >>> total.value.item() - 1 == 2**-23
    True
    """

    value: Floats
    residue: PyTree | None


def start(value: PyTree, name: str = "value") -> Sum:
    """A sum that starts from the value; ``name`` is for the error about leaves that are not floats."""
    value = as_floats(name, value)
    if all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(value)):
        return Sum(value, None)
    return Sum(value, jax.tree.map(_no_residue, value))


def _no_residue(leaf: Array) -> Array:
    short = leaf.dtype == jnp.float32 and leaf.size >= _LARGE
    return jnp.zeros(leaf.shape, jnp.uint16 if short else leaf.dtype)


def _read(residue: Array) -> Array:
    if residue.dtype != jnp.uint16:
        return residue
    return jax.lax.bitcast_convert_type(residue.astype(jnp.uint32) << jnp.uint32(16), jnp.float32)


def _round(residue: Array, like: Array) -> Array:
    """The residue in the form of another: a short one is rounded to the nearest, and of two to the even one."""
    if like.dtype != jnp.uint16:
        return residue
    bits = jax.lax.bitcast_convert_type(residue, jnp.uint32)
    odd = (bits >> jnp.uint32(16)) & jnp.uint32(1)
    return ((bits + jnp.uint32(0x7FFF) + odd) >> jnp.uint32(16)).astype(jnp.uint16)


def add(total: Sum, step: PyTree) -> Sum:
    """``total + step``."""
    step = jax.tree.map(_like, step, total.value)
    if total.residue is None:
        return Sum(jax.tree.map(jnp.add, total.value, step), None)
    whole = jax.tree.map(lambda s, r: s + _read(r), step, total.residue)
    value = jax.tree.map(jnp.add, total.value, whole)

    def rest(w: Array, new: Array, old: Array, r: Array) -> Array:
        return _round(w - (new - old), r)

    return Sum(value, jax.tree.map(rest, whole, value, total.value, total.residue))


Sizes = Scalar | tuple[Scalar, ...]  # one for a whole pytree, or one for each entry of a tuple


def descend(x: Sum, size: Sizes, direction: PyTree) -> Sum:
    """``x − size·direction``."""

    def one(leaf: Array, d: ArrayLike, size: Scalar) -> Array:
        return -_like(size, leaf) * _like(d, leaf)

    return add(x, jax.tree.map(one, x.value, direction, jax.tree.broadcast(size, x.value)))


def blend(mean: Sum, weight: Sizes, value: PyTree) -> Sum:
    """``(1 − weight)·mean + weight·value``. In float64 a weight of 1 gives exactly the value.

    In float32, where 1 − weight is soon 1, the mean moves by its difference from the value.
    """
    weights = jax.tree.broadcast(weight, mean.value)
    if mean.residue is not None:
        return add(mean, jax.tree.map(lambda m, v, w: _like(w, m) * (_like(v, m) - m), mean.value, value, weights))

    def one(m: Array, v: ArrayLike, w: Scalar) -> Array:
        if m.dtype != jnp.float64:
            return m + _like(w, m) * (_like(v, m) - m)
        return (1 - _like(w, m)) * m + _like(w, m) * _like(v, m)

    return Sum(jax.tree.map(one, mean.value, value, weights), None)


def as_floats(name: str, tree: PyTree) -> Floats:
    """The tree with arrays for leaves; float64 becomes float32 where JAX is set to that. Only floats are taken."""

    def convert(path: tuple[object, ...], leaf: object) -> Array:
        what = name + jax.tree_util.keystr(path)
        dtype = jnp.result_type(leaf) if isinstance(leaf, (int, float, complex)) else getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            raise InputError(f"`{what}` must be floating point, got {dtype or type(leaf).__name__}; write 0.0 for 0")
        return jnp.asarray(leaf, jax.dtypes.canonicalize_dtype(dtype))

    return jax.tree_util.tree_map_with_path(convert, tree)


def sqnorm(tree: PyTree) -> Float[Array, ""]:
    """Squared Euclidean norm over all leaves, in their own precision."""
    first, *rest = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)] or [jnp.zeros(())]
    return sum(rest, first)


def absolute(tree: PyTree) -> Float[Array, ""]:
    """The sum of all entries' absolute values, ‖·‖₁, in their own precision."""
    return jnp.asarray(sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)))


def size(tree: PyTree) -> int:
    """The number of entries of all leaves together."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(tree))


def as_vector(tree: PyTree, lanes: tuple[int, ...] = ()) -> tuple[AnyArray, int, Callable[[AnyArray], PyTree]]:
    """The leaves of each lane as one vector, of JAX or of NumPy; how many entries it has; and the inverse function."""
    leaves, structure = jax.tree.flatten(tree)
    flat = [leaf.reshape((*lanes, -1)) for leaf in leaves]
    ends = np.cumsum([part.shape[-1] for part in flat]).tolist()

    def back(z: AnyArray) -> PyTree:
        parts = zip(leaves, [0, *ends], ends, strict=False)
        entries = [z[..., a:b].reshape(leaf.shape).astype(leaf.dtype) for leaf, a, b in parts]
        return jax.tree.unflatten(structure, entries)

    return flat[0].__array_namespace__().concatenate(flat, axis=-1), sum(ends[-1:]), back


def select(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    """The new tree where the condition holds, in the precision of the old one, which it is elsewhere."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a.astype(b.dtype), b), new, old)


def difference(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.subtract, a, b)


def _pinv(matrix: Float[Array, "n m"]) -> Float[Array, "m n"]:
    return jnp.linalg.pinv(matrix)


# The pseudo-inverse, one matrix after the other under vmap. JAX gives a batch of LAPACK calls to the pool of threads on
# which it waits: two batches at once, one for each group of seeds, can each hold a thread of a pool of two and wait
# without end.
pinv: Callable[[Array], Array] = jax.custom_batching.sequential_vmap(_pinv)


def _like(value: ArrayLike, leaf: Array) -> Array:
    """The value in the leaf's precision, which JAX must have here."""
    if leaf.dtype == jnp.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise InputError(
            "the state is float64 and JAX is set to float32 here; step inside `jax.enable_x64(True)`, "
            "or make the state with `init` outside it"
        )
    return jnp.asarray(value, leaf.dtype)
