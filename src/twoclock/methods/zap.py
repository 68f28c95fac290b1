"""Newton steps to the root of a linear model of the mean operators, with no step size to choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from twoclock import tree_math
from twoclock.intervals.arrival import ONE_SEED, WITHIN, surprise
from twoclock.methods import forgetting, frozen_check, local_model
from twoclock.methods.affine import Slopes, slopes
from twoclock.methods.forgetting import Older
from twoclock.methods.frozen_check import FrozenCheck, top_power
from twoclock.methods.judged_move import (
    Trial,
    add_sample,
    by_entry,
    expand_axes,
    lengths_of,
    overshot,
    ratio,
    share_beyond_noise,
    share_within,
    squared_norm,
    squared_shares,
)
from twoclock.methods.local_model import LinearModel, Root, times
from twoclock.protocols import Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.tree_math import sqnorm
from twoclock.validation import NOT_NEGATIVE, POSITIVE_FRACTION, check_number
from twoclock.validation.arrays import Array

# Moves of the iterates between two powers of two; samples per entry of θ and ω before the first move, and between two
# moves, since a model needs samples from the new point before it is trusted again.
_MOVES, _FIRST, _BETWEEN = 16, 10, 4
# The distance from the iterate up to which a model's root is trusted: in standard errors, and, if the operators are
# curved, as a share of the iterate's size.
_FAR, _STRAIGHT = 5.0, 0.25
# How fast a model of curved operators forgets while the iterates move: half of it with a move of a sixth of their size.
# It also forgets if its samples were taken far from here on average, since many short moves make a long distance.
_FORGET = 30.0
# The prior for the distance of θ is this many times its present size. If the operators are affine, no step is too far,
# and the prior only excludes what rounding would: a weak direction may be thousands of times longer than a strong one.
# The first step is at most this many lengths.
_PRIOR, _WIDE_PRIOR, _FIRST_STEP = 3.0, 3000.0, 3.0
# If steps are shorter than their limit, the limit shrinks by this factor at a time, down to this many standard errors
# of the iterate. It is also the distance over which a model of curved operators is trusted.
_LESS, _REACH = 0.7, 30.0
# What counts as zero where samples have no noise, relative to the squared mean at the start.
_NOTHING = 1e-5
# The multiples of this number modulo 1 differ from each other.
_GOLDEN = 0.6180339887498949


@pytree
class ZapState:
    theta: PyTree
    omega: PyTree
    origin: Float[Array, "*lanes n"]
    reach: Float[Array, "*lanes 2"]  # the longest step of θ and of ω
    width: Float[Array, "*lanes 2"]  # half the distance over which slopes are taken
    curved: Float[Array, "*lanes"]
    model: LinearModel
    trial: Trial
    older: Older
    check: FrozenCheck
    linear: Float[Array, "*lanes 3 n"]  # J z at the iterate, at the frozen estimate and at the start


@pytree
class Zap(Method):
    """A matrix gain without step sizes: average linear models of F and G, and move to the root of the average.

        J ← mean of J_i,   c ← mean of f_i − J_i z_i        f = (F, G) at the iterate z_i = (θ, ω) and X_i
        J_i e = [f(z_i + δe, X_i) − f(z_i − δe, X_i)]/2δ     δ: the uncertainty of the iterate
        θ ← θ − a·S⁻¹(f − B g)                               at f, g = J z + c;  B = F_ω G_ω⁻¹,  S = F_θ − B G_θ
        ω ← ω − b·G_ω⁻¹(g − G_θ·(the step of θ))             16 times while k doubles

    and the estimate is the model's root. Slopes are differences of one sample at two points. So quantiles, thresholds
    and kinks have slopes where the mean is smooth. Where F and G are affine, the estimate is least squares on all
    samples, which is LSTD in policy evaluation: no method on the same samples has a smaller error in the long run.
    Where they are curved, which further evaluations of each sample show, the model forgets samples from far away.

    Five rules prevent divergence. a and b are ``rate`` times the share of a step that is not sampling noise. The
    samples after a move judge it: a step that went too far is partly undone, and later ones are shorter. S is shifted
    until θ goes downhill, away from saddles. Where F is surely not zero and has no visible slope, θ goes downhill by
    steps that double. Of curved F or G, directions of θ with hardly any data are left near the start. Nothing depends
    on the units of θ, ω, F or G. A step costs about twice as many evaluations of F and G as there are entries of θ and
    ω, and memory is their square, which suits up to about a hundred entries; ``MatrixFreeZap`` is the form for more.
    Where the program of F and G shows that all samples have the same Jacobian, a step costs one evaluation.

    Args:
        power: samples weigh i^power where F or G is curved, to forget the start faster; elsewhere they weigh the same.
        rate: the share of a step that is taken.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=2), tc.Zap(), steps=500, seeds=3)

    Reference: Devraj & Meyn, *Zap Q-learning*, 2017, for the matrix gain on its own time scale.
    """

    finds_roots = True
    reads_on_host: ClassVar[bool] = True
    refines: ClassVar[bool] = True

    power: Scalar = checked(check_number, *NOT_NEGATIVE, default=0.25)
    rate: Scalar = checked(check_number, *POSITIVE_FRACTION, default=0.3)

    def init(self, theta: PyTree, omega: PyTree) -> ZapState:
        theta, omega = tree_math.as_floats("theta", theta), tree_math.as_floats("omega", omega)
        z, _ = ravel_pytree((theta, omega))
        zero, pair = jnp.zeros((), z.dtype), jnp.zeros(2, z.dtype)
        # Before the first move the only known length is that of the start.
        sizes = jnp.stack([jnp.sqrt(sqnorm(part)).astype(z.dtype) for part in (theta, omega)])
        reach = jnp.where(sizes > 0, sizes, 1)
        model = local_model.empty(z)
        trial = Trial(
            z,
            jnp.zeros_like(z),
            jnp.zeros((2, z.size), z.dtype),
            pair,
            pair,
            pair,
            zero,
            zero,
            zero,
            jnp.zeros_like(z),
            jnp.zeros_like(z),
            model,
        )
        check = frozen_check.begin(z)
        older, linear = forgetting.begin(model), jnp.zeros((3, z.size), z.dtype)
        return ZapState(theta, omega, z, reach, _least(reach), zero, model, trial, older, check, linear)

    def step(self, F: Operator, G: Operator, state: ZapState, x: PyTree, k: Scalar) -> ZapState:
        k = jnp.asarray(k, jnp.int32)
        state = self.between(F, G, state, x, k)
        return jax.lax.cond(self.is_due(state, k), lambda: self.refine(state, k), lambda: state)

    def between(self, F: Operator, G: Operator, state: ZapState, x: PyTree, k: Scalar) -> ZapState:
        """Add a sample to the model, to the means that judge the last move, and to those at the frozen estimate."""
        z, back = ravel_pytree((state.theta, state.omega))
        slow = tree_math.size(state.theta)

        def both(z: Float[jax.Array, " n"], x: PyTree = x) -> Float[jax.Array, " n"]:
            here = *back(z), x
            return ravel_pytree((F(*here), G(*here)))[0].astype(z.dtype)

        change = slopes(both, z, x)
        if change == Slopes.NOTHING:
            return self._add_offset(state, both, z, k)
        if change == Slopes.SAMPLE:
            f, at_check, at_start = jax.vmap(both)(jnp.stack([z, state.check.point, state.origin]))
            J, curved = jax.jacfwd(both)(z), state.curved
        else:
            f, J, at_check, at_start, bent = _by_differences(state, both, z, slow)
            curved = jnp.maximum(state.curved, bent)
        fine = jnp.all(jnp.isfinite(f)) & jnp.all(jnp.isfinite(J))
        f, J = jnp.where(fine, f, 0), jnp.where(fine, J, 0)
        return replace(
            state,
            curved=curved,
            model=local_model.learn(state.model, z, f, J, curved * self.power, fine),
            trial=add_sample(state.trial, f, fine),
            check=frozen_check.add_sample(state.check, _finite(at_check), _finite(at_start), k),
        )

    def _add_offset(self, state: ZapState, both: Callable[..., Array], z: Float[Array, " n"], k: Scalar) -> ZapState:
        """The same where all samples have one Jacobian J, so that they differ in f − J z alone; J is taken once."""

        def first() -> tuple[Array, ...]:
            J = jax.jacfwd(both)(z)
            return J, J, jnp.broadcast_to(J @ z, state.linear.shape)

        known = state.model.J.value, state.model.late_J, state.linear
        J, late_J, linear = jax.lax.cond(k == 0, first, lambda: known)
        f = both(z)
        offset, fine = f - linear[0], jnp.all(jnp.isfinite(f))
        model = replace(state.model, J=replace(state.model.J, value=J), late_J=late_J)
        return replace(
            state,
            linear=linear,
            model=local_model.learn_offset(model, z, jnp.where(fine, offset, 0), fine),
            trial=add_sample(state.trial, jnp.where(fine, f, 0), fine),
            check=frozen_check.add_sample(state.check, _finite(offset + linear[1]), _finite(offset + linear[2]), k),
        )

    def is_due(self, state: ZapState, k: Any) -> Any:
        return _due(k, state.origin.shape[-1])

    # ``refine``, ``estimate`` and ``report`` take one lane in JAX, and many lanes at once as NumPy's arrays, with
    # leading axes.

    def refine(self, state: ZapState, k: Any) -> ZapState:
        """Judge the last move, make the next, and freeze the estimate."""
        (z, slow, back), xp = as_vector(state), state.curved.__array_namespace__()
        model, trial, curved = state.model, state.trial, state.curved > 0
        over, share = overshot(trial)
        first = trial.model.count == 0
        # Samples at the end of an undone move may be far from representative.
        undo = over.any(axis=-1) & curved & ~first
        model = jax.tree.map(lambda before, now: xp.where(expand_axes(undo, now), before, now), trial.model, model)
        state = replace(state, model=model)
        to = self.root(state, z, slow)
        lengths = xp.stack([to.scale, to.fast_scale], axis=-1)
        reach = xp.where(first[..., None] & (lengths > 0), _FIRST_STEP * lengths, state.reach)
        last = lengths_of(trial.step, slow)
        noise = xp.stack([to.slow_noise, to.fast_noise], axis=-1) ** 0.5
        shorter_reach = xp.minimum(xp.maximum(_LESS * reach, _REACH * noise), reach)
        reach = xp.where(
            over,
            xp.minimum(xp.maximum(last / 2, 2 * noise), reach),
            xp.where(last > 0.9 * reach, 2 * reach, shorter_reach),
        )
        rate = xp.asarray(self.rate, dtype=z.dtype)
        # Before the first move the prior is no more than a guess of a length. A slope that is seen is one.
        is_flat = (squared_norm(to.flat) > squared_norm(to.u) / 4) & ~(first & (to.scale > 0))
        # Where no slope is seen, the prior would take θ back to its start.
        newton = xp.where(is_flat[..., None], times(to.reduced_gain, to.u), to.slow)
        by_theta = (rate * share_beyond_noise(newton, to.slow_most))[..., None] * newton
        by_theta = share_within(reach[..., 0], by_theta)[..., None] * by_theta
        downhill = share_beyond_noise(to.flat, to.u_most) * ratio(reach[..., 0], squared_norm(to.flat) ** 0.5)
        by_theta = by_theta + xp.where(is_flat, downhill, 0)[..., None] * to.flat
        omega = to.fast(by_theta)
        by_omega = (rate * share_beyond_noise(omega, to.fast_most))[..., None] * omega
        by_omega = share_within(reach[..., 1], by_omega)[..., None] * by_omega
        step = -xp.concatenate([by_theta, by_omega], axis=-1)
        base = xp.where(by_entry(over, z, slow), trial.base, z)
        step = xp.where(by_entry(over, z, slow), by_entry(share, z, slow) * trial.step, step)
        fine = xp.isfinite(step).all(axis=-1) & xp.isfinite(reach).all(axis=-1)
        step, reach = xp.where(fine[..., None], step, 0), xp.where(fine[..., None], reach, state.reach)
        moved = base + step
        sizes = (lengths_of(z, slow) ** 2 + reach**2) ** 0.5
        of_theta = times(to.reduce.mT, step[..., :slow])
        of_omega = xp.concatenate([xp.zeros_like(step[..., :slow]), step[..., slow:]], axis=-1)
        along = xp.stack([of_theta, of_omega], axis=-2)
        along = xp.where(over[..., None], share[..., None] * trial.along, along)
        along = xp.where(fine[..., None, None], along, 0)
        slope = xp.where(over, share * trial.slope, times(along, model.at(z)))
        gains = to.gain, xp.concatenate([xp.zeros_like(to.G_theta), to.fast_inverse], axis=-1)
        doubted = curved & ~undo & ~first
        none_doubted = isinstance(doubted, np.ndarray) and not doubted.any()  # known before a compiled program runs
        before = trial.model.count
        older = forgetting.grown(state.older, before, xp.where(undo, before, model.count), state.curved * self.power)
        if not none_doubted:
            revised = forgetting.without_bias(model, older, state.check, z, gains)
            model, older = jax.tree.map(
                lambda new, old: xp.where(expand_axes(doubted, new), new, old), revised, (model, older)
            )
        forget = state.curved * (
            _FORGET * squared_shares(moved - z, sizes, slow) + squared_shares(moved - model.place, sizes, slow)
        )
        kept = model.count / (1 + forget)
        if not none_doubted:
            off = trial.seen - trial.expected
            worth = forgetting.worth(kept, off, trial.count, before, model, state.check, trial.base, gains)
            kept = xp.where(doubted, worth, kept)
        kept = xp.maximum(kept, xp.minimum(model.count, _FIRST * z.shape[-1]))
        unsure = xp.where(xp.stack([is_flat, is_flat & False], axis=-1), reach, 2 * noise)
        width = xp.clip(unsure, _least(sizes), xp.maximum(reach, _least(sizes)))
        width = xp.where(xp.isfinite(width), width, state.width)
        zero, none = xp.zeros_like(trial.mean), xp.zeros_like(trial.count)
        model = replace(model, count=kept)
        undone = xp.where(over.any(axis=-1), trial.undone + 1, none)
        seen = xp.zeros_like(z)
        trial = Trial(base, step, along, slope, zero, zero, none, none, undone, model.at(moved), seen, model)
        check = frozen_check.freeze(state.check, self.best(state, z, to, slow), k)
        linear = xp.stack([moved, check.point, state.origin], axis=-2) @ model.J.value.mT
        older = forgetting.begin_at_powers(older, model, k)
        theta, omega = back(moved)
        return ZapState(theta, omega, state.origin, reach, width, state.curved, model, trial, older, check, linear)

    def root(self, state: ZapState, z: Array, slow: int, *, lately: bool = False) -> Root:
        """Newton's step from z to the root of the model, or of its running means.

        Args:
            state: the state of the method.
            z: θ and ω as one vector.
            slow: the number of entries of θ.
            lately: take the running means of later samples.
        """
        model, start = local_model.lately(state.model) if lately else state.model, state.origin[..., :slow]
        way, here = (squared_norm(part) for part in (z[..., :slow] - start, z[..., :slow]))
        size = (way + here + state.reach[..., 0] ** 2) ** 0.5
        prior = z.__array_namespace__().where(state.curved > 0, _PRIOR, _WIDE_PRIOR)
        return local_model.root(model, z, start, prior * size)

    def best(self, state: ZapState, z: Array, to: Root, slow: int) -> Array:
        """The root of the model as far as it is trusted.

        Args:
            state: the state of the method.
            z: θ and ω as one vector.
            to: Newton's step, from ``root``.
            slow: the number of entries of θ.
        """
        xp, curved = z.__array_namespace__(), state.curved > 0
        radius = xp.where(curved, _STRAIGHT, 1e9) * (squared_norm(z[..., :slow]) + state.reach[..., 0] ** 2) ** 0.5
        far = xp.where(curved, _FAR, 1e9)
        by_theta = share_within(xp.minimum(far * to.slow_noise**0.5, radius), to.slow)[..., None] * to.slow
        omega = to.fast(by_theta)
        by_omega = share_within(far * to.fast_noise**0.5, omega)[..., None] * omega
        there = z - xp.concatenate([by_theta, by_omega], axis=-1)
        known = xp.isfinite(there).all(axis=-1) & (state.model.count >= _FIRST * z.shape[-1])
        return xp.where(known[..., None], there, z)

    def estimate(self, state: ZapState) -> tuple[PyTree, PyTree]:
        z, slow, back = as_vector(state)
        theta, omega = back(self.best(state, z, self.root(state, z, slow, lately=True), slow))
        return theta, omega

    def report(self, state: ZapState) -> dict[str, Float[Array, "*lanes"]]:
        """The data for the test of arrival, from samples after an estimate was frozen.

        ``newton_sq`` is the squared distance of θ to the root of the model, ``noise_sq`` the mean square of its error.
        ``residual`` is the largest of the squared scores of the means of F − B G, of G and of the Newton step at the
        frozen estimate, in units of what noise explains in one seed. ``batch_noise_sq`` is the mean square of the
        Newton step's noise there, on chains too, and ``chain_noise_sq`` what it would be over all samples.
        ``start_ratio`` is the squared noise of F − B G over its square at the start; if the operators are affine, that
        of the Newton step over the distance of θ from the start.
        ``loose_ratio`` is the squared share of θ's size in directions with little data.
        ``least_slope`` is the least real part of an eigenvalue of S over the largest modulus: if negative, steps lead
        away.
        """
        z, slow, _ = as_vector(state)
        xp, least = z.__array_namespace__(), jnp.finfo(z.dtype)
        to = self.root(state, z, slow)
        frozen = frozen_check.batches(state.check)
        fast = xp.eye(z.shape[-1], dtype=z.dtype)[slow:]
        rounding = float(least.eps) * squared_norm(times(xp.abs(state.model.J.value), xp.abs(frozen.point)))
        worst, noise, from_start = [], [], []
        for rows, floor in ((to.reduce, rounding), (fast, rounding), (to.gain, 0 * rounding)):
            start = frozen_check.start_squares(state.check, rows)
            zero = (_NOTHING * xp.maximum(start, 0) + floor) / WITHIN
            here = surprise(frozen.means @ rows.mT, frozen.weights, zero)
            worst.append(xp.maximum(here.score, 0) ** 2 / ONE_SEED**2)
            noise.append(here.noise)
            from_start.append(start)
        loose, size = to.loose(), squared_norm(z[..., :slow]) + state.reach[..., 0] ** 2
        S = to.reduce @ state.model.J.value[..., :slow]  # from the samples, without a shift
        slopes = xp.linalg.eigvals(xp.where(xp.isfinite(S), S, 0))
        way = squared_norm((frozen.point - state.origin)[..., :slow])
        of_u, of_step = (noise[i] / xp.maximum(far, float(least.tiny)) for i, far in ((0, from_start[0]), (2, way)))
        found = {
            "newton_sq": squared_norm(to.slow),
            "noise_sq": to.slow_noise + loose,
            "batch_noise_sq": noise[2],
            "chain_noise_sq": noise[2] * frozen.weights.sum(axis=-1) * frozen.length / xp.maximum(state.model.count, 1),
            "residual": xp.max(xp.stack(worst), axis=0),
            "start_ratio": xp.where(state.curved > 0, of_u, of_step),
            "loose_ratio": loose / size,
            "least_slope": ratio(slopes.real.min(axis=-1), xp.abs(slopes).max(axis=-1)),
        }
        largest = float(least.max) ** 0.5
        return {name: xp.nan_to_num(value, nan=largest, posinf=largest) for name, value in found.items()}


def _by_differences(
    state: ZapState, both: Callable[..., Array], z: Array, slow: int
) -> tuple[Array, Array, Array, Array, Array]:
    """(F, G) at z, its slopes, its values at the frozen estimate and at the start, and 1 where it is surely curved."""
    d, n = _by_entry(state.width, z, slow), z.size
    # Unequal lengths: some operators, such as those of a softmax, are affine along the diagonal.
    unequal = jnp.asarray(0.5 + (np.arange(1, n + 1) * _GOLDEN) % 1, z.dtype)
    away = unequal * (jnp.abs(z) + _by_entry(state.reach, z, slow))
    aside = jnp.eye(n, dtype=z.dtype) * d[:, None]
    alone = jnp.stack([z, state.check.point, state.origin, z + away, z - away])
    values = jax.vmap(both)(jnp.concatenate([alone, z[None, :] + aside, z[None, :] - aside]))
    f, at_check, at_start, above, below = (values[i] for i in range(5))
    J = ((values[5 : 5 + n] - values[5 + n :]) / (2 * d[:, None])).T
    size = jnp.abs(f) + jnp.abs(J) @ away
    bent = jnp.maximum(_bent(above, f + J @ away, size), _bent(below, f - J @ away, size))
    return f, J, at_check, at_start, bent


def as_vector(state: ZapState) -> tuple[Array, int, Callable[[Array], PyTree]]:
    """θ and ω as one vector per lane, the length of θ in it, and the function back to their pytrees."""
    lanes = state.curved.shape
    z, _, back = tree_math.as_vector((state.theta, state.omega), lanes)
    return z, tree_math.as_vector(state.theta, lanes)[1], back


def _due(k: Any, n: int) -> Any:
    """Whether the iterates move after step k. It depends on k alone, so that all lanes of a run branch alike."""
    seen = k + 1
    between = 1 << (_BETWEEN * n - 1).bit_length()
    stride = seen.__array_namespace__().maximum(top_power(seen) // _MOVES, between)
    return (seen % stride == 0) & (seen >= _FIRST * n)


def _by_entry(pair: Float[Array, " 2"], z: Float[Array, " n"], slow: int) -> Float[Array, " n"]:
    """A pair of lengths, spread over the entries of z so that the entries together have that length."""
    roots = jnp.asarray([max(slow, 1) ** 0.5, max(z.size - slow, 1) ** 0.5], z.dtype)
    return jnp.asarray(by_entry(pair / roots, z, slow))


def _least(sizes: Array) -> Array:
    """The least width of a difference: far above rounding, since tangents from it must predict values elsewhere."""
    return float(jnp.finfo(sizes.dtype).eps) ** 0.25 * sizes


def _finite(values: Array) -> Array:
    """The values, with large numbers for those that are not finite."""
    large = float(jnp.finfo(values.dtype).max) ** 0.25
    return jnp.where(jnp.isfinite(values), values, large)


def _bent(there: Array, straight: Array, size: Array) -> Float[Array, ""]:
    """1 where a sample differs from its tangent or is not finite; else 0."""
    least = float(jnp.finfo(size.dtype).eps) ** 0.5
    return (~(jnp.max(jnp.abs(there - straight)) <= least * jnp.max(size))).astype(size.dtype)
