"""Exact answers: closed-form linear algebra, no iterates."""

from twoclock.models.average_reward import AverageReward
from twoclock.models.constrained_mdp import ConstrainedOptimum, constrained_optimum
from twoclock.models.gymnasium_table import from_gymnasium
from twoclock.models.linear_evaluation import LimitLaw, limit_law
from twoclock.models.lqr import Lqr
from twoclock.models.markov_game import MarkovGame
from twoclock.models.mdp import Mdp
from twoclock.models.mean_field import FiniteField, LinearQuadraticField
from twoclock.models.riccati import CertaintyEquivalence
from twoclock.models.soft_mdp import EmpiricalMdp, SoftMdp

__all__ = ["AverageReward", "EmpiricalMdp", "MarkovGame", "Mdp", "SoftMdp", "from_gymnasium"]
__all__ += ["ConstrainedOptimum", "FiniteField", "LinearQuadraticField", "constrained_optimum"]
__all__ += ["CertaintyEquivalence", "LimitLaw", "Lqr", "limit_law"]
