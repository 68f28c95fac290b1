"""Bilevel and minimax problems from least squares on finite data, of any size, with solutions in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.problems.bilevel.bilevel import Bilevel, Minimax, bilevel, minimax
from twoclock.protocols import PyTree, pytree
from twoclock.sampling.minibatches import Minibatches
from twoclock.tree_math import sqnorm
from twoclock.validation import check_size, number, seed_number, whole
from twoclock.validation.arrays import Array, Number, Vector

__all__ = ["quadratic_bilevel", "quadratic_minimax"]

_RIDGE = 0.1
Inner = Float[Array, " e"]


@pytree
class AffineTruth:
    """h = ½(x−x*)ᵀS(x−x*), and an ω* whose blocks are slope·x + offset."""

    S: Float[Array, "d d"]
    x_star: Float[Array, " d"]
    slopes: PyTree
    offsets: PyTree

    def h(self, x: Vector) -> Number:
        d = x - self.x_star
        return d @ (self.S @ d) / 2

    def omega_star(self, x: Vector) -> PyTree:
        return jax.tree.map(lambda slope, offset: slope @ x + offset, self.slopes, self.offsets)

    def measure(self, x: Vector, omega: PyTree) -> dict[str, Number]:
        blocks, known = map(jax.tree.leaves, (omega, self.omega_star(x)))
        return {
            "error": sqnorm(x - self.x_star),
            "gap": self.h(x),
            "gradient": sqnorm(self.S @ (x - self.x_star)),
            "tracking": sum((sqnorm(w - k) for w, k in zip(blocks, known, strict=True)), jnp.zeros(())),
        }


def inner_loss(x: Vector, y: Inner, batch: tuple[Array, ...]) -> Number:
    a, b, c = batch
    return jnp.mean(jnp.square(a @ y - b @ x - c)) / 2 + _RIDGE / 2 * jnp.sum(jnp.square(y))


def outer_loss(x: Vector, y: Inner, batch: tuple[Array, ...]) -> Number:
    p, r = batch
    return jnp.mean(jnp.square(p @ y - r)) / 2 + _RIDGE / 2 * jnp.sum(jnp.square(x))


def saddle_loss(x: Vector, y: Inner, batch: tuple[Array, ...]) -> Number:
    a, b, c = batch
    along = a @ y
    fit = jnp.mean((b @ x - c) * along - jnp.square(along) / 2)
    return fit + _RIDGE / 2 * (jnp.sum(jnp.square(x)) - jnp.sum(jnp.square(y)))


def quadratic_bilevel(
    dim_x: int = 5,
    dim_y: int = 5,
    samples: int = 64,
    batch: int = 8,
    condition: float = 10.0,
    noise: float = 1.0,
    replace: bool = False,
    v_scale: float | None = 0.25,
    seed: int = 0,
) -> Bilevel:
    """Least squares inside least squares on finite data, in minibatches.

        g(x, y) = mean_i ½(aᵢᵀy − bᵢᵀx − cᵢ)² + 0.05‖y‖²
        f(x, y) = mean_j ½(pⱼᵀy − rⱼ)² + 0.05‖x‖²

    a and p are normal with covariance eigenvalues spread evenly in the logarithm from 1 down to 1/condition, in a
    random basis each. Further, b = Wᵀa with W a random matrix of orthonormal rows or columns; c = aᵀy₀ + noise·ε and
    r = pᵀy₁ + noise·ε with y₀, y₁ of unit length. x, y and v start at zero. x*, y*(x), v*(x) and h are exact for the
    drawn data.

    Args:
        dim_x, dim_y: dimensions of x and of y.
        samples, batch: the number of items of each level, and how many of them each step takes.
        condition: ratio of the largest to the smallest variance of the data.
        noise: standard deviation of the part that no y can fit.
        replace: draw batches with replacement; otherwise every item comes once per epoch.
        v_scale: see `bilevel`; chosen from the curvature if None, which gives this 0.25 at the default settings.
        seed: draws the data.

    >>> quadratic_bilevel(dim_x=3).x.shape
    (3,)
    """
    rng, data, (H, C, e) = _draw_inner(dim_x, dim_y, samples, batch, condition, noise, seed)
    p = _rows(rng, samples, dim_y, condition)
    r = p @ _unit(rng, dim_y) + noise * rng.standard_normal(samples)
    P, q = p.T @ p / samples, p.T @ r / samples
    Y, y0 = np.linalg.solve(H, C), np.linalg.solve(H, e)
    V, v0 = np.linalg.solve(H, P @ Y), np.linalg.solve(H, P @ y0 - q)
    S = Y.T @ P @ Y + _RIDGE * np.eye(dim_x)
    truth = AffineTruth(S, np.linalg.solve(S, Y.T @ (q - P @ y0)), (Y, V), (y0, v0))
    sampler = Minibatches(data, batch, replace), Minibatches((p, r), batch, replace)
    return bilevel(outer_loss, inner_loss, sampler, np.zeros(dim_x), np.zeros(dim_y), v_scale, truth=truth)


def quadratic_minimax(
    dim_x: int = 5,
    dim_y: int = 5,
    samples: int = 64,
    batch: int = 8,
    condition: float = 10.0,
    noise: float = 1.0,
    seed: int = 0,
) -> Minimax:
    """Least squares in its saddle form, on finite data in minibatches without replacement.

        ℓ(x, y) = mean_i [(bᵢᵀx − cᵢ)·aᵢᵀy − ½(aᵢᵀy)²] + 0.05‖x‖² − 0.05‖y‖²

    with a, b and c as in `quadratic_bilevel`. x and y start at zero; x*, y*(x) and h are exact for the drawn data.

    Args:
        dim_x, dim_y, samples, batch, condition, noise, seed: as for `quadratic_bilevel`.

    >>> quadratic_minimax(dim_x=3).x.shape
    (3,)
    """
    _, data, (H, C, e) = _draw_inner(dim_x, dim_y, samples, batch, condition, noise, seed)
    Y, y0 = np.linalg.solve(H, C), np.linalg.solve(H, -e)
    S = C.T @ Y + _RIDGE * np.eye(dim_x)
    truth = AffineTruth((S + S.T) / 2, np.linalg.solve(S, C.T @ -y0), Y, y0)
    return minimax(saddle_loss, Minibatches(data, batch), np.zeros(dim_x), np.zeros(dim_y), truth=truth)


def _draw_inner(
    dim_x: int, dim_y: int, samples: int, batch: int, condition: float, noise: float, seed: int
) -> tuple[np.random.Generator, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Check the arguments, draw the inner level's data a, b, c and compute their moments; the generator has more."""
    dim_x, dim_y, samples = whole("dim_x", dim_x), whole("dim_y", dim_y), whole("samples", samples)
    whole("batch", batch, 1, samples)
    check_size("`samples`, `dim_x`, `dim_y`", (samples + 2 * dim_x + 2 * dim_y) * (dim_x + dim_y))
    number("condition", condition, 1)
    number("noise", noise, 0)
    rng = np.random.default_rng(seed_number("seed", seed))
    a = _rows(rng, samples, dim_y, condition)
    larger = max(dim_x, dim_y)
    W = np.linalg.qr(rng.standard_normal((larger, larger)))[0][:dim_y, :dim_x]
    b, c = a @ W, a @ _unit(rng, dim_y) + noise * rng.standard_normal(samples)
    return rng, (a, b, c), (a.T @ a / samples + _RIDGE * np.eye(dim_y), a.T @ b / samples, a.T @ c / samples)


def _rows(rng: np.random.Generator, samples: int, dim: int, condition: float) -> Float[np.ndarray, "i dim"]:
    basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    return rng.standard_normal((samples, dim)) * np.geomspace(1.0, condition**-0.5, dim) @ basis.T


def _unit(rng: np.random.Generator, dim: int) -> Float[np.ndarray, " dim"]:
    direction = rng.standard_normal(dim)
    return direction / np.linalg.norm(direction)
