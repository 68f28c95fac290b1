"""Algorithm 1 of the paper: average the noisy operators, then step along the averages."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

from twoclock.core import InputError, Operator, PyTree, pytree, static
from twoclock.methods import moves
from twoclock.schedules import as_schedule
from twoclock.trees import blend, residue, sqnorm


@pytree
class FastState:
    theta: PyTree
    omega: PyTree
    f: PyTree
    g: PyTree
    low: tuple[PyTree, PyTree, PyTree, PyTree]
    memory: tuple[PyTree, PyTree]


@pytree
class Fast:
    """The fast two-time-scale stochastic gradient method.

        θ ← θ − α_k f
        ω ← ω − β_k g
        f ← (1 − λ_k) f + λ_k F(θ, ω, X)
        g ← (1 − λ_k) g + λ_k G(θ, ω, X)        with F and G at the old (θ, ω); f₀ = g₀ = 0

    ``order="paper"`` is Algorithm 1 to the letter: θ and ω move with the *old* f and g. ``order="fresh"`` blends first
    and moves with the new ones. With λ ≡ 1 ``fresh`` is the standard method exactly and ``paper`` is it one step late.
    ``order="fresh-g"`` moves θ with the old f and ω with the new g.

    f estimates ∇h(θ) and g estimates the mean of G: their squared norms are recorded as ``f_sq`` and ``g_sq``, a
    measure of progress that needs no known answer.

    Args:
        alpha: step size of the slow variable θ.
        beta: step size of the fast variable ω.
        lam: averaging weight λ of F, and of G unless ``lam_g`` is given. The theory wants α ≤ β ≤ λ ≤ ¼.
        lam_g: averaging weight of G.
        order: "paper", "fresh" or "fresh-g".
        slow: an optax transformation of the direction f, such as ``optax.scale_by_adam()``.
        fast: an optax transformation of the direction g.
        project_slow: a function onto the set that θ must stay in, such as ``optax.projections.projection_simplex``.
        project_fast: the same for ω.

    >>> import twoclock as tc
    >>> method = tc.Fast(alpha=tc.Power(0.5, shift=10), beta=tc.Power(1.0, shift=10), lam=tc.Power(2.0, shift=10))

    Reference: Zeng & Doan, Algorithm 1, eqs. (alg:update_decision) and (eq:update_auxiliary).
    """

    alpha: Any = "2/(k+20)"
    beta: Any = "8/(k+40)"
    lam: Any = "40/(k+160)"
    lam_g: Any = None
    order: Literal["paper", "fresh", "fresh-g"] = static(default="paper")
    slow: Any = static(default=None)
    fast: Any = static(default=None)
    project_slow: Any = static(default=None)
    project_fast: Any = static(default=None)

    def __post_init__(self) -> None:
        if self.order not in ("paper", "fresh", "fresh-g"):
            raise InputError(f"`Fast(order=…)` must be 'paper', 'fresh' or 'fresh-g', got {self.order!r}")
        for name in ("alpha", "beta", "lam"):
            object.__setattr__(self, name, as_schedule(getattr(self, name), name))
        if self.lam_g is not None:
            object.__setattr__(self, "lam_g", as_schedule(self.lam_g, "lam_g"))
        moves.check(self)

    def init(self, theta: PyTree, omega: PyTree) -> FastState:
        theta, omega, memory = moves.start(self, theta, omega)
        f, g = jax.tree.map(jnp.zeros_like, (theta, omega))
        return FastState(theta, omega, f, g, residue(theta, omega, f, g), memory)

    def step(self, F: Operator, G: Operator, state: FastState, x: PyTree, k: Any) -> FastState:
        theta, omega, f, g = state.theta, state.omega, state.f, state.g
        low_theta, low_omega, low_f, low_g = state.low
        lam = self.lam(k)
        lam_g = lam if self.lam_g is None else self.lam_g(k)
        new_f, low_f = blend(f, lam, F(theta, omega, x), low_f)
        new_g, low_g = blend(g, lam_g, G(theta, omega, x), low_g)
        along_f, along_g = new_f if self.order == "fresh" else f, g if self.order == "paper" else new_g
        of_slow, of_fast = state.memory
        theta, low_theta, of_slow = moves.move(
            theta, self.alpha(k), along_f, low_theta, self.slow, of_slow, self.project_slow
        )
        omega, low_omega, of_fast = moves.move(
            omega, self.beta(k), along_g, low_omega, self.fast, of_fast, self.project_fast
        )
        return FastState(theta, omega, new_f, new_g, (low_theta, low_omega, low_f, low_g), (of_slow, of_fast))

    def estimate(self, state: FastState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega

    def report(self, state: FastState) -> dict[str, jax.Array]:
        return {"f_sq": sqnorm(state.f), "g_sq": sqnorm(state.g)}
