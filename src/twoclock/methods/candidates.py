"""Two methods on the same samples, judged by the means of F and G at both estimates over later samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from twoclock import tree_math
from twoclock.intervals.arrival import squared_mean
from twoclock.methods import dog, frozen_check
from twoclock.methods.dog import DoG, DoGState
from twoclock.methods.frozen_check import FrozenCheck
from twoclock.methods.matrix_free_zap import MatrixFreeZap, MatrixFreeZapState
from twoclock.protocols import Method, Operator, PyTree, Scalar, pytree
from twoclock.tree_math import as_vector
from twoclock.validation.arrays import Array

# Batches of a frozen estimate; many entries average their noise, so that few batches are enough.
_BATCHES = 4
# How much larger a squared mean must be, in squared standard errors, for the other candidate to be chosen; and how
# many times larger for its own candidate to be moved there.
_MARGIN, _WORSE = 2.0, 4.0
# Steps lead away if squares grow by this factor from the start, after this many samples.
_AWAY, _EARLY = 1e4, 16
# A mean is zero if its square is at most this many times its noise: the noise of many entries is known well.
_WITHIN, _NOTHING = 4.0, 1e-5
_LEAD, _PLAIN = MatrixFreeZap(), DoG()


@pytree
class CandidatesState:
    theta: PyTree  # of the chosen candidate
    omega: PyTree
    lead: MatrixFreeZapState
    plain: DoGState
    check: FrozenCheck  # of the lead
    plain_check: FrozenCheck
    proven: Float[Array, "*lanes n"]  # the last frozen estimate that later samples showed to be better than the start
    take_plain: Float[Array, "*lanes"]  # 1 where the estimate is that of the plain steps, else 0


def choose(flag: Float[Array, "*lanes"], one: Array, other: Array) -> Array:
    """One array where the flag is not zero, else the other; it has an entry for each lane, the arrays have more."""
    flag = flag.reshape(flag.shape + (1,) * (one.ndim - flag.ndim))
    return flag.__array_namespace__().where(flag > 0, one, other).astype(other.dtype)


def _led_away(now: Float[Array, 2], usual: Float[Array, 2], unit: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether ‖F‖² and ‖G‖² are far above what they are at the start, G in units of F."""
    return ~(now[0] + unit * now[1] <= _AWAY * (usual[0] + unit * usual[1])) & (jnp.sum(usual) > 0)


@pytree
class Candidates(Method):
    """``MatrixFreeZap`` and ``DoG`` on the same samples; the better estimate of the two is reported.

    Both estimates are frozen whenever the number of samples is a power of two, and F and G are averaged there over the
    samples that come after. The candidate with the smaller means gives the estimate. One whose means are far larger, or
    that overflows, continues from the other's iterate. So ``DoG``, which uses no slopes, corrects a matrix gain that
    flat, discontinuous or very noisy slopes have misled. Memory is some forty copies of θ and ω.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=2), tc.methods.Candidates(), steps=500, seeds=3)
    """

    finds_roots = True
    reads_on_host: ClassVar[bool] = True

    def init(self, theta: PyTree, omega: PyTree) -> CandidatesState:
        lead, plain = _LEAD.init(theta, omega), _PLAIN.init(theta, omega)
        check = frozen_check.begin(plain.origin, _BATCHES)
        return CandidatesState(
            plain.theta, plain.omega, lead, plain, check, check, plain.origin, jnp.ones((), plain.origin.dtype)
        )

    def step(self, F: Operator, G: Operator, state: CandidatesState, x: PyTree, k: Scalar) -> CandidatesState:
        _, back = ravel_pytree((state.plain.theta, state.plain.omega))
        origin = state.plain.origin

        def both(z: jax.Array) -> jax.Array:
            here = *back(z), x
            values = ravel_pytree((F(*here), G(*here)))[0].astype(z.dtype)
            large = float(jnp.finfo(z.dtype).max) ** 0.25
            return jnp.where(jnp.isfinite(values), values, large)

        at_lead, at_plain, at_start = jax.vmap(both)(jnp.stack([state.check.point, state.plain_check.point, origin]))
        lead = _LEAD.step(F, G, state.lead, x, k)
        plain = _PLAIN.step(F, G, state.plain, x, k)
        slow = tree_math.size(plain.theta)
        usual = jnp.stack(
            [jnp.sum(part) for part in (state.check.start_square[:slow], state.check.start_square[slow:])]
        )
        unit = lead.cross / (lead.of_G.square + jnp.finfo(origin.dtype).tiny)
        carried = jnp.stack([tree_math.sqnorm(part.value) for part in (lead.mean_F, lead.mean_G)])
        lost = ~dog.is_finite(lead) | _led_away(carried, usual, unit)
        lead = self._sent(lead, state.proven, back, lost)
        far = (plain.count > _EARLY) & _led_away(plain.lately, usual, unit)
        back_to = dog.taken_back(plain, jnp.asarray(state.proven), usual)
        plain = tree_math.select(far, back_to, plain)
        checks = (
            frozen_check.add_sample(check, values, at_start, k)
            for check, values in ((state.check, at_lead), (state.plain_check, at_plain))
        )
        take_plain = jnp.where(lost, jnp.ones_like(state.take_plain), state.take_plain)
        new: tuple[Any, ...] = (lead, plain, *checks, state.proven, take_plain)
        due = frozen_check.is_power(jnp.asarray(k, jnp.int32) + 1)
        new = jax.lax.cond(due, lambda: self._judged(back, k, *new), lambda: new)
        theta, omega = self._chosen(new[-1], (new[0].theta, new[0].omega), (new[1].theta, new[1].omega))
        return CandidatesState(theta, omega, *new)

    def _chosen(self, take_plain: Float[Array, "*lanes"], lead: PyTree, plain: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: choose(take_plain, b, a), lead, plain)

    def _sent(
        self, lead: MatrixFreeZapState, z: Any, back: Callable[[jax.Array], PyTree], now: Any
    ) -> MatrixFreeZapState:
        """The lead, or one that begins at z."""
        theta, omega = back(z)
        sent: MatrixFreeZapState = tree_math.select(now, _LEAD.init(theta, omega), lead)
        return sent

    def _judged(
        self, back: Callable[[jax.Array], PyTree], k: Scalar, lead: MatrixFreeZapState, plain: DoGState,
        check: FrozenCheck, plain_check: FrozenCheck, proven: jax.Array, take_plain: Float[Array, ""],
    ) -> tuple[Any, ...]:  # fmt: skip
        """Take the candidate with the smaller means, move the other there if its means are far larger, freeze both
        again."""
        slow = tree_math.size(plain.theta)
        at_lead, at_plain = (frozen_check.batches(check) for check in (check, plain_check))
        lead_score = plain_score = start_score = slack = jnp.zeros((), proven.dtype)
        known = jnp.asarray(True)
        for part in (slice(slow), slice(slow, None)):
            one, two = (squared_mean(found.means[:, part], found.weights) for found in (at_lead, at_plain))
            known = known & jnp.isfinite(one.noise) & jnp.isfinite(two.noise)
            scale = jnp.sum(check.start_square[part]) + check.since * two.noise
            scale = scale + jnp.finfo(scale.dtype).tiny
            lead_score = lead_score + jnp.maximum(one.value, 0) / scale
            plain_score = plain_score + jnp.maximum(two.value, 0) / scale
            start_score = start_score + jnp.sum(check.start[part] ** 2) / scale
            slack = slack + (jnp.minimum(one.noise, two.noise) + two.noise) / scale
        chosen = jnp.where(known, lead_score > plain_score + _MARGIN * slack, take_plain > 0)
        send_lead = known & (lead_score > _WORSE * (plain_score + slack))
        send_plain = known & (plain_score > _WORSE * (lead_score + slack))
        here, _ = ravel_pytree((lead.theta, lead.omega))
        better = jnp.where(chosen, plain_score, lead_score) <= start_score
        proven = jnp.where(known & better, jnp.where(chosen, at_plain.point, at_lead.point), proven)
        lead = self._sent(lead, proven, back, send_lead)
        plain = replace(plain, known_reach=plain.reach)
        plain = tree_math.select(send_plain, dog.moved_to(plain, proven), plain)
        points = jnp.where(send_lead, proven, here.astype(proven.dtype)), plain.mean.value
        checks = (frozen_check.freeze(one, z, k) for one, z in zip((check, plain_check), points, strict=True))
        return lead, plain, *checks, proven, chosen.astype(take_plain.dtype)

    # ``estimate`` and ``report`` take one lane in JAX, and many lanes at once as NumPy's arrays, with leading axes.

    def estimate(self, state: CandidatesState) -> tuple[PyTree, PyTree]:
        _, _, back = as_vector((state.lead.theta, state.lead.omega), state.take_plain.shape)
        plain = back(state.plain.mean.value)
        theta, omega = self._chosen(state.take_plain, (state.lead.theta, state.lead.omega), plain)
        return theta, omega

    def report(self, state: CandidatesState) -> dict[str, Float[Array, "*lanes"]]:
        """The data for the test of arrival, from samples after an estimate was frozen.

        ``residual`` is the larger of the squared means of F and of G at the frozen estimate, in units of what noise
        explains, and ``start_ratio`` the squared noise over the square at the start. ``moved_ratio`` is the squared
        distance that θ moved since the freezing over that from the start, and ``noise_sq`` the former itself.
        """
        lanes, origin = state.take_plain.shape, state.plain.origin
        xp, least = origin.__array_namespace__(), jnp.finfo(origin.dtype)
        theta, omega = self.estimate(state)
        z, _, _ = as_vector((theta, omega), lanes)
        slow = as_vector(theta, lanes)[0].shape[-1]
        frozen, plain = (frozen_check.batches(check) for check in (state.check, state.plain_check))
        point = choose(state.take_plain, plain.point, frozen.point)
        means = choose(state.take_plain, plain.means, frozen.means)
        tiny = float(least.tiny)
        unit = state.lead.cross / (state.lead.of_G.square + tiny)
        of_start = state.check
        parts = []
        for part in (slice(slow), slice(slow, None)):
            here = squared_mean(means[..., part], frozen.weights)
            noise = xp.maximum(of_start.start_square - of_start.start**2, 0)[..., part].sum(axis=-1)
            count = xp.maximum(of_start.count, 1)
            parts.append((here, (of_start.start[..., part] ** 2).sum(axis=-1) - noise / count))
        (F_here, F_start), (G_here, G_start) = parts
        noise = F_here.noise + unit * G_here.noise  # G's noise shows in F as ω follows it
        start = xp.maximum(F_start, 0) + unit * xp.maximum(G_start, 0)
        of_F = F_here.value / (_WITHIN * noise + _NOTHING * start + tiny)
        of_G = G_here.value / (_WITHIN * G_here.noise + _NOTHING * xp.maximum(G_start, 0) + tiny)
        way = ((z - point)[..., :slow] ** 2).sum(axis=-1)
        found = {
            "noise_sq": way,
            "residual": xp.where(xp.isfinite(noise), xp.maximum(of_F, of_G), xp.inf),
            "start_ratio": noise / (start + tiny),
            "moved_ratio": way / (((z - origin)[..., :slow] ** 2).sum(axis=-1) + tiny),
        }
        largest = float(least.max) ** 0.5
        return {name: xp.nan_to_num(value, nan=largest, posinf=largest) for name, value in found.items()}
