"""The step-size theory as a tool: certificates, checks of a user's own schedules, and a problem's constants."""

from twoclock.theory.certificate import Certificate, Condition, Start
from twoclock.theory.certify import STRUCTURES, certify
from twoclock.theory.check import Finding, Report, check
from twoclock.theory.constants import Constants, constants, start

__all__ = [
    "STRUCTURES",
    "Certificate",
    "Condition",
    "Constants",
    "Finding",
    "Report",
    "Start",
    "certify",
    "check",
    "constants",
    "start",
]
