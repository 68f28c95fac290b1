"""One method, one file."""

from twoclock.methods.fast import Fast
from twoclock.methods.plug_in import PlugIn
from twoclock.methods.polyak import Polyak
from twoclock.methods.standard import Standard

__all__ = ["Fast", "PlugIn", "Polyak", "Standard"]
