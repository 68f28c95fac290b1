"""One method, one file."""

from twoclock.methods.fast import Fast
from twoclock.methods.polyak import Polyak
from twoclock.methods.standard import Standard

__all__ = ["Fast", "Polyak", "Standard"]
