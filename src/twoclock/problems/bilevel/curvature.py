"""How curved an inner problem is, from products with its derivatives alone: eigenvalues without matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from twoclock.core import InputError, PyTree

_LANCZOS = 128
_FLAT = 1e-7
Product = Callable[[np.ndarray], np.ndarray]


def extremes(product: Product, size: int) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of a symmetric operator, by Lanczos; beyond 128 unknowns an estimate."""
    from scipy.linalg import eigvalsh_tridiagonal

    q = np.random.default_rng(0).standard_normal(size)
    basis, diagonal, beside = [q / np.linalg.norm(q)], [], []
    for _ in range(min(size, _LANCZOS)):
        w = np.asarray(product(basis[-1]))
        diagonal.append(float(basis[-1] @ w))
        for _ in range(2):  # once is not enough for the basis to stay orthogonal
            w = w - np.stack(basis).T @ (np.stack(basis) @ w)
        length = float(np.linalg.norm(w))
        if not length > 1e-12 * max(map(abs, diagonal)):
            break
        beside.append(length)
        basis.append(w / length)
    if not np.isfinite(diagonal).all():
        return float("nan"), float("nan")
    values = eigvalsh_tridiagonal(diagonal, beside[: len(diagonal) - 1])
    return float(values[0]), float(values[-1])


class Inner:
    """The mean inner problem at a fixed x, seen through products: H = ∇²_yy g and T, the slope of v's row in y."""

    def __init__(self, loss: Any, row: Any, y: PyTree) -> None:
        self.start, self.back = ravel_pytree(y)
        self.size = self.start.size
        gradient = jax.grad(loss)

        def flat(tree: PyTree) -> jax.Array:
            return ravel_pytree(tree)[0]

        def grad(y: Any) -> Any:
            return flat(gradient(self.back(y)))

        def v_row(y: Any, v: Any) -> Any:
            return flat(row(self.back(y), self.back(v)))

        self.both = jax.jit(jax.value_and_grad(lambda y: loss(self.back(y))))
        self.v_row = jax.jit(v_row)
        self.hessian = jax.jit(lambda y, d: jax.jvp(grad, (y,), (d,))[1])
        self.slope = jax.jit(lambda y, v, d: jax.jvp(lambda y: v_row(y, v), (y,), (d,))[1])
        self.slope_back = jax.jit(lambda y, v, d: jax.vjp(lambda y: v_row(y, v), y)[1](d)[0])

    def curvature(self, y: Any) -> tuple[float, float]:
        """The smallest and the largest eigenvalue of H at y."""
        return extremes(lambda d: np.asarray(self.hessian(y, jnp.asarray(d))), self.size)

    def joint(self, y: Any, v: Any, s: float) -> float:
        """The smallest eigenvalue of the symmetric part of [[H, 0], [sT, sH]], the slope of G in (y, v)."""

        def product(d: np.ndarray) -> np.ndarray:
            a, b = jnp.asarray(d[: self.size]), jnp.asarray(d[self.size :])
            top = self.hessian(y, a) + s / 2 * self.slope_back(y, v, b)
            low = s / 2 * self.slope(y, v, a) + s * self.hessian(y, b)
            return np.concatenate([top, low])

        return extremes(product, 2 * self.size)[0]

    def solution(self) -> tuple[Any, Any]:
        """About y* and v*, where a run will spend its time: minimise, then solve Hv = ∇_y f."""
        from scipy.optimize import minimize
        from scipy.sparse.linalg import LinearOperator, cg

        def both(y: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self.both(jnp.asarray(y))
            return float(value), np.asarray(slope)

        found = minimize(both, np.asarray(self.start), jac=True, method="L-BFGS-B", options={"maxiter": 200})
        y = jnp.asarray(found.x)
        operator: Any = LinearOperator(
            (self.size, self.size), matvec=lambda d: np.asarray(self.hessian(y, jnp.asarray(d))), dtype=float
        )
        v, _ = cg(operator, -np.asarray(self.v_row(y, jnp.zeros_like(y))), rtol=1e-3, maxiter=200)
        return y, jnp.asarray(v)


def check_curved(smallest: float, largest: float, loss: str, remedy: str) -> None:
    if not smallest > _FLAT * max(largest, 0.0):
        raise InputError(
            f"`{loss}`, and so G, is not strongly monotone as measured: its curvature in y goes from {smallest:.3g} to "
            f"{largest:.3g} near the start; {remedy}"
        )


def choose_v_scale(inner: Inner) -> float:
    """The largest s of 1, ½, ¼, … at which G keeps half of what strong monotonicity sH alone would give.

    The symmetric part of [[H, 0], [sT, sH]] is positive definite for s < 4/‖H^−½ T H^−½‖² and its smallest eigenvalue
    is at most sμ. So s must be small where the outer loss curves much more than the inner one, and need not be smaller.
    """
    points = [(inner.start, jnp.zeros_like(inner.start)), inner.solution()]
    mus = [inner.curvature(y)[0] for y, _ in points]
    s = 1.0
    for _ in range(40):
        if all(inner.joint(y, v, s) >= s * mu / 2 for (y, v), mu in zip(points, mus, strict=True)):
            return s
        s /= 2
    raise InputError(
        "`v_scale` cannot be chosen: no scale makes G strongly monotone as measured; give a number, say 0.1"
    )
