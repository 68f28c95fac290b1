"""Bilevel problems from two losses: the hypergradient by one linear system that is never written down."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import sampling
from twoclock.indexed_batch import IndexedBatch
from twoclock.problems.bilevel import curvature, loss_checks
from twoclock.problems.bilevel.loss_checks import Loss, Measure
from twoclock.protocols import Key, Problem, PyTree, Scalar, pytree, static
from twoclock.sampling.minibatches import Sampler, Source
from twoclock.tree_math import difference
from twoclock.validation import number

__all__ = ["bilevel"]


@pytree
class Bilevel(Problem):
    """See `bilevel`. The truth half is there where it is known."""

    x: PyTree
    y: PyTree
    sampler: Sampler
    v_scale: Scalar
    truth: PyTree  # what is known of the answer: h, omega_star, measure, or some of them
    outer: Loss = static()
    inner: Loss = static()

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        x, y = jax.tree.map(jnp.asarray, (self.x, self.y))
        return x, (y, jax.tree.map(jnp.zeros_like, y)), self.sampler.init(key)

    def noise(self, key: Key) -> PyTree:
        return self.sampler.noise(key)

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return sampling.numbered(self.sampler, u, env)

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self._F(*self._on(x), theta, omega)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self._G(*self._on(x), theta, omega)

    @property
    def mean_F(self) -> Callable[[PyTree, PyTree], PyTree]:
        """Exact where the data are finite."""
        f, g = self._means()
        return lambda theta, omega: self._F(f, g, theta, omega)

    @property
    def mean_G(self) -> Callable[[PyTree, PyTree], PyTree]:
        f, g = self._means()
        return lambda theta, omega: self._G(f, g, theta, omega)

    @property
    def h(self) -> Callable[[PyTree], Scalar]:
        return self.truth.h

    @property
    def omega_star(self) -> Callable[[PyTree], PyTree]:
        return self.truth.omega_star

    @property
    def measure(self) -> Measure:
        return self.truth.measure

    def _on(self, x: PyTree) -> tuple[Loss, Loss]:
        """The losses on a sample; one sampler may have drawn the batches of both levels together."""
        of_inner, of_outer = x.batch if isinstance(x, IndexedBatch) else x
        return loss_checks.of_batch(self.outer, of_outer), loss_checks.of_batch(self.inner, of_inner)

    def _means(self) -> tuple[Loss, Loss]:
        batches = sampling.epoch(self.sampler)
        if batches is None:
            raise AttributeError("a stream has no exact mean")
        return loss_checks.mean_loss(self.outer, batches[1]), loss_checks.mean_loss(self.inner, batches[0])

    def _F(self, f: Loss, g: Loss, x: PyTree, omega: PyTree) -> PyTree:
        _, (xy_v, _) = along(g, x, *omega)
        return difference(jax.grad(f, 0)(x, omega[0]), xy_v)

    def _G(self, f: Loss, g: Loss, x: PyTree, omega: PyTree) -> PyTree:
        g_y, (_, yy_v) = along(g, x, *omega)
        row = difference(yy_v, jax.grad(f, 1)(x, omega[0]))
        return g_y, jax.tree.map(lambda leaf: jnp.asarray(self.v_scale, leaf.dtype) * leaf, row)


def along(g: Loss, x: PyTree, y: PyTree, v: PyTree) -> tuple[PyTree, tuple[PyTree, PyTree]]:
    """∇_y g, and (∇²_xy g·v, ∇²_yy g·v) as the derivative of ∇g along v: one forward pass over one backward pass."""
    (_, g_y), products = jax.jvp(lambda y: jax.grad(g, (0, 1))(x, y), (y,), (v,))
    return g_y, products


def bilevel(
    outer: Loss,
    inner: Loss,
    sampler: Source,
    x: PyTree,
    y: PyTree,
    v_scale: float | None = None,
    measure: Measure | None = None,
    truth: PyTree = None,
    *,
    check: bool = True,
) -> Bilevel:
    """Minimise one loss at the minimiser of another, without a Hessian and without a loop inside the loop.

        min_x f(x, y*(x)),    y*(x) = argmin_y g(x, y)

    The slow variable is x; the fast one is ω = (y, v), where v tracks [∇²_yy g]⁻¹ ∇_y f:

        F = ∇_x f − ∇²_xy g · v
        G = (∇_y g,  s·(∇²_yy g · v − ∇_y f))

    At ω*(x) the mean of F is the exact hypergradient. Products with second derivatives are one jvp of a gradient.

    Args:
        outer: f, a function ``(x, y, outer_batch) -> scalar``, the mean over the batch.
        inner: g, a function ``(x, y, inner_batch) -> scalar``, strongly convex in y. Where it is not, as a network's
            loss, a warning says what was measured: y then finds a local minimum, and v follows where G allows it.
        sampler: ``key -> (inner_batch, outer_batch)``, or a pair of samplers (inner, outer) such as
            ``sampling.Minibatches(data, size)``.
        x: the start of the outer variable, any pytree of floats.
        y: the start of the inner variable, any pytree of floats.
        v_scale: s. G needs it small where the outer loss curves more than the inner one; chosen from measured curvature
            if None. It slows v down by the same factor. With 1 the standard method is SOBA.
        measure: ``measure(x, (y, v)) -> {name: scalar}``, recorded at the marks.
        truth: an object with ``h``, ``omega_star`` and ``measure``, where the answer is known.
        check: measure whether ``inner`` is strongly convex; False spares the time and the warning.

    Ridge regression whose penalty is fitted to other data:

    >>> import numpy as np, jax.numpy as jnp, twoclock as tc
    >>> rng = np.random.default_rng(0)
    >>> A, w = rng.normal(size=(200, 5)), np.array([1.0, -1.0, 0.0, 0.0, 0.0])
    >>> b = A @ w + rng.normal(size=200)
    >>> def fit(y, batch):
    ...     return jnp.mean((batch[0] @ y - batch[1]) ** 2)
    >>> problem = tc.problems.bilevel(
    ...     outer=lambda x, y, batch: fit(y, batch),
    ...     inner=lambda x, y, batch: fit(y, batch) + jnp.exp(x) * jnp.sum(y**2),
    ...     sampler=tuple(tc.sampling.Minibatches((A[i], b[i]), 20) for i in (slice(0, 100), slice(100, 200))),
    ...     x=0.0,
    ...     y=np.zeros(5),
    ... )
    >>> result = tc.solve(problem, tc.Fast(0.05, 0.1, 0.25), steps=2000, seeds=4)
    >>> bool(np.all(result.theta < -1))
    True

    Reference: Dagréou, Ablin, Vaiter & Moreau, *A framework for bilevel optimization that enables stochastic and global
    variance reduction algorithms*, 2022.
    """
    x, y, batches = loss_checks.floats(x, "x"), loss_checks.floats(y, "y"), sampling.as_sampler(sampler)
    with jax.enable_x64(True):
        of_inner, of_outer = loss_checks.first_batch(batches, ("inner_batch", "outer_batch"))
        start = loss_checks.arrays((x, y))
        loss_checks.check_scalar(outer, "outer", *start, of_outer)
        loss_checks.check_scalar(inner, "inner", *start, of_inner)
        if v_scale is not None:
            number("v_scale", v_scale, 0, above=True, remedy="leave it out to have it chosen")
        level = _level(outer, inner, batches, *start)
        if check:
            curvature.warn_of_flatness(level)
        if v_scale is None:
            v_scale = curvature.choose_v_scale(level)
    truth = loss_checks.truth_of(truth, measure)
    return Bilevel(x, y, batches, np.float64(v_scale), truth, outer, inner)


def _level(outer: Loss, inner: Loss, sampler: Sampler, x: PyTree, y: PyTree) -> curvature.Inner:
    """The mean inner problem at x, to be measured."""
    inner_probes, outer_probes = loss_checks.probes(sampler, sum(np.size(leaf) for leaf in jax.tree.leaves(y)))
    f, g = loss_checks.mean_loss(outer, outer_probes), loss_checks.mean_loss(inner, inner_probes)

    def row(y: PyTree, v: PyTree) -> PyTree:
        return difference(along(g, x, y, v)[1][1], jax.grad(f, 1)(x, y))

    return curvature.Inner(lambda y: g(x, y), row, y)
