"""A user's losses: problems made of them, checks, means over batches, and curvature."""

from __future__ import annotations

import logging
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from twoclock import sampling
from twoclock.protocols import IndexedBatch, InputError, Key, Problem, PyTree, Scalar, forwarded, pytree, static
from twoclock.sampling.minibatches import Sampler
from twoclock.tree_math import size
from twoclock.validation import function, short_repr, trace_shapes
from twoclock.validation.arrays import Array, Number, as_numpy

Loss = Callable[..., Number]
Measure = Callable[[PyTree, PyTree], Mapping[str, Scalar]]
Operators = tuple[Callable[[PyTree, PyTree], PyTree], Callable[[PyTree, PyTree], PyTree]]
Product = Callable[[Float[np.ndarray, " n"]], Array]

_log = logging.getLogger("twoclock")
_PROBES, _PROBE_NUMBERS = 256, 1 << 22  # batches for the measurement of curvature, and the most numbers in them
_PATIENCE = 1.0  # seconds of measuring before it is announced
_DENSE = 128  # the most unknowns for which the matrix itself is formed
_FLAT = 1e-7


@pytree
class MeasureOnly:
    """A user's ``measure(theta, omega) -> {name: scalar}`` without known answers."""

    measure: Measure = static()


class LossProblem(Problem):
    """A problem made of losses on batches, with exact means where the data are finite."""

    sampler: Sampler
    truth: PyTree  # an object with h, omega_star and measure, a `MeasureOnly`, or None
    (noise,) = forwarded("sampler", "noise")
    h, omega_star = forwarded("truth", "h", "omega_star")

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return sampling.draw_indexed(self.sampler, u, env)

    @abstractmethod
    def operators(self, x: PyTree) -> Operators:
        """F and G on a sample; for None their means, where the data are finite."""

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.operators(x)[0](theta, omega)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.operators(x)[1](theta, omega)

    def mean_F(self, theta: PyTree, omega: PyTree) -> PyTree:
        return self.operators(None)[0](theta, omega)

    def mean_G(self, theta: PyTree, omega: PyTree) -> PyTree:
        return self.operators(None)[1](theta, omega)

    def measure(self, theta: PyTree, omega: PyTree) -> Mapping[str, Scalar]:
        return {} if self.truth is None else self.truth.measure(theta, omega)

    def knows(self, member: str) -> bool:
        if member in ("mean_F", "mean_G"):
            return sampling.epoch(self.sampler) is not None
        if member in ("h", "omega_star"):
            return self.truth is not None and not isinstance(self.truth, MeasureOnly)
        return self.truth is not None if member == "measure" else super().knows(member)


def check_truth(truth: PyTree, measure: Measure | None) -> PyTree:
    """The user's truth, or a truth with the user's ``measure`` alone."""
    if truth is None and measure is not None:
        function("measure", measure, "theta", "omega")
        return MeasureOnly(measure)
    for name in () if truth is None else ("h", "omega_star", "measure"):
        if not callable(getattr(truth, name, None)):
            raise InputError(f"`truth` must have h, omega_star and measure, it has no {name}; or give `measure` alone")
    return truth


def read_floats(tree: PyTree, name: str) -> PyTree:
    """The start of a variable as NumPy arrays of floats, which a run casts to its precision."""

    def one(leaf: object) -> np.ndarray:
        array = np.asarray(leaf)
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            got = {"U": "text", "f": "NaN or infinity", "O": type(leaf).__name__}.get(array.dtype.kind, array.dtype)
            raise InputError(f"`{name}` must start from finite numbers, got {got} in it")
        return array.astype(float) if not np.issubdtype(array.dtype, np.floating) else array

    as_numpy(name, tree)  # raises an error for what JAX cannot flatten
    found = jax.tree.map(one, tree)
    if not size(found):
        raise InputError(f"`{name}` must hold at least one number, got {short_repr(tree)}")
    return found


def as_arrays(tree: PyTree) -> PyTree:
    """The floats of `read_floats` as JAX arrays in JAX's present default precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), tree)


def first_batch(sampler: Sampler, names: tuple[str, ...]) -> PyTree:
    """The shapes of a batch, or of a pair of them, whose arrays must have one length each."""
    key = jax.random.key(0)
    drawn = trace_shapes("sampler", lambda: sampler.draw(sampler.noise(key), sampler.init(key)))
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        raise InputError(f"`sampler.draw` must return the pair (batch, env), got {type(drawn).__name__}")
    batch, _ = drawn
    if len(names) > 1 and not (isinstance(batch, tuple | list) and len(batch) == len(names)):
        raise InputError(
            f"`sampler` must give a pair ({', '.join(names)}), got {type(batch).__name__}; "
            "return two batches, which may be the same"
        )
    for part, name in zip(batch if len(names) > 1 else (batch,), names, strict=True):
        if jax.tree.leaves(part):  # a loss without noise has an empty batch
            sampling.common_length(part, name)
    return batch


def check_scalar(loss: Loss, name: str, *args: PyTree) -> None:
    """Check that a loss is one number per batch; its arguments are one or two variables and the batch."""
    function(name, loss, *(("x", "y", "batch") if len(args) == 3 else ("omega", "batch")))
    out = trace_shapes(name, loss, *args)
    shape = getattr(out, "shape", None)
    if shape != ():
        got = f"shape {shape}" if shape is not None else type(out).__name__
        raise InputError(f"`{name}` must return one number, got {got}; take the mean over the batch")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise InputError(f"`{name}` must return a floating-point number, got {out.dtype}")


def draw_probes(sampler: Sampler, unknowns: int) -> PyTree:
    """Stacked batches for the measurement of curvature: all of finite data, else enough draws."""
    whole = sampling.epoch(sampler)
    if whole is not None:
        return whole

    def draw(key: Key) -> PyTree:
        start, step = jax.random.split(key)
        return sampler.draw(sampler.noise(step), sampler.init(start))[0]

    size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(draw, jax.random.key(0))))
    count = max(8, min(max(_PROBES, 4 * unknowns), _PROBE_NUMBERS // max(size, 1)))
    return jax.vmap(draw)(jax.random.split(jax.random.key(0), count))


@contextmanager
def announce_slow_check(loss: str, unknowns: int, skip: str) -> Iterator[None]:
    """Say after a second, if it is not over, that the curvature of a loss is being measured, and how to skip it."""
    words = "measuring the curvature of `%s` in %s unknowns, which may take from seconds to minutes; %s"
    timer = threading.Timer(_PATIENCE, lambda: _log.warning(words, loss, f"{unknowns:,}", skip))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def loss_on_batch(loss: Loss, batch: PyTree) -> Loss:
    """The loss on a batch, plain or indexed; zero on one that is left out."""
    if not isinstance(batch, IndexedBatch):
        return lambda *point: loss(*point, batch)
    if batch.index is None:
        return lambda *point: jnp.zeros(())
    return lambda *point: loss(*point, batch.batch)


def mean_loss(loss: Loss, batches: PyTree) -> Loss:
    """The loss averaged over stacked batches."""
    if not jax.tree.leaves(batches):
        return lambda *point: loss(*point, batches)
    return lambda *point: jnp.mean(jax.vmap(lambda batch: loss(*point, batch))(batches))


class CurvatureWarning(UserWarning):
    """An inner loss is not strongly convex where it was measured."""


def extreme_eigenvalues(product: Product, size: int) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of a symmetric operator; NaN if they cannot be computed."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    if size <= _DENSE:
        matrix = np.stack([np.asarray(product(row)) for row in np.eye(size)])
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2) if np.isfinite(matrix).all() else np.full(size, np.nan)
        return float(values[0]), float(values[-1])

    def top(product: Product) -> float:
        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        v0 = np.random.default_rng(0).standard_normal(size)
        return float(eigsh(operator, 1, which="LA", v0=v0, ncv=_DENSE, maxiter=20, tol=1e-8)[0][0])

    try:
        largest = top(product)
        return largest - top(lambda v: largest * v - product(v)), largest
    except ArpackError:
        return float("nan"), float("nan")


class InnerProblem:
    """The mean inner problem at a fixed x, seen through products: H = ∇²_yy g and T, the slope of v's row in y."""

    def __init__(self, loss: Callable[[PyTree], Number], row: Callable[[PyTree, PyTree], PyTree], y: PyTree) -> None:
        self.start, self.back = ravel_pytree(y)
        self.size = self.start.size
        both = jax.value_and_grad(lambda y: loss(self.back(y)))

        def v_row(y: jax.Array, v: jax.Array) -> jax.Array:
            return ravel_pytree(row(self.back(y), self.back(v)))[0]

        self.both, self.v_row = jax.jit(both), jax.jit(v_row)
        self.hessian = jax.jit(lambda y, d: jax.jvp(lambda y: both(y)[1], (y,), (d,))[1])
        self.slope = jax.jit(lambda y, v, d: jax.jvp(lambda y: v_row(y, v), (y,), (d,))[1])
        self.slope_back = jax.jit(lambda y, v, d: jax.vjp(lambda y: v_row(y, v), y)[1](d)[0])

    def curvature(self, y: Float[Array, " n"]) -> tuple[float, float]:
        """The smallest and the largest eigenvalue of H at y."""
        return extreme_eigenvalues(lambda d: np.asarray(self.hessian(y, jnp.asarray(d))), self.size)

    def joint(self, y: Float[Array, " n"], v: Float[Array, " n"], s: float) -> float:
        """The smallest eigenvalue of the symmetric part of [[H, 0], [sT, sH]], the slope of G in (y, v)."""

        def product(d: np.ndarray) -> np.ndarray:
            a, b = jnp.asarray(d[: self.size]), jnp.asarray(d[self.size :])
            top = self.hessian(y, a) + s / 2 * self.slope_back(y, v, b)
            low = s / 2 * self.slope(y, v, a) + s * self.hessian(y, b)
            return np.concatenate([top, low])

        return extreme_eigenvalues(product, 2 * self.size)[0]

    def solution(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Approximate y* and v*, near which a run spends its time: minimise, then solve Hv = ∇_y f."""
        from scipy.optimize import minimize
        from scipy.sparse.linalg import LinearOperator, cg

        def both(y: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self.both(jnp.asarray(y))
            return float(value), np.asarray(slope)

        found = minimize(both, np.asarray(self.start), jac=True, method="L-BFGS-B", options={"maxiter": 200})
        y = jnp.asarray(found.x)
        operator = LinearOperator(
            (self.size, self.size), matvec=lambda d: np.asarray(self.hessian(y, jnp.asarray(d))), dtype=float
        )
        v, _ = cg(operator, -np.asarray(self.v_row(y, jnp.zeros_like(y))), rtol=1e-3, maxiter=200)
        return y, jnp.asarray(v)


def is_curved(curvature: tuple[float, float]) -> bool:
    """Whether the smallest eigenvalue is positive, relative to the largest."""
    smallest, largest = curvature
    return smallest > _FLAT * max(largest, 0.0)


def check_curvature(loss: str, inner: InnerProblem, remedy: str, *, refuse: bool = False) -> None:
    """Warn of a loss that is not strongly convex in y as measured; refuse one without a minimum."""
    here = inner.curvature(inner.start)
    if is_curved(here):
        return
    low, high = (f"{value:.3g}" for value in here)
    measured = f"`{loss}`, and so G, is not strongly monotone as measured: its curvature in y goes from {low} to {high}"
    if refuse or not here[1] > 0:
        need = "" if refuse else "a minimum needs positive curvature: "
        raise InputError(f"{measured} near the start; {need}{remedy}")
    low, high = (f"{value:.3g}" for value in inner.curvature(inner.solution()[0]))
    warnings.warn(
        f"{measured} at the start and from {low} to {high} where it was minimised, so v may not settle; {remedy}, or "
        "pass check=False to turn this warning off",
        CurvatureWarning,
        stacklevel=3,
    )


def choose_v_scale(inner: InnerProblem) -> float:
    """The largest s of 1, ½, ¼, … at which G keeps half of what strong monotonicity sH alone would give.

    It is measured at the start and at the inner solution, where H is positive definite; s is 1 if it is at neither.
    """
    points = [(inner.start, jnp.zeros_like(inner.start)), inner.solution()]
    curved = [(y, v, low) for y, v in points for low, high in [inner.curvature(y)] if is_curved((low, high))]
    for s in 0.5 ** np.arange(40):
        if all(inner.joint(y, v, s) >= s * low / 2 for y, v, low in curved):
            return float(s)
    raise InputError(
        "`v_scale` cannot be chosen: no scale makes G strongly monotone as measured; give a number, say 0.1, "
        "or `levels=True` and a step size for each of y and v"
    )
