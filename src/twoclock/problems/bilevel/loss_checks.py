"""What problems made of a user's losses share: their checks, means over batches, and the truth that a user may give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import sampling
from twoclock.indexed_batch import IndexedBatch
from twoclock.protocols import InputError, Key, PyTree, Scalar, pytree, static
from twoclock.sampling.minibatches import Sampler
from twoclock.validation import as_numpy, function, shape_from, shown
from twoclock.validation.arrays import Number

T = TypeVar("T")
Loss = Callable[..., Number]
Measure = Callable[[PyTree, PyTree], Mapping[str, Scalar]]

# Numbers in the batches that a curvature is measured on, at most.
_PROBE_NUMBERS = 1 << 22
_PROBES = 256


@pytree
class MeasureOnly:
    """A truth of which a user gives no more than ``measure(theta, omega) -> {name: scalar}``."""

    measure: Measure = static()


def truth_of(truth: T | None, measure: Measure | None) -> T | MeasureOnly | None:
    """The truth that a user gives, or else what is measured."""
    if truth is not None or measure is None:
        return truth
    function("measure", measure, "theta", "omega")
    return MeasureOnly(measure)


def floats(tree: PyTree, name: str) -> PyTree:
    """The start of a variable as NumPy arrays of floats, which a run casts to its precision."""

    def one(leaf: object) -> np.ndarray:
        array = np.asarray(leaf)
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            got = {"U": "text", "f": "NaN or infinity", "O": type(leaf).__name__}.get(array.dtype.kind, array.dtype)
            raise InputError(f"`{name}` must start from finite numbers, got {got} in it")
        return array.astype(float) if not np.issubdtype(array.dtype, np.floating) else array

    as_numpy(name, tree)  # complains of what JAX cannot take apart
    found = jax.tree.map(one, tree)
    if not jax.tree.leaves(found):
        raise InputError(f"`{name}` must hold at least one number, got {shown(tree)}")
    return found


def arrays(tree: PyTree) -> PyTree:
    """The leaves as JAX arrays, floats in JAX's present default precision."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, float if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating) else None), tree
    )


def first_batch(sampler: Sampler, names: tuple[str, ...]) -> PyTree:
    """The shapes of a batch, or of a pair of them, whose arrays must have one length each."""
    key = jax.random.key(0)
    drawn = shape_from("sampler", lambda: sampler.draw(sampler.noise(key), sampler.init(key)))
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        raise InputError(f"`sampler.draw` must return the pair (batch, env), got {type(drawn).__name__}")
    batch, _ = drawn
    if len(names) > 1 and not (isinstance(batch, tuple | list) and len(batch) == len(names)):
        raise InputError(
            f"`sampler` must give a pair ({', '.join(names)}), got {type(batch).__name__}; "
            "return two batches, which may be the same"
        )
    for part, name in zip(batch if len(names) > 1 else (batch,), names, strict=True):
        if jax.tree.leaves(part):  # a loss without noise has an empty batch
            sampling.common_length(part, name)
    return batch


def check_scalar(loss: Loss, name: str, *args: PyTree) -> None:
    """A loss is one number a batch; its arguments are one or two variables and the batch."""
    function(name, loss, *(("x", "y", "batch") if len(args) == 3 else ("omega", "batch")))
    out = shape_from(name, loss, *args)
    shape = getattr(out, "shape", None)
    if shape != ():
        got = f"shape {shape}" if shape is not None else type(out).__name__
        raise InputError(f"`{name}` must return one number, got {got}; take the mean over the batch")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise InputError(f"`{name}` must return a floating-point number, got {out.dtype}")


def probes(sampler: Sampler, unknowns: int) -> PyTree:
    """Batches to measure curvature on, stacked: all of finite data, else enough draws that curvature can show."""
    whole = sampling.epoch(sampler)
    if whole is not None:
        return whole

    def draw(key: Key) -> PyTree:
        start, step = jax.random.split(key)
        return sampler.draw(sampler.noise(step), sampler.init(start))[0]

    size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(draw, jax.random.key(0))))
    count = max(8, min(max(_PROBES, 4 * unknowns), _PROBE_NUMBERS // max(size, 1)))
    return jax.vmap(draw)(jax.random.split(jax.random.key(0), count))


def of_batch(loss: Loss, batch: PyTree) -> Loss:
    """The loss on a batch, plain or numbered; zero on one that is left out."""
    if not isinstance(batch, IndexedBatch):
        return lambda *point: loss(*point, batch)
    if batch.left_out:
        return lambda *point: jnp.zeros(())
    return lambda *point: loss(*point, batch.batch)


def mean_loss(loss: Loss, batches: PyTree) -> Loss:
    """The loss averaged over stacked batches."""
    if not jax.tree.leaves(batches):
        return lambda *point: loss(*point, batches)
    return lambda *point: jnp.mean(jax.vmap(lambda batch: loss(*point, batch))(batches))
