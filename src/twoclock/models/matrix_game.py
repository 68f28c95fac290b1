"""Zero-sum matrix games in batches: the saddle with an entropy bonus by Newton's method, without it by LP."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from twoclock.protocols import InputError

Games = Float[np.ndarray, "n a b"]
# log π and log φ of each game's saddle, and its value.
Saddles = tuple[Float[np.ndarray, "n a"], Float[np.ndarray, "n b"], Float[np.ndarray, " n"]]

LEAST = -1e3  # the logarithm of a probability of 0, as in ``soft_mdp``
_EPS = np.finfo(float).eps
_NEWTON = 100
_ROUGH = 1e-3  # the step size that ends the work at an intermediate temperature
_GAP = 1e-9  # the duality gap of an answer, relative to the size of the game


def solve_matrix_games(M: Games, temp: float) -> Saddles:
    """The saddle of max_π min_φ πᵀMφ + τH(π) − τH(φ), where H is the entropy and M[a, b] the reward of π.

    At temperature 0 π and φ come from a basic solution of the linear programme and its dual.
    """
    if temp == 0:
        return _solve_linear(M)
    too_small = InputError(
        f"`temp` = {temp:g} is too small beside rewards of {np.abs(M).max():.3g} to be solved; write 0"
    )
    if np.ptp(M, axis=(1, 2)).max() * _EPS > temp:
        raise too_small
    try:
        log_pi, log_phi, value, gap = _solve_soft(M, temp)
    except np.linalg.LinAlgError:
        raise too_small from None
    if not (gap <= _GAP * (1 + np.abs(M).max(axis=(1, 2)))).all():
        raise too_small
    return log_pi, log_phi, value


def _solve_soft(M: Games, temp: float) -> tuple[*Saddles, Float[np.ndarray, " n"]]:
    """The saddle and its duality gap.

    Minimise f(φ) = τ log Σ exp(Mφ/τ) − τH(φ), which is strictly convex, at temperatures that halve down to τ.
    A Newton step d solves (MᵀCov(π)M/τ + τ/φ)d = −(Mᵀπ + τ log φ) + λ, π = softmax(Mφ/τ). Written for √φ it is well
    conditioned where φ is nearly 0, and log φ + d/φ = −(Mᵀπ + MᵀCov(π)Md/τ)/τ needs no division by φ.
    """
    n, _, b = M.shape
    spread = float(np.ptp(M, axis=(1, 2)).max())
    halvings = max(0, int(np.ceil(np.log2(max(spread, temp) / temp))))
    log_phi = np.full((n, b), -np.log(b))
    for tau in temp * 2.0 ** np.arange(halvings, -1, -1):
        # The gradient of f has an error of its rounding, eps·spread, which τ divides in d.
        least = 8 * _EPS * (1 + spread / tau) if tau == temp else _ROUGH
        for _ in range(_NEWTON):
            log_phi, moved = _newton(M, log_phi, tau)
            if moved <= least:
                break
    log_pi = _answer(M, log_phi, temp)
    upper = _objective(M, log_phi, temp)
    lower = -_objective(-M.swapaxes(1, 2), log_pi, temp)
    return log_pi, log_phi, (upper + lower) / 2, np.abs(upper - lower)


def _answer(M: Games, log_phi: np.ndarray, tau: float) -> np.ndarray:
    """log π of the best answer to φ."""
    return _log_softmax(np.einsum("nab,nb->na", M, np.exp(log_phi)) / tau)


def _newton(M: Games, log_phi: np.ndarray, tau: float) -> tuple[np.ndarray, float]:
    """log φ after a step, halved in each game until f falls, and the largest entry of all full steps d."""
    log_pi = _answer(M, log_phi, tau)
    pi, root, (n, b) = np.exp(log_pi), np.exp(log_phi / 2), log_phi.shape
    against = np.einsum("nab,na->nb", M, pi)
    centred = (M - against[:, None, :]) * np.sqrt(pi)[:, :, None]
    curvature = np.einsum("nab,nac->nbc", centred, centred) / tau  # MᵀCov(π)M/τ
    slope = against + tau * log_phi
    system = np.zeros((n, b + 1, b + 1))
    system[:, :b, :b] = root[:, :, None] * curvature * root[:, None, :] + tau * np.eye(b)
    system[:, :b, b] = system[:, b, :b] = root
    right = np.concatenate([-root * slope, np.zeros((n, 1))], axis=1)
    d = root * np.linalg.solve(system, right[:, :, None])[:, :b, 0]
    whole = _log_softmax(-(against + np.einsum("nbc,nc->nb", curvature, d)) / tau)
    now, fall = _objective(M, log_phi, tau), np.sum(slope * d, axis=1)
    step, rounding = np.ones(n), 4 * _EPS * (np.abs(M).max(axis=(1, 2)) + tau * np.log(b))
    for _ in range(40):
        new = _log_softmax(log_phi + step[:, None] * (whole - log_phi))
        worse = _objective(M, new, tau) > now + 1e-4 * step * fall + rounding
        if not worse.any():
            break
        step = np.where(worse, step / 2, step)
    return np.where(worse[:, None], log_phi, new), float(np.abs(d).max())


def _objective(M: Games, log_phi: np.ndarray, tau: float) -> np.ndarray:
    """f(φ), the most that φ concedes."""
    phi = np.exp(log_phi)
    scores = np.einsum("nab,nb->na", M, phi) / tau
    most = scores.max(axis=1)
    conceded = most + np.log(np.exp(scores - most[:, None]).sum(axis=1))
    return tau * (conceded + np.sum(phi * log_phi, axis=1))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    below = np.maximum(logits - logits.max(axis=1, keepdims=True), LEAST)
    return below - np.log(np.exp(below).sum(axis=1, keepdims=True))


def _solve_linear(M: Games) -> Saddles:
    """Maximise v with Mᵀπ ≥ v, game by game; φ is the dual."""
    from scipy.optimize import linprog  # slow to load

    (n, a, b), floor = M.shape, np.exp(LEAST)
    log_pi, log_phi, values = np.empty((n, a)), np.empty((n, b)), np.empty(n)
    for i, game in enumerate(M):
        found = linprog(
            np.append(np.zeros(a), -1.0),
            A_ub=np.column_stack([-game.T, np.ones(b)]),
            b_ub=np.zeros(b),
            A_eq=np.append(np.ones(a), 0.0)[None, :],
            b_eq=[1.0],
            bounds=[(0, None)] * a + [(None, None)],
        )
        if found.x is None:
            raise InputError(f"`R` makes a matrix game that the linear programme does not solve: {found.message}")
        for log, law in ((log_pi, found.x[:a]), (log_phi, -found.ineqlin.marginals)):
            law = np.maximum(law, 0)
            log[i] = np.log(law / law.sum(), out=np.full(len(law), LEAST), where=law > floor)
        values[i] = found.x[a]
    return log_pi, log_phi, values
