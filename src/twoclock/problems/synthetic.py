"""Synthetic problems with known answers: a rotating quadratic, and problems that show the rates of Table 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.protocols import Key, Problem, Scalar, pytree, static
from twoclock.tree_math import sqnorm
from twoclock.validation import check_size, choice, number, short_repr, whole
from twoclock.validation.arrays import Array, Number, Vector

__all__ = ["Rates", "quadratic", "rates"]


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
    """A strongly convex quadratic whose gradient is known only through a tracking variable.

        h(θ) = ½ (θ−θ*)ᵀ H (θ−θ*),    ω*(θ) = W θ
        F(θ, ω, X) = H (θ−θ*) + C (ω − ω*(θ)) + X
        G(θ, ω, X) = M (ω − ω*(θ)) + X,    M = S + rotation · (a skew matrix of norm 1)

    with X normal, the same draw in F and G. Where ``rotation`` is not 0, M is not symmetric and G is not a gradient.
    H and S have eigenvalues from μ_h, μ_G to ``top``; ``seed`` draws everything. ``constants()`` gives
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
    check_size(f"`dim` = {short_repr(dim)}", 6 * dim**2)
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


_PULL = 0.9
Sample = Vector | tuple[Vector, Vector]  # X, which F and G share, or (X, Y)
# h and h′ in one dimension, and the largest μ with ½h′² ≥ μh; that of the second is reached at |x| = 2.2017. Each h
# has its minimum 0 at 0 and |h″| ≤ 1, with equality at 0.
_SHAPES = {
    "strongly-convex": (lambda x: x**2 / 2, lambda x: x, 1.0),
    "pl": (lambda x: (x**2 + 3 * jnp.sin(x) ** 2) / 8, lambda x: (2 * x + 3 * jnp.sin(2 * x)) / 8, 0.021941373),
    "non-convex": (lambda x: x**2 / (2 * (1 + x**2)), lambda x: x / (1 + x**2) ** 2, 0.0),
    # ½(aᵀx)² with a = (1, …, 1)/√d, spread evenly over the coordinates: the minimum is not unique.
    "flat": (lambda x: jnp.full_like(x, jnp.mean(x) ** 2 / 2), lambda x: jnp.full_like(x, jnp.mean(x)), 1.0),
}


@pytree
class Rates(Problem):
    """One of the problems of `rates`."""

    theta0: Float[Array, " d"]
    sigma: Scalar
    shape: str = static("strongly-convex")
    coupling: str = static("smooth")
    correlation: Scalar | None = None  # of X and Y; None where they are one draw

    def init(self, key: Key) -> tuple[Vector, Vector, None]:
        theta = jnp.asarray(self.theta0)
        return theta, jnp.zeros_like(theta), None

    def noise(self, key: Key) -> Float[Array, "*two d"]:
        shape = jnp.shape(self.theta0)
        return jax.random.normal(key, shape if self.correlation is None else (2, *shape))

    def draw(self, u: Float[Array, "*two d"], theta: Vector, env: None) -> tuple[Sample, None]:
        x = jnp.asarray(self.sigma, u.dtype) * u
        if self.correlation is None:
            return x, env
        rho = jnp.asarray(self.correlation, u.dtype)
        return (x[0], rho * x[0] + jnp.sqrt(1 - rho**2) * x[1]), env

    def F(self, theta: Vector, omega: Vector, x: Sample) -> Vector:
        return self.mean_F(theta, omega) + (x[0] if isinstance(x, tuple) else x)

    def G(self, theta: Vector, omega: Vector, x: Sample) -> Vector:
        return self.mean_G(theta, omega) + (x[1] if isinstance(x, tuple) else x)

    def mean_F(self, theta: Vector, omega: Vector) -> Vector:
        off = omega - self.omega_star(theta)
        return self.gradient(theta) + _PULL * (jnp.abs(off) if self.coupling == "kinked" else off)

    def mean_G(self, theta: Vector, omega: Vector) -> Vector:
        return omega - self.omega_star(theta)

    def h(self, theta: Vector) -> Number:
        return jnp.sum(_SHAPES[self.shape][0](theta))

    def gradient(self, theta: Vector) -> Vector:
        return _SHAPES[self.shape][1](theta)

    def omega_star(self, theta: Vector) -> Vector:
        wave = jnp.sin(jnp.roll(theta, 1)) / 2
        return jnp.abs(wave) if self.coupling == "kinked" else wave

    def measure(self, theta: Vector, omega: Vector) -> dict[str, Number]:
        return {
            "error": 2 * self.h(theta) if self.shape == "flat" else jnp.sum(theta**2),
            "gap": self.h(theta),
            "gradient": jnp.sum(self.gradient(theta) ** 2),
            "tracking": jnp.sum((omega - self.omega_star(theta)) ** 2),
        }

    def constants(self) -> dict[str, float]:
        """For ``tc.theory``: |∂F/∂θ| ≤ |h″| + 0.45, with equality in all cases but one."""
        dim = len(self.theta0)
        gentle = self.shape == "non-convex" and self.coupling == "smooth" and dim == 1
        noise = dim * float(np.asarray(self.sigma)) ** 2
        return {"L": 1.0 if gentle else 1.0 + _PULL / 2, "mu_h": _SHAPES[self.shape][2], "mu_g": 1.0, "noise": noise}


def rates(
    h: str = "strongly-convex",
    coupling: str = "smooth",
    dim: int = 1,
    noise: float = 1.0,
    start: float = 1.0,
    correlation: float = 1.0,
) -> Rates:
    """One of the problems behind Table 1, in any dimension: minimise h through an ω that tracks ω*(θ).

        strongly-convex   h = x²/2
        pl                h = (x² + 3 sin²x)/8
        non-convex        h = x²/(2(1 + x²))
        flat              h = ½(aᵀθ)², a = (1, …, 1)/√d: PL and not strongly convex, flat along all but one direction

        smooth   F = h′(θ) + 0.9(ω − ω*) + X       ω*(θ) = ½ sin Rθ
        kinked   F = h′(θ) + 0.9|ω − ω*| + X       ω*(θ) = ½ |sin Rθ|
                 G = ω − ω*(θ) + Y,                Cov(X, Y) = correlation·σ²·I

    coordinate by coordinate (except the h of ``flat``); R shifts the coordinates by one, round the ring, and so couples
    them. A kink turns the fast variable's noise into a bias of the slow one: E|ω−ω*| ∝ √β. Without a kink a shared X
    helps: an ω that moves much faster than θ follows each X and removes up to nine tenths of it from F; opposite noise
    adds as much.

    Args:
        h: the shape of h in each coordinate, or "flat". ``error`` is the squared distance to the nearest minimum.
        coupling: "smooth" or "kinked", how ω enters F and θ enters ω*.
        dim: dimension of θ and of ω.
        noise: standard deviation of each coordinate of the Gaussian noise.
        start: ‖θ₀‖; all coordinates begin equal, and ω₀ = 0.
        correlation: of F's noise and G's, in [−1, 1]; with 1 both have the same draw.

    >>> import twoclock as tc
    >>> problem = tc.problems.rates("pl", coupling="kinked")

    Reference: Zeng & Doan, Table 1; the PL function is that of Karimi, Nutini & Schmidt 2016.
    """
    choice("rates(h=…)", h, _SHAPES)
    choice("rates(coupling=…)", coupling, ("smooth", "kinked"))
    dim = whole("rates(dim=…)", dim)
    check_size(f"`rates(dim=…)` = {short_repr(dim)}", 10 * dim)
    number("rates(noise=…)", noise, 0, remedy="it is a standard deviation")
    number("rates(start=…)", start)
    number("rates(correlation=…)", correlation, -1, 1, remedy="1 is the same noise in F and G")
    theta0 = np.full(dim, start / np.sqrt(dim))
    return Rates(theta0, np.float64(noise), h, coupling, None if correlation == 1 else np.float64(correlation))
