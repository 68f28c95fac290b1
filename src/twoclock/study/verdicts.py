"""Rules that several experiments judge by, and the words of their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from twoclock.result import Result
from twoclock.stats import Estimate, bootstrap_mean, log_slope, ratio_of_means
from twoclock.study.experiment import Claim
from twoclock.study.words import listed

REPRODUCED, NOT_REPRODUCED, NOT_DECIDABLE = "reproduced", "not reproduced", "not decidable from the paper"
_ONLY_WHERE = "reproduced only where"
Kind = Literal["yes", "partly", "no", "open"]
# The longest first: "reproduced" also begins "reproduced only where".
_KINDS: dict[str, Kind] = {_ONLY_WHERE: "partly", REPRODUCED: "yes", NOT_REPRODUCED: "no", "not decidable": "open"}
Standing = Literal["better", "worse", "a tie"]


def kind(verdict: str) -> Kind:
    """Which of the four kinds a verdict is.

    >>> kind("reproduced only where k ≥ 100"), kind("not reproduced")
    ('partly', 'no')
    """
    for start, found in _KINDS.items():
        if verdict.startswith(start):
            return found
    raise ValueError(f"a verdict must begin with one of {', '.join(map(repr, _KINDS))}, got {verdict!r}")


def decide(held: bool) -> str:
    """The verdict on a claim that holds or does not."""
    return REPRODUCED if held else NOT_REPRODUCED


def only_where(condition: str) -> str:
    """The verdict on a claim that holds under a condition."""
    return f"{_ONLY_WHERE} {condition}"


def decide_each(held: Mapping[str, bool], condition: str = "{}", separator: str = ", ") -> str:
    """The verdict on a claim made of several things: all, none, or only those named in the condition.

    >>> decide_each({"smooth": False, "kinked": True}, "the coupling is {}")
    'reproduced only where the coupling is kinked'
    """
    true = [name for name in held if held[name]]
    return only_where(condition.format(separator.join(true))) if 0 < len(true) < len(held) else decide(bool(true))


def last_values(result: Result, metric: str) -> np.ndarray:
    """The metric at the last step, seed by seed."""
    history = result.history
    return history[history["step"] == history["step"].max()].sort_values("seed")[metric].to_numpy(float)


def last_mean(result: Result, metric: str) -> float:
    """The metric's mean over seeds at the last step."""
    return float(last_values(result, metric).mean())


def last_ratio(result: Result, base: Result, metric: str) -> Estimate:
    """The mean at the last step over another method's, with a 95 % bootstrap interval over the shared seeds."""
    return ratio_of_means(last_values(result, metric), last_values(base, metric))


@dataclass(frozen=True)
class Paired:
    """One method against another on the same seeds and samples, so that it is the difference seed by seed that counts.

    Attributes:
        steps: the marks.
        ratio: the first's mean over the second's at each mark.
        ahead: whether the interval of the mean difference lies below 0, so that the first is better.
        behind: whether it lies above.
    """

    steps: np.ndarray
    ratio: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray

    @classmethod
    def of(cls, ours: Result, theirs: Result, metric: str, first: int = 1, confidence: float = 0.99) -> Paired:
        """From the marks from step ``first`` on."""
        a, b = (
            r.history[r.history["step"] >= first].pivot(index="step", columns="seed", values=metric)
            for r in (ours, theirs)
        )
        low, high = bootstrap_mean((a - b).to_numpy(), confidence)
        return cls(a.index.to_numpy(), (a.mean(axis=1) / b.mean(axis=1)).to_numpy(), high < 0, low > 0)

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


def reaches(slope: Estimate, mark: float) -> bool:
    """Whether the interval of a slope goes down to the mark."""
    return slope.low <= mark


def rate_claim(
    result: Result, metric: str, mark: float, *, name: str, statement: str, place: str, case: str, lowest: bool = False
) -> Claim:
    """That a metric falls at some rate, judged by its slope over the last two decades.

    Args:
        mark: how low the interval of the slope must reach.
        lowest: judge the smallest mean so far.
    """
    slope = log_slope(result.history, metric, lowest=lowest)
    what = f"the smallest mean {metric} so far" if lowest else f"mean {metric}"
    return Claim(
        name=name,
        statement=statement,
        place=place,
        rule=f"the slope of log {what} against log k over the last two decades has a 95 % interval that reaches "
        f"−{-mark:g}",
        numbers={"slope": slope},
        verdict=decide(reaches(slope, mark)),
        cases=(case,),
    )


def tuned_alike(
    tried: Mapping[str, Result],
    chosen: Mapping[str, str],
    method_of: Callable[[str], str],
    metric: str,
    *,
    name: str,
    where: str,
    cases: Sequence[str],
) -> Claim:
    """That each method runs with the best of the settings it was tried with, on seeds of their own.

    Args:
        tried: label → result of every setting of every method.
        chosen: method → the label of the setting that it runs with.
        method_of: a label's method.
        where: the task, in words.
    """
    last = {label: last_mean(result, metric) for label, result in tried.items()}
    numbers, counts = {}, set()
    for method, label in chosen.items():
        of_method = [last[other] for other in last if method_of(other) == method]
        counts.add(len(of_method))
        numbers[f"{method}: chosen / best of {len(of_method)}"] = round(last[label] / min(of_method), 3)
    steps = next(iter(tried.values())).spec["steps"]
    how_many = listed([str(count) for count in sorted(counts)])
    return Claim(
        name=name,
        statement=f"{listed(list(chosen))} {'runs' if len(chosen) == 1 else 'each run'} with the best of {how_many} "
        f"settings ({where})",
        place="ours, not the paper's",
        rule=f"the chosen setting's mean {metric} after {steps:,} steps on other seeds is within 5 % of its grid's "
        "best",
        numbers=numbers,
        verdict=decide(all(value <= 1.05 for value in numbers.values())),
        cases=cases,
        ours=True,
    )
