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

__all__ = ["custom", "exact", "oracle", "quadratic", "rates"]
__all__ += ["CurvatureWarning", "bilevel", "composite", "minimax", "quadratic_bilevel", "quadratic_minimax"]
__all__ += ["PolicyEvaluation", "nonlinear_policy_evaluation", "policy_evaluation"]
__all__ += ["trace_operators", "value_operators", "with_trace"]
__all__ += ["baird", "boyan", "long_walk", "random_policy_evaluation", "ring", "spiral", "tsitsiklis_van_roy"]
__all__ += ["SlowWalkSetting", "slow_walk", "slow_walk_setting", "walk_dependent", "walk_inverted", "walk_tabular"]
__all__ += ["SoftOperators", "entropy_mdp", "forest", "frozen_lake", "random_entropy_mdp"]
__all__ += ["access_control", "average_reward", "river_swim"]
__all__ += ["constrained_frozen_lake", "constrained_mdp", "fischer_burmeister"]
__all__ += ["beach_bar", "linear_quadratic_field", "markov_game", "matrix_game", "mean_field", "pursuit"]
__all__ += ["ActorCritic", "BlindCriticWarning", "Guard", "LqrModel", "ModelCritic"]
__all__ += ["boeing_747", "double_integrator", "lqr_actor_critic", "lqr_model", "paper_lqr"]
