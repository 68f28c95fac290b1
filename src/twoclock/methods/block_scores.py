"""What block scores need, kept beside any method: sums of affine operators over blocks of the samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, Float

from twoclock import trees
from twoclock.core import Given, InputError, Method, Operator, PyTree, S, Scalar, pytree
from twoclock.inference import block_sums
from twoclock.inference.block_sums import BlockSums
from twoclock.inputs import check_method
from twoclock.methods.lstd import Lstd

Vector = Float[Array, " n"]


@pytree
class BlockScoresState(Generic[S]):
    inner: S
    sums: BlockSums

    @property
    def theta(self) -> PyTree:
        return self.inner.theta

    @property
    def omega(self) -> PyTree:
        return self.inner.omega


@pytree
class BlockScores(Generic[S]):
    """Run a method as it is and keep what intervals by block scores need: ``result.interval(how="blocks")``.

        (F, G)(z, X) = J(X)z + c(X),   z = (θ, ω):        ΣJ and Σc over each block of the samples

    There are at most 32 blocks, of one length that doubles as samples come in (``inference.block_sums``), so with n
    entries in z it takes 32·(n² + n + 1) numbers, and O(n²) a step beside what keeping them costs. F and G must be
    affine in (θ, ω) jointly, as those of linear policy evaluation are; others are refused. The inner method's
    trajectory does not change by a bit.

    Args:
        method: any method whose estimate tends to the solution, such as ``Lstd()`` or ``Polyak(…)``.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.boyan("td", "markov"), tc.methods.BlockScores(tc.methods.Lstd()), 2000, seeds=2)
    """

    method: Given[Method[S]] = Lstd()  # type: ignore[assignment]  # a default binds S

    def __post_init__(self) -> None:
        check_method(self.method, "BlockScores(method=…)")

    def init(self, theta: PyTree, omega: PyTree) -> BlockScoresState[S]:
        z, _ = ravel_pytree((trees.as_floats("theta", theta), trees.as_floats("omega", omega)))
        return BlockScoresState(self.method.init(theta, omega), block_sums.begin(jnp.zeros(z.size * (z.size + 1), z.dtype)))

    def step(self, F: Operator, G: Operator, state: BlockScoresState[S], x: PyTree, k: Scalar) -> BlockScoresState[S]:
        z, back = ravel_pytree((state.theta, state.omega))

        def both(z: Vector) -> Vector:
            theta, omega = back(z)
            return ravel_pytree((F(theta, omega, x), G(theta, omega, x)))[0]

        if not is_affine(both, z):
            raise InputError(
                "`BlockScores` needs F and G that are affine in (θ, ω) jointly, and these are not; "
                "take `Polyak(…, intervals=True)`, which asks nothing of them"
            )
        c, J_times = jax.linearize(both, jnp.zeros_like(z))
        J = jax.vmap(J_times, out_axes=1)(jnp.eye(z.size, dtype=z.dtype))
        row = jnp.concatenate([J.reshape(-1), c])
        return BlockScoresState(
            self.method.step(F, G, state.inner, x, k), block_sums.advance(state.sums, row, k)
        )

    def estimate(self, state: BlockScoresState[S]) -> tuple[PyTree, PyTree]:
        return self.method.estimate(state.inner)

    def report(self, state: BlockScoresState[S]) -> dict[str, Scalar]:
        report = getattr(self.method, "report", None)
        return report(state.inner) if report else {}


def is_affine(function: Callable[[Vector], Vector], z: Vector) -> bool:
    """Whether the derivative along a direction does not depend on where it is taken, read from the traced program."""
    derivative = jax.make_jaxpr(lambda z, dz: jax.jvp(function, (z,), (dz,))[1])(z, z).jaxpr
    _, used = dce_jaxpr(derivative, [True] * len(derivative.outvars))
    return not used[0]
