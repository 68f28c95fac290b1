"""A problem seen as two functions of flat vectors, for those who want matrices and variances of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from twoclock.engine import compatibility
from twoclock.prng import instance_key, start_key, step_key
from twoclock.protocols import Problem, ProblemSource, PyTree
from twoclock.validation import check_problem, check_size, seed_number

Theta = Float[jax.Array, " d"]
Omega = Float[jax.Array, " e"]
Pair = tuple[jax.Array, jax.Array]  # of F and of G


class Flat:
    """θ and ω as vectors; the start, the means (exact where the problem offers them) and the samples of F and G."""

    def __init__(self, problem: ProblemSource, seed: object, samples: int) -> None:
        check_size("`samples`", 16 * samples)  # all of them are there at once, with what is made of them
        seed = seed_number("seed", seed)
        source = check_problem(problem)
        compatibility.check_source(source)
        self.problem: Any = source if isinstance(source, Problem) else source(instance_key(seed))
        theta, omega, self.env = self.problem.init(start_key(seed))
        theta, omega = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (theta, omega))
        self.theta0, self.theta_of = ravel_pytree(theta)
        self.omega0, self.omega_of = ravel_pytree(omega)
        self.noise = jax.vmap(lambda k: self.problem.noise(step_key(seed, k)))(jnp.arange(samples))
        self.exact = self.problem.knows("mean_F") and self.problem.knows("mean_G")

    def samples(self, theta: Theta, omega: Omega) -> tuple[Float[jax.Array, "n d"], Float[jax.Array, "n e"]]:
        """F and G on each sample along the problem's own chain, from the same randomness at every point."""
        a, b = self.theta_of(theta), self.omega_of(omega)

        def one(env: PyTree, noise: PyTree) -> tuple[PyTree, Pair]:
            x, env = self.problem.draw(noise, a, env)
            return env, self._both(a, b, x)

        return jax.lax.scan(one, self.env, self.noise)[1]

    def means(self, theta: Theta, omega: Omega) -> tuple[Theta, Omega]:
        if self.exact:
            a, b = self.theta_of(theta), self.omega_of(omega)
            return ravel_pytree(self.problem.mean_F(a, b))[0], ravel_pytree(self.problem.mean_G(a, b))[0]
        F, G = self.samples(theta, omega)
        return F.mean(0), G.mean(0)

    def variances(self, theta: Theta, omega: Omega) -> tuple[Pair, Pair]:
        """E‖F−mean‖² and E‖G−mean‖² with their standard errors."""
        values = self.samples(theta, omega)
        n = len(values[0])
        squares = [jnp.sum((v - v.mean(0, keepdims=True)) ** 2, axis=1) * (n / (n - 1)) for v in values]
        return (squares[0].mean(), squares[1].mean()), (squares[0].std() / n**0.5, squares[1].std() / n**0.5)

    def omega_star(self) -> Callable[[Theta], Omega] | None:
        if not self.problem.knows("omega_star"):
            return None
        return lambda theta: ravel_pytree(self.problem.omega_star(self.theta_of(theta)))[0]

    def _both(self, a: PyTree, b: PyTree, x: PyTree) -> Pair:
        return ravel_pytree(self.problem.F(a, b, x))[0], ravel_pytree(self.problem.G(a, b, x))[0]
