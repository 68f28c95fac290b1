"""How much the end depends on the step sizes: settings around the tuned one, and the share of them that does well."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from reproduction.comparisons import geometric_mean, join_words, last_values, log_values
from reproduction.experiment import Claim, Measured
from reproduction.tuned_settings import SEARCH, settings, stored
from reproduction.verdicts import above, all_of, below, decide
from twoclock import Method, Result, plot
from twoclock.intervals import Estimate, bootstrap_mean

# Every number of the box is between this share of what was tuned and its inverse.
SPAN = 8.0
SEEDS = range(1000, 1008)  # neither the search's nor the experiment's
_COUNT = 32
_WITHIN = 2.0
_FACTORS = np.geomspace(1.0, 10.0, 200)


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


def draw(panels: Mapping[str, NearbySettings], note: str) -> plot.Figure:
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
