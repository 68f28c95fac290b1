"""Agents: ``act`` and ``observe`` around the library's own operators, for any simulator, robot or environment."""

from twoclock.agents.contract import Agent, fresh
from twoclock.agents.evaluator import Evaluator
from twoclock.agents.regulator import Regulator
from twoclock.agents.run import run
from twoclock.agents.running.faults import EnvironmentFault
from twoclock.agents.soft_actor_critic import SoftActorCritic

__all__ = ["Agent", "EnvironmentFault", "Evaluator", "Regulator", "SoftActorCritic", "fresh", "run"]
