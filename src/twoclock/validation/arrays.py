"""Checks of a user's arrays and pytrees, and type names of arrays for annotations."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt32
from numpy.typing import ArrayLike

from twoclock.protocols import InputError, PyTree
from twoclock.validation import number, short_repr

Array = jax.Array | np.ndarray
"""NumPy's outside a trace, JAX's inside one."""
if TYPE_CHECKING:
    Number = Float[Array, ""]
else:  # a plain number counts as an array without axes
    Number = Float[Array, ""] | np.floating | float
Vector = Float[Array, " d"]
MatrixLike = Annotated[Any, Float[np.ndarray, "p q"]]  # anything that NumPy reads; an array once it is checked
State = Int[Array, ""]
"""The number of a state or of an action."""
Words = UInt32[Array, " words"]
"""Random bits, a word of 32 for each choice."""

_DEEPEST = 100  # JAX refuses deeper trees with an error that names no argument
_SUM_TOLERANCE = 1e-6  # a table stored in float32 passes


def as_array(
    name: str, value: object, what: str = "an array of numbers", *, finite: bool = True
) -> Float[np.ndarray, "*shape"]:
    """The value as a float64 array. Text, which NumPy would convert, and masked entries are refused."""
    if np.ma.is_masked(value):
        raise InputError(f"`{name}` must have no masked entries, which have no value; fill them first")
    try:
        given = np.asarray(value)
        text = given.dtype == object and any(isinstance(entry, (str, bytes)) for entry in given.flat)
        if value is None or text or given.dtype.kind not in "biufO":
            raise TypeError
        new = given.astype(np.float64)
    except (TypeError, ValueError, OverflowError):  # what JAX raises for a tracer is a TypeError too
        raise InputError(f"`{name}` must be {what}, got {type(value).__name__}") from None
    if finite and not np.isfinite(new).all():
        raise InputError(f"`{name}` must be finite, got {new[~np.isfinite(new)].flat[0]}")
    return new


def shaped(
    name: str, value: object, *shapes: tuple[int, ...], which: str = "", finite: bool = True
) -> Float[np.ndarray, "*shape"]:
    """The value as an array with one of these shapes; ``which`` follows them in the error, to say what they are."""
    new = as_array(name, value, finite=finite)
    if new.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise InputError(f"`{name}` must have the shape {wanted}{which}, got {new.shape}")
    return new


def check_distributions(name: str, table: Float[np.ndarray, "*rows n"], row: str) -> Float[np.ndarray, "*rows n"]:
    """The table with rows, along the last axis, that are probability distributions; scaled to sum to 1 in float64."""
    if (table < 0).any():
        where = tuple(map(int, np.argwhere(table < 0)[0]))
        raise InputError(f"`{name}` must hold probabilities, got {table[where]:g} at {list(where)}")
    sums = table.sum(axis=-1)
    wrong = np.abs(sums - 1) > _SUM_TOLERANCE
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        index = ", ".join(map(str, at))
        raise InputError(
            f"`{name}[{index}]` must sum to 1, got {sums[at]:.6g}; each row {row} is a probability distribution"
        )
    return table / sums[..., None]


def check_distribution(name: str, value: object, states: int, remedy: str) -> Float[np.ndarray, " s"]:
    """The value as a probability distribution over the states."""
    new = as_array(name, value)
    fits = new.shape == (states,)
    if not fits or (new < 0).any() or abs(new.sum() - 1) > _SUM_TOLERANCE:
        negative = "a negative entry" if (new < 0).any() else f"a sum of {new.sum():.6g}"
        got = negative if fits else f"the shape {new.shape}"
        raise InputError(
            f"`{name}` must be a distribution over the {states} states, not negative and with sum 1, "
            f"got {got}; {remedy}"
        )
    return new / new.sum()


def matrix(name: str, value: object) -> Float[np.ndarray, "p q"]:
    """The value as a finite float64 matrix."""
    new = as_array(name, value, "a matrix of numbers")
    if new.ndim != 2 or not new.size:
        raise InputError(f"`{name}` must be a matrix, got shape {new.shape}; write a column as [[a], [b]]")
    return new


def finite_number(what: str, value: object, least: float = -np.inf) -> np.float64:
    """The value in float64, from ``least`` on: a leaf of a program, which JAX may replace."""
    return np.float64(number(what, value, least))


def positive(what: str, value: object) -> np.float64:
    return np.float64(number(what, value, 0, above=True))


def square_matrix(name: str, value: object) -> Float[np.ndarray, "n n"]:
    """Check a square matrix, and return it as an array."""
    new = matrix(name, value)
    if new.shape[0] != new.shape[1]:
        raise InputError(f"`{name}` must be square, got shape {new.shape}")
    return new


def definite(name: str, value: Float[np.ndarray, "n n"], floor: float) -> None:
    """Check that the matrix is symmetric and its eigenvalues lie above ``floor``, relative to its size."""
    kind = "definite" if floor == 0 else "semidefinite"
    if not np.allclose(value, value.T, rtol=0, atol=1e-10 * np.abs(value).max()):
        raise InputError(f"`{name}` must be symmetric positive {kind}, got one that is not symmetric; try (M + Mᵀ)/2")
    smallest = np.linalg.eigvalsh(value)[0]
    if smallest <= floor * max(1.0, np.abs(value).max()):
        raise InputError(f"`{name}` must be symmetric positive {kind}, got the smallest eigenvalue {smallest:.3g}")


def check_regulator(A: Float[np.ndarray, "n n"], B: Float[np.ndarray, "n m"], Q: Float[np.ndarray, "n n"]) -> None:
    """Raise an error unless some gain stabilises the system and every mode that does not decay has a cost."""
    if (mode := _lasting_mode_without(A, B)) is not None:
        raise InputError(f"`(A, B)` must be stabilisable: no gain moves the mode {mode:.4g} of `A`")
    if (mode := _lasting_mode_without(A.T, Q)) is not None:
        raise InputError(
            f"`(A, Q)` must be detectable: the mode {mode:.4g} of `A` does not decay and costs nothing; give it some "
            "weight in `Q`"
        )


def _lasting_mode_without(A: Float[np.ndarray, "n n"], B: Float[np.ndarray, "n m"]) -> complex | float | None:
    """An eigenvalue of A on or outside the unit circle that B does not reach, by Hautus's test, or None."""
    n = len(A)
    for mode in np.linalg.eigvals(A):
        if abs(mode) >= 1 - 1e-12:
            singular = np.linalg.svd(np.hstack([A - mode * np.eye(n), B]), compute_uv=False)
            if singular[n - 1] <= 1e-10 * singular[0]:
                return complex(mode) if np.imag(mode) else float(np.real(mode))
    return None


def flatten_tree(name: str, tree: PyTree) -> tuple[list[tuple[tuple[object, ...], PyTree]], jax.tree_util.PyTreeDef]:
    """The leaves of a tree with their paths, and its structure, if JAX can take it apart."""
    try:
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    except (ValueError, TypeError, RecursionError, SystemError):
        leaves, structure = [], None
    if structure is None or any(len(path) > _DEEPEST for path, _ in leaves):
        raise InputError(
            f"`{name}` must be an array or a dict, list or tuple of them, not too deep and with keys of one kind"
        )
    return leaves, structure


def as_numpy(name: str, tree: PyTree) -> PyTree:
    """The leaves of a tree as NumPy arrays."""
    leaves, _ = flatten_tree(name, tree)
    for path, leaf in leaves:
        key = jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key)
        if key or np.ma.is_masked(leaf):
            got = "a key of JAX" if key else "masked entries"
            raise InputError(f"`{name}{jax.tree_util.keystr(path)}` must hold numbers, got {got}")
    return jax.tree.map(np.asarray, tree)


def check_start(name: str, tree: PyTree, *, may_be_empty: bool = False, real: bool = True) -> None:
    """Check that the start of a variable is a pytree of numbers; also truth values and complex ones if not ``real``."""
    leaves, _ = flatten_tree(name, tree)
    if not leaves and not may_be_empty:
        raise InputError(f"`{name}` must hold at least one number, got {short_repr(tree)}; try np.zeros(1)")
    for path, leaf in leaves:
        where, hint = name + jax.tree_util.keystr(path), "call it first" if callable(leaf) else "write 0.0 or so"
        if getattr(getattr(leaf, "dtype", None), "kind", "f") in "OSUmM":
            raise InputError(f"`{where}` must be an array of numbers, got one of {leaf.dtype}; {hint}")
        kind = numbers.Real if real else numbers.Number
        if not (hasattr(leaf, "dtype") or isinstance(leaf, kind)) or (real and isinstance(leaf, bool)):
            raise InputError(f"`{where}` must be a number or an array, got {type(leaf).__name__}; {hint}")
        if np.ma.is_masked(leaf):
            raise InputError(f"`{where}` must have no masked entries, which have no value; fill them first")
        if isinstance(leaf, int) and abs(leaf) >= (10**308 if real else 2**63):
            holder = "a float" if real else "an array"
            raise InputError(f"`{where}` must be a number that {holder} can hold, got {short_repr(leaf)}")


def check_costs(Q: ArrayLike, R: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The cost of states and of actions as matrices, semidefinite and definite."""
    checked = matrix("Q", Q), matrix("R", R)
    for name, value, floor in zip("QR", checked, (-1e-12, 0.0), strict=True):
        if value.shape[0] != value.shape[1]:
            raise InputError(f"`{name}` must be square, got shape {value.shape}")
        definite(name, value, floor)
    return checked


def first_gain(K0: np.ndarray, m: int, p: int, n: int) -> np.ndarray:
    """Complete the first gain to a column per entry of the state; columns of older outputs and actions may be left
    out."""
    if K0.shape in ((m, n), (m, p)):
        return np.pad(K0, ((0, 0), (0, n - K0.shape[1])))
    remedy = ""
    if K0.ndim == 1 and len(K0) == m * p and 1 in (m, p):
        rows = K0.reshape(m, p).tolist()
        remedy = f"; write it as {rows}"
    raise InputError(
        f"`K0` must have a row for each action and a column for each state, {(m, p)}, got {K0.shape}{remedy}"
    )


def check_vector(name: str, value: ArrayLike, size: int) -> np.ndarray:
    """A state, output or action as a finite vector."""
    try:
        new = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"`{name}` must be a vector of {size} numbers, got {short_repr(value)}") from None
    if new.shape != (size,):
        raise InputError(f"`{name}` must have shape {(size,)}, got {new.shape}")
    if not np.isfinite(new).all():
        raise InputError(f"`{name}` must be finite, got {short_repr(new.tolist())}; the plant has left all bounds")
    return new
