"""No step size to choose: ``Auto`` on the whole catalogue and on random problems, against methods tuned with truth.

The best of 60 settings is chosen on separate seeds and the ratio is that of the mean errors on other seeds, which all
share. Auto also says of each seed whether it arrived; a false arrival is a seed that says so and has an error

    above 20 times the mean error of the best setting,    or
    above a tenth of the error at the start and above 2.25 times the mean error of the best setting.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from reproduction.comparisons import last_values, span
from reproduction.experiment import Claim, Measured, Records
from reproduction.experiments import random_problems
from reproduction.experiments.auto_races import AUTO, BEST, CERTIFIED, FREE, LIMIT, LSTD, TUNED, Race
from reproduction.experiments.random_problems import CHAINS, KINDS, LINEAR, draw_problem
from reproduction.verdicts import decide
from twoclock import plot, registry
from twoclock.protocols import ProblemSource

TITLE = "No step size to choose: Auto against the best of 60 settings, tuned with the answer known"
ALT = {
    "auto": "One row a kind of problem, a dot a problem: the error of Auto over that of the best of 60 settings, on a "
    "logarithmic axis with lines at 1 and 1.5."
}
# The seed of the random problems that count. The design was frozen before they were drawn; others were used till then.
SEED, EACH = 51_119, 4
_TRIALS = 7  # for all else, so that nothing is seen of those before they count
CATALOGUE = "catalogue"
_ROUNDING = 1e-15  # of a squared error
_GAP = ("river_swim", "forest", "frozen_lake", "random_entropy_mdp", "paper_lqr", "double_integrator", "boeing_747")
_METRIC = {**dict.fromkeys(_GAP, "gap"), "baird": "rmspbe", "spiral": "gradient"}
_STEPS = {"rates": 1_000_000, "quadratic": 100_000, "frozen_lake": 10_000, "boeing_747": 10_000}
_ALONG = ", markov"  # along one chain
PAPER = ("random_policy_evaluation", "random_policy_evaluation, markov")
_LEAST_SEARCH = 10_000  # samples of all seeds, half of which a search without truth needs to compare anything
# What the rule asks of a ratio of mean errors, and of false arrivals.
_MEDIAN, _MOST, _SHARE, _FAILED, _FALSE = 1.0, 1.5, 0.9, 20.0, 0.02
# A run without a method is refused on these, in one line that says what to use.
_REFUSED = {"access_control", "beach_bar", "constrained_frozen_lake", "matrix_game", "pursuit", "river_swim"}
_CHAINS = ("boyan", "boyan, markov", "walk_dependent", "walk_inverted", "walk_tabular")
_STRUCTURE = {"quadratic": "strongly-convex", "rates": "strongly-convex"}


class RaceKey(NamedTuple):
    """A race: on a random problem of a kind, by its number from 1 on, or on one of the catalogue, by its name."""

    kind: str
    which: str

    @property
    def label(self) -> str:
        return f"{self.kind}, {self.which}"


def keys() -> list[RaceKey]:
    """All races: random problems of each kind, then every problem that has a name, as it comes.

    Policy evaluation along a chain is there too, where that is another matter.
    """
    random = [RaceKey(kind, str(j + 1)) for kind in KINDS for j in range(EACH)]
    chains = [name for name in (*PAPER, *_CHAINS) if name.endswith(_ALONG)]
    named = sorted([*(set(registry.problems()) - _REFUSED), *chains], key=lambda name: name.removesuffix(_ALONG))
    return random + [RaceKey(CATALOGUE, name) for name in named]


def cases(quick: bool) -> dict[str, Race]:
    if quick:
        key, methods = RaceKey("quantiles", "1"), {AUTO: "auto", BEST: "grid"}
        return {key.label: replace(_race(key, _TRIALS), methods=methods, steps=2000, seeds=8, apart=4)}
    return {key.label: _race(key, SEED) for key in keys()}


def _race(key: RaceKey, seed: int) -> Race:
    kind, name = key.kind, key.which.removesuffix(_ALONG)
    make: Callable[[], ProblemSource]
    td: Callable[[], ProblemSource] | None
    structure = None
    if kind == CATALOGUE:
        of_name = partial(registry.problems()[name], **({} if key.which == name else {"sampling": "markov"}))
        make, td = of_name, partial(of_name, operator="td") if key.which in (*PAPER, *_CHAINS) else None
        metric, steps, seeds, apart = _METRIC.get(name, "error"), _STEPS.get(name, 10_000), 16, 8
        structure, title = _STRUCTURE.get(name), key.which
    else:
        (of_kind, steps, seeds, apart), place = KINDS[kind], (seed, list(KINDS).index(kind), int(name) - 1)
        make = partial(draw_problem, of_kind, place)
        by_td = {name: partial(make, operator="td") for name, make in CHAINS.items()}.get(kind)
        td = partial(draw_problem, by_td, place) if by_td else None
        metric, title = "gap" if kind in ("LQR", "entropy MDP") else "error", key.label
    methods = {AUTO: "auto", BEST: "grid"}
    methods |= {TUNED: "tune", FREE: "free"} if kind != CATALOGUE and name == "1" else {}
    if steps * seeds < _LEAST_SEARCH:
        methods.pop(TUNED, None)
    methods |= {LSTD: "lstd"} if td else {}
    methods |= {CERTIFIED: "certified"} if structure else {}
    methods |= {LIMIT: "limit"} if name == "quadratic" or kind in LINEAR else {}
    return Race(make, metric, methods, steps, seeds, kind, structure, td, random_problems.variance, apart, title=title)


def ratios(records: Records, rival: str = BEST) -> dict[RaceKey, float]:
    """Race → the mean error of Auto over that of a rival, where there is one.

    Of the seeds that the rival did not lose, 0 if it lost all; Auto may lose none. Errors below rounding count as that.
    """
    found = {}
    for key in keys():
        if rival in records.get(key.label, ()):
            ours, theirs = (last_values(records[key.label][name], "error") for name in (AUTO, rival))
            ends = np.isfinite(theirs)
            found[key] = max(ours[ends].mean(), _ROUNDING) / max(theirs[ends].mean(), _ROUNDING) if ends.any() else 0.0
            found[key] = found[key] if np.isfinite(ours).all() else np.inf
    return found


def false_arrivals(records: Records, key: RaceKey) -> tuple[int, int, bool]:
    """Of a race: how many seeds say that they arrived and did not, how many say so, and whether failures are owned up.

    They are where every seed whose error is above 20 times the mean error of the best setting says that it has not
    arrived.
    """
    ours, theirs = (last_values(records[key.label][name], "error") for name in (AUTO, BEST))
    start, says = (last_values(records[key.label][AUTO], name) for name in ("start", "arrived"))
    best = max(theirs[np.isfinite(theirs)].mean(), _ROUNDING) if np.isfinite(theirs).any() else np.inf
    failed = ~(ours <= _FAILED * best)
    false = (says > 0) & (failed | ((ours > start / 10) & (ours > 2.25 * best)))
    return int(false.sum()), int((says > 0).sum()), not bool(np.any(failed & (says > 0)))


def draw(records: Records) -> dict[str, plot.Figure]:
    kinds = list(dict.fromkeys(key.kind for key in ratios(records)))
    fig, axes = plot.figure(width=7.6, height=1 + 0.19 * len(kinds))
    panel(axes[0, 0], records)
    axes[0, 0].set_yticks(range(len(kinds)), kinds)
    axes[0, 0].set(ylabel="", xlabel="error of Auto / error of the best of 60 settings")
    runs = [result.spec for results in records.values() for result in results.values()]
    samples = span([int(run["steps"]) for run in runs], ",")
    seeds = span([len(run["seeds"]) for run in runs], ",")
    plot.caption(fig, f"{seeds} seeds, {samples} samples; the best of 60 settings is chosen on others")
    return {"auto": fig}


def panel(ax: plot.Axes, records: Records) -> None:
    found = ratios(records)
    kinds = list(dict.fromkeys(key.kind for key in found))
    for i, kind in enumerate(kinds):
        values = [np.clip(value, 1e-3, 1e3) for key, value in found.items() if key.kind == kind]
        ax.plot(values, [i] * len(values), "o", color=plot.COLOURS[i % len(plot.COLOURS)], alpha=0.7, markersize=5)
    for at, style in ((1.0, "-"), (1.5, ":")):
        ax.axvline(at, color="0.5", linewidth=0.8, linestyle=style)
    ax.set_yticks([])  # in the summary there is no room for their names
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="error / error of the best of 60", ylabel=f"{len(kinds)} kinds of problems")


def captions(records: Records) -> dict[str, str]:
    found = ratios(records)
    worst, ratio = max(found.items(), key=lambda one: one[1])
    return {"auto": f"The median is {np.median(list(found.values())):.2f}; the worst is {worst.label}, {ratio:.3g}."}


def claims(records: Records) -> list[Claim]:
    made = []
    for name, where, catalogue in (("random", "random problems", False), ("catalogue", "the catalogue", True)):
        found = {key: value for key, value in ratios(records).items() if (key.kind == CATALOGUE) is catalogue}
        made += [_near(records, name, where, found)] if found else []
    return made + [claim for judge in (_policy_evaluation, _rivals, _limit) if (claim := judge(records))]


def _near(records: Records, name: str, where: str, found: Mapping[RaceKey, float]) -> Claim:
    values = np.array(list(found.values()))
    lost = sum(records[key.label][AUTO].diverged.any() for key in found)
    beaten = sum(not np.isfinite(last_values(records[key.label][BEST], "error")).all() for key in found)
    said = {key: false_arrivals(records, key) for key in found}
    false, arrived = (sum(one[i] for one in said.values()) for i in (0, 1))
    seeds = sum(len(records[key.label][AUTO].diverged) for key in found)
    silent = [key.label for key, ratio in found.items() if ratio > _FAILED and not said[key][2]]
    held = np.median(values) <= _MEDIAN and np.mean(values <= _MOST) >= _SHARE and not lost and not silent
    return Claim(
        name=f"auto, {name}",
        statement=f"Without a step size to choose, Auto is as good as the best of 60 settings on {where}, or says so",
        place="ours: what `solve(problem)` promises",
        rule="the ratio of mean errors, on seeds that the setting was not chosen on, has a median of 1.0 or less, is "
        "1.5 or less for nine in ten problems and above 20 nowhere unless the seeds say that they have not arrived; no "
        "seed diverges, and at most 2 % of all seeds say falsely that they arrived",
        numbers={
            "problems": len(values),
            "median ratio": round(float(np.median(values)), 3),
            "share at 1.5 or less": round(float(np.mean(values <= _MOST)), 3),
            **_largest(found),
            "false arrivals": round(false / seeds, 4),
            "seeds that say they arrived": round(arrived / seeds, 3),
            "above 20 without saying so": ", ".join(silent) or "none",
            "problems with a diverged seed": int(lost),
            "problems where the best of 60 lost a seed": int(beaten),
            **_by_kind(found, said),
        },
        verdict=decide(bool(held and false <= _FALSE * seeds)),
        cases=[key.label for key in found],
    )


def _by_kind(found: Mapping[RaceKey, float], said: Mapping[RaceKey, tuple[int, int, bool]]) -> dict[str, Measured]:
    """Of each kind the ratios in order, and the false arrivals where there are any."""
    kinds: dict[str, Measured] = {}
    for kind in dict.fromkeys(key.kind for key in found if key.kind != CATALOGUE):
        ratios = " ".join(f"{value:.3g}" for value in sorted(v for key, v in found.items() if key.kind == kind))
        false, arrived = (sum(one[i] for key, one in said.items() if key.kind == kind) for i in (0, 1))
        kinds[kind] = ratios + (f", {false} of {arrived} arrivals false" if false else "")
    return kinds


def _largest(found: Mapping[RaceKey, float]) -> dict[str, Measured]:
    worst, ratio = max(found.items(), key=lambda one: one[1])
    return {"largest ratio": round(float(ratio), 3), "where": worst.label}


def _policy_evaluation(records: Records) -> Claim | None:
    found = ratios(records, LSTD)
    if not found:
        return None
    return Claim(
        name="auto, policy evaluation",
        statement="Auto ends within 1.1 of LSTD on the paper's MDPs and within 1.5 on chains and walks",
        place="ours: Section 4.1's task",
        rule="the ratio of mean squared errors on the same samples is at most 1.1 on random MDPs and 1.5 elsewhere",
        numbers={key.label: round(value, 3) for key, value in found.items()},
        verdict=decide(all(value <= (1.1 if key.which in PAPER else 1.5) for key, value in found.items())),
        cases=[key.label for key in found],
    )


def _rivals(records: Records) -> Claim | None:
    found = {rival: ratios(records, rival) for rival in (TUNED, CERTIFIED, FREE)}
    numbers: dict[str, Measured] = {
        f"median error over that of {rival}": round(float(np.median(list(values.values()))), 4)
        for rival, values in found.items()
        if values
    }
    if not numbers:
        return None
    return Claim(
        name="auto, without truth",
        statement="Auto beats a search without truth of the same total cost, certified steps and parameter-free ones",
        place="ours: what else needs no known answer",
        rule="the median over problems of the ratio of mean errors is below 1 for each",
        numbers=numbers,
        verdict=decide(all(float(value) < 1 for value in numbers.values())),  # type: ignore[arg-type]
        cases=sorted({key.label for values in found.values() for key in values}),
    )


def _limit(records: Records) -> Claim | None:
    found = ratios(records, LIMIT)
    if not found:
        return None
    values = list(found.values())
    return Claim(
        name="auto, the limit",
        statement="Auto reaches the statistical limit where it is known",
        place="ours: linear F and G, where no estimate from as many samples is better in the long run",
        rule="the median over problems of the mean error over the limit is 1.2 or less",
        numbers={"problems": len(values), "median ratio": round(float(np.median(values)), 3), **_largest(found)},
        verdict=decide(bool(np.median(values) <= 1.2)),
        cases=[key.label for key in found],
    )
