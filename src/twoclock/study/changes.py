"""Which rules changed and when, for the report: verdicts of two runs compare only where their rules are the same."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """A change of a rule: the day it was made, what is judged by it, how it was judged before, and how now."""

    date: str
    what: str
    was: str
    now: str


# The newest first. Rules are frozen before a full run: a change after it is a line here before the next.
RULES_CHANGED: tuple[Change, ...] = (
    Change(
        "2026-11-16",
        "every claim",
        "judged on all seeds at once",
        "the verdict of all seeds stands only if the lower and the upper half of the seeds, each by itself, lead to "
        "the same; else “not decided”",
    ),
    Change(
        "2026-11-16",
        "rates (“falls like 1/k”)",
        "the interval of the slope reaches 95 % of the rate, however wide it is",
        "the whole interval lies within 10 % of the rate, on either side; not decided where it does only in part",
    ),
    Change(
        "2026-11-16",
        "one method against another (Figures 1 and 2, the MDPs, bilevel problems)",
        "means over seeds, by their difference or their ratio",
        "the mean over shared seeds of the logarithm of the ratio, with its interval; not decided where the interval "
        "has the mark inside",
    ),
    Change(
        "2026-11-16",
        "Table 1's difference of slopes",
        "above 0, and its interval reaches half of the claimed difference",
        "the whole interval above half of the claimed difference",
    ),
    Change(
        "2026-11-16",
        "nearly as good as LSTD",
        "the ratio of means at most 1.3",
        "the interval of the geometric mean of the ratio wholly below 1.3",
    ),
    Change(
        "2026-11-16",
        "the colder, the larger the constant",
        "k·gap larger at each lower temperature",
        "the interval of the ratio from each temperature to the next lower one above 1",
    ),
    Change(
        "2026-11-16",
        "the bounds of Theorems 1 to 3",
        "only where put right, or not reproduced; the printed conditions of Theorems 1 and 2 were not run",
        "the printed conditions are run, or shown to admit no steps; vacuous where nothing moved",
    ),
    Change(
        "2026-11-16",
        "95 % intervals cover",
        "the share of intervals that cover lies in [.93, .97], all seeds at once; a chain's at least .93",
        "the same for either half of the seeds, where of 100 to 400 runs two standard errors are allowed for",
    ),
)
