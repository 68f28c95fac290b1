"""Ready-made problems, one file each."""

from twoclock.problems.average_reward import access_control, average_reward, river_swim
from twoclock.problems.bilevel.bilevel import bilevel, composite, minimax
from twoclock.problems.bilevel.least_squares import quadratic_bilevel, quadratic_minimax
from twoclock.problems.bilevel.losses import CurvatureWarning
from twoclock.problems.constrained_mdp import constrained_frozen_lake, constrained_mdp, fischer_burmeister
from twoclock.problems.custom import custom, exact, oracle
from twoclock.problems.entropy_mdp import SoftOperators, entropy_mdp, forest, frozen_lake, random_entropy_mdp
from twoclock.problems.lqr.actor_critic import (
    BlindCriticWarning,
    boeing_747,
    double_integrator,
    lqr_actor_critic,
    paper_lqr,
)
from twoclock.problems.lqr.model_based import LqrModel, ModelCritic, lqr_model
from twoclock.problems.lqr.operators import ActorCritic, Guard
from twoclock.problems.markov_game import markov_game, matrix_game, pursuit
from twoclock.problems.mean_field import beach_bar, linear_quadratic_field, mean_field
from twoclock.problems.policy_evaluation.benchmarks import (
    SlowWalkSetting,
    baird,
    boyan,
    long_walk,
    random_policy_evaluation,
    ring,
    slow_walk,
    slow_walk_setting,
    spiral,
    tsitsiklis_van_roy,
    walk_dependent,
    walk_inverted,
    walk_tabular,
)
from twoclock.problems.policy_evaluation.linear import PolicyEvaluation, policy_evaluation
from twoclock.problems.policy_evaluation.nonlinear import nonlinear_policy_evaluation, value_operators
from twoclock.problems.policy_evaluation.td_lambda import trace_operators, with_trace
from twoclock.problems.synthetic import quadratic, rates

__all__ = [
    "ActorCritic",
    "BlindCriticWarning",
    "CurvatureWarning",
    "Guard",
    "LqrModel",
    "ModelCritic",
    "PolicyEvaluation",
    "SlowWalkSetting",
    "SoftOperators",
    "access_control",
    "average_reward",
    "baird",
    "beach_bar",
    "bilevel",
    "boeing_747",
    "boyan",
    "composite",
    "constrained_frozen_lake",
    "constrained_mdp",
    "custom",
    "double_integrator",
    "entropy_mdp",
    "exact",
    "fischer_burmeister",
    "forest",
    "frozen_lake",
    "linear_quadratic_field",
    "long_walk",
    "lqr_actor_critic",
    "lqr_model",
    "markov_game",
    "matrix_game",
    "mean_field",
    "minimax",
    "nonlinear_policy_evaluation",
    "oracle",
    "paper_lqr",
    "policy_evaluation",
    "pursuit",
    "quadratic",
    "quadratic_bilevel",
    "quadratic_minimax",
    "random_entropy_mdp",
    "random_policy_evaluation",
    "rates",
    "ring",
    "river_swim",
    "slow_walk",
    "slow_walk_setting",
    "spiral",
    "trace_operators",
    "tsitsiklis_van_roy",
    "value_operators",
    "walk_dependent",
    "walk_inverted",
    "walk_tabular",
    "with_trace",
]
