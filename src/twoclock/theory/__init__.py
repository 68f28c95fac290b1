"""The step-size theory as a tool: certificates, checks of a user's own schedules, and a problem's constants."""

from twoclock.theory.certificate import Certificate, Condition, InitialErrors
from twoclock.theory.certify import STRUCTURES, certify
from twoclock.theory.check import CheckReport, ConditionCheck, check
from twoclock.theory.constants import Constants, constants, start
from twoclock.theory.residuals import residuals

__all__ = ["STRUCTURES", "Certificate", "Condition", "InitialErrors", "certify"]
__all__ += ["CheckReport", "ConditionCheck", "Constants", "check", "constants", "residuals", "start"]
