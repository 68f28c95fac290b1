"""Ready-made problems, one file each."""

from twoclock.problems.custom import custom
from twoclock.problems.exact import exact
from twoclock.problems.lqr_actor_critic import BlindCriticWarning, lqr_actor_critic
from twoclock.problems.lqr_cases import boeing_747, double_integrator, paper_lqr
from twoclock.problems.lqr_guard import Guard
from twoclock.problems.lqr_operators import ActorCritic
from twoclock.problems.quadratic import quadratic
from twoclock.problems.rates import rates

__all__ = [
    "ActorCritic",
    "BlindCriticWarning",
    "Guard",
    "boeing_747",
    "custom",
    "double_integrator",
    "exact",
    "lqr_actor_critic",
    "paper_lqr",
    "quadratic",
    "rates",
]
