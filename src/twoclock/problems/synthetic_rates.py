"""Small problems with known answers on which the rates of Table 1 can be seen, or not seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.protocols import Key, Problem, Scalar, pytree, static
from twoclock.validation import check_size, choice, number, shown, whole
from twoclock.validation.arrays import Array, Number, Vector

__all__ = ["Rates", "rates"]

_PULL = 0.9
Draws = Float[Array, " d"] | Float[Array, "2 d"]
Sample = Vector | tuple[Vector, Vector]  # X, which F and G share, or (X, Y)

# h and h′ in one dimension; each h has its minimum 0 at 0 and |h″| ≤ 1, with equality at 0.
_SHAPES = {
    "strongly-convex": (lambda x: x**2 / 2, lambda x: x),
    "pl": (lambda x: (x**2 + 3 * jnp.sin(x) ** 2) / 8, lambda x: (2 * x + 3 * jnp.sin(2 * x)) / 8),
    "non-convex": (lambda x: x**2 / (2 * (1 + x**2)), lambda x: x / (1 + x**2) ** 2),
}
# The largest μ with ½h′² ≥ μh; that of the second is reached at |x| = 2.2017.
_MU = {"strongly-convex": 1.0, "pl": 0.021941373, "non-convex": 0.0}


@pytree
class Rates(Problem):
    """Minimise a separable h through an ω that tracks ω*(θ), with Gaussian noise X in F and Y in G.

        smooth   F = h′(θ) + 0.9(ω − ω*) + X       ω*(θ) = ½ sin Rθ
        kinked   F = h′(θ) + 0.9|ω − ω*| + X       ω*(θ) = ½ |sin Rθ|
                 G = ω − ω*(θ) + Y,                Cov(X, Y) = correlation·σ²·I

    coordinate by coordinate, with Y = X, one draw in both, unless a correlation is given; R shifts the coordinates by
    one, round the ring, and so couples them. A kink turns the fast variable's noise into a bias of the slow one:
    E|ω−ω*| ∝ √β. Without it the sharing of X helps: an ω that moves much faster than θ answers each X, and takes up to
    nine tenths of it out of F; with opposite noise it adds as much.

    Metrics: ``error``, ``gap``, ``gradient``, ``tracking``.
    """

    theta0: Float[Array, " d"]
    sigma: Scalar
    shape: str = static("strongly-convex")
    coupling: str = static("smooth")
    correlation: Scalar | None = None  # of X and Y; None where they are one draw

    def init(self, key: Key) -> tuple[Vector, Vector, None]:
        theta = jnp.asarray(self.theta0)
        return theta, jnp.zeros_like(theta), None

    def noise(self, key: Key) -> Draws:
        shape = jnp.shape(self.theta0)
        return jax.random.normal(key, shape if self.correlation is None else (2, *shape))

    def draw(self, u: Draws, theta: Vector, env: None) -> tuple[Sample, None]:
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
            "error": jnp.sum(theta**2),
            "gap": self.h(theta),
            "gradient": jnp.sum(self.gradient(theta) ** 2),
            "tracking": jnp.sum((omega - self.omega_star(theta)) ** 2),
        }

    def constants(self) -> dict[str, float]:
        """For ``tc.theory``: |∂F/∂θ| ≤ |h″| + 0.45, and the bound is reached but for one case."""
        dim = len(self.theta0)
        gentle = self.shape == "non-convex" and self.coupling == "smooth" and dim == 1
        noise = dim * float(np.asarray(self.sigma)) ** 2
        return {"L": 1.0 if gentle else 1.0 + _PULL / 2, "mu_h": _MU[self.shape], "mu_g": 1.0, "noise": noise}


def rates(
    h: str = "strongly-convex",
    coupling: str = "smooth",
    dim: int = 1,
    noise: float = 1.0,
    start: float = 1.0,
    correlation: float = 1.0,
) -> Rates:
    """One of the six problems behind Table 1, in any dimension.

        strongly-convex   h = x²/2
        pl                h = (x² + 3 sin²x)/8
        non-convex        h = x²/(2(1 + x²))

    Args:
        h: the shape of h in each coordinate.
        coupling: "smooth" or "kinked", how ω enters F and θ enters ω*.
        dim: dimension of θ and of ω.
        noise: standard deviation of each coordinate of the Gaussian noise.
        start: ‖θ₀‖; all coordinates begin equal, and ω₀ = 0.
        correlation: between F's noise and G's, in [−1, 1]; 1 is one draw in both.

    >>> import twoclock as tc
    >>> problem = tc.problems.rates("pl", coupling="kinked")

    Reference: Zeng & Doan, Table 1; the PL function is that of Karimi, Nutini & Schmidt 2016.
    """
    choice("rates(h=…)", h, _SHAPES)
    choice("rates(coupling=…)", coupling, ("smooth", "kinked"))
    dim = whole("rates(dim=…)", dim)
    check_size(f"`rates(dim=…)` = {shown(dim)}", 10 * dim)
    number("rates(noise=…)", noise, 0, remedy="it is a standard deviation")
    number("rates(start=…)", start)
    number("rates(correlation=…)", correlation, -1, 1, remedy="1 is the same noise in F and G")
    theta0 = np.full(dim, start / np.sqrt(dim))
    return Rates(theta0, np.float64(noise), h, coupling, None if correlation == 1 else np.float64(correlation))
