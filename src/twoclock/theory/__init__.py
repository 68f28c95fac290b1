"""The step-size theory as a tool: certificates, checks of a user's own schedules, and a problem's constants."""

from twoclock.theory.certificate import Certificate, Condition, Start
from twoclock.theory.follow import Finding, Report, check
from twoclock.theory.given import STRUCTURES
from twoclock.theory.measure import Constants, constants, start
from twoclock.theory.prove import certify

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
