"""A walk that mixes slowly under features that cannot represent its values: steps are anything but independent."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from jaxtyping import Float

from twoclock.models.mdp import Mdp, Policy
from twoclock.problems.policy_evaluation.linear import PolicyEvaluation, policy_evaluation
from twoclock.validation import number

# No __all__, so it is not in the catalogue: one more walk there would only be one more for every contract test to run.
_STATES, _GROUPS = 20, 3


class Setting(TypedDict):
    """What ``policy_evaluation`` and ``models.limit_law`` both take."""

    mdp: Mdp
    features: Float[np.ndarray, "s d"]
    target: Policy
    behaviour: Policy


def setting(right: float = 0.6) -> Setting:
    """The walk's parts, for a target that goes right with this probability."""
    number("right", right, 0, 1)
    s = np.arange(_STATES)
    P = np.zeros((_STATES, 2, _STATES))
    P[s, 0, np.maximum(s - 1, 0)] = P[s, 1, np.minimum(s + 1, _STATES - 1)] = 1
    return {
        "mdp": Mdp(P, np.tile(np.linspace(0, 1, _STATES)[:, None], 2), 0.5),
        "features": np.eye(_GROUPS)[s * _GROUPS // _STATES],
        "target": np.tile([1 - right, right], (_STATES, 1)),
        "behaviour": np.full((_STATES, 2), 0.5),
    }


def slow_walk(
    operator: str = "tdc",
    sampling: str = "markov",
    ridge: float | None = None,
    right: float = 0.6,
    lam: float | None = None,
) -> PolicyEvaluation:
    """Twenty states on a line with walls, a fair walk, and three features that each cover a third of the line.

    The reward grows from 0 on the left to 1 on the right, γ = ½. Within a third the TD error has the sign of the place,
    and the walk takes some 80 steps to leave it: an interval of 95 % that takes steps for independent covers .41 at the
    median state (``models.limit_law`` has the exact number). On-policy with ``right=0.5``.
    """
    return policy_evaluation(**setting(right), operator=operator, sampling=sampling, ridge=ridge, lam=lam)
