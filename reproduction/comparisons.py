"""What is read off records: ends, ratios on shared seeds, rates; and how numbers are written."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from reproduction.experiment import Claim
from reproduction.verdicts import NOT_REPRODUCED, REPRODUCED, above, all_of, below, decide, only_for_steps, only_where
from twoclock import Result
from twoclock.intervals import Estimate, bootstrap_mean, by_step_and_seed, log_slope

Standing = Literal["better", "worse", "a tie"]
# Beyond all others: what stands for a value that is not finite.
_MOST = 1e150
# How far from its rate a slope may lie, as a share of the rate.
BAND = 0.1


def last_values(result: Result, metric: str, step: int | None = None) -> np.ndarray:
    """The metric at the last step, or at another, seed by seed."""
    steps, _, values = by_step_and_seed(result.history, metric)
    return values[-1] if step is None else values[steps == step].ravel()


def last_mean(result: Result, metric: str) -> float:
    """The metric's mean over seeds at the last step."""
    return float(last_values(result, metric).mean())


def last_means(results: Mapping[str, Result], metric: str) -> dict[str, float]:
    return {label: last_mean(result, metric) for label, result in results.items()}


def last_ratio(result: Result, base: Result, metric: str, step: int | None = None) -> Estimate:
    """One method over another on the same seeds at a step, the last by default: the geometric mean of the ratios.

    A few instances carry a mean of errors; the logarithm of the ratio, seed by seed, weighs all of them alike. The
    interval is a 95 % bootstrap interval over the shared seeds.
    """
    ours, theirs = (log_values(last_values(run, metric, step)) for run in (result, base))
    return geometric_mean(ours - theirs)


def geometric_mean(logs: np.ndarray) -> Estimate:
    """That of numbers whose logarithms these are, seed by seed, with its 95 % bootstrap interval."""
    low, high = bootstrap_mean(logs[None, :])
    return Estimate(*(float(np.exp(v)) for v in (logs.mean(), low[0], high[0])))


def log_values(values: np.ndarray) -> np.ndarray:
    """Logarithms, with those of 0 and of what is not finite beyond all others."""
    return np.log(np.clip(np.nan_to_num(values, nan=_MOST, posinf=_MOST), 1 / _MOST, _MOST))


@dataclass(frozen=True)
class Paired:
    """One method against another on the same seeds and samples, so that it is the ratio seed by seed that counts.

    Attributes:
        steps: the marks.
        ratio: the geometric mean over seeds of the first's over the second's, at each mark.
        ahead: whether the interval of the mean log-ratio lies below 0, so that the first is better.
        behind: whether it lies above.
    """

    steps: np.ndarray
    ratio: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray

    @classmethod
    def of(cls, ours: Result, theirs: Result, metric: str, first: int = 1, confidence: float = 0.99) -> Self:
        """From the marks from step ``first`` on that both have."""
        (steps, _, a), (others, _, b) = (by_step_and_seed(r.history, metric) for r in (ours, theirs))
        both = np.intersect1d(steps, others)  # one of the two may have stopped earlier
        both = both[both >= first]
        a, b = (np.ascontiguousarray(v[np.isin(k, both)]) for k, v in ((steps, a), (others, b)))
        logs = log_values(a) - log_values(b)
        low, high = bootstrap_mean(logs, confidence)
        return cls(both, np.exp(logs.mean(axis=1)), high < 0, low > 0)

    @property
    def at_the_end(self) -> Standing:
        return "better" if self.ahead[-1] else "worse" if self.behind[-1] else "a tie"

    def longest_lead(self) -> np.ndarray:
        """The marks of the longest run in which the first is ahead."""
        runs = np.split(np.arange(len(self.ahead)), np.flatnonzero(np.diff(self.ahead)) + 1)
        longest = max((run for run in runs if self.ahead[run[0]]), key=len, default=np.arange(0))
        return self.steps[longest]

    def verdict(self, first: int) -> str:
        """That the first is ahead at every mark from a step on; only where: at three marks or more in a row."""
        verdict, lead = decide(bool(self.ahead[self.steps >= first].all())), self.longest_lead()
        return only_for_steps(lead[0], lead[-1]) if verdict != REPRODUCED and len(lead) >= 3 else verdict

    def final_lead(self) -> np.ndarray:
        """The marks of the run up to the end in which the first is ahead."""
        return self.steps[int(np.max(np.flatnonzero(~self.ahead), initial=-1)) + 1 :]


def describe_standings(found: Iterable[Standing], rival: str) -> str:
    """Describe how often a method ends below, level with and above a rival.

    >>> describe_standings(["better", "better"], "TDC"), describe_standings(["a tie", "worse", "a tie"], "TDC")
    ('ends below TDC', 'ends level with TDC in 2 of 3 panels and above it in 1')
    """
    counts = Counter(found)
    places: dict[Standing, str] = {"better": "below", "a tie": "level with", "worse": "above"}
    named = [(places[standing], counts[standing]) for standing in places if counts[standing]]
    (place, count), *rest = named
    if not rest:
        return f"ends {place} {rival}"
    first = f"{place} {rival} in {count} of {counts.total()} panels"
    return f"ends {join_words([first, *(f'{other} it in {number}' for other, number in rest)])}"


def seconds_a_step(result: Result) -> float:
    """For all seeds together; of a run that was timed alone and compiled nothing."""
    return float(result.spec["wall_seconds"]) / int(result.spec["steps"])


def at_equal_seconds(result: Result, base: Result, metric: str) -> Estimate:
    """One method over another on the same seeds when the shorter run ends: the geometric mean of the ratios.

    Between marks the logarithm of the metric is taken as linear in that of time. The interval is a 95 % bootstrap
    interval over the shared seeds; that the seconds themselves vary from run to run is not in it.
    """
    end = min(float(r.spec["wall_seconds"]) for r in (result, base))
    return geometric_mean(_logs_after(result, metric, end) - _logs_after(base, metric, end))


def standing(ratio: Estimate) -> Standing:
    """What a ratio of errors says, by its interval."""
    return "better" if ratio.high < 1 else "worse" if ratio.low > 1 else "a tie"


def _logs_after(result: Result, metric: str, seconds: float) -> np.ndarray:
    """The logarithm of the metric after ``seconds`` seconds, for each seed."""
    steps, _, values = by_step_and_seed(result.history, metric)
    times = np.log(steps[steps > 0] * seconds_a_step(result))
    return np.array([np.interp(np.log(seconds), times, column) for column in log_values(values[steps > 0]).T])


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
    """Describe the band of ``like``, with its power.

    The interval's half-width is 1.96 standard errors. A slope a tenth of the band beyond its end passes at most where
    one end of a 95 % interval misses. One in its middle, with intervals 0.093 of the rate wide on either half of the
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
    """That a metric, or with ``lowest`` its smallest mean so far, falls like k^-rate over the last two decades."""
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


def span(values: Iterable[float | int], form: str = ".3g") -> str:
    """The range of some numbers; one number where both ends read the same.

    >>> span([1.0, 1.301, 1.1]), span([1.0, 1.0004])
    ('1 to 1.3', '1')
    """
    found = list(values)
    low, high = f"{min(found):{form}}", f"{max(found):{form}}"
    return low if low == high else f"{low} to {high}"


def join_words(items: Sequence[str]) -> str:
    """a, b and c

    >>> join_words(["one"]), join_words(["one", "two", "three"])
    ('one', 'one, two and three')
    """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def number(value: object) -> str:
    """Numbers to four figures, intervals in brackets, anything else as it is.

    >>> number(Estimate(1.23456, 1.0, 1.5)), number(12345), number([0.1, 0.25])
    ('1.235 [1, 1.5]', '12,345', '[0.1, 0.25]')
    """
    if isinstance(value, Estimate):
        return f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(number(item) for item in value)}]"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
