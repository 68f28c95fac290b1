"""Step sizes as the experiments set them: by a formula, or by ``tc.tune`` and stored as data beside the experiments.

How much the end depends on them: settings around the tuned one, and the share of them that does well.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
from rich.console import Console

import twoclock as tc
from reproduction.comparisons import geometric_mean, join_words, last_values, log_values
from reproduction.experiment import Claim, Measured
from reproduction.verdicts import above, all_of, below, decide
from twoclock import InputError, Method, Power, Result, __version__, plot, storage, tune
from twoclock.intervals import Estimate, bootstrap_mean
from twoclock.protocols import ProblemSource

SEARCH = "tc.tune"
_FURTHER = range(3_000_000, 3_000_032)  # seeds that no search has seen
# Every number of the box is between this share of what was tuned and its inverse.
SPAN = 8.0
SEEDS = range(1000, 1008)  # neither the search's nor the experiment's
_COUNT = 32
_WITHIN = 2.0
_FACTORS = np.geomspace(1.0, 10.0, 200)
Limits = Mapping[str, tuple[float, float]]
# What a file of settings holds of a case: how it was searched, and for each method what was found.
Entry = dict[str, Any]


def decaying(c: float, first: float, p: float = 1.0) -> Power:
    """c/(k + shift)^p with the first step ``first``.

    >>> print(decaying(2.0, 0.1))
    2/(k+20)
    """
    return Power(c, p=p, shift=(c / first) ** (1 / p))


def holding(first: float, hold: float, power: float) -> Power:
    """first·(1 + k/hold)^−power: nearly constant for ``hold`` steps, then a power."""
    return Power(first * hold**power, p=power, shift=hold)


@dataclass(frozen=True)
class MethodSearch:
    """What is tuned in one case of an experiment.

    Args:
        problem: a problem, or a function of a key that makes one for each seed.
        methods: label → the function that makes the method from a few positive numbers, and the box of these, which is
            widened while the leader lies at its edge.
        steps: the horizon, that of the experiment.
        metric: what is compared, with the answer known.
        runs: how many runs of that length each method may cost.
        title: a description of the case.
        contains: label → the label of a method that it contains, whose settings are tried beside its own.
    """

    problem: ProblemSource
    methods: Mapping[str, tuple[Callable[..., Method], Limits]]
    steps: int
    metric: str
    runs: int
    title: str
    contains: Mapping[str, str] = field(default_factory=dict)

    def run(self, progress: bool = False) -> tuple[str, Entry]:
        """Every method with the same budget, in any order of its steps, on seeds from 1,000,000 on: words, and data."""
        builds = {label: build for label, (build, _) in self.methods.items()}
        boxes = {label: box for label, (_, box) in self.methods.items()}
        found = tune(
            self.problem, builds, boxes, self.steps, self.runs * self.steps, self.metric, order=False, widen=True,
            progress=progress,
        )  # fmt: skip
        fresh = found.ranking.set_index("label").to_dict("index")
        methods = {}
        for label, tuned in found.items():
            at_the_end = tuned.ranking[tuned.ranking["steps"] == self.steps]
            last = fresh[label]
            methods[label] = {
                "settings": tuned.settings,
                "box": tuned.spec["space"],
                "box at first": tuned.spec["given"],
                "at the edge": tuned.edge,
                "score on fresh seeds": [float(f"{last[name]:.4g}") for name in ("score", "low", "high")],
                "share of these diverged": float(last["diverged"]),
                "tried": len(tuned.ranking),
                "tried at the horizon": len(at_the_end),
                "of these within 2 times the best": round(float((at_the_end["score"] <= 2 * last["score"]).mean()), 3),
                "seed-steps spent": int(last["spent"]),
            }
        return str(found), {
            "title": self.title,
            "found by": SEARCH,
            "metric": self.metric,
            "steps": self.steps,
            "seed-steps for each method": self.runs * self.steps,
            "fresh seeds": int(found.ranking["seeds"].iloc[0]),
            "methods": {**methods, **try_contained(self, methods)},
        }


def try_contained(search: MethodSearch, methods: Mapping[str, Entry]) -> dict[str, Entry]:
    """Those methods that contain another, with its settings where they end lower on further seeds.

    Such a method cannot lose to the other by tuning. λ/β of Fast is its own, or so large that it hardly averages.
    """
    found = {}
    for label, other in search.contains.items():
        own = methods[label]["settings"]
        tried = {"its own search": own, f"the search of {other}": {**own, **methods[other]["settings"]}}
        if "weight" in own:
            large = {**own, **methods[other]["settings"], "weight": methods[label]["box"]["weight"][1]}
            tried[f"the search of {other}, λ/β large"] = large
        made = {name: search.methods[label][0](**settings) for name, settings in tried.items()}
        runs = tc.solve(search.problem, made, search.steps, _FURTHER, [search.steps])
        ends = {name: float(run.history[search.metric].mean()) for name, run in runs.items() if not run.diverged.any()}
        best = min(ends, key=ends.__getitem__, default="its own search")
        scores = {name: float(f"{end:.4g}") for name, end in ends.items()}
        found[label] = {**methods[label], "settings": tried[best], "settings from": best, "further seeds": scores}
    return found


def place(name: str) -> Path:
    """Where the file of an experiment lies: beside the experiments, in the package."""
    return Path(str(resources.files("reproduction.experiments"))) / "tuned" / f"{name}.json"


@cache
def stored(name: str) -> dict[str, Entry]:
    """case → what was found, of an experiment; nothing where it has not been tuned yet."""
    try:
        return json.loads(place(name).read_text(encoding="utf-8"))["cases"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"the settings in {place(name)} cannot be read; `python -m reproduction {name} --tune`"
        ) from None


def settings(name: str, case: str, method: str) -> dict[str, float]:
    """The numbers that a method of an experiment was tuned to."""
    try:
        return dict(stored(name)[case]["methods"][method]["settings"])
    except KeyError:
        raise InputError(
            f"the experiment {name} has no tuned settings of {method} in {case}; "
            f"`python -m reproduction {name} --tune` finds them"
        ) from None


def tunable(modules: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    """Those experiments that have something to tune."""
    return {name: module for name, module in modules.items() if "searches" in vars(module)}


def tune_again(asked: Mapping[str, ModuleType], known: Mapping[str, ModuleType], folder: Path | None) -> None:
    """MethodSearch, and write NAME.json for each experiment when all of its cases are done.

    Args:
        asked: the experiments to tune.
        known: all of them.
        folder: where to put the files; None puts them beside the experiments, where these read them.
    """
    for name in asked:
        if name not in tunable(known):
            raise InputError(f"`{name}` has nothing to tune; {', '.join(tunable(known))} have")
    console = Console(stderr=True)
    targets = {name: place(name) if folder is None else folder / f"{name}.json" for name in asked}
    for target in targets.values():  # rather now than after the search
        storage.writable(target.parent)
    for name, module in asked.items():
        searches: Mapping[str, MethodSearch] = module.searches()
        entries = {}
        for number, (case, search) in enumerate(searches.items(), 1):
            began = time.monotonic()
            console.print(f"[bold]{name}[/], {search.title} ({number} of {len(searches)}): {', '.join(search.methods)}")
            found, entries[case] = search.run(progress=console.is_terminal)
            console.print(f"{found}\n{time.monotonic() - began:.0f} s", highlight=False, markup=False)
        whole = {"made by": f"python -m reproduction {name} --tune", "twoclock": __version__, "cases": entries}
        storage.put(targets[name], json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
        stored.cache_clear()
        console.print(f"wrote {targets[name]}")


def around(build: Callable[..., Method], chosen: Mapping[str, float], count: int = _COUNT) -> list[Method]:
    """The method as tuned, and others with each number up to a factor 8 smaller or larger, evenly on a log scale.

    All methods with as many numbers are moved by the same factors, so that their shares compare setting by setting.
    A number called ``weight``, λ/β, stays.

    Args:
        count: how many settings; a power of two.
    """
    from scipy.stats.qmc import Sobol  # slow to load

    names = [name for name in chosen if name != "weight"]
    places = 2 * Sobol(len(names), seed=0).random(count) - 1
    places[0] = 0.0
    return [
        build(**{**chosen, **{n: chosen[n] * SPAN**place for n, place in zip(names, row, strict=True)}})
        for row in places.tolist()
    ]


def nearby(
    experiment: str, searched: str, builds: Mapping[str, Callable[..., Method]], count: int = _COUNT
) -> dict[str, Method]:
    """The settings around the tuned ones of several methods, as the methods of a case; the first of each is the tuned.

    ``experiment`` and ``searched`` say which of the stored searches they come from; ``builds`` makes each from numbers.
    """
    return {
        f"{name}: {i}": method
        for name, build in builds.items()
        for i, method in enumerate(around(build, settings(experiment, searched, name), count))
    }


@dataclass(frozen=True)
class NearbySettings:
    """The settings around the tuned one of several methods, on the same seeds.

    Attributes:
        logs: method → settings × seeds: the logarithm of the metric at the end; that of a lost seed is beyond all.
    """

    logs: Mapping[str, np.ndarray]

    @property
    def count(self) -> int:
        return len(next(iter(self.logs.values())))

    @classmethod
    def of(cls, tried: Mapping[str, Result], metric: str) -> Self:
        found: dict[str, list[np.ndarray]] = {}
        for label, result in tried.items():
            found.setdefault(label.rsplit(": ", 1)[0], []).append(log_values(last_values(result, metric)))
        return cls({name: np.array(rows) for name, rows in found.items()})

    def levels(self, name: str) -> np.ndarray:
        """The geometric mean over seeds for each setting, as a logarithm."""
        return self.logs[name].mean(axis=1)

    def within(self, name: str, factor: float = _WITHIN, of_all: bool = False) -> np.ndarray:
        """For each setting whether it ends within a factor of the best: the method's own, or that of all methods."""
        best = min(self.levels(other).min() for other in (self.logs if of_all else [name]))
        return self.levels(name) <= best + np.log(factor)

    def share(self, name: str, factor: float = _WITHIN, of_all: bool = False) -> float:
        return float(self.within(name, factor, of_all).mean())

    def lead(self, name: str, rival: str) -> Estimate:
        """One method's share within 2 times its own best less another's, over the same moves, with a 95 % interval."""
        difference = self.within(name).astype(float) - self.within(rival)
        low, high = bootstrap_mean(difference[None, :])
        return Estimate(float(difference.mean()), float(low[0]), float(high[0]))

    def behind(self, name: str) -> Estimate:
        """The tuned setting over the best of the others: the geometric mean over seeds, with its 95 % interval."""
        rows = self.logs[name]
        return geometric_mean(rows[0] - rows[1 + int(np.argmin(self.levels(name)[1:]))])


def draw_nearby(panels: Mapping[str, NearbySettings], note: str) -> plot.Figure:
    """A row for each case: on the left against each method's own best, on the right against the best of all."""
    fig, axes = plot.figure(len(panels), 2, width=4.6, height=3.2)
    for row, (title, found) in zip(axes, panels.items(), strict=True):
        for ax, best in zip(row, ("own best", "best of all"), strict=True):
            for colour, name in zip(plot.COLOURS, found.logs, strict=False):
                shares = [found.share(name, factor, best == "best of all") for factor in _FACTORS.tolist()]
                ax.step(_FACTORS, shares, where="post", color=colour, linewidth=1.6, label=name)
            ax.axvline(_WITHIN, color="0.5", linestyle=":", linewidth=1)
            ax.set(
                xscale="log", xlim=(1, 10), ylim=(0, 1), xlabel=f"factor over the {best}", ylabel="share of settings"
            )
            ax.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
            ax.minorticks_off()
            ax.legend(frameon=False, fontsize="x-small", loc="best")
            ax.set_title(f"{title}: {best}", fontsize="small")
    plot.caption(
        fig,
        f"{next(iter(panels.values())).count} settings of each method, {note}, each between 1/{SPAN:g} and {SPAN:g} "
        "times what it was tuned to, evenly on a log scale: the share of them that end within a factor of the best; "
        f"dotted: {_WITHIN:g}",
    )
    return fig


def easier(found: NearbySettings, ours: str, rival: str, *, name: str, where: str, cases: Sequence[str]) -> Claim:
    """That a method has more settings than another that do well."""
    lead = found.lead(ours, rival)
    numbers: dict[str, Measured] = {f"{ours} less {rival}": lead}
    for method in found.logs:
        numbers[f"{method}, of its own best"] = round(found.share(method), 3)
        numbers[f"{method}, of the best of all"] = round(found.share(method, of_all=True), 3)
    return Claim(
        name=name,
        statement=f"{ours} has a larger share of settings within {_WITHIN:g} times its best than {rival} ({where})",
        place="ours, not the paper's",
        rule=f"of {found.count} settings, each number between 1/{SPAN:g} and {SPAN:g} times its tuned value, the share "
        f"within {_WITHIN:g} times the method's own best, less the rival's over the same moves, has its 95 % bootstrap "
        "interval over settings above 0; not reproduced where it lies at or below 0, not decided between",
        numbers=numbers,
        verdict=decide(above(lead, 0.0)),
        cases=cases,
    )


def tuned_alike(
    found: NearbySettings, experiment: str, searched: str, *, name: str, where: str, cases: Sequence[str]
) -> Claim:
    """That no method is held back by its settings: no better ones lie around, and none is at the edge of its box."""
    kept = stored(experiment)[searched]
    behind = {method: found.behind(method) for method in found.logs}
    edge = [method for method in found.logs if kept["methods"][method]["at the edge"]]
    held = None if edge or kept["found by"] != SEARCH else all_of(*(below(ratio, 1.1) for ratio in behind.values()))
    return Claim(
        name=name,
        statement=f"{join_words(list(behind))} {'runs' if len(behind) == 1 else 'each run'} with settings as good as "
        f"any around ({where})",
        place="ours, not the paper's",
        rule=f"after {kept['steps']:,} steps on seeds that the search has not seen, the geometric mean over them of "
        f"the tuned setting's error over that of the best of {found.count - 1} around it has its 95 % interval below "
        "1.1 for each method; not so where one lies above; not decided between, where a setting is at the edge of "
        "the box that was searched, or where they do not come from a search",
        numbers={
            **{f"{method}: tuned / best around": ratio for method, ratio in behind.items()},
            "at the edge of the box searched": join_words(edge) if edge else "none",
            "settings found by": kept["found by"],
        },
        verdict=decide(held),
        cases=cases,
    )  # fmt: skip
