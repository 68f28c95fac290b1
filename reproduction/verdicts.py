"""Rules that several experiments judge by, and the words of their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reproduction.formatting import listed
from twoclock.intervals import Estimate, bootstrap_mean, by_step_and_seed
from twoclock.result import Result

REPRODUCED, NOT_REPRODUCED, NOT_DECIDABLE = "reproduced", "not reproduced", "not decidable from the paper"
NOT_DECIDED, VACUOUS = "not decided", "vacuous"
_ONLY_WHERE = "reproduced only where"
Kind = Literal["yes", "partly", "no", "vacuous", "undecided", "open"]
# The longest first: "reproduced" also begins "reproduced only where".
_KINDS: dict[str, Kind] = {
    _ONLY_WHERE: "partly", REPRODUCED: "yes", NOT_REPRODUCED: "no", VACUOUS: "vacuous", NOT_DECIDED: "undecided",
    "not decidable": "open",
}  # fmt: skip
Standing = Literal["better", "worse", "a tie"]
_MOST = 1e150


def kind(verdict: str) -> Kind:
    """Which of the kinds a verdict is.

    >>> kind("reproduced only where k ≥ 100"), kind("not reproduced"), kind("not decided")
    ('partly', 'no', 'undecided')
    """
    for start, found in _KINDS.items():
        if verdict.startswith(start):
            return found
    raise ValueError(f"a verdict must begin with one of {', '.join(map(repr, _KINDS))}, got {verdict!r}")


def decide(held: bool | None) -> str:
    """The verdict on a claim that holds or does not, or of which the records do not say which."""
    return NOT_DECIDED if held is None else REPRODUCED if held else NOT_REPRODUCED


def only_where(condition: str) -> str:
    """The verdict on a claim that holds under a condition."""
    return f"{_ONLY_WHERE} {condition}"


class PartialVerdict(str):
    """A verdict on several things, which remembers what was found of each, so that each can be confirmed by itself."""

    held: Mapping[str, bool | None]
    condition: str
    separator: str


def decide_each(held: Mapping[str, bool | None], condition: str = "{}", separator: str = ", ") -> PartialVerdict:
    """The verdict on a claim made of several things: all, none, or only those named in the condition.

    >>> decide_each({"smooth": False, "kinked": True}, "the coupling is {}")
    'reproduced only where the coupling is kinked'
    >>> decide_each({"smooth": None, "kinked": False}, "the coupling is {}")
    'not decided where the coupling is smooth, elsewhere not reproduced'
    """
    true, unknown = ([name for name in held if held[name] is wanted] for wanted in (True, None))
    named = condition.format(separator.join(true)), condition.format(separator.join(unknown))
    if len(unknown) == len(held) > 0:
        words = NOT_DECIDED
    elif unknown:
        words = f"{only_where(named[0])}; not decided where {named[1]}"
        words = words if true else f"{NOT_DECIDED} where {named[1]}, elsewhere {NOT_REPRODUCED}"
    else:
        words = only_where(named[0]) if 0 < len(true) < len(held) else decide(bool(true))
    verdict = PartialVerdict(words)
    verdict.held, verdict.condition, verdict.separator = held, condition, separator
    return verdict


def all_of(*held: bool | None) -> bool | None:
    """Whether all hold: no if one does not, unknown if one of the others is.

    >>> all_of(True, None), all_of(False, None), all_of(True, True)
    (None, False, True)
    """
    return False if False in held else None if None in held else True


def above(found: Estimate, mark: float) -> bool | None:
    """Whether a number is above a mark: yes or no only where its whole interval says so.

    >>> above(Estimate(1.2, 1.15, 1.3), 1.1), above(Estimate(1.2, 1.0, 1.4), 1.1)
    (True, None)
    """
    return True if found.low > mark else False if found.high <= mark else None


def below(found: Estimate, mark: float) -> bool | None:
    """Whether a number is below a mark: yes or no only where its whole interval says so."""
    return True if found.high < mark else False if found.low >= mark else None


def last_values(result: Result, metric: str) -> np.ndarray:
    """The metric at the last step, seed by seed."""
    return _values_at(result, metric, None)


def last_mean(result: Result, metric: str) -> float:
    """The metric's mean over seeds at the last step."""
    return float(last_values(result, metric).mean())


def last_ratio(result: Result, base: Result, metric: str, step: int | None = None) -> Estimate:
    """One method over another on the same seeds at a step, the last by default: the geometric mean of the ratios.

    A few instances carry a mean of errors; the logarithm of the ratio, seed by seed, weighs all of them alike. The
    interval is a 95 % bootstrap interval over the shared seeds.
    """
    return geometric_mean(_logs_at(result, metric, step) - _logs_at(base, metric, step))


def geometric_mean(logs: np.ndarray) -> Estimate:
    """That of numbers whose logarithms these are, seed by seed, with its 95 % bootstrap interval."""
    low, high = bootstrap_mean(logs[None, :])
    return Estimate(*(float(np.exp(v)) for v in (logs.mean(), low[0], high[0])))


def final_logs(result: Result, metric: str) -> np.ndarray:
    """The logarithm of the metric at the last step, seed by seed; that of a lost seed is beyond all others."""
    return _logs_at(result, metric, None)


def _logs_at(result: Result, metric: str, step: int | None) -> np.ndarray:
    return log_values(_values_at(result, metric, step))


def _values_at(result: Result, metric: str, step: int | None) -> np.ndarray:
    """The metric at a step, None for the last, seed by seed."""
    steps, _, values = by_step_and_seed(result.history, metric)
    return values[-1] if step is None else values[steps == step].ravel()


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
    def of(cls, ours: Result, theirs: Result, metric: str, first: int = 1, confidence: float = 0.99) -> Paired:
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

    def final_lead(self) -> np.ndarray:
        """The marks of the run up to the end in which the first is ahead."""
        return self.steps[int(np.max(np.flatnonzero(~self.ahead), initial=-1)) + 1 :]


def standings(found: Iterable[Standing], rival: str) -> str:
    """How often a method ends below, level with and above a rival, in words.

    >>> standings(["better", "better"], "TDC"), standings(["a tie", "worse", "a tie"], "TDC")
    ('ends below TDC', 'ends level with TDC in 2 of 3 panels and above it in 1')
    """
    counts = Counter(found)
    places: dict[Standing, str] = {"better": "below", "a tie": "level with", "worse": "above"}
    named = [(places[standing], counts[standing]) for standing in places if counts[standing]]
    (place, count), *rest = named
    if not rest:
        return f"ends {place} {rival}"
    first = f"{place} {rival} in {count} of {counts.total()} panels"
    return f"ends {listed([first, *(f'{other} it in {number}' for other, number in rest)])}"
