"""Verdicts: their words, the rules that lead to them, and their confirmation on either half of the seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal
from weakref import WeakKeyDictionary

import jax
import numpy as np

from reproduction.experiment import Claim, Records
from twoclock import Result
from twoclock.intervals import Estimate

REPRODUCED, NOT_REPRODUCED, NOT_DECIDABLE = "reproduced", "not reproduced", "not decidable from the paper"
NOT_DECIDED, VACUOUS, LEFT = "not decided", "vacuous", "left to the full run"
ONLY_WHERE = "reproduced only where "
Kind = Literal["yes", "partly", "no", "vacuous", "undecided", "open", "left"]
# The longest first: "reproduced" also begins "reproduced only where".
_KINDS: dict[str, Kind] = {
    ONLY_WHERE: "partly", REPRODUCED: "yes", NOT_REPRODUCED: "no", VACUOUS: "vacuous", NOT_DECIDED: "undecided",
    "not decidable": "open", LEFT: "left",
}  # fmt: skip
# A verdict has a sign beside its colour, so that neither alone has to be seen.
SIGNS: dict[Kind, str] = {
    "yes": "✓",
    "partly": "◐",
    "no": "✗",
    "vacuous": "∅",
    "undecided": "≈",
    "open": "?",
    "left": "…",
}
# With fewer seeds there is nothing to divide: what is judged then is the same for all seeds, or is no matter of chance.
_LEAST = 4


class Verdict(str):
    """A sentence with the finding that it was made from, so that the findings of two halves can be compared.

    Attributes:
        steps: the first and the last step of the range that it holds in, if it names one.
        held: what was found of each of several things, if the claim is made of several.
        condition, separator: how these are named in the sentence.
    """

    steps: tuple[float, ...] = ()
    held: Mapping[str, bool | None] = MappingProxyType({})
    condition: str = "{}"
    separator: str = ", "


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
    return f"{ONLY_WHERE}{condition}"


def only_for_steps(first: int, last: int | None = None) -> Verdict:
    """The verdict on a claim that holds in a range of steps; without ``last`` to the end.

    >>> only_for_steps(500, 1260), only_for_steps(500)
    ('reproduced only where k is about 500 to 1,260', 'reproduced only where k ≥ 500')
    """
    words = f"k ≥ {first:,}" if last is None else f"k is about {first:,} to {last:,}"
    verdict = Verdict(only_where(words))
    verdict.steps = float(first), np.inf if last is None else float(last)
    return verdict


def decide_each(held: Mapping[str, bool | None], condition: str = "{}", separator: str = ", ") -> Verdict:
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
    verdict = Verdict(words)
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


def confirm_claims(judge: Callable[[Records], Sequence[Claim]], records: Records) -> list[Claim]:
    """The claims, each with the verdict of all seeds if it is also that of the lower and of the upper half of them.

    Trials, and what is chosen by them, use low seeds: on the upper half nothing was chosen.
    """
    judged = judge(records)
    asked = any(claim.halves for claim in judged)
    halves = [{claim.name: claim.verdict for claim in judge(half)} for half in split(records)] if asked else []
    found = []
    for claim in judged:
        if not claim.halves:
            found.append(claim)
            continue
        parts = [half.get(claim.name, NOT_DECIDED) for half in halves]
        verdict = combine_verdicts(claim.verdict, *parts)
        if verdict != claim.verdict:
            words = f"all seeds: {claim.verdict}; lower half: {parts[0]}; upper half: {parts[1]}"
            claim = replace(claim, verdict=verdict, numbers={**claim.numbers, "not confirmed": words})
        found.append(claim)
    return found


def leave_open(claim: Claim, steps: int) -> Claim:
    """The claim as a quick run of this many steps may judge it: what it cannot decide is left to the full run.

    Ours are all left to it: their sizes were chosen for the full run, and a short one may say the opposite.

    >>> leave_open(Claim("name", "statement", "Section 1", "rule", {}, NOT_DECIDED), 1000).verdict
    'left to the full run'
    """
    open_still = claim.ours or steps < claim.needs or kind(claim.verdict) in ("undecided", "vacuous")
    return replace(claim, verdict=LEFT, short="") if open_still else claim


def confirm_verdict(judge: Callable[[Records], Claim], records: Records) -> str:
    """The confirmed verdict on one claim."""
    (claim,) = confirm_claims(lambda some: [judge(some)], records)
    return claim.verdict


def combine_verdicts(whole: str, *halves: str) -> str:
    """The verdict if both halves agree, else "not decided"; each part of a claim separately.

    Verdicts that name a range of steps agree where the ranges meet.

    >>> combine_verdicts("reproduced", "reproduced", "not reproduced")
    'not decided'
    >>> combine_verdicts(only_for_steps(500, 1260), only_for_steps(400, 1000), only_for_steps(600, 2000))
    'reproduced only where k is about 500 to 1,260'
    """
    found = [half for half in halves if isinstance(half, Verdict)]
    if isinstance(whole, Verdict) and len(found) == len(halves):
        if whole.held and all(half.held.keys() == whole.held.keys() for half in found):
            same = {name for name, value in whole.held.items() if all(half.held[name] is value for half in found)}
            held = {name: value if name in same else None for name, value in whole.held.items()}
            return decide_each(held, whole.condition, whole.separator)
        if whole.steps and all(half.steps for half in found):
            ranges = [whole.steps, *(half.steps for half in found)]
            if all(whole.steps[0] <= last and first <= whole.steps[1] for first, last in ranges):
                return whole
    return whole if all(half == whole for half in halves) else NOT_DECIDED


def split(records: Records) -> tuple[Records, Records]:
    """The same records with the lower and with the upper half of their seeds."""
    lower, upper = (
        {case: {label: _halves(result)[i] for label, result in results.items()} for case, results in records.items()}
        for i in (0, 1)
    )
    return lower, upper


# Several claims are judged by the same results: the halves of each, for as long as it lives.
_divided: WeakKeyDictionary[Result, tuple[Result, Result]] = WeakKeyDictionary()


def keep_seeds(result: Result, keep: np.ndarray) -> Result:
    """The same result with some of its seeds."""
    seeds = np.asarray(result.spec["seeds"])
    theta, omega = jax.tree.map(lambda leaf: leaf[keep], (result.theta, result.omega))
    end, chosen = result.end, np.flatnonzero(keep)
    if end is not None:  # intervals of a run without a method are made of it; lanes that fill a batch come last
        end = type(end)(tuple(np.asarray(leaf)[chosen] for leaf in end.carry), end.identity())
    return replace(
        result, theta=theta, omega=omega, history=result.history[result.history["seed"].isin(seeds[keep])],
        diverged=result.diverged[keep], last_step=result.last_step[keep],
        spec={**result.spec, "seeds": seeds[keep].tolist()}, end=end,
    )  # fmt: skip


def _halves(result: Result) -> tuple[Result, Result]:
    seeds = np.asarray(result.spec["seeds"])
    if len(seeds) < _LEAST:
        return result, result

    if result not in _divided:
        upper = seeds >= np.sort(seeds)[len(seeds) // 2]
        _divided[result] = keep_seeds(result, ~upper), keep_seeds(result, upper)
    return _divided[result]
