"""The matrix gain without its matrix: means of F and G that move along with θ and ω."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twoclock import tree_math
from twoclock.methods.fast import Both
from twoclock.protocols import Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.tree_math import Sum, add, blend, sqnorm
from twoclock.validation import NOT_NEGATIVE, POSITIVE, POSITIVE_FRACTION, check_number

_SAMPLES_BEFORE_A_MOVE = 20
_PACE = 0.25


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
        """The step η that minimises E‖m − η J m‖², or a part of it; a small one downhill where there is none."""
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
    cross: Float[Array, ""]  # the mean of ‖F_ω g‖²/‖g‖²
    count: Float[Array, ""]


@pytree
class MatrixFreeZap(Method):
    """A method without step sizes and without matrices, for problems of many entries.

        f ← (1−w)f + wF(θ, ω, X),   g ← (1−w)g + wG(θ, ω, X)            w = (1+power)/(k+power)
        v ← v + η_v (G_θ f − G_ω v)                                      v follows G_ω⁻¹ G_θ f, so that ω leads θ
        θ ← θ − η_F f,   ω ← ω − η_G g + η_F v,   (f, g) ← (f, g) + J·(what was moved)

    The sample's Jacobian J moves the means along, so they estimate the mean operators *here* from all samples so far.
    The curvature is measured, with η_G = ½(1+k/100)^−½·⟨g, Jg⟩/‖Jg‖² in the mean over samples, η_F the same of f along
    (f, −v) and η_v along its own residual; θ moves at most a quarter as fast, by its slope, as ω and v follow. A step
    takes F, G and three Jacobian-vector products; memory is a few copies of θ and ω. It needs more samples than ``Zap``
    where F and G are ill-conditioned.

    Args:
        power: samples weigh i^power; a larger power forgets the start faster.
        part: the share of the step that is best in the mean; it falls like k^−½.
        hold: the number of samples for which ``part`` is constant.

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
        return MatrixFreeZapState(slow, fast, tree_math.start(f), tree_math.start(g), g, flat, flat, flat, zero, zero)

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
        cross = sqnorm(across) / (sqnorm(g.value) + jnp.finfo(count.dtype).tiny)
        cross = state.cross + recent * (cross.astype(count.dtype) - state.cross)
        on = (count > _SAMPLES_BEFORE_A_MOVE).astype(count.dtype)
        part = on * self.part * jax.lax.rsqrt(1 + count / self.hold)
        by_G, by_lead = of_G.length(part), of_lead.length(part)
        # θ may not run ahead of ω or v: its step is a share of the relative progress of those.
        pace = jnp.minimum(by_G * jnp.maximum(of_G.along, 0), by_lead * jnp.maximum(of_lead.along, 0))
        most = _PACE * pace * jax.lax.rsqrt(of_F.square + jnp.finfo(count.dtype).tiny)
        by_F = jnp.minimum(of_F.length(part), most)
        lead = jax.tree.map(lambda v, r: v + (by_lead * r).astype(v.dtype), state.lead, lag)
        slow = add(state.slow, _scaled(-by_F, f.value))
        fast = add(add(state.fast, _scaled(-by_G, g.value)), _scaled(by_F, state.lead))
        f = add(f, jax.tree.map(lambda a, b: -by_F * a - by_G * b, down, across))
        g = add(g, jax.tree.map(lambda a, b: -by_F * a - by_G * b, lag, back))
        return MatrixFreeZapState(slow, fast, f, g, lead, of_F, of_G, of_lead, cross, count)

    def report(self, state: MatrixFreeZapState) -> dict[str, Float[Array, ""]]:
        """How large the mean operators are here."""
        return {"f_sq": sqnorm(state.mean_F.value), "g_sq": sqnorm(state.mean_G.value)}


def _dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    products: list[Array] = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)) or [jnp.zeros(())]
    return sum(products[1:], products[0])


def _scaled(factor: Scalar, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)
