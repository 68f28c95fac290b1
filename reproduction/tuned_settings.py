"""Step sizes as the experiments set them: by a formula, or by ``tc.tune`` and stored as data beside the experiments."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from twoclock import InputError, Method, Power, __version__, solve, storage, tune
from twoclock.protocols import ProblemSource
from twoclock.tuning import TunedMethods

SEARCH = "tc.tune"
_FURTHER = range(3_000_000, 3_000_032)  # seeds that no search has seen
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

    def run(self, progress: bool = False) -> TunedMethods:
        """Every method with the same budget, in any order of its steps, on seeds from 1,000,000 on."""
        builds = {label: build for label, (build, _) in self.methods.items()}
        boxes = {label: box for label, (_, box) in self.methods.items()}
        return tune(
            self.problem, builds, boxes, self.steps, self.runs * self.steps, self.metric, order=False, widen=True,
            progress=progress,
        )  # fmt: skip


def entry(search: MethodSearch, found: TunedMethods) -> Entry:
    fresh = found.ranking.set_index("label").to_dict("index")
    methods = {}
    for label, tuned in found.items():
        at_the_end = tuned.ranking[tuned.ranking["steps"] == search.steps]
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
    return {
        "title": search.title,
        "found by": SEARCH,
        "metric": search.metric,
        "steps": search.steps,
        "seed-steps for each method": search.runs * search.steps,
        "fresh seeds": int(found.ranking["seeds"].iloc[0]),
        "methods": {**methods, **try_contained(search, methods)},
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
        runs = solve(search.problem, made, search.steps, _FURTHER, [search.steps])
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
            found = search.run(progress=console.is_terminal)
            entries[case] = entry(search, found)
            console.print(f"{found}\n{time.monotonic() - began:.0f} s", highlight=False, markup=False)
        whole = {"made by": f"python -m reproduction {name} --tune", "twoclock": __version__, "cases": entries}
        storage.put(targets[name], json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
        stored.cache_clear()
        console.print(f"wrote {targets[name]}")
