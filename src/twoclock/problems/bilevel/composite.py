"""A loss of an expectation: the inner mean is tracked, since the loss of a sample is not a sample of the loss."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from twoclock import sampling
from twoclock.problems.bilevel import losses
from twoclock.problems.bilevel.losses import Loss, LossProblem, Measure
from twoclock.protocols import Key, PyTree, Scalar, pytree, static
from twoclock.sampling.minibatches import Sampler, Source
from twoclock.tree_math import difference
from twoclock.validation import function

__all__ = ["composite"]

Map = Callable[[PyTree, PyTree], PyTree]


@pytree
class Composite(LossProblem):
    """See `composite`. The truth half is there where it is known."""

    x: PyTree
    sampler: Sampler
    truth: PyTree
    outer: Loss = static()
    inner: Map = static()

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        x, env = jax.tree.map(jnp.asarray, self.x), self.sampler.init(key)
        # One batch of the start's own randomness: zero may lie where the outer loss is not defined.
        (of_inner, _), _ = self.sampler.draw(self.sampler.noise(key), env)
        return x, self.inner(x, of_inner), env

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return self.sampler.draw(u, env)

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        _, back = jax.vjp(lambda theta: self.inner(theta, x[0]), theta)
        return back(jax.grad(self.outer)(omega, x[1]))[0]

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return difference(omega, self.inner(theta, x[0]))

    def mean_F(self, theta: PyTree, omega: PyTree) -> PyTree:
        """Exact where the data are finite."""
        of_inner, of_outer = sampling.epoch(self.sampler)
        slope = jax.grad(losses.mean_loss(self.outer, of_outer))
        return jax.vjp(self._mean_inner(of_inner), theta)[1](slope(omega))[0]

    def mean_G(self, theta: PyTree, omega: PyTree) -> PyTree:
        return difference(omega, self._mean_inner(sampling.epoch(self.sampler)[0])(theta))

    def h(self, theta: PyTree) -> Scalar:
        if super().knows("h"):
            return super().h(theta)
        of_inner, of_outer = sampling.epoch(self.sampler)
        return losses.mean_loss(self.outer, of_outer)(self._mean_inner(of_inner)(theta))

    def omega_star(self, theta: PyTree) -> PyTree:
        if super().knows("omega_star"):
            return super().omega_star(theta)
        return self._mean_inner(sampling.epoch(self.sampler)[0])(theta)

    def knows(self, member: str) -> bool:
        return super().knows(member) or (member in ("h", "omega_star") and super().knows("mean_F"))

    def _mean_inner(self, batches: PyTree) -> Callable[[PyTree], PyTree]:
        def mean(x: PyTree) -> PyTree:
            values = jax.vmap(lambda batch: self.inner(x, batch))(batches)
            return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), values)

        return mean


def composite(
    outer: Loss,
    inner: Map,
    sampler: Source,
    x: PyTree,
    measure: Measure | None = None,
    truth: PyTree = None,
) -> Composite:
    """Minimise a loss of an expectation.

        min_x E g₁(E g₂(x, X), X'):        F = J_{g₂}(x, X)ᵀ ∇g₁(ω, X'),    G = ω − g₂(x, X)

    ω tracks E g₂(x). It starts at the value of g₂ on one batch. Where the data are finite, h and ω* are known exactly.

    Args:
        outer: g₁, a function ``(omega, outer_batch) -> scalar``.
        inner: g₂, a function ``(x, inner_batch) -> omega``, any pytree of floats; the mean over the batch.
        sampler: ``key -> (inner_batch, outer_batch)``, or a pair of samplers (inner, outer).
        x: the start, any pytree of floats.
        measure: ``measure(x, omega) -> {name: scalar}``, recorded at the marks.
        truth: an object with ``h``, ``omega_star`` and ``measure``, where the answer is known.

    Minimise (E[x + X] − 1)² with X standard normal; plain gradients of samples would minimise E[(x + X − 1)²]:

    >>> import jax, twoclock as tc
    >>> problem = tc.problems.composite(
    ...     outer=lambda omega, batch: (omega - 1) ** 2,
    ...     inner=lambda x, batch: x + batch,
    ...     sampler=lambda key: (jax.random.normal(key), None),
    ...     x=0.0,
    ...     measure=lambda x, omega: {"error": (x - 1) ** 2},
    ... )
    >>> result = tc.solve(problem, tc.Fast(), steps=4000, seeds=4)
    >>> bool(result.summary("error")["mean"].iloc[-1] < 0.05)
    True

    Reference: Wang, Fang & Liu, *Stochastic compositional gradient descent*, 2017; Ghadimi, Ruszczyński & Wang, 2020.
    """
    function("inner", inner, "x", "batch")
    x, batches = losses.floats(x, "x"), sampling.as_sampler(sampler)
    with jax.enable_x64(True):
        of_inner, of_outer = losses.first_batch(batches, ("inner_batch", "outer_batch"))
        value = jax.eval_shape(inner, losses.arrays(x), of_inner)
        losses.check_scalar(outer, "outer", value, of_outer)
    truth = losses.check_truth(truth, measure)
    return Composite(x, batches, truth, outer, inner)
