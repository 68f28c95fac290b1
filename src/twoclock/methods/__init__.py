"""Methods: the algorithms that step θ and ω, and settings of them that have a name in the literature."""

from __future__ import annotations

import functools

from twoclock.methods.auto import Auto
from twoclock.methods.averaging import Polyak, RichardsonRomberg
from twoclock.methods.candidates import Candidates
from twoclock.methods.dog import DoG
from twoclock.methods.fast import Fast, Standard, Transformation
from twoclock.methods.matrix_free_zap import MatrixFreeZap
from twoclock.methods.plug_in import BatchMeans, Lstd, PlugIn
from twoclock.methods.td_lambda import TIDBD, Intentional, ObGD, SwiftTD
from twoclock.methods.variance_reduction import SABA, SVRG, VRTDC
from twoclock.methods.zap import Zap
from twoclock.protocols import InputError
from twoclock.schedules import Constant, Power, ScheduleLike
from twoclock.validation import POSITIVE, check_number, choice, flag, number

__all__ = ["Auto", "Candidates", "Fast", "MatrixFreeZap", "Standard", "Zap"]
__all__ += ["BatchMeans", "Lstd", "PlugIn", "Polyak", "RichardsonRomberg"]
__all__ += ["SABA", "SVRG", "TIDBD", "VRTDC", "DoG", "Intentional", "ObGD", "SwiftTD"]
__all__ += ["adam", "averaged_tdc", "ma_soba", "running_means", "sgda", "soba", "ttsa"]


def soba(alpha: ScheduleLike, beta: ScheduleLike) -> Standard:
    """The stochastic bilevel algorithm: all of x, y, v step along their own noisy directions.

        x ← x − α D_x,   y ← y − β D_y,   v ← v − β D_v        on `bilevel(…, v_scale=1.0)`

    Args:
        alpha, beta: the step sizes of x, and of y and v.

    >>> soba("1/(k+20)", 0.1)
    Standard(α=1/(k+20), β=0.1)

    Reference: Dagréou, Ablin, Vaiter & Moreau, 2022, Algorithm 1 (their v has the other sign).
    """
    return Standard(alpha, beta)


def ma_soba(alpha: ScheduleLike, beta: ScheduleLike, lam: ScheduleLike) -> Fast:
    """SOBA with a moving average of the hypergradient alone.

        x ← x − α h,   (y, v) ← (y, v) − β (D_y, D_v),   h ← (1 − λ) h + λ D_x        on `bilevel(…, v_scale=1.0)`

    Args:
        alpha, beta: the step sizes of x, and of y and v.
        lam: the averaging weight of the hypergradient.

    >>> ma_soba(0.01, 0.1, 0.2).order
    'fresh-g'

    Reference: Chen, Xiao & Balasubramanian, *Optimal algorithms for stochastic bilevel optimization under relaxed
    smoothness conditions*, 2023, Algorithm 1.
    """
    return Fast(alpha, beta, lam, lam_g=1.0, order="fresh-g")


def ttsa(alpha: float, beta: float, shift: float = 1.0, *, strongly_convex: bool = True) -> Standard:
    """Steps of two-time-scale stochastic approximation, α/(k+shift) and β/(k+shift)^⅔, or the powers ⅗ and ⅖.

    The step-size rule on SOBA's directions: the published method estimates the hypergradient by a random number of
    Hessian products, where v tracks it here.

    Args:
        alpha, beta: the numerators of the step sizes of x, and of y and v.
        shift: added to k.
        strongly_convex: the powers 1 and ⅔ for strongly convex h; False for ⅗ and ⅖.

    >>> str(ttsa(1.0, 2.0, shift=10.0).alpha)
    '1/(k+10)'

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

    Args:
        alpha, beta: the step sizes of x and y.

    >>> sgda(0.01, 0.1)
    Standard(α=0.01, β=0.1)

    Reference: Lin, Jin & Jordan, *On gradient descent ascent for nonconvex-concave minimax problems*, 2020,
    Algorithm 2.
    """
    return Standard(alpha, beta)


def running_means(forgetting: float = 0.0) -> Standard:
    """Steps that make ω the mean of all samples, with the start as one sample; θ takes full steps.

        θ ← θ − F(θ, ω, X),        ω ← ω − G(θ, ω, X)/(k+2)

    For F = θ − T(θ, ω) and G = ω − s(X), where ω is a statistic and θ the fast variable (``problems.lqr_model``).

    Args:
        forgetting: the least weight of the newest sample; 0.01 forgets all but about the last hundred samples.

    >>> str(running_means(forgetting=0.01).beta)
    'max(1/(k+2), 0.01)'
    """
    number("running_means(forgetting=…)", forgetting, 0, 1, below=True)
    return Standard(1.0, Power(1.0, shift=2.0, floor=forgetting))


def averaged_tdc(mean_sq_feature_norm: float) -> Polyak:
    """Fast TDC with its iterates averaged and its steps set by the size of the features alone.

        α_k = β_k = (0.1/E‖φ‖²)·(1 + k/300)^−½,   λ = ¼,   weights of the mean ∝ k^½

    TDC is unstable beyond 1/E‖φ‖². On the random MDPs of the paper the mean squared error stays within a factor 1.3 of
    LSTD's, without a d × d matrix.

    Args:
        mean_sq_feature_norm: E‖φ‖², the mean squared norm of a feature vector over the samples.

    >>> import twoclock as tc
    >>> str(tc.methods.averaged_tdc(mean_sq_feature_norm=10.0).method.lam)
    '0.25'

    Reference: Polyak & Juditsky, *Acceleration of stochastic approximation by averaging*, 1992.
    """
    check_number("mean_sq_feature_norm", mean_sq_feature_norm, *POSITIVE, "it is the mean of ‖φ‖²")
    step = Power(0.1 / mean_sq_feature_norm * 300**0.5, p=0.5, shift=300.0)
    return Polyak(Fast(step, step, Constant(0.25)), power=0.5)


def adam(
    alpha: ScheduleLike, beta: ScheduleLike, levels: str = "both", *, b1: float = 0.9, b2: float = 0.999
) -> Standard:
    """Adam in each level with its own step size: the two time-scale update rule.

        m ← b1·m + (1 − b1)F,   v ← b2·v + (1 − b2)F²,   θ ← θ − α_k·m̂/(√v̂ + 1e-8)        and ω alike, with β_k and G

    Where α and β do not fall the iterates end in a neighbourhood, and noise that is skewed moves its centre.

    Args:
        alpha, beta: the step sizes of θ and ω; the approximate length of a step, in any units of F and G.
        levels: "both", or only one of "theta" and "omega"; the other then steps without Adam. For TD(λ) whose trace is
            ω (`problems.with_trace`) take "theta" and β = 1.
        b1, b2: the decay rates of the mean of directions and of the mean of their squares.

    >>> adam(0.01, 0.1).transform_omega is not None
    True

    Reference: Heusel, Ramsauer, Unterthiner, Nessler & Hochreiter, *GANs trained by a two time-scale update rule
    converge to a local Nash equilibrium*, 2017; Kingma & Ba, *Adam: a method for stochastic optimization*, 2015.
    """
    choice("levels", levels, ("both", "theta", "omega"))
    scale = _adam(number("b1", b1, 0, 1, below=True), number("b2", b2, 0, 1, below=True))
    slow, fast = (scale if levels in ("both", level) else None for level in ("theta", "omega"))
    return Standard(alpha, beta, transform_theta=slow, transform_omega=fast)


@functools.cache  # a transformation is part of the program: the same one is not compiled again
def _adam(b1: float, b2: float) -> Transformation:
    try:
        import optax
    except ImportError as error:
        raise InputError("`methods.adam` needs optax, which is not installed; `pip install optax`") from error
    transform: Transformation = optax.scale_by_adam(b1=b1, b2=b2)
    return transform
