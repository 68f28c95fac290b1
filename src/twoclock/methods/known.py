"""Methods of the literature that are settings of `Standard` and `Fast`."""

from __future__ import annotations

from twoclock.core import Given
from twoclock.inputs import flag, number
from twoclock.methods.fast import Fast
from twoclock.methods.standard import Standard
from twoclock.schedules import Power, ScheduleLike


def soba(alpha: ScheduleLike, beta: ScheduleLike) -> Standard:
    """The stochastic bilevel algorithm: all of x, y, v step along their own noisy directions.

        x ← x − α D_x,   y ← y − β D_y,   v ← v − β D_v        on `bilevel(…, v_scale=1.0)`

    Reference: Dagréou, Ablin, Vaiter & Moreau, 2022, Algorithm 1 (their v has the other sign).
    """
    return Standard(alpha, beta)


def ma_soba(alpha: ScheduleLike, beta: ScheduleLike, lam: ScheduleLike) -> Fast:
    """SOBA with a moving average of the hypergradient, and of nothing else.

        x ← x − α h,   (y, v) ← (y, v) − β (D_y, D_v),   h ← (1 − λ) h + λ D_x        on `bilevel(…, v_scale=1.0)`

    Reference: Chen, Xiao & Balasubramanian, *Optimal algorithms for stochastic bilevel optimization under relaxed
    smoothness conditions*, 2023, Algorithm 1.
    """
    return Fast(alpha, beta, lam, lam_g=1.0, order="fresh-g")


def ttsa(
    alpha: Given[float], beta: Given[float], shift: Given[float] = 1.0, *, strongly_convex: bool = True
) -> Standard:
    """Steps of two-time-scale stochastic approximation, α/(k+shift) and β/(k+shift)^⅔, or the powers ⅗ and ⅖.

    The published method estimates the hypergradient by a random number of Hessian products; here v tracks it. So this
    is its step-size rule on SOBA's directions.

    Reference: Hong, Wai, Wang & Yang, *A two-timescale stochastic algorithm framework for bilevel optimization*, 2023,
    Theorems 1 (strongly convex h) and 2 (otherwise).
    """
    number("alpha", alpha, 0)
    number("beta", beta, 0)
    number("shift", shift, 0, above=True)
    slow, fast = (1.0, 2 / 3) if flag("strongly_convex", strongly_convex) else (3 / 5, 2 / 5)
    return Standard(Power(alpha, slow, shift), Power(beta, fast, shift))


def sgda(alpha: ScheduleLike, beta: ScheduleLike) -> Standard:
    """Stochastic gradient descent-ascent, x ← x − α ∇_x ℓ and y ← y + β ∇_y ℓ at once, on `minimax`.

    Reference: Lin, Jin & Jordan, *On gradient descent ascent for nonconvex-concave minimax problems*, 2020,
    Algorithm 2.
    """
    return Standard(alpha, beta)


def running_means(forgetting: Given[float] = 0.0) -> Standard:
    """ω the plain mean of what G shows, the start counting as one sample; θ moves all the way at every step.

        θ ← θ − F(θ, ω, X),        ω ← ω − G(θ, ω, X)/(k+2)

    For operators of the form F = θ − T(θ, ω) and G = ω − s(X), where ω is a statistic and T a step towards what it
    tells: the clocks are swapped, θ is the fast one (``problems.lqr_model``).

    Args:
        forgetting: the least weight of the newest sample: with 0.01 it forgets all but the last hundred or so.
    """
    number("running_means(forgetting=…)", forgetting, 0, 1, below=True)
    return Standard(1.0, Power(1.0, shift=2.0, floor=forgetting))
