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
        "Fast TDC against TDC on harder tasks",
        "each with the best of twelve settings of a hand-made grid, λ/β of Fast TDC fixed at 8; 20 seeds",
        "each with steps from the search that Figure 1's have, λ/β included; 40 seeds",
    ),
    Change(
        "2026-11-16",
        "no step size to choose",
        "the best of 60 settings chosen with truth on the very seeds that count; a ratio of 0 where it lost one",
        "chosen with truth on other seeds, so that luck in the choice does not count; the ratio is over the shared "
        "seeds that the setting did not lose",
    ),
    Change(
        "2026-11-16",
        "methods tuned alike (Figures 1 and 2, the MDPs, bilevel problems)",
        "the chosen setting's mean error within 5 % of the best of a hand-made grid, at a tenth or a quarter of the "
        "horizon; Figure 2's grid was not in the repository",
        "settings searched by one tool, with equal budgets, at the horizon; on other seeds the interval of the ratio "
        "to the best setting around wholly below 1.1, and no setting at the edge of the box searched",
    ),
    Change(
        "2026-11-16",
        "Figure 1, tuned",
        "steps in the order α ≤ β ≤ λ, β/α of Fast TDC fixed at 4",
        "any order; c_α, β/α and λ/β of Fast TDC, c_α and β/α of TDC, c_α and the first step of TD(0) tuned",
    ),
    Change(
        "2026-11-16",
        "step sizes easier to choose",
        "not judged",
        "the share of settings within 2 times the method's own best less the rival's, over the same moves around the "
        "tuned settings, with its interval over settings above 0",
    ),
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
