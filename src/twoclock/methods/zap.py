"""Methods without a step size: Newton steps to the root of a linear model, with and without its matrix; the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from twoclock import tree_math
from twoclock.methods import local_model
from twoclock.methods.fast import Both
from twoclock.methods.local_model import LinearModel
from twoclock.protocols import Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.tree_math import Sum, add, blend, sqnorm
from twoclock.validation import NOT_NEGATIVE, POSITIVE, POSITIVE_FRACTION, check_number, whole

# Moves of the iterates between two powers of two; samples per entry of θ and ω before the first move, and between any
# two, since a model must have samples from the new point before it is trusted again.
_MOVES, _FIRST, _BETWEEN = 16, 10, 4
# The distance from the iterate up to which a model's root is trusted: in standard errors, and, if the operators are
# curved, as a share of the iterate's size.
_FAR, _STRAIGHT = 5.0, 0.25
# How fast a model of curved operators forgets while the iterates move: half of it with a move of a sixth of their size.
# It also does at every move if its samples were taken far from here on the whole, for many short moves make a long way.
_FORGET = 30.0
_SAMPLES_BEFORE_A_MOVE = 20  # of the matrix-free form


@pytree
class ZapState:
    theta: PyTree
    omega: PyTree
    origin: Float[Array, " slow"]
    aside: Float[Array, ""]
    curved: Float[Array, ""]
    model: LinearModel


@pytree
class Zap(Method):
    """No step size: average linear models of F and G, and move to the root of the average.

        J ← mean of J_i,   c ← mean of f_i − J_i z_i        f = (F, G), J_i = ∂f/∂z at the iterate z_i = (θ, ω) and X_i
        θ ← θ − a·S⁻¹(f − B g)                               at f, g = J z + c;  B = F_ω G_ω⁻¹,  S = F_θ − B G_θ
        ω ← ω − b·G_ω⁻¹(g − G_θ·(the step of θ))             16 times while k doubles

    and the estimate is the model's root. Where F and G are affine that is the estimate by least squares of all samples,
    LSTD in policy evaluation: no method that sees the same samples has a smaller error in the long run. Where they are
    not, which a second look at each sample from elsewhere tells, a model forgets what was taken far from here.

    Against divergence: a and b are ``rate`` times the share of a step that is no sampling noise; a step of θ is no
    longer than 1 + ‖θ‖; S is shifted until θ goes downhill, away from saddles; and directions of θ of which the samples
    say next to nothing are left near the start. A step costs as many evaluations of F and G as there are entries of θ
    and ω, and memory is their square: for up to about a hundred. ``MatrixFreeZap`` has the form for more.

    Args:
        power: samples weigh i^power where F or G is curved, to forget the start sooner; where not, all alike.
        rate: the part of a step that is taken.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=2), tc.Zap(), steps=500, seeds=3)

    Reference: Devraj & Meyn, *Zap Q-learning*, 2017, for the matrix gain on its own time scale.
    """

    finds_roots = True

    power: Scalar = checked(check_number, *NOT_NEGATIVE, default=0.25)
    rate: Scalar = checked(check_number, *POSITIVE_FRACTION, default=0.3)

    def init(self, theta: PyTree, omega: PyTree) -> ZapState:
        theta, omega = tree_math.as_floats("theta", theta), tree_math.as_floats("omega", omega)
        z, _ = ravel_pytree((theta, omega))
        zero = jnp.zeros((), z.dtype)
        return ZapState(theta, omega, ravel_pytree(theta)[0], zero, zero, local_model.empty(z))

    def step(self, F: Operator, G: Operator, state: ZapState, x: PyTree, k: Scalar) -> ZapState:
        z, back = ravel_pytree((state.theta, state.omega))

        def both(z: Float[Array, " n"]) -> Float[Array, " n"]:
            here = *back(z), x
            return ravel_pytree((F(*here), G(*here)))[0].astype(z.dtype)

        # To both sides of ω, as far as it is known: samples from one side of a kink would tell the slope there alone.
        side = jnp.where(jnp.asarray(k, jnp.int32) % 2 == 0, state.aside, -state.aside)
        at = z + jnp.where(jnp.arange(z.size) < state.origin.size, 0, side)
        f, J_times = jax.linearize(both, at)
        J = jax.vmap(J_times, out_axes=1)(jnp.eye(z.size, dtype=z.dtype))
        away = 1 + jnp.abs(at)
        curved = jnp.maximum(state.curved, _bent(both(at + away), f + J @ away, jnp.abs(f) + jnp.abs(J) @ away))
        # Its tangent's value at z: noise of slopes times the way aside, taken for noise of ω, would lead farther aside.
        model = local_model.learn(state.model, z, f - J @ (at - z), J, curved * self.power)
        stay = z, model.count, state.aside
        z, count, aside = jax.lax.cond(
            _due(k, z.size), lambda: self._moved(z, state.origin, model, curved), lambda: stay
        )
        theta, omega = back(z)
        return ZapState(theta, omega, state.origin, aside, curved, replace(model, count=count))

    def _moved(self, z: Array, origin: Array, model: LinearModel, curved: Array) -> tuple[Array, Array, Array]:
        """The next iterate, what the model counts for there (less, the farther it is), and how well ω is known."""
        to, slow = local_model.root(model, z, origin), origin.size
        rate = jnp.asarray(self.rate, z.dtype)
        size_theta, size_omega = (1 + jnp.sqrt(sqnorm(part)) for part in (z[:slow], z[slow:]))
        by_theta = rate * _signal(to.slow, to.slow_most) * _part(size_theta, to.slow) * to.slow
        omega = to.fast(by_theta)
        by_omega = rate * _signal(omega, to.fast_most) * omega
        moved = z - jnp.concatenate([by_theta, by_omega])

        def far(way: Array) -> Array:
            return sqnorm(way[:slow]) / size_theta**2 + sqnorm(way[slow:]) / size_omega**2

        forget = curved * (_FORGET * far(moved - z) + far(moved - model.place))
        kept = jnp.maximum(model.count / (1 + forget), jnp.minimum(model.count, _FIRST * z.size))
        fine = jnp.all(jnp.isfinite(moved))
        aside = jnp.sqrt(to.fast_noise / max(z.size - slow, 1))
        return jnp.where(fine, moved, z), jnp.where(fine, kept, model.count), jnp.where(fine, aside, 0)

    def estimate(self, state: ZapState) -> tuple[PyTree, PyTree]:
        z, back = ravel_pytree((state.theta, state.omega))
        to = local_model.root(local_model.lately(state.model), z, state.origin)
        radius = (1 + jnp.sqrt(sqnorm(state.theta))) * jnp.where(state.curved > 0, _STRAIGHT, 1)
        by_theta = _part(jnp.minimum(_FAR * jnp.sqrt(to.slow_noise), radius), to.slow) * to.slow
        omega = to.fast(by_theta)
        by_omega = _part(_FAR * jnp.sqrt(to.fast_noise), omega) * omega
        there = z - jnp.concatenate([by_theta, by_omega])
        known = jnp.all(jnp.isfinite(there)) & (state.model.count >= _FIRST * z.size)
        theta, omega = back(jnp.where(known, there, z))
        return theta, omega

    def report(self, state: ZapState) -> dict[str, Float[Array, ""]]:
        """How far θ is from the root of the model, squared, and how much of that is sampling noise."""
        z, _ = ravel_pytree((state.theta, state.omega))
        to = local_model.root(state.model, z, state.origin)
        return {"newton_sq": sqnorm(to.slow), "noise_sq": to.slow_noise}


@pytree
class Slope:
    """How steep a mean operator is along its own direction m."""

    along: Float[Array, ""]  # the mean of ⟨m, J m⟩/‖m‖²
    square: Float[Array, ""]  # the mean of ‖J m‖²/‖m‖², of each sample's own J

    def update(self, weight: Array, m: PyTree, Jm: PyTree) -> Slope:
        size = sqnorm(m) + jnp.finfo(self.along.dtype).tiny
        along, square = _dot(m, Jm) / size, sqnorm(Jm) / size
        pairs = (self.along, along), (self.square, square)
        return Slope(*((old + weight * (new - old)).astype(old.dtype) for old, new in pairs))

    def length(self, part: Scalar) -> Float[Array, ""]:
        """The step η that makes E‖m − η J m‖² smallest, or a part of it; a small one downhill where that is none."""
        tiny = jnp.finfo(self.along.dtype).tiny
        return jnp.asarray(part, self.along.dtype) * jnp.maximum(self.along, -0.1 * self.along) / (self.square + tiny)


@pytree
class MatrixFreeZapState(Both[Sum]):
    mean_F: Sum
    mean_G: Sum
    lead: PyTree
    of_F: Slope
    of_G: Slope
    of_lead: Slope
    count: Float[Array, ""]


@pytree
class MatrixFreeZap(Method):
    """No step size and no matrix: the means of F and G are carried along to where θ and ω go.

        f ← (1−w)f + wF(θ, ω, X),   g ← (1−w)g + wG(θ, ω, X)            w = (1+power)/(k+power)
        v ← v + η_v (G_θ f − G_ω v)                                      v follows G_ω⁻¹ G_θ f, so that ω leads θ
        θ ← θ − η_F f,   ω ← ω − η_G g + η_F v,   (f, g) ← (f, g) + J·(what was moved)

    Carrying the means along by the sample's own Jacobian J makes them estimates of the mean operators *here* from all
    samples so far. The curvature is measured, η_G = ½(1+k/100)^−½·⟨g, Jg⟩/‖Jg‖² in the mean over samples, η_F the same
    of f along (f, −v) and η_v along its own residual. A step takes F, G and three Jacobian-vector products; memory is a
    few copies of θ and ω. It needs more samples than ``Zap`` where F and G are ill-conditioned.

    Args:
        power: samples weigh i^power; more forgets the start sooner.
        part: of the step that is best in the mean; it falls like k^−½.
        hold: the samples for which the part is held.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=2), tc.MatrixFreeZap(), steps=500, seeds=3)

    Reference: Devraj & Meyn, *Zap Q-learning*, 2017; the means are carried along as in Tran & Cutkosky, *Better SGD
    using second-order momentum*, 2022.
    """

    finds_roots = True

    power: Scalar = checked(check_number, *NOT_NEGATIVE, default=0.5)
    part: Scalar = checked(check_number, *POSITIVE_FRACTION, default=0.5)
    hold: Scalar = checked(check_number, *POSITIVE, default=100.0)

    def init(self, theta: PyTree, omega: PyTree) -> MatrixFreeZapState:
        slow, fast = tree_math.start(theta, "theta"), tree_math.start(omega, "omega")
        f, g = jax.tree.map(jnp.zeros_like, (slow.value, fast.value))
        zero = jnp.zeros((), jax.tree.leaves((slow.value, fast.value))[0].dtype)
        flat = Slope(zero, zero)
        return MatrixFreeZapState(slow, fast, tree_math.start(f), tree_math.start(g), g, flat, flat, flat, zero)

    def step(self, F: Operator, G: Operator, state: MatrixFreeZapState, x: PyTree, k: Scalar) -> MatrixFreeZapState:
        zero = jax.tree.map(jnp.zeros_like, state.theta)
        (F_here, G_here), J = jax.linearize(lambda t, w: (F(t, w, x), G(t, w, x)), state.theta, state.omega)
        count = state.count + 1
        weight = (1 + self.power) / (count + self.power)
        f, g = blend(state.mean_F, weight, F_here), blend(state.mean_G, weight, G_here)
        down, lag = J(f.value, _scaled(-1.0, state.lead))
        across, back = J(zero, g.value)
        _, lag_back = J(zero, lag)
        recent = jax.lax.rsqrt(count)
        of_F, of_G = state.of_F.update(recent, f.value, down), state.of_G.update(recent, g.value, back)
        of_lead = state.of_lead.update(recent, lag, lag_back)
        on = (count > _SAMPLES_BEFORE_A_MOVE).astype(count.dtype)
        part = on * self.part * jax.lax.rsqrt(1 + count / self.hold)
        by_F, by_G, by_lead = of_F.length(part), of_G.length(part), of_lead.length(part)
        lead = jax.tree.map(lambda v, r: v + (by_lead * r).astype(v.dtype), state.lead, lag)
        slow = add(state.slow, _scaled(-by_F, f.value))
        fast = add(add(state.fast, _scaled(-by_G, g.value)), _scaled(by_F, state.lead))
        f = add(f, jax.tree.map(lambda a, b: -by_F * a - by_G * b, down, across))
        g = add(g, jax.tree.map(lambda a, b: -by_F * a - by_G * b, lag, back))
        return MatrixFreeZapState(slow, fast, f, g, lead, of_F, of_G, of_lead, count)

    def report(self, state: MatrixFreeZapState) -> dict[str, Float[Array, ""]]:
        """How large the mean operators are here."""
        return {"f_sq": sqnorm(state.mean_F.value), "g_sq": sqnorm(state.mean_G.value)}


AutoState = ZapState | MatrixFreeZapState


@pytree
class Auto(Method):
    """Needs no step size, no scale and no horizon: ``Zap`` where its matrices are affordable, else ``MatrixFreeZap``.

    The choice depends on the sizes of θ and ω alone; ``result.chosen`` explains it, and ``result.method`` is the chosen
    method, which runs the same, bit for bit.

    Args:
        max_dim: the most entries of θ and ω together for which it is ``Zap``, which stores the square of that number.

    >>> import twoclock as tc
    >>> tc.solve(tc.problems.quadratic(dim=2), steps=500, seeds=3).method
    Zap()
    """

    finds_roots = True

    max_dim: int = checked(whole, 0, default=128, static=True)

    def chosen(self, theta: PyTree, omega: PyTree) -> Zap | MatrixFreeZap:
        """The method for variables of these shapes."""
        return Zap() if tree_math.size((theta, omega)) <= self.max_dim else MatrixFreeZap()

    def init(self, theta: PyTree, omega: PyTree) -> AutoState:
        return self.chosen(theta, omega).init(theta, omega)

    def step(self, F: Operator, G: Operator, state: AutoState, x: PyTree, k: Scalar) -> AutoState:
        return self.chosen(state.theta, state.omega).step(F, G, state, x, k)  # type: ignore[arg-type]

    def estimate(self, state: AutoState) -> tuple[PyTree, PyTree]:
        return self.chosen(state.theta, state.omega).estimate(state)  # type: ignore[arg-type]

    def report(self, state: AutoState) -> dict[str, Array]:
        return self.chosen(state.theta, state.omega).report(state)  # type: ignore[arg-type]

    def explain(self, theta: PyTree, omega: PyTree, steps: int, reported: Mapping[str, np.ndarray]) -> str:
        """Say in one line which method ran, why, at what cost, and whether it arrived.

        ``reported`` is what ``report`` gave at the end, by name, one entry per seed; it may be empty.
        """
        slow, fast = tree_math.size(theta), tree_math.size(omega)
        how, bound = "MatrixFreeZap, a matrix gain by products with vectors", "more than the {:,} for matrices"
        if isinstance(self.chosen(theta, omega), Zap):
            how, bound = "Zap, a matrix gain", "at most the {:,} for which its matrices are kept"
        words = [
            f"{how}: θ and ω have {slow} + {fast} = {slow + fast:,} entries, {bound.format(self.max_dim)}",
            f"no step size was set and no pilot run, all {steps:,} samples went into the estimate",
        ]
        if "newton_sq" in reported:
            far, noise = (np.sqrt(np.asarray(reported[name], float)) for name in ("newton_sq", "noise_sq"))
            known = f"±{np.median(noise):.2g} (norm, one standard error, independent samples)"
            on_the_way = int(np.count_nonzero(~(far <= _FAR * noise)))
            late = f"{on_the_way} of {len(far)} seeds are still on their way: run longer"
            words += [f"by its own account θ is known to {known}", late if on_the_way else "every seed arrived"]
        return "; ".join(words)


def _due(k: Scalar, n: int) -> Bool[Array, ""]:
    """Whether the iterates move after step k. It depends on k alone, so that all lanes of a run branch alike."""
    seen = jnp.asarray(k, jnp.int32) + 1
    top = seen
    for shift in (1, 2, 4, 8, 16):
        top = top | (top >> shift)
    stride = jnp.maximum((top - (top >> 1)) // _MOVES, _BETWEEN * n)
    return (seen % stride == 0) & (seen >= _FIRST * n)


def _bent(there: Array, straight: Array, size: Array) -> Float[Array, ""]:
    """1 where a sample is not what its tangent says of it, or not finite; else 0."""
    least = float(jnp.finfo(size.dtype).eps) ** 0.5
    return (~(jnp.max(jnp.abs(there - straight)) <= least * jnp.max(size))).astype(size.dtype)


def _signal(step: Array, most: Float[Array, ""]) -> Float[Array, ""]:
    """The share of a step that is surely not noise; the noise's square is at most ``most``."""
    return jnp.maximum(1 - _over(most, sqnorm(step)), 0).astype(step.dtype)


def _part(radius: Float[Array, ""], step: Array) -> Float[Array, ""]:
    """The part of a step that stays within a radius."""
    return jnp.minimum(_over(radius, jnp.sqrt(sqnorm(step))), 1).astype(step.dtype)


def _over(a: Array, b: Array) -> Array:
    return a / (b + jnp.finfo(a.dtype).tiny)


def _dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    products: list[Array] = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)) or [jnp.zeros(())]
    return sum(products[1:], products[0])


def _scaled(factor: Scalar, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)
