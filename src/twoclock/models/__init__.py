"""Exact answers: closed-form linear algebra, no iterates."""

from twoclock.models.certainty_equivalence import CertaintyEquivalence
from twoclock.models.lqr import Lqr
from twoclock.models.mdp import Mdp

__all__ = ["CertaintyEquivalence", "Lqr", "Mdp"]
