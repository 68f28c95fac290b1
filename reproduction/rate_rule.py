"""The rule for rates: an interval of bounded width, in a band with two sides, so that noise cannot earn the verdict."""

from __future__ import annotations

from reproduction.experiment import Claim
from reproduction.verdicts import NOT_REPRODUCED, above, all_of, below, decide, only_where
from twoclock.intervals import Estimate, log_slope
from twoclock.result import Result

# How far from its rate a slope may lie, as a share of the rate.
BAND = 0.1


def like(slope: Estimate, rate: float) -> bool | None:
    """Whether a slope is that of k^-rate: its interval in the band −rate ± 10 %, outside it, or neither.

    >>> like(Estimate(-1.0, -1.05, -0.95), 1), like(Estimate(-0.8, -0.85, -0.75), 1), like(Estimate(-1, -1.2, -0.8), 1)
    (True, False, None)
    """
    return all_of(at_least(slope, rate), above(slope, -rate * (1 + BAND)))


def at_least(slope: Estimate, rate: float) -> bool | None:
    """Whether a slope is that of k^-rate or steeper; yes only by an interval no wider than the band of ``like``."""
    found = below(slope, -rate * (1 - BAND))
    return None if found and slope.high - slope.low > 2 * BAND * rate else found


def band(rate: float) -> str:
    """The band of ``like`` in words, with its power.

    The interval's half-width is 1.96 standard errors. A slope a tenth of the band beyond its end passes at most where
    one end of a 95 % interval misses; one in its middle, with intervals 0.093 of the rate wide on either half of the
    seeds (4.2 standard errors to each end of the band), passes both halves in 95 % of the runs.
    """
    low, high, off = rate * (1 + BAND), rate * (1 - BAND), rate * 0.89
    return (
        f"lies in [−{low:.4g}, −{high:.4g}], so is at most {2 * BAND * rate:.3g} wide; not reproduced where it lies "
        f"outside, not decided between. By design a true slope of −{off:.3g} passes in less than 5 % of the runs, one "
        f"of −{rate:.3g} in more than 90 % where the interval of half of the seeds is at most {0.093 * rate:.2g} wide"
    )


def rate_claim(
    result: Result, metric: str, rate: float, *, name: str, statement: str, place: str, case: str, lowest: bool = False
) -> Claim:
    """That a metric falls like k^-rate, judged by its slope over the last two decades.

    Args:
        lowest: judge the smallest mean so far.
    """
    slope = log_slope(result.history, metric, lowest=lowest)
    what = f"the smallest mean {metric} so far" if lowest else f"mean {metric}"
    verdict = decide(like(slope, rate))
    if verdict == NOT_REPRODUCED and slope.high < -rate:
        verdict = only_where("it is read as an upper bound: it falls faster")
    return Claim(
        name=name,
        statement=statement,
        place=place,
        rule=f"the 95 % interval of the slope of log {what} against log k over the last two decades {band(rate)}; only "
        "where: it falls faster",
        numbers={"slope": slope, "width of its interval": round(slope.high - slope.low, 4)},
        verdict=verdict,
        cases=(case,),
    )
