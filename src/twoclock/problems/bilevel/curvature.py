"""How curved an inner problem is, from products with its derivatives alone: eigenvalues without matrices."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from twoclock.protocols import InputError, PyTree
from twoclock.validation.arrays import Array, Number

_DENSE = 128  # up to so many unknowns the matrix itself is looked at
_FLAT = 1e-7
Product = Callable[[Float[np.ndarray, " n"]], Array]


class CurvatureWarning(UserWarning):
    """An inner loss is not strongly convex where it was measured."""


def extremes(product: Product, size: int) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of a symmetric operator; NaN where they cannot be had."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    if size <= _DENSE:
        matrix = np.stack([np.asarray(product(row)) for row in np.eye(size)])
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2) if np.isfinite(matrix).all() else np.full(size, np.nan)
        return float(values[0]), float(values[-1])

    def top(product: Product) -> float:
        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        v0 = np.random.default_rng(0).standard_normal(size)
        return float(eigsh(operator, 1, which="LA", v0=v0, ncv=_DENSE, maxiter=20, tol=1e-8)[0][0])

    try:
        largest = top(product)
        return largest - top(lambda v: largest * v - product(v)), largest
    except ArpackError:
        return float("nan"), float("nan")


class Inner:
    """The mean inner problem at a fixed x, seen through products: H = ∇²_yy g and T, the slope of v's row in y."""

    def __init__(self, loss: Callable[[PyTree], Number], row: Callable[[PyTree, PyTree], PyTree], y: PyTree) -> None:
        self.start, self.back = ravel_pytree(y)
        self.size = self.start.size
        gradient = jax.grad(loss)

        def flat(tree: PyTree) -> jax.Array:
            return ravel_pytree(tree)[0]

        def grad(y: jax.Array) -> jax.Array:
            return flat(gradient(self.back(y)))

        def v_row(y: jax.Array, v: jax.Array) -> jax.Array:
            return flat(row(self.back(y), self.back(v)))

        self.both = jax.jit(jax.value_and_grad(lambda y: loss(self.back(y))))
        self.v_row = jax.jit(v_row)
        self.hessian = jax.jit(lambda y, d: jax.jvp(grad, (y,), (d,))[1])
        self.slope = jax.jit(lambda y, v, d: jax.jvp(lambda y: v_row(y, v), (y,), (d,))[1])
        self.slope_back = jax.jit(lambda y, v, d: jax.vjp(lambda y: v_row(y, v), y)[1](d)[0])

    def curvature(self, y: Float[Array, " n"]) -> tuple[float, float]:
        """The smallest and the largest eigenvalue of H at y."""
        return extremes(lambda d: np.asarray(self.hessian(y, jnp.asarray(d))), self.size)

    def joint(self, y: Float[Array, " n"], v: Float[Array, " n"], s: float) -> float:
        """The smallest eigenvalue of the symmetric part of [[H, 0], [sT, sH]], the slope of G in (y, v)."""

        def product(d: np.ndarray) -> np.ndarray:
            a, b = jnp.asarray(d[: self.size]), jnp.asarray(d[self.size :])
            top = self.hessian(y, a) + s / 2 * self.slope_back(y, v, b)
            low = s / 2 * self.slope(y, v, a) + s * self.hessian(y, b)
            return np.concatenate([top, low])

        return extremes(product, 2 * self.size)[0]

    def solution(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """About y* and v*, where a run will spend its time: minimise, then solve Hv = ∇_y f."""
        from scipy.optimize import minimize
        from scipy.sparse.linalg import LinearOperator, cg

        def both(y: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self.both(jnp.asarray(y))
            return float(value), np.asarray(slope)

        found = minimize(both, np.asarray(self.start), jac=True, method="L-BFGS-B", options={"maxiter": 200})
        y = jnp.asarray(found.x)
        operator = LinearOperator(
            (self.size, self.size), matvec=lambda d: np.asarray(self.hessian(y, jnp.asarray(d))), dtype=float
        )
        v, _ = cg(operator, -np.asarray(self.v_row(y, jnp.zeros_like(y))), rtol=1e-3, maxiter=200)
        return y, jnp.asarray(v)


def is_curved(curvature: tuple[float, float]) -> bool:
    """Whether the smallest eigenvalue is positive, against the largest."""
    smallest, largest = curvature
    return smallest > _FLAT * max(largest, 0.0)


def refuse_flat(curvature: tuple[float, float], loss: str, remedy: str) -> None:
    if not is_curved(curvature):
        raise InputError(
            f"`{loss}`, and so G, is not strongly monotone as measured: its curvature in y goes from "
            f"{curvature[0]:.3g} to {curvature[1]:.3g} near the start; {remedy}"
        )


def warn_of_flatness(inner: Inner) -> None:
    """Say what was measured of an inner loss that is not strongly convex in y, and refuse one that has no minimum."""
    here = inner.curvature(inner.start)
    if is_curved(here):
        return
    if not here[1] > 0:
        refuse_flat(here, "inner", "a minimum needs positive curvature: add a term such as 1e-3·‖y‖² to it")
    there = inner.curvature(inner.solution()[0])
    warnings.warn(
        f"`inner`, and so G, is not strongly monotone as measured: its curvature in y goes from {here[0]:.3g} to "
        f"{here[1]:.3g} at the start and from {there[0]:.3g} to {there[1]:.3g} where it was minimised, so v may not "
        "settle; add a term such as 1e-3·‖y‖² to it, or pass check=False to hear no more of it",
        CurvatureWarning,
        stacklevel=3,
    )


def choose_v_scale(inner: Inner) -> float:
    """The largest s of 1, ½, ¼, … at which G keeps half of what strong monotonicity sH alone would give.

    The symmetric part of [[H, 0], [sT, sH]] is positive definite for s < 4/‖H^−½ T H^−½‖² and its smallest eigenvalue
    is at most sμ. So s must be small where the outer loss curves much more than the inner one, and need not be smaller.
    It is measured at the start and at the inner solution, where H is positive definite; 1 where it is at neither.
    """
    points = [(inner.start, jnp.zeros_like(inner.start)), inner.solution()]
    curved = [(y, v, low) for y, v in points for low, high in [inner.curvature(y)] if is_curved((low, high))]
    for s in 0.5 ** np.arange(40):
        if all(inner.joint(y, v, s) >= s * low / 2 for y, v, low in curved):
            return float(s)
    raise InputError(
        "`v_scale` cannot be chosen: no scale makes G strongly monotone as measured; give a number, say 0.1"
    )
