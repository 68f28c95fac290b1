"""Agents: ``act`` and ``observe`` around the library's own operators, for any simulator, robot or environment."""

from twoclock.agents.entropy_actor_critic import EntropyActorCritic
from twoclock.agents.env_checks import EnvironmentFault
from twoclock.agents.lqr_regulator import Regulator
from twoclock.agents.protocol import Agent, fresh
from twoclock.agents.run import run
from twoclock.agents.td_evaluator import Evaluator

__all__ = ["Agent", "EntropyActorCritic", "EnvironmentFault", "Evaluator", "Regulator", "fresh", "run"]
