"""Finite mean fields in closed form: agents on numbered states whose rewards depend on where the others are."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.average_reward import AverageReward
from twoclock.models.mdp import Mdp, check_mdp
from twoclock.models.soft_mdp import SoftMdp
from twoclock.protocols import InputError
from twoclock.validation import number
from twoclock.validation.arrays import as_array

Law = Float[np.ndarray, " s"]
_RESIDUAL = 1e-9  # of the fixed point, as a sum of absolute values


class FieldAnswer(NamedTuple):
    """A distribution μ that is stationary under the policy that responds to it, and that policy as
    log-probabilities."""

    law: Annotated[Any, Law]
    log_pi: Annotated[Any, Float[np.ndarray, "s a"]]


class FiniteField:
    """A mean field on a finite MDP: an agent earns r(s, a) − (Cμ)(s), where μ is the distribution of all agents.

        Nash equilibrium    π maximises the reward per step, bonus −τ log π included, while μ stays;
                            μ is stationary under π
        social optimum      max over π of Σ_s μ_π(s)(r_π(s) − (Cμ_π)(s) + τ·entropy of π(·|s))

    The optimum is the equilibrium of agents who also pay their cost to the others, (C + Cᵀ)μ instead of Cμ. Where
    C + Cᵀ is positive semidefinite both are unique (over distributions of pairs the social return is concave, and so is
    the potential of the game if C is symmetric) and are found as a root of μ ↦ distribution of the best response − μ.

    Args:
        mdp: the decision process; every state must reach every other, and its discount plays no part.
        crowd: C[s, s'], the cost to an agent in s of one unit of the population in s'.
        temp: the temperature τ, above 0, so that the best response is unique.

    Two equally good places; in one of them a crowd costs twice as much:

    >>> import numpy as np
    >>> move = np.zeros((2, 2, 2)); move[:, 0, 0] = move[:, 1, 1] = 1
    >>> field = FiniteField(Mdp(move, np.zeros((2, 2)), 0.0), crowd=np.diag([2.0, 1.0]), temp=0.1)
    >>> field.solve("population").law.round(3).tolist(), field.solve("policy").law.round(3).tolist()
    ([0.353, 0.647], [0.344, 0.656])

    Reference: Lasry & Lions, *Mean field games*, 2007; Perrin et al., *Fictitious play for mean field games*, 2020.
    """

    def __init__(self, mdp: Mdp, crowd: ArrayLike, temp: float = 0.1) -> None:
        self.mdp, self.temp = check_mdp(mdp), number("temp", temp, 0, above=True)
        self.crowd = as_array("crowd", crowd)
        if self.crowd.shape != (mdp.states, mdp.states):
            raise InputError(f"`crowd` must have the shape {(mdp.states, mdp.states)}, got {self.crowd.shape}")
        lowest = float(np.linalg.eigvalsh(self.crowd + self.crowd.T)[0])
        if lowest < -1e-9 * max(1.0, np.abs(self.crowd).max()):
            raise InputError(
                f"`crowd` must have C + Cᵀ positive semidefinite, got the eigenvalue {lowest:.3g}: "
                "agents who like a crowd have several equilibria; raise its diagonal"
            )
        self.exact: AverageReward = mdp.average_reward(self.temp)  # without the crowd

    def price(self, slow: str) -> Float[np.ndarray, "s s"]:
        """The price of a crowd: C to an agent (``slow="population"``), C + Cᵀ by a planner."""
        return self.crowd if slow == "population" else self.crowd + self.crowd.T

    def with_crowd(self, law: Law, slow: str) -> AverageReward:
        """The average-reward MDP of one agent for a fixed distribution of the population."""
        soft = self.exact.soft
        charged = np.asarray(soft.r) - (self.price(slow) @ law)[:, None]
        return AverageReward(SoftMdp(soft.P, charged, soft.temp, soft.start, soft.successors))

    def respond(self, law: Law, slow: str) -> FieldAnswer:
        """The best response to a distribution, and the stationary distribution that it leads to."""
        log_pi = self.with_crowd(law, slow).solve().log_pi
        return FieldAnswer(self.exact.evaluate(log_pi).law, np.asarray(log_pi))

    def solve(self, slow: str) -> FieldAnswer:
        """The Nash equilibrium (``slow="population"``) or the social optimum (``slow="policy"``)."""
        from scipy.optimize import root  # slow to load, and seldom needed

        even = np.full(self.mdp.states, 1 / self.mdp.states)

        def off_by(law: Law) -> Law:
            return np.asarray(self.respond(law, slow).law) - law

        found: Any = root(off_by, even, tol=1e-13)
        answer = self.respond(found.x, slow)
        off = float(np.abs(answer.law - found.x).sum())
        if not off <= _RESIDUAL:
            raise InputError(
                f"`crowd` is too strong against `temp`: the distribution of the best response is off by "
                f"{off:.2g}; raise temp"
            )
        return answer

    def social_return(self, log_pi: Float[np.ndarray, "s a"]) -> float:
        """The mean reward of a step of all agents who play one policy, with its bonus."""
        known = self.exact.evaluate(log_pi)
        return float(known.gain - known.law @ self.crowd @ known.law)
