"""What a sample from outside looks like: as the first one did. Any other is refused before it is learnt from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.protocols import InputError, PyTree
from twoclock.validation import flattened, shown


@dataclass(frozen=True, eq=False)
class Layout:
    """The structure of a sample, and the shapes and types of its arrays; floats are in the precision of the run."""

    structure: jax.tree_util.PyTreeDef
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]

    @classmethod
    def of(cls, x: PyTree) -> Layout:
        """Of an example, or of the shapes of one."""
        found, structure = flattened("x", x)
        names = tuple("x" + jax.tree_util.keystr(path) for path, _ in found)
        dtypes = tuple(_dtype(name, leaf) for name, (_, leaf) in zip(names, found, strict=True))
        return cls(structure, names, tuple(np.shape(leaf) for _, leaf in found), dtypes)

    @property
    def example(self) -> PyTree:
        """The shapes of a sample."""
        leaves = [jax.ShapeDtypeStruct(*of) for of in zip(self.shapes, self.dtypes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def words(self) -> str:
        """For a record, to be compared with."""
        leaves = ", ".join(f"{n} {d}{list(s)}" for n, d, s in zip(self.names, self.dtypes, self.shapes, strict=True))
        return f"{self.structure}: {leaves}"

    def buffers(self, count: int) -> list[np.ndarray]:
        """Room for so many samples, one after the other."""
        return [np.zeros((count, *shape), dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]

    def put(self, x: PyTree, places: list[np.ndarray]) -> None:
        """Copy a sample into arrays of its shapes."""
        leaves, structure = _flat("x", x)
        if structure != self.structure:
            raise InputError(f"`x` must have the structure of the first sample, {self.structure}, got {structure}")
        for i, leaf in enumerate(leaves):
            place = places[i]
            if getattr(leaf, "shape", ()) != place.shape:
                raise InputError(f"`{self.names[i]}` must have shape {place.shape}, as first, got {np.shape(leaf)}")
            try:
                np.copyto(place, leaf, casting="same_kind")
            except (TypeError, ValueError, OverflowError):
                raise self._other_type(i, leaf) from None

    def batch(self, x: PyTree) -> list[np.ndarray]:
        """The batch of one sample."""
        buffers = self.buffers(1)
        self.put(x, [buffer.reshape(buffer.shape[1:]) for buffer in buffers])
        return buffers

    def many(self, xs: PyTree) -> tuple[int, list[np.ndarray]]:
        """How many samples a batch has, and its arrays in one piece each, copied only where need be."""
        leaves, structure = _flat("xs", xs)
        if structure != self.structure and isinstance(xs, list):
            together = self.buffers(len(xs))
            for i, x in enumerate(xs):
                self.put(x, [buffer[i : i + 1].reshape(buffer.shape[1:]) for buffer in together])
            return len(xs), together
        if structure != self.structure:
            raise InputError(
                f"`xs` must have the structure of a sample, {self.structure}, each array with a leading axis, or be a "
                f"list of samples; got {structure}"
            )
        arrays, count = [], None
        for i, leaf in enumerate(leaves):
            array, shape = np.asarray(leaf), self.shapes[i]
            if array.ndim != len(shape) + 1 or array.shape[1:] != shape or count not in (None, len(array)):
                want = f"({'samples' if count is None else count}, {', '.join(map(str, shape))}"
                raise InputError(f"`{self.names[i]}` in `xs` must have shape {want.rstrip(', ')}), got {array.shape}")
            if not np.can_cast(array.dtype, self.dtypes[i], casting="same_kind"):
                raise self._other_type(i, array)
            arrays.append(np.ascontiguousarray(array, self.dtypes[i]))
            count = len(array)
        if count is None:
            raise InputError("`xs` must hold an array at least, whose length is the number of samples; use `update`")
        return count, arrays

    def not_finite(self, arrays: list[np.ndarray]) -> str | None:
        """The name of an entry of one sample that is no finite number."""
        for name, array in zip(self.names, arrays, strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"{name} = {shown(array.tolist())}"
        return None

    def _other_type(self, i: int, leaf: object) -> InputError:
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        return InputError(
            f"`{self.names[i]}` must be {self.dtypes[i]}, as in the first sample, got {kind}; write 0.0 for 0 in the "
            "first where floats are meant"
        )


def _flat(name: str, x: PyTree) -> tuple[list[Any], jax.tree_util.PyTreeDef]:
    """The leaves and the structure, at the speed of a live loop; what JAX cannot take apart gets the slower words."""
    try:
        return jax.tree.flatten(x)
    except Exception:
        flattened(name, x)
        raise


def _dtype(name: str, leaf: object) -> np.dtype:
    try:
        dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        if dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be a number or an array of numbers, got {shown(leaf)}") from None
    return np.dtype(jnp.result_type(float) if dtype.kind == "f" else jax.dtypes.canonicalize_dtype(dtype))
