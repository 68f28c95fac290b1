"""Agents: ``act`` and ``observe`` around the library's own operators, for any simulator, robot or environment."""

from twoclock.agents.contract import Agent, fresh
from twoclock.agents.regulator import Regulator

__all__ = ["Agent", "Regulator", "fresh"]
