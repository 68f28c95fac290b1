"""Figure 1: what is compared, and how it is tuned."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TypedDict

import twoclock as tc
from reproduction import sensitivity
from reproduction.experiment import Claim
from reproduction.tuned_settings import Limits, MethodSearch, decaying, settings
from reproduction.verdicts import decide
from twoclock import Method
from twoclock.intervals import Estimate
from twoclock.protocols import ProblemSource


class MdpSize(TypedDict):
    """The size of a random MDP, as the problem's factory takes it."""

    states: int
    actions: int
    features: int


SIZES: dict[str, MdpSize] = {
    "50": {"states": 50, "actions": 50, "features": 10},
    "100": {"states": 100, "actions": 100, "features": 30},
}
SAMPLINGS = ("iid", "markov")
PRINTED, TUNED, TUNED_MEAN, AVERAGED = "as printed", "tuned", "tuned, averaged", "averaged, one setting"
FAST, TDC, TD, LSTD = "Fast TDC", "TDC", "TD(0)", "LSTD"
# The boxes in which `tc.tune` looks first; it widens them while the leader lies at an edge. No order is imposed.
_C, RATIO, WEIGHT, FIRST = (0.5, 8.0), (0.25, 16.0), (1.0, 64.0), (0.02, 2.0)
BOXES: dict[str, Limits] = {
    FAST: {"c": _C, "ratio": RATIO, "weight": WEIGHT},
    TDC: {"c": _C, "ratio": RATIO},
    TD: {"c": _C, "first": FIRST},
}
COMPARED = {"tdc": (FAST, TDC), "td": (TD,)}


MOST = 1.3  # times LSTD's error


def nearly_as_good(
    name: str, words: str, marks: str, ratios: Mapping[str, Estimate], held: bool | None, cases: Sequence[str]
) -> Claim:
    """The claim that averaged Fast TDC is close to LSTD in a task, from the ratios of errors at some marks."""
    return Claim(
        name=f"Averaged Fast TDC is nearly as good as LSTD, {name}",
        statement=f"Averaged Fast TDC, set from the feature norms alone, keeps its error within {MOST} of LSTD's "
        f"({words})",
        place="ours, not the paper's",
        rule=f"the geometric mean over seeds of ‖θ−θ*‖² over LSTD's on the same samples has its 95 % interval below "
        f"{MOST} at {marks}; not reproduced where one lies above it, not decided between",
        numbers=ratios,
        verdict=decide(held),
        cases=cases,
    )


def with_steps(
    method: str, square: float, c: float, ratio: float = 1.0, weight: float = 1.0, first: float = 0.1
) -> Method:
    """Steps c/(k + shift) that begin at first/E‖φ‖², and β and λ in proportion.

    Args:
        method: Fast, TDC or TD(0).
        square: E‖φ‖².
        c: of α.
        ratio: β/α, at every step.
        weight: λ/β at the end; λ begins at ¼.
        first: α at the start, times E‖φ‖²; tuned for TD(0).
    """
    alpha = decaying(c, first / square)
    if method == TD:
        return tc.Standard(alpha, 0.0)
    beta = decaying(ratio * c, ratio * first / square)
    if method == TDC:
        return tc.Standard(alpha, beta)
    return tc.Fast(alpha, beta, decaying(weight * ratio * c, 0.25))


def square_of(size: str) -> float:
    """E‖φ‖² = d, since the features are standard normal."""
    return float(SIZES[size]["features"])


def source(size: str, operator: str, sampling: str = "iid") -> ProblemSource:
    return partial(tc.problems.random_policy_evaluation, **SIZES[size], operator=operator, sampling=sampling)


def searches() -> dict[str, MethodSearch]:
    """What is tuned, on i.i.d. samples; the Markov panels use the same settings."""
    return {
        f"{size}-{operator}": MethodSearch(
            source(size, operator=operator),
            {name: (partial(with_steps, name, square_of(size)), BOXES[name]) for name in compared},
            steps=1_000_000, metric="error", runs=1040, title=f"{size} states", contains=contained(compared),
        )
        for size in SIZES
        for operator, compared in COMPARED.items()
    }  # fmt: skip


def contained(methods: Iterable[str]) -> dict[str, str]:
    """Fast TDC contains TDC."""
    return {FAST: TDC} if FAST in methods else {}


def nearby(operator: str, size: str) -> dict[str, Method]:
    searched = f"{size}-{operator}"
    return {
        f"{name}: {i}": method
        for name in COMPARED[operator]
        for i, method in enumerate(
            sensitivity.around(partial(with_steps, name, square_of(size)), settings("fig1", searched, name))
        )
    }


def tuned(method: str, size: str) -> Method:
    operator = next(operator for operator, compared in COMPARED.items() if method in compared)
    return with_steps(method, square_of(size), **settings("fig1", f"{size}-{operator}", method))


def printed(method: str) -> Method:
    """The step sizes of the paper's appendix."""
    return tc.Fast(5e-4, 2e-3, "0.8/(k+10)") if method == FAST else tc.Standard(5e-4, 2e-3)


def averaged_step(square: float) -> tc.Power:
    """The step size of `tc.methods.averaged_tdc`, for other methods whose iterates are averaged."""
    fast = tc.methods.averaged_tdc(square).method
    assert isinstance(fast, tc.Fast)
    assert isinstance(fast.alpha, tc.Power)
    return fast.alpha


def one_setting(method: str, square: float) -> Method:
    """`tc.methods.averaged_tdc`, and the same steps and averaging for the other methods.

    Not tuned to a problem, but not blind to these either: its 0.1 and 300 were chosen on 48 of the MDPs reported.
    """
    if method == FAST:
        return tc.methods.averaged_tdc(square)
    # TD(0) lacks the factor 2 of TDC's operator, so its step has it.
    step = averaged_step(square / 2 if method == TD else square)
    return tc.Polyak(tc.Standard(step, step), power=0.5)
