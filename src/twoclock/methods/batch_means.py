"""What block scores need, kept beside any method: sums of affine operators over blocks of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, Float

from twoclock import tree_math
from twoclock.intervals import online_batch_means
from twoclock.intervals.batch_means import tell
from twoclock.intervals.online_batch_means import BlockSums
from twoclock.methods import interval_state
from twoclock.methods.lstd import Lstd
from twoclock.methods.wrapper import Around
from twoclock.protocols import InputError, Method, Operator, PyTree, S, Scalar, pytree, static
from twoclock.validation import check_method

Vector = Float[Array, " n"]


@pytree
class BlockScoresState(Around[S]):
    inner: S
    sums: BlockSums


@pytree
class BatchMeans(Method[BlockScoresState[S]], Generic[S]):
    """Run a method as it is and keep what intervals by block scores need: ``result.interval(how="blocks")``.

        (F, G)(z, X) = J(X)z + c(X),   z = (θ, ω):        ΣJ and Σc over each block of the samples

    F and G must be affine in (θ, ω) jointly, as those of linear policy evaluation are; others are refused. There are at
    most 32 blocks, of one length that doubles as samples come in (``inference.block_sums``). With n entries in z that
    is 32·(n² + n) numbers, and each step goes over them. The inner method's trajectory does not change by a bit.

    Args:
        method: any method whose estimate tends to the solution: ``Lstd()``, or a ``Polyak(…)``, which is told where it
            is still far from the solution of its own samples.
        intervals: True for an interval for each coordinate of θ, or a function (θ, ω) → array, or dict of arrays, of
            the outputs to have intervals for.

    >>> import twoclock as tc
    >>> method = tc.methods.BatchMeans(tc.methods.Lstd())
    >>> result = tc.solve(tc.problems.boyan("td", "markov"), method, steps=2000, seeds=2)
    >>> result.interval(how="blocks")["output"].tolist()[:2]
    ['theta[0]', 'theta[1]']
    """

    method: Method[S] = Lstd()  # a default binds S
    intervals: bool | Callable[[PyTree, PyTree], PyTree] = static(default=True)

    def __post_init__(self) -> None:
        check_method(self.method, "BatchMeans(method=…)")
        interval_state.check("BatchMeans", 0, self.intervals)

    def init(self, theta: PyTree, omega: PyTree) -> BlockScoresState[S]:
        z, _ = ravel_pytree((tree_math.as_floats("theta", theta), tree_math.as_floats("omega", omega)))
        row = jnp.zeros(z.size * (z.size + 1), z.dtype)
        return BlockScoresState(self.method.init(theta, omega), online_batch_means.begin(row))

    def step(self, F: Operator, G: Operator, state: BlockScoresState[S], x: PyTree, k: Scalar) -> BlockScoresState[S]:
        z, back = ravel_pytree((state.theta, state.omega))

        def both(z: Vector) -> Vector:
            theta, omega = back(z)
            return ravel_pytree((F(theta, omega, x), G(theta, omega, x)))[0]

        if not is_affine(both, z):
            raise InputError(
                "`BatchMeans` needs F and G that are affine in (θ, ω) jointly, and these are not; "
                "take `Polyak(method, intervals=True)`, which asks nothing of them"
            )
        c, J_times = jax.linearize(both, jnp.zeros_like(z))
        J = jax.vmap(J_times, out_axes=1)(jnp.eye(z.size, dtype=z.dtype))
        sums = online_batch_means.advance(state.sums, jnp.concatenate([J.reshape(-1), c]), k)
        return BlockScoresState(self.method.step(F, G, state.inner, x, k), sums)

    def estimate(self, state: BlockScoresState[S]) -> tuple[PyTree, PyTree]:
        return self.method.estimate(state.inner)

    def report(self, state: BlockScoresState[S]) -> Mapping[str, Scalar]:
        return self.method.report(state.inner)

    def track(self, state: BlockScoresState[S]) -> dict[str, PyTree]:
        return {**self.method.track(state.inner), **self._blocks(state)}

    def _blocks(self, state: BlockScoresState[S]) -> dict[str, PyTree]:
        """What the blocks say of each output at the estimate; of f(θ, ω) by its derivative there."""
        z, back = ravel_pytree(self.estimate(state))
        named = interval_state.outputs(self.intervals, *back(z))
        _, as_outputs = ravel_pytree(named)
        directions = jax.jacobian(lambda z: ravel_pytree(interval_state.outputs(self.intervals, *back(z)))[0])(z)
        sums, sizes = online_batch_means.in_order(state.sums)
        J, c = sums[:, : z.size**2].reshape(-1, z.size, z.size), sums[:, z.size**2 :]
        total = J.sum(axis=0)
        inverse = tree_math.pinv(total)
        told = tell(J @ z + c, inverse, sizes / jnp.maximum(sizes.sum(), 1), directions)
        # The trace of a projection is its rank.
        determined = jnp.trace(inverse @ total) > z.size - 0.5
        return {
            "block-estimate": named,
            "block-error": as_outputs(jnp.where(determined, told.error, jnp.full_like(told.error, jnp.inf))),
            "block-correlation": as_outputs(jnp.asarray(told.correlation)),
            "block-shift": as_outputs(jnp.asarray(told.shift)),
            "block-freedom": told.freedom,
            "block-count": told.blocks,
        }


def is_affine(function: Callable[[Vector], Vector], z: Vector) -> bool:
    """Whether the derivative along a direction does not depend on where it is taken, read from the traced program."""
    derivative = jax.make_jaxpr(lambda z, dz: jax.jvp(function, (z,), (dz,))[1])(z, z).jaxpr
    _, used = dce_jaxpr(derivative, [True] * len(derivative.outvars))
    return not used[0]
