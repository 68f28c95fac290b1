"""Minimax problems from one loss."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import sampling
from twoclock.problems.bilevel import curvature, loss_checks
from twoclock.problems.bilevel.loss_checks import Loss, Measure
from twoclock.protocols import Key, Problem, PyTree, Scalar, pytree, static
from twoclock.sampling.minibatches import Sampler, Source

__all__ = ["minimax"]


@pytree
class Minimax(Problem):
    """See `minimax`. The truth half is there where it is known."""

    x: PyTree
    y: PyTree
    sampler: Sampler
    truth: PyTree  # what is known of the answer: h, omega_star, measure, or some of them
    loss: Loss = static()

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        return *jax.tree.map(jnp.asarray, (self.x, self.y)), self.sampler.init(key)

    def noise(self, key: Key) -> PyTree:
        return self.sampler.noise(key)

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return sampling.numbered(self.sampler, u, env)

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return jax.grad(loss_checks.of_batch(self.loss, x), 0)(theta, omega)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return jax.tree.map(jnp.negative, jax.grad(loss_checks.of_batch(self.loss, x), 1)(theta, omega))

    @property
    def mean_F(self) -> Callable[[PyTree, PyTree], PyTree]:
        """Exact where the data are finite."""
        return jax.grad(self._mean(), 0)

    @property
    def mean_G(self) -> Callable[[PyTree, PyTree], PyTree]:
        mean = jax.grad(self._mean(), 1)
        return lambda theta, omega: jax.tree.map(jnp.negative, mean(theta, omega))

    @property
    def h(self) -> Callable[[PyTree], Scalar]:
        return self.truth.h

    @property
    def omega_star(self) -> Callable[[PyTree], PyTree]:
        return self.truth.omega_star

    @property
    def measure(self) -> Measure:
        return self.truth.measure

    def _mean(self) -> Loss:
        batches = sampling.epoch(self.sampler)
        if batches is None:
            raise AttributeError("a stream has no exact mean")
        return loss_checks.mean_loss(self.loss, batches)


def minimax(
    loss: Loss,
    sampler: Source,
    x: PyTree,
    y: PyTree,
    measure: Measure | None = None,
    truth: PyTree = None,
) -> Minimax:
    """Minimise over x what y maximises.

        min_x max_y ℓ(x, y):        F = ∇_x ℓ,    G = −∇_y ℓ

    Args:
        loss: ℓ, a function ``(x, y, batch) -> scalar``, strongly concave in y.
        sampler: ``key -> batch``, or a sampler such as ``sampling.Minibatches(data, size)``.
        x: the start of the minimising variable, any pytree of floats; the slow one.
        y: the start of the maximising variable, any pytree of floats; the fast one.
        measure: ``measure(x, y) -> {name: scalar}``, recorded at the marks.
        truth: an object with ``h``, ``omega_star`` and ``measure``, where the answer is known.

    ℓ = ½x² + xy − ½y² in noise: y* = x, h(x) = x².

    >>> import jax, twoclock as tc
    >>> problem = tc.problems.minimax(
    ...     loss=lambda x, y, batch: x**2 / 2 + x * y - y**2 / 2 + batch * (x + y),
    ...     sampler=lambda key: 0.1 * jax.random.normal(key),
    ...     x=1.0,
    ...     y=0.0,
    ...     measure=lambda x, y: {"error": x**2},
    ... )
    >>> result = tc.solve(problem, tc.Fast(), steps=1000, seeds=4)
    >>> bool(result.summary("error")["mean"].iloc[-1] < 0.01)
    True

    Reference: Lin, Jin & Jordan, *On gradient descent ascent for nonconvex-concave minimax problems*, 2020.
    """
    x, y, batches = loss_checks.floats(x, "x"), loss_checks.floats(y, "y"), sampling.as_sampler(sampler)
    with jax.enable_x64(True):
        start = loss_checks.arrays((x, y))
        loss_checks.check_scalar(loss, "loss", *start, loss_checks.first_batch(batches, ("batch",)))
        mean = loss_checks.mean_loss(
            loss, loss_checks.probes(batches, sum(np.size(leaf) for leaf in jax.tree.leaves(y)))
        )
        level = curvature.Inner(lambda y: -mean(start[0], y), lambda y, v: y, start[1])
        curvature.refuse_flat(level.curvature(level.start), "loss", "subtract a term such as 1e-3·‖y‖² from it")
    truth = loss_checks.truth_of(truth, measure)
    return Minimax(x, y, batches, truth, loss)
