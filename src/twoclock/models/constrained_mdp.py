"""Constrained MDPs in closed form: the best reward under a limit on the expected cost, and the limit's multiplier.

At temperature 0 it is a linear program over occupancies, whose dual is the multiplier, and is solved by best responses,
its vertices; at a positive temperature by the saddle of the Lagrangian, a root in the multiplier over soft value
iteration.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.mdp import Mdp, check_dense, check_mdp
from twoclock.models.soft_mdp import SoftMdp
from twoclock.models.successors import PolicyEquations
from twoclock.protocols import InputError
from twoclock.validation import number
from twoclock.validation.arrays import shaped

Policy = Float[np.ndarray, "s a"]
_ROUNDING = 1e-9  # costs that differ by less, relative to their size, are equal
_MOST = 2.0**80  # larger than the multiplier of any limit above the least cost
_STEPS = 200  # in the multiplier
_ROUGH = 1e-2  # the residual of visits that only give a slope


class ConstrainedOptimum(NamedTuple):
    """The best policy under a limit on the discounted cost, with its reward, cost and multipliers.

    `constrained_optimum` returns it.

    Attributes:
        reward: the best return, with its entropy bonus where the temperature is positive.
        cost: the expected cost there.
        low, high: the multipliers: the rate at which the reward would grow with the limit, to the right of it and to
            the left. They differ only where the reward has a kink at the limit, which needs temperature 0.
        policy: an optimal policy π[s, a].
        free_cost: the expected cost of the best policy without a limit.
        least_cost: the smallest expected cost of any policy.
    """

    reward: float
    cost: float
    low: float
    high: float
    policy: Annotated[Any, Policy]
    free_cost: float
    least_cost: float

    @property
    def multiplier(self) -> float:
        """The multiplier, the smallest where there are several."""
        return self.low


def constrained_optimum(
    mdp: Mdp, cost: ArrayLike, limit: float, temp: float = 0.0, start: ArrayLike | None = None
) -> ConstrainedOptimum:
    """Maximise the discounted reward of a finite MDP while the discounted cost stays within a limit, exactly.

        max E Σ γ^k (r − τ log π)   subject to   E Σ γ^k c ≤ limit

    Args:
        mdp: the decision process; its discount must be below 1, and is 0 where an episode ends.
        cost: c[s, a] or c[s, a, s'], discounted as the rewards are.
        limit: the largest expected cost.
        temp: the temperature τ of the bonus −τ log π(a|s).
        start: the distribution of the first state, or the number of one state; uniform by default.

    A coin toss pays 1 and costs 1, and may be left out; half a toss is allowed:

    >>> import numpy as np
    >>> coin = Mdp(P=np.ones((1, 2, 1)), r=[[1.0, 0.0]], gamma=0.0)
    >>> best = constrained_optimum(coin, cost=[[1.0, 0.0]], limit=0.5)
    >>> round(best.reward, 6), round(best.multiplier, 6), best.policy.round(3).tolist()
    (0.5, 1.0, [[0.5, 0.5]])

    Reference: Altman, *Constrained Markov decision processes*, 1999, chapter 3.
    """
    soft, c = constrained_soft(mdp, cost, temp, start)
    return solve_constrained(soft, c, number("limit", limit))


def solve_constrained(soft: SoftMdp, c: Policy, limit: float) -> ConstrainedOptimum:
    """The same for the MDP and the mean cost that `constrained_soft` returns."""
    rounding = _ROUNDING * np.abs(c).max() / (1 - np.sum(soft.P, axis=2).max())
    responses = _Responses(soft, c)
    free = responses.at(0.0)
    cheapest = dataclasses.replace(soft, r=-c, temp=0 * np.asarray(soft.temp)).solve()[1]
    least = min(0.0 - float(np.dot(soft.start, cheapest)), free.spent)
    if limit < least - rounding:
        raise InputError(f"`limit` must be at least {least:.6g}, the least expected cost of any policy, got {limit:g}")
    if not np.any(soft.temp):
        return _vertices(responses, max(limit, least), free, least, rounding)
    best = free
    if free.spent > limit + rounding:
        if limit < least + rounding:
            raise InputError(
                f"`limit` must lie above {least:.6g}, the least expected cost of any policy, where the temperature is "
                f"positive, got {limit:g}: the multiplier would be infinite; raise it, or set temp=0"
            )
        best = _binding(responses, limit, free)
    return ConstrainedOptimum(best.reward, best.spent, best.kappa, best.kappa, best.policy, free.spent, least)


def constrained_soft(
    mdp: object, cost: ArrayLike, temp: float, start: ArrayLike | None
) -> tuple[SoftMdp, Float[np.ndarray, "s a"]]:
    """The entropy-regularised MDP of the reward, and the mean cost c[s, a].

    A state has no choice only where the episode is over: it has neither reward nor cost.
    """
    check_dense(mdp := check_mdp(mdp))
    if mdp.gamma.max() >= 1:
        raise InputError(
            f"`mdp` must have gamma < 1 everywhere, got {mdp.gamma.max():g}: costs that are never discounted may add "
            "up without end; take a gamma such as 0.99"
        )
    c = shaped("cost", cost, mdp.P.shape[:2], mdp.P.shape, which=" to go with the MDP")
    r, c3 = (table if table.ndim == 3 else table[:, :, None] for table in (mdp.r, c))
    either = np.broadcast_to(np.abs(r) + np.abs(c3), mdp.P.shape)
    soft = Mdp(mdp.P, either, mdp.gamma, mdp.successors).soft(temp, start)
    mean_r, mean_c = (np.sum(mdp.P * table, axis=2) for table in (r, c3))
    return dataclasses.replace(soft, r=mean_r), mean_c


class _Response(NamedTuple):
    """The best response to a multiplier, and how its cost changes with the multiplier where there is a temperature."""

    kappa: float
    reward: float
    spent: float
    slope: float
    policy: Policy

    @property
    def value(self) -> float:
        """Its reward minus its cost at the multiplier's price."""
        return self.reward - self.kappa * self.spent


class _Responses:
    """Best responses to multipliers; those of a sparse table start from the one before."""

    def __init__(self, soft: SoftMdp, c: Policy) -> None:
        self.soft, self.c = soft, c
        self.scale = max(np.abs(soft.r).max(), np.max(soft.temp)) / (np.abs(c).max() or 1.0)
        self.equations = soft.successors is not None and PolicyEquations(
            np.asarray(soft.P), np.asarray(soft.successors)
        )
        self._last: Any = 0.0, None, None, None

    def at(self, kappa: float) -> _Response:
        soft, c, temp = self.soft, self.c, np.asarray(self.soft.temp)
        priced = dataclasses.replace(soft, r=np.asarray(soft.r) - kappa * c)
        if self.equations:
            before, V, cost, visits = self._last
            guess = None if V is None else V - (kappa - before) * cost
            log_pi, V = priced.iterate_policies(self.equations, guess)
            pi = np.exp(log_pi)
            cost = self.equations.potential(pi, np.sum(pi * c, axis=1), cost)
            Q = c + self.equations.ahead(cost)
            visits = self.equations.visits(pi, np.asarray(soft.start), visits, accuracy=_ROUGH)
            self._last = kappa, V, cost, visits
        else:
            log_pi, V = (np.asarray(leaf) for leaf in priced.solve())
            pi, of_cost = np.exp(log_pi), dataclasses.replace(soft, r=c, temp=0 * temp)
            cost, Q, visits = (np.asarray(leaf) for leaf in of_cost.evaluate(log_pi))
        spread = visits * np.sum(pi * np.square(Q - cost[:, None]), axis=1)
        slope = -float(np.sum(np.divide(spread, temp, out=np.zeros_like(spread), where=temp > 0)))
        spent = float(np.dot(soft.start, cost))
        return _Response(kappa, float(np.dot(soft.start, V)) + kappa * spent, spent, slope, pi)

    def visits(self, pi: Policy) -> Float[np.ndarray, " s"]:
        """The discounted visits of each state under a policy."""
        start = np.asarray(self.soft.start)
        if self.equations:
            return self.equations.visits(pi, start)
        return np.linalg.solve(np.eye(len(start)) - np.einsum("sa,sat->ts", pi, np.asarray(self.soft.P)), start)


def _binding(responses: _Responses, limit: float, free: _Response) -> _Response:
    """The response that spends the limit: Newton's steps in the multiplier, within the bounds so far."""
    low, high, here = 0.0, np.inf, free
    for _ in range(_STEPS):
        low, high = (here.kappa, high) if here.spent > limit else (low, here.kappa)
        kappa = here.kappa - (here.spent - limit) / min(here.slope, -np.finfo(float).tiny)
        most = min(high, 4 * (low + responses.scale), _MOST * responses.scale)
        if not low < kappa < most:
            kappa = (low + most) / 2
        if not low < kappa < most or abs(kappa - here.kappa) <= 4 * np.finfo(float).eps * kappa:
            break
        here = responses.at(kappa)
    return here


def _vertices(
    responses: _Responses, limit: float, free: _Response, least: float, rounding: float
) -> ConstrainedOptimum:
    """The linear program by its vertices: best responses at temperature 0, one on either side of the limit.

    The best value max_π R − κC is convex and piecewise linear in κ. Where the lines of two responses meet, either no
    policy does better, and the multiplier is found, or a better one takes the place of one of the two.
    """

    def cross(limit: float) -> tuple[float, _Response, _Response]:
        above, below, kappa = free, free, responses.scale
        while below.spent > limit and kappa < _MOST * responses.scale:
            above, below, kappa = below, responses.at(kappa), 2 * kappa
        while above.spent > below.spent:
            kappa = max((above.reward - below.reward) / (above.spent - below.spent), 0.0)
            here, known = responses.at(kappa), above.reward - kappa * above.spent
            if here.value <= known + _ROUNDING * (abs(above.reward) + abs(kappa * above.spent)):
                return kappa, above, below
            above, below = (here, below) if here.spent > limit else (above, here)
        return 0.0, above, below

    low, above, below = cross(limit + 2 * rounding)
    high = low
    if limit <= least + rounding:
        high = np.inf  # a larger multiplier changes nothing once the cost is the least
    elif below.spent > limit - 2 * rounding:
        high = cross(limit - 2 * rounding)[0]
    share = np.clip((limit - below.spent) / (above.spent - below.spent), 0, 1) if above.spent > below.spent else 0.0
    x = sum(
        weight * responses.visits(end.policy)[:, None] * end.policy
        for weight, end in ((share, above), (1 - share, below))
        if weight
    )
    visits = x.sum(axis=1, keepdims=True)
    policy = np.divide(x, visits, out=below.policy.copy(), where=visits > 0)
    reward, spent = (share * a + (1 - share) * b for a, b in zip(above[1:3], below[1:3], strict=True))
    return ConstrainedOptimum(float(reward), float(spent), float(low), float(high), policy, free.spent, least)
