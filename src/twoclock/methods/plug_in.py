"""Estimates from sums over the samples: plug-in estimates, least squares, and batch means for any method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from twoclock import tree_math
from twoclock.intervals.batch_means import BlockSums, add_row, empty_sums, score_statistics, sums_in_order
from twoclock.methods.affine import Slopes, slopes
from twoclock.methods.averaging import OutputChoice, check_outputs, outputs
from twoclock.methods.fast import Fast, WrapperState, wrapped_method
from twoclock.protocols import InputError, Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.tree_math import Sum, add, blend, pinv

Vector = Float[Array, " n"]


@runtime_checkable
class PlugInModel(Protocol):
    """How an answer follows from the mean of a statistic of the samples."""

    @property
    def prior(self) -> PyTree:
        """The mean before the first sample; it counts as one."""

    def statistic(self, x: PyTree) -> PyTree:
        """A pytree like the prior."""

    def solve(self, mean: PyTree) -> tuple[PyTree, PyTree]:
        """The θ, ω for a mean of the statistic."""


def _check_model(what: str, model: object) -> None:
    if model is not None and not isinstance(model, PlugInModel):
        raise InputError(
            f"`{what}` must have prior, statistic and solve, got {type(model).__name__}; "
            "for a regulator try `models.CertaintyEquivalence(Q, R)`"
        )


@pytree
class PlugInState(WrapperState):
    mean: Sum | None


@pytree
class PlugIn(Method):
    """Run a method unchanged and report the solution at an averaged statistic of its samples.

        S_n = (S₀ + Σ_{k=1..n} statistic(X_k)) / (n + 1),        estimate = solve(S_n)

    The inner method's trajectory is unchanged, bit for bit, so both see the same samples. Certainty equivalence and
    least squares are of this kind: their accuracy costs memory and the solution of an equation.

    Args:
        method: the method that moves the iterates.
        model: an object with ``prior``, the S₀ that counts as one sample; ``statistic(x)``, a pytree like it; and
            ``solve(mean) -> theta, omega``. Without one the inner method's estimate is reported.

    >>> import numpy as np
    >>> import twoclock as tc
    >>> rival = tc.PlugIn(tc.Fast(), tc.models.CertaintyEquivalence(Q=np.eye(3), R=np.eye(2)))
    """

    method: Method = wrapped_method(Fast())
    model: PlugInModel | None = checked(_check_model, default=None)

    def init(self, theta: PyTree, omega: PyTree) -> PlugInState:
        mean = None if self.model is None else tree_math.start(self.model.prior, "prior")
        return PlugInState(self.method.init(theta, omega), mean)

    def step(self, F: Operator, G: Operator, state: PlugInState, x: PyTree, k: Scalar) -> PlugInState:
        inner = self.method.step(F, G, state.inner, x, k)
        if self.model is None or state.mean is None:
            return PlugInState(inner, None)
        weight = 1 / (jnp.asarray(k, float) + 2)  # S₀ counts as one sample and this is sample k + 1
        return PlugInState(inner, blend(state.mean, weight, self.model.statistic(x)))

    def estimate(self, state: PlugInState) -> tuple[PyTree, PyTree]:
        if self.model is None or state.mean is None:
            return self.method.estimate(state.inner)
        return self.model.solve(state.mean.value)

    def report(self, state: PlugInState) -> Mapping[str, Scalar]:
        return self.method.report(state.inner)


@pytree
class LstdState:
    theta: PyTree
    omega: PyTree
    jacobian: Sum
    offset: Sum


@pytree
class Lstd(Method):
    """Average the slow operator as an affine map and solve the average.

        F(θ, X) = J(X)θ + c(X):        θ̂ = −(Σ J)⁺ Σ c

    On policy evaluation with ``operator="td"`` this is LSTD: no method on the same samples has a smaller error in the
    long run. It costs O(d²) per step; the equation is solved only when an estimate is requested. θ must be one vector,
    F affine in it and free of ω.

    >>> import twoclock as tc
    >>> method = tc.methods.Lstd()

    Reference: Bradtke & Barto, *Linear least-squares algorithms for temporal difference learning*, 1996.
    """

    def init(self, theta: PyTree, omega: PyTree) -> LstdState:
        theta, omega = tree_math.as_floats("theta", theta), tree_math.as_floats("omega", omega)
        flat, _ = ravel_pytree(theta)
        jacobian = jnp.zeros((flat.size, flat.size), flat.dtype)
        return LstdState(theta, omega, tree_math.start(jacobian), tree_math.start(jnp.zeros_like(flat)))

    def step(self, F: Operator, G: Operator, state: LstdState, x: PyTree, k: Scalar) -> LstdState:
        flat, back = ravel_pytree(state.theta)
        c, J_times = jax.linearize(lambda v: ravel_pytree(F(back(v), state.omega, x))[0], jnp.zeros_like(flat))
        J = jax.vmap(J_times, out_axes=1)(jnp.eye(flat.size, dtype=flat.dtype))
        return LstdState(state.theta, state.omega, add(state.jacobian, J), add(state.offset, c))

    def estimate(self, state: LstdState) -> tuple[PyTree, PyTree]:
        _, back = ravel_pytree(state.theta)
        return back(-(pinv(state.jacobian.value) @ state.offset.value)), state.omega


@pytree
class BatchMeansState(WrapperState):
    sums: BlockSums


@pytree
class BatchMeans(Method):
    """Run a method unchanged and store block sums for ``result.interval(how="blocks")``.

        (F, G)(z, X) = J(X)z + c(X),   z = (θ, ω):        ΣJ and Σc over each block of the samples

    F and G must be affine in (θ, ω) jointly, as those of linear policy evaluation are; others are refused. There are at
    most 32 blocks (``intervals.batch_means``): with n entries in z that is 32·(n² + n) numbers, and each step reads
    them all. The inner method's trajectory is unchanged, bit for bit.

    Args:
        method: any method whose estimate tends to the solution: ``Lstd()``, or a ``Polyak(…)``; intervals have a note
            where it is still far from the solution for the same samples.
        intervals: the outputs to have intervals for, as in ``Polyak``; True for each coordinate of θ.

    >>> import twoclock as tc
    >>> method = tc.methods.BatchMeans(tc.methods.Lstd())
    >>> result = tc.solve(tc.problems.boyan("td", "markov"), method, steps=2000, seeds=2)
    >>> result.interval(how="blocks")["output"].tolist()[:2]
    ['theta[0]', 'theta[1]']
    """

    method: Method = wrapped_method(Lstd())
    intervals: OutputChoice = checked(check_outputs, default=True, static=True)

    def init(self, theta: PyTree, omega: PyTree) -> BatchMeansState:
        z, _ = ravel_pytree((tree_math.as_floats("theta", theta), tree_math.as_floats("omega", omega)))
        row = jnp.zeros(z.size * (z.size + 1), z.dtype)
        return BatchMeansState(self.method.init(theta, omega), empty_sums(row))

    def step(self, F: Operator, G: Operator, state: BatchMeansState, x: PyTree, k: Scalar) -> BatchMeansState:
        z, back = ravel_pytree((state.theta, state.omega))

        def both(z: Vector, x: PyTree) -> Vector:
            theta, omega = back(z)
            return ravel_pytree((F(theta, omega, x), G(theta, omega, x)))[0]

        if slopes(both, z, x) is Slopes.POINT:
            raise InputError(
                "`BatchMeans` needs F and G that are affine in (θ, ω) jointly, and these are not; "
                "take `Polyak(method, intervals=True)`, which asks nothing of them"
            )
        c, J_times = jax.linearize(lambda z: both(z, x), jnp.zeros_like(z))
        J = jax.vmap(J_times, out_axes=1)(jnp.eye(z.size, dtype=z.dtype))
        sums = add_row(state.sums, jnp.concatenate([J.reshape(-1), c]), k)
        return BatchMeansState(self.method.step(F, G, state.inner, x, k), sums)

    def estimate(self, state: BatchMeansState) -> tuple[PyTree, PyTree]:
        return self.method.estimate(state.inner)

    def report(self, state: BatchMeansState) -> Mapping[str, Scalar]:
        return self.method.report(state.inner)

    def track(self, state: BatchMeansState) -> dict[str, PyTree]:
        """The block statistics of each output at the estimate; for f(θ, ω) by its derivative there."""
        inner = self.method.track(state.inner)
        z, back = ravel_pytree(self.estimate(state))
        named = outputs(self.intervals, *back(z))
        _, as_outputs = ravel_pytree(named)
        directions = jax.jacobian(lambda z: ravel_pytree(outputs(self.intervals, *back(z)))[0])(z)
        sums, sizes = sums_in_order(state.sums)
        J, c = sums[:, : z.size**2].reshape(-1, z.size, z.size), sums[:, z.size**2 :]
        total = J.sum(axis=0)
        inverse = tree_math.pinv(total)
        found = score_statistics(J @ z + c, inverse, sizes / jnp.maximum(sizes.sum(), 1), directions)
        # The trace of a projection is its rank.
        determined = jnp.trace(inverse @ total) > z.size - 0.5
        return {
            **inner,
            "block-estimate": named,
            "block-error": as_outputs(jnp.where(determined, found.error, jnp.full_like(found.error, jnp.inf))),
            "block-correlation": as_outputs(jnp.asarray(found.correlation)),
            "block-shift": as_outputs(jnp.asarray(found.shift)),
            "block-freedom": found.freedom,
            "block-count": found.blocks,
        }
