"""Steps without slopes or step sizes: the distance from the start over the size of the directions so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from twoclock import tree_math
from twoclock.protocols import Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.tree_math import Sum, sqnorm
from twoclock.validation import NOT_NEGATIVE, check_number

# After how many samples without slopes the first step is a share of the start's size, or 1; that share, which also
# scales the length by slopes; and the share of a step that is repeated after a sample that was not finite.
_SEARCH, _FIRST, _LESS = 64, 1e-2, 0.1
# The weight of a sample in the short running mean; the factor by which steps of θ that led away become shorter.
_LATELY, _SLOWER = 0.1, 0.25


@pytree
class DoGState:
    theta: PyTree
    omega: PyTree
    path: Sum  # the iterates as one vector
    mean: Sum  # the average of the path
    origin: Float[Array, " n"]
    reach: Float[Array, 2]  # the largest distance of θ and of ω from the start,
    known_reach: Float[Array, 2]  # and its value when all was well
    square: Float[Array, 2]  # the mean of ‖F‖² and of ‖G‖²,
    lately: Float[Array, 2]  # and its mean over some ten samples
    share: Float[Array, 2]  # the share of the usual step of θ and of ω; smaller where those led away
    count: Float[Array, ""]


@pytree
class DoG(Method):
    """Distance over gradients on both levels, and an average of the iterates: no step size and no slope.

        θ ← θ − r·F/√Σ‖F‖²        r: the largest distance of θ from its start so far;   ω alike, with G

    A step is a length over a size of F, so that nothing depends on the units of θ, ω, F or G, and steps fall like k^−½
    where only noise is left. The first ones are a hundredth of a Newton step along F, if slopes determine one. θ may
    run ahead of ω, so the method alone may diverge. Memory is five copies of θ and ω.

    Args:
        power: samples weigh i^power in the mean of squares, so that large values at a bad start are forgotten.
        recent: iterates weigh i^recent in the average.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=2), tc.methods.DoG(), steps=500, seeds=3)

    Reference: Ivgi, Hinder & Carmon, *DoG is SGD's best friend: a parameter-free dynamic step size schedule*, 2023, for
    one level and for sums that forget nothing.
    """

    power: Scalar = checked(check_number, *NOT_NEGATIVE, default=0.5)
    recent: Scalar = checked(check_number, *NOT_NEGATIVE, default=3.0)

    def init(self, theta: PyTree, omega: PyTree) -> DoGState:
        theta, omega = tree_math.as_floats("theta", theta), tree_math.as_floats("omega", omega)
        z, _ = ravel_pytree((theta, omega))
        pair = jnp.zeros(2, z.dtype)
        path = tree_math.start(z)
        return DoGState(theta, omega, path, path, z, pair, pair, pair, pair, pair + 1, jnp.zeros((), z.dtype))

    def step(self, F: Operator, G: Operator, state: DoGState, x: PyTree, k: Scalar) -> DoGState:
        z, (_, back) = state.path.value, ravel_pytree((state.theta, state.omega))
        slow = tree_math.size(state.theta)

        def both(z: Float[Array, " n"]) -> Float[Array, " n"]:
            here = *back(z), x
            return ravel_pytree((F(*here), G(*here)))[0].astype(z.dtype)

        value = both(z)
        fine = jnp.all(jnp.isfinite(value))
        value = jnp.where(fine, value, 0)
        count = state.count + 1
        weight = (1 + jnp.asarray(self.power, z.dtype)) / (count + self.power)
        squares = squared_parts(value, slow)
        square = state.square + weight * (squares - state.square)
        lately = state.lately + jnp.maximum(weight, _LATELY) * (squares - state.lately)
        found = jax.lax.cond(
            jnp.asarray(k, jnp.int32) < _SEARCH,
            lambda: _lengths(both, z, value, slow),
            lambda: _sizes(state.origin, slow),
        )
        reach = jnp.where(state.reach > 0, state.reach, _FIRST * found)
        known = jnp.where(state.known_reach > 0, state.known_reach, reach)
        reach = jnp.maximum(reach, jnp.sqrt(squared_parts(z - state.origin, slow)))
        step = state.share * reach / jnp.sqrt(count * square + jnp.finfo(z.dtype).tiny)
        by = jnp.concatenate([step[0] * value[:slow], step[1] * value[slow:]])
        # After a sample that is not finite: back towards the average, and with shorter steps.
        mean = state.mean.value
        path = tree_math.add(state.path, jnp.where(fine, -by, mean - z))
        reach = jnp.where(fine, reach, _LESS * state.reach)
        weight = (1 + jnp.asarray(self.recent, z.dtype)) / (count + self.recent)
        average = tree_math.blend(state.mean, weight, path.value)
        theta, omega = back(path.value)
        new = DoGState(theta, omega, path, average, state.origin, reach, known, square, lately, state.share, count)
        return tree_math.select(is_finite((new.path.value, new.reach, new.square)), new, state)

    def estimate(self, state: DoGState) -> tuple[PyTree, PyTree]:
        _, back = ravel_pytree((state.theta, state.omega))
        theta, omega = back(state.mean.value)
        return theta, omega


def moved_to(state: DoGState, z: Float[Array, " n"]) -> DoGState:
    """The state with its iterate and its average elsewhere."""
    _, back = ravel_pytree((state.theta, state.omega))
    theta, omega = back(z)
    there = tree_math.start(z)
    return replace(state, theta=theta, omega=omega, path=there, mean=there)


def taken_back(state: DoGState, z: Float[Array, " n"], square: Float[Array, 2]) -> DoGState:
    """The state at z, with shorter steps, those of θ even more so: ω may have been too slow for it."""
    share = state.share * jnp.asarray([_SLOWER, _SLOWER**0.5], z.dtype)
    return replace(moved_to(state, z), reach=state.known_reach, square=square, lately=square, share=share)


def squared_parts(z: Float[Array, " n"], slow: int) -> Float[Array, 2]:
    """‖θ‖² and ‖ω‖² of both as one vector."""
    return jnp.stack([sqnorm(z[:slow]), sqnorm(z[slow:])])


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether the squared norm of all leaves is finite."""
    return jnp.isfinite(sqnorm(tree))


def _sizes(origin: Float[Array, " n"], slow: int) -> Float[Array, 2]:
    """‖θ‖ and ‖ω‖ at the start, or 1 where that is zero."""
    sizes = jnp.sqrt(squared_parts(origin, slow))
    return jnp.where(sizes > 0, sizes, 1)


def _lengths(
    both: Callable[[Array], Array], z: Float[Array, " n"], value: Float[Array, " n"], slow: int
) -> Float[Array, 2]:
    """The lengths of Newton's steps along F and along G, by the slopes of this sample; 0 where those are zero.

    ‖F‖²/σ and ‖G‖²/‖G_ω G‖, with σ = ‖F_θ F‖ + ‖F_ω G_θ F‖·‖G‖/‖G_ω G‖, since ω follows θ.
    """
    leader = jnp.arange(z.size) < slow

    def along(tangent: Array) -> Array:
        slopes: Array = jax.jvp(both, (z,), (tangent,))[1]
        return jnp.where(jnp.isfinite(slopes), slopes, 0)

    by_theta, by_omega = along(jnp.where(leader, value, 0)), along(jnp.where(leader, 0, value))
    through = along(jnp.where(leader, 0, by_theta))
    (F_sq, G_sq), tiny = squared_parts(value, slow), jnp.finfo(z.dtype).tiny
    steep = jnp.sqrt(sqnorm(by_omega[slow:]))
    per_G = jnp.where(steep > 0, jnp.sqrt(G_sq) / (steep + tiny), 0)
    sigma = jnp.sqrt(sqnorm(by_theta[:slow])) + jnp.sqrt(sqnorm(through[:slow])) * per_G
    of_theta = jnp.where(sigma > 0, F_sq / (sigma + tiny), 0)
    return jnp.stack([of_theta, jnp.sqrt(G_sq) * per_G])
