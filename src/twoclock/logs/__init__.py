"""Logged data: read it, evaluate a policy that it is not of, and say how far to believe the number."""

from twoclock.logs import features
from twoclock.logs.estimators import estimators
from twoclock.logs.evaluate import evaluate
from twoclock.logs.log import Log
from twoclock.logs.policies import Gaussian
from twoclock.logs.reading import read
from twoclock.logs.value import Value, load

__all__ = ["Gaussian", "Log", "Value", "estimators", "evaluate", "features", "load", "read"]
