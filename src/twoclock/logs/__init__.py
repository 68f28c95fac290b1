"""Off-policy evaluation: read logged data, evaluate another policy on it, and say how far to believe the number."""

from twoclock.logs import features
from twoclock.logs.dataset import Log
from twoclock.logs.estimators import estimators
from twoclock.logs.evaluate import evaluate
from twoclock.logs.ope_result import Value, load
from twoclock.logs.policies import Gaussian
from twoclock.logs.read_log import read

__all__ = ["Gaussian", "Log", "Value", "estimators", "evaluate", "features", "load", "read"]
