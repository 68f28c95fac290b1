"""A problem in other units: θ, ω, F and G each times a separate factor."""

import dataclasses
import itertools

import jax

import twoclock as tc
from twoclock.protocols import pytree

# Each unit on its own, small and large, and all at once.
UNITS = [
    *(dict(zip(("theta", "omega", "F", "G"), row, strict=True)) for row in itertools.product((1e-6, 1e6), repeat=4)),
    *({"theta": 1.0, "omega": 1.0, "F": 1.0, "G": 1.0, name: factor}
      for name in ("theta", "omega", "F", "G") for factor in (1e-6, 1e-3, 1e3, 1e6)),
]  # fmt: skip


@pytree
class RescaledProblem(tc.Problem):
    """θ′ = a·θ, ω′ = b·ω, F′ = c·F, G′ = d·G of an inner problem; its ``measure`` is the inner problem's."""

    problem: tc.Problem
    theta: float = 1.0
    omega: float = 1.0
    of_F: float = 1.0
    of_G: float = 1.0

    def init(self, key):
        theta, omega, env = self.problem.init(key)
        return _times(self.theta, theta), _times(self.omega, omega), env

    def noise(self, key):
        return self.problem.noise(key)

    def draw(self, u, theta, env):
        return self.problem.draw(u, _times(1 / self.theta, theta), env)

    def F(self, theta, omega, x):
        return _times(self.of_F, self.problem.F(*self._inner(theta, omega), x))

    def G(self, theta, omega, x):
        return _times(self.of_G, self.problem.G(*self._inner(theta, omega), x))

    def measure(self, theta, omega):
        return self.problem.measure(*self._inner(theta, omega))

    def _inner(self, theta, omega):
        return _times(1 / self.theta, theta), _times(1 / self.omega, omega)


def rescaled(problem, theta=1.0, omega=1.0, F=1.0, G=1.0):
    """The problem with θ, ω, F and G in other units; errors that it measures are in the old ones."""
    return RescaledProblem(problem, theta, omega, F, G)


def rescaled_result(result, theta=1.0, omega=1.0, F=1.0, G=1.0):
    """The result of the same run in other units, as if the rescaled problem had been solved."""
    return dataclasses.replace(result, theta=_times(theta, result.theta), omega=_times(omega, result.omega))


def _times(factor, tree):
    return jax.tree.map(lambda leaf: leaf * factor, tree)
