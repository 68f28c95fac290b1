"""Every verdict is confirmed: it stands only if either half of the seeds, by itself, leads to the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import finalize

import jax
import numpy as np

from reproduction.experiment import Claim, Records
from reproduction.verdicts import NOT_DECIDED, PartialVerdict, decide_each
from twoclock.result import Result

# With fewer seeds there is nothing to divide: what is judged then is the same for all seeds, or is no matter of chance.
_LEAST = 4
_STEPS = re.compile(r"\bk (?:is about|≥) ([\d,]+)(?: to ([\d,]+))?")


def confirmed(judge: Callable[[Records], Sequence[Claim]], records: Records) -> list[Claim]:
    """The claims, each with the verdict of all seeds if it is also that of the lower and of the upper half of them.

    Trials, and what is chosen by them, use low seeds: on the upper half nothing was chosen.
    """
    halves = [{claim.name: claim.verdict for claim in judge(half)} for half in split(records)]
    found = []
    for claim in judge(records):
        parts = [half.get(claim.name, NOT_DECIDED) for half in halves]
        verdict = agreed(claim.verdict, *parts)
        if verdict != claim.verdict:
            words = f"all seeds: {claim.verdict}; lower half: {parts[0]}; upper half: {parts[1]}"
            claim = replace(claim, verdict=verdict, numbers={**claim.numbers, "not confirmed": words})
        found.append(claim)
    return found


def verdict(judge: Callable[[Records], Claim], records: Records) -> str:
    """The confirmed verdict on one claim."""
    ((claim),) = confirmed(lambda some: [judge(some)], records)
    return claim.verdict


def agreed(whole: str, *halves: str) -> str:
    """The verdict if the halves say the same, else that it is not decided; of several things each by itself.

    Verdicts that name a range of steps agree where the ranges meet.

    >>> agreed("reproduced", "reproduced", "not reproduced")
    'not decided'
    >>> agreed(*(f"reproduced only where k is about {k}" for k in ("500 to 1,260", "400 to 1,000", "600 to 2,000")))
    'reproduced only where k is about 500 to 1,260'
    """
    if isinstance(whole, PartialVerdict) and all(
        isinstance(half, PartialVerdict) and half.held.keys() == whole.held.keys() for half in halves
    ):
        held = {
            name: found
            if all(isinstance(half, PartialVerdict) and half.held[name] is found for half in halves)
            else None
            for name, found in whole.held.items()
        }
        return decide_each(held, whole.condition, whole.separator)
    return whole if all(_same(whole, half) for half in halves) else NOT_DECIDED


def _same(a: str, b: str) -> bool:
    if _STEPS.sub("k", a) != _STEPS.sub("k", b):
        return False
    ranges = ([_range(match) for match in _STEPS.finditer(text)] for text in (a, b))
    return all(first[0] <= second[1] and second[0] <= first[1] for first, second in zip(*ranges, strict=True))


def _range(match: re.Match[str]) -> tuple[float, float]:
    first, last = match.groups()
    return float(first.replace(",", "")), float(last.replace(",", "")) if last else float("inf")


def split(records: Records) -> tuple[Records, Records]:
    """The same records with the lower and with the upper half of their seeds."""
    lower, upper = (
        {case: {label: _halves(result)[i] for label, result in results.items()} for case, results in records.items()}
        for i in (0, 1)
    )
    return lower, upper


# Several claims are judged by the same results: the halves of each, by its id, for as long as it lives.
_divided: dict[int, tuple[Result, Result]] = {}


def _halves(result: Result) -> tuple[Result, Result]:
    seeds = np.asarray(result.spec["seeds"])
    if len(seeds) < _LEAST:
        return result, result
    if id(result) not in _divided:
        upper = seeds >= np.sort(seeds)[len(seeds) // 2]
        _divided[id(result)] = _part(result, ~upper), _part(result, upper)
        finalize(result, _divided.pop, id(result))
    return _divided[id(result)]


def _part(result: Result, keep: np.ndarray) -> Result:
    seeds = np.asarray(result.spec["seeds"])[keep].tolist()
    theta, omega = jax.tree.map(lambda leaf: leaf[keep], (result.theta, result.omega))
    return replace(
        result, theta=theta, omega=omega, history=result.history[result.history["seed"].isin(seeds)],
        diverged=result.diverged[keep], last_step=result.last_step[keep],
        spec={**result.spec, "seeds": seeds}, end=None,
    )  # fmt: skip
