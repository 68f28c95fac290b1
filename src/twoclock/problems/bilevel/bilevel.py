"""Bilevel problems from two losses, minimax problems from one, and losses of an expectation."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import sampling
from twoclock.problems.bilevel import losses
from twoclock.problems.bilevel.losses import Loss, LossProblem, Measure, Operators
from twoclock.protocols import IndexedBatch, InputError, Key, PyTree, Scalar, pytree, static
from twoclock.sampling.minibatches import Sampler, Source
from twoclock.tree_math import difference, size
from twoclock.validation import flag, function, number, trace_shapes

__all__ = ["bilevel", "composite", "minimax"]
Map = Callable[[PyTree, PyTree], PyTree]


@pytree
class Bilevel(LossProblem):
    """See `bilevel`."""

    on_host = ("x", "y")
    x: PyTree
    y: PyTree
    sampler: Sampler
    v_scale: Scalar
    truth: PyTree
    outer: Loss = static()
    inner: Loss = static()

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        x, y = jax.tree.map(jnp.asarray, (self.x, self.y))
        return x, (y, jax.tree.map(jnp.zeros_like, y)), self.sampler.init(key)

    def operators(self, x: PyTree) -> Operators:
        # One sampler may have drawn the batches of both levels together.
        of_inner, of_outer = (
            sampling.epoch(self.sampler) if x is None else x.batch if isinstance(x, IndexedBatch) else x
        )
        on = losses.mean_loss if x is None else losses.loss_on_batch
        f, g = on(self.outer, of_outer), on(self.inner, of_inner)

        def F(x: PyTree, omega: PyTree) -> PyTree:
            _, (xy_v, _) = differentiate_along(g, x, *omega)
            return difference(jax.grad(f, 0)(x, omega[0]), xy_v)

        def G(x: PyTree, omega: PyTree) -> PyTree:
            g_y, (_, yy_v) = differentiate_along(g, x, *omega)
            row = difference(yy_v, jax.grad(f, 1)(x, omega[0]))
            return g_y, jax.tree.map(lambda leaf: jnp.asarray(self.v_scale, leaf.dtype) * leaf, row)

        return F, G


def differentiate_along(g: Loss, x: PyTree, y: PyTree, v: PyTree) -> tuple[PyTree, tuple[PyTree, PyTree]]:
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
    levels: bool = False,
    check: bool = True,
) -> Bilevel:
    """Minimise one loss at the minimiser of another, without a Hessian matrix and without an inner loop.

        min_x f(x, y*(x)),    y*(x) = argmin_y g(x, y)

    The slow variable is x; the fast one is ω = (y, v), where v tracks [∇²_yy g]⁻¹ ∇_y f:

        F = ∇_x f − ∇²_xy g · v
        G = (∇_y g,  s·(∇²_yy g · v − ∇_y f))

    At ω*(x) the mean of F is the exact hypergradient. Products with second derivatives are one jvp of a gradient.

    Args:
        outer: f, a function ``(x, y, outer_batch) -> scalar``, the mean over the batch.
        inner: g, a function ``(x, y, inner_batch) -> scalar``, strongly convex in y. If it is not, as for a network's
            loss, a warning reports the measured curvature: y then finds a local minimum, and v follows where G allows
            it.
        sampler: ``key -> (inner_batch, outer_batch)``, or a pair of samplers (inner, outer) such as
            ``sampling.Minibatches(data, size)``.
        x: the start of the outer variable, any pytree of floats.
        y: the start of the inner variable, any pytree of floats.
        v_scale: the factor s. It must be small where the outer loss curves more than the inner one, and it slows v down
            by the same factor. None chooses it from measured curvature. With 1 the standard method is SOBA.
        levels: whether y and v have separate step sizes instead of s, which is then 1:
            ``tc.Fast(alpha, (beta_y, beta_v), lam)``.
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
    x, y, batches = losses.read_floats(x, "x"), losses.read_floats(y, "y"), sampling.as_sampler(sampler)
    with jax.enable_x64(True):
        of_inner, of_outer = losses.first_batch(batches, ("inner_batch", "outer_batch"))
        start = losses.as_arrays((x, y))
        losses.check_scalar(outer, "outer", *start, of_outer)
        losses.check_scalar(inner, "inner", *start, of_inner)
        if flag("levels", levels):
            if v_scale is not None:
                raise InputError("`v_scale` is 1 with `levels=True`, where v has a step size of its own; leave it out")
            v_scale = 1.0
        elif v_scale is not None:
            number("v_scale", v_scale, 0, above=True, remedy="leave it out to have it chosen")
        if flag("check", check) or v_scale is None:  # otherwise no batch is drawn
            skip = "check=False and a number for `v_scale`, say 0.25, skip it"
            with losses.announce_slow_check("inner", size(y), skip):
                level = _inner_problem(outer, inner, *start, *losses.draw_probes(batches, size(y)))
                if check:
                    losses.check_curvature("inner", level, "add a term such as 1e-3·‖y‖² to it")
                v_scale = losses.choose_v_scale(level) if v_scale is None else v_scale
    return Bilevel(x, y, batches, np.float64(v_scale), losses.check_truth(truth, measure), outer, inner)


def _inner_problem(
    outer: losses.Loss, inner: losses.Loss, x: PyTree, y: PyTree, inner_probes: PyTree, outer_probes: PyTree
) -> losses.InnerProblem:
    """The mean inner problem at x, and the row of v."""
    f, g = losses.mean_loss(outer, outer_probes), losses.mean_loss(inner, inner_probes)

    def row(y: PyTree, v: PyTree) -> PyTree:
        return difference(differentiate_along(g, x, y, v)[1][1], jax.grad(f, 1)(x, y))

    return losses.InnerProblem(lambda y: g(x, y), row, y)


@pytree
class Minimax(LossProblem):
    """See `minimax`."""

    on_host = ("x", "y")
    x: PyTree
    y: PyTree
    sampler: Sampler
    truth: PyTree
    loss: Loss = static()

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        return *jax.tree.map(jnp.asarray, (self.x, self.y)), self.sampler.init(key)

    def operators(self, x: PyTree) -> Operators:
        whole = x is None
        loss = (
            losses.mean_loss(self.loss, sampling.epoch(self.sampler)) if whole else losses.loss_on_batch(self.loss, x)
        )
        return jax.grad(loss, 0), lambda x, y: jax.tree.map(jnp.negative, jax.grad(loss, 1)(x, y))


def minimax(
    loss: Loss,
    sampler: Source,
    x: PyTree,
    y: PyTree,
    measure: Measure | None = None,
    truth: PyTree = None,
    *,
    check: bool = True,
) -> Minimax:
    """Find a saddle point: x minimises what y maximises.

        min_x max_y ℓ(x, y):        F = ∇_x ℓ,    G = −∇_y ℓ

    Args:
        loss: ℓ, a function ``(x, y, batch) -> scalar``, strongly concave in y.
        sampler: ``key -> batch``, or a sampler such as ``sampling.Minibatches(data, size)``.
        x: the start of the minimising variable, any pytree of floats; the slow one.
        y: the start of the maximising variable, any pytree of floats; the fast one.
        measure: ``measure(x, y) -> {name: scalar}``, recorded at the marks.
        truth: an object with ``h``, ``omega_star`` and ``measure``, where the answer is known.
        check: measure whether ``loss`` is strongly concave in y, and refuse it where not; False for a network, which y
            then takes to a local maximum.

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
    x, y, batches = losses.read_floats(x, "x"), losses.read_floats(y, "y"), sampling.as_sampler(sampler)
    with jax.enable_x64(True):
        start = losses.as_arrays((x, y))
        losses.check_scalar(loss, "loss", *start, losses.first_batch(batches, ("batch",)))
        if flag("check", check):  # otherwise no batch is drawn
            remedy = "subtract a term such as 1e-3·‖y‖² from it, or pass check=False where y is a network"
            with losses.announce_slow_check("loss", size(y), "check=False skips it"):
                mean = losses.mean_loss(loss, losses.draw_probes(batches, size(y)))
                level = losses.InnerProblem(lambda y: -mean(start[0], y), lambda y, v: y, start[1])
                losses.check_curvature("loss", level, remedy, refuse=True)
    return Minimax(x, y, batches, losses.check_truth(truth, measure), loss)


@pytree
class Composite(LossProblem):
    """See `composite`."""

    on_host = ("x",)
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

    def operators(self, x: PyTree) -> Operators:
        outer, inner = (lambda omega: self.outer(omega, x[1])), (lambda theta: self.inner(theta, x[0]))
        if x is None:
            outer, inner = self._means()

        def F(theta: PyTree, omega: PyTree) -> PyTree:
            _, back = jax.vjp(inner, theta)
            return back(jax.grad(outer)(omega))[0]

        return F, lambda theta, omega: difference(omega, inner(theta))

    def h(self, theta: PyTree) -> Scalar:
        if super().knows("h"):
            return super().h(theta)
        outer, inner = self._means()
        return outer(inner(theta))

    def omega_star(self, theta: PyTree) -> PyTree:
        return super().omega_star(theta) if super().knows("omega_star") else self._means()[1](theta)

    def knows(self, member: str) -> bool:
        return super().knows(member) or (member in ("h", "omega_star") and super().knows("mean_F"))

    def _means(self) -> tuple[Loss, Loss]:
        of_inner, of_outer = sampling.epoch(self.sampler)

        def inner(x: PyTree) -> PyTree:
            values = jax.vmap(lambda batch: self.inner(x, batch))(of_inner)
            return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), values)

        return losses.mean_loss(self.outer, of_outer), inner


def composite(
    outer: Loss, inner: Map, sampler: Source, x: PyTree, measure: Measure | None = None, truth: PyTree = None
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
    x, batches = losses.read_floats(x, "x"), sampling.as_sampler(sampler)
    with jax.enable_x64(True):
        of_inner, of_outer = losses.first_batch(batches, ("inner_batch", "outer_batch"))
        value = trace_shapes("inner", inner, losses.as_arrays(x), of_inner)
        losses.check_scalar(outer, "outer", value, of_outer)
    return Composite(x, batches, losses.check_truth(truth, measure), outer, inner)
