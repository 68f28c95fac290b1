"""Exact answers: closed-form linear algebra, no iterates."""

from twoclock.models.asymptotics import LimitLaw, limit_law
from twoclock.models.certainty_equivalence import CertaintyEquivalence
from twoclock.models.empirical_mdp import EmpiricalMdp
from twoclock.models.lqr import Lqr
from twoclock.models.mdp import Mdp
from twoclock.models.soft_mdp import SoftMdp
from twoclock.models.toy_text import from_gymnasium

__all__ = ["CertaintyEquivalence", "EmpiricalMdp", "LimitLaw", "Lqr", "Mdp", "SoftMdp", "from_gymnasium", "limit_law"]
