"""Quadratic h with a linear, rotating inner operator: the smallest problem with everything known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.protocols import Key, Problem, Scalar, pytree
from twoclock.tree_math import sqnorm
from twoclock.validation import check_size, number, shown, whole
from twoclock.validation.arrays import Array, Number, Vector

__all__ = ["quadratic"]


@pytree
class Quadratic(Problem):
    H: Float[Array, "d d"]
    C: Float[Array, "d d"]
    M: Float[Array, "d d"]
    W: Float[Array, "d d"]
    theta_star: Float[Array, " d"]
    start: Float[Array, " d"]
    sigma: Scalar

    def init(self, key: Key) -> tuple[Vector, Vector, None]:
        return self.start, jnp.zeros_like(self.start), None

    def noise(self, key: Key) -> Vector:
        return jax.random.normal(key, self.start.shape)

    def draw(self, u: Vector, theta: Vector, env: None) -> tuple[Vector, None]:
        return self.sigma * u, env

    def F(self, theta: Vector, omega: Vector, x: Vector) -> Vector:
        return self.mean_F(theta, omega) + x

    def G(self, theta: Vector, omega: Vector, x: Vector) -> Vector:
        return self.mean_G(theta, omega) + x

    def mean_F(self, theta: Vector, omega: Vector) -> Vector:
        return self.H @ (theta - self.theta_star) + self.C @ (omega - self.omega_star(theta))

    def mean_G(self, theta: Vector, omega: Vector) -> Vector:
        return self.M @ (omega - self.omega_star(theta))

    def omega_star(self, theta: Vector) -> Vector:
        return self.W @ theta

    def h(self, theta: Vector) -> Number:
        d = theta - self.theta_star
        return d @ self.H @ d / 2

    def measure(self, theta: Vector, omega: Vector) -> dict[str, Number]:
        return {
            "error": sqnorm(theta - self.theta_star),
            "gap": self.h(theta),
            "gradient": sqnorm(self.H @ (theta - self.theta_star)),
            "tracking": sqnorm(omega - self.omega_star(theta)),
        }

    def constants(self) -> dict[str, float]:
        """Exact L, μ_h, μ_G and B of the paper's assumptions, by eigenvalues and singular values."""
        H, C, M, W = (np.asarray(a, float) for a in (self.H, self.C, self.M, self.W))
        lipschitz = [np.linalg.norm(a, 2) for a in (H - C @ W, C, M @ W, M, H, W)]
        return {
            "L": float(max(lipschitz)),
            "mu_h": float(np.linalg.eigvalsh(H)[0]),
            "mu_g": float(np.linalg.eigvalsh((M + M.T) / 2)[0]),
            "noise": float(np.asarray(self.sigma) ** 2 * len(H)),
        }


def quadratic(
    dim: int = 10,
    mu_h: float = 0.5,
    mu_g: float = 0.5,
    top: float = 1.0,
    rotation: float = 1.0,
    coupling: float = 0.5,
    sigma: float = 0.1,
    seed: int = 0,
) -> Quadratic:
    """A strongly convex quadratic whose gradient is seen through a tracking variable.

        h(θ) = ½ (θ−θ*)ᵀ H (θ−θ*),    ω*(θ) = W θ
        F(θ, ω, X) = H (θ−θ*) + C (ω − ω*(θ)) + X
        G(θ, ω, X) = M (ω − ω*(θ)) + X,    M = S + rotation · (a skew matrix of norm 1)

    with X normal, the same draw in F and G. Where ``rotation`` is not 0, M is not symmetric and G is the gradient of
    nothing. H and S have eigenvalues from μ_h, μ_G to ``top``; all of it is drawn from ``seed``. ``constants()`` gives
    the exact L, μ_h, μ_G and noise level.

    Args:
        dim: dimension of θ and of ω.
        mu_h: smallest eigenvalue of H.
        mu_g: smallest eigenvalue of the symmetric part S of M.
        top: largest eigenvalue of H and of S.
        rotation: norm of the skew part of M.
        coupling: norm of C, and of W.
        sigma: standard deviation of each entry of the noise.
        seed: draws the matrices, the solution θ* and the start.

    >>> round(quadratic(dim=3, mu_h=0.25).constants()["mu_h"], 12)
    0.25
    """
    dim = whole("dim", dim)
    check_size(f"`dim` = {shown(dim)}", 6 * dim**2)
    number("top", top, 0, above=True)
    for name, value in {"mu_h": mu_h, "mu_g": mu_g}.items():
        number(name, value, 0, top, above=True, remedy=f"top={top:g} is the largest eigenvalue")
    for name, value in {"rotation": rotation, "coupling": coupling, "sigma": sigma}.items():
        number(name, value, 0)
    rng = np.random.default_rng(whole("seed", seed, 0))

    def spectrum(low: float) -> np.ndarray:
        basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
        matrix = basis * np.linspace(low, top, dim) @ basis.T if dim > 1 else np.full((1, 1), low)
        return (matrix + matrix.T) / 2

    def unit(matrix: np.ndarray) -> np.ndarray:
        norm = np.linalg.norm(matrix, 2)
        return matrix / norm if norm else matrix

    H, S = spectrum(mu_h), spectrum(mu_g)
    skew = rng.standard_normal((dim, dim))
    M = S + rotation * unit(skew - skew.T)
    C, W = (coupling * unit(rng.standard_normal((dim, dim))) for _ in range(2))
    theta_star, start = rng.standard_normal((2, dim)) / np.sqrt(dim)
    return Quadratic(H, C, M, W, theta_star, start + theta_star, np.float64(sigma))
