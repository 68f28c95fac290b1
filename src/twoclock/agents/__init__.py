"""Agents: ``act`` and ``observe`` around the library's own operators, for any simulator, robot or environment."""

from twoclock.agents.contract import Agent, fresh
from twoclock.agents.regulator import Regulator
from twoclock.agents.run import run
from twoclock.agents.running.faults import EnvironmentFault

__all__ = ["Agent", "EnvironmentFault", "Regulator", "fresh", "run"]
