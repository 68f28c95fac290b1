"""Step sizes found by successive halving, with the answer known or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from twoclock import inputs
from twoclock.core import InputError, Method
from twoclock.engine import fit, keys
from twoclock.engine.instances import stand_in
from twoclock.engine.rows import preferred_metric
from twoclock.paths import text, with_settings
from twoclock.progress import tally
from twoclock.record.describe import describe
from twoclock.tuning.candidates import NEIGHBOURS, around, check_space, draw, keeping, keeps_order
from twoclock.tuning.judge import MOST_SEEDS, RESIDUAL, Judge, cost

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WIDTH = 8  # settings side by side in the one program that all rungs share, and settings in the last rung
_FIRST_SEED = 1_000_000
_SEEDS = 8


@dataclass(frozen=True)
class Tuned:
    """What ``tune`` found.

    Attributes:
        method: the method with the best settings, ready for ``solve``.
        settings: those settings, path → number.
        metric: what was compared: the mean over seeds of this metric, or of the residual.
        ranking: one row for each setting tried, the best first, later rungs before earlier ones: the settings, its
            ``score`` with the 95 % interval ``low`` to ``high``, the ``ratio`` of its score to the best with
            ``ratio_low`` to ``ratio_high`` over the shared seeds (last rung only), the share of seeds ``diverged``,
            ``steps``, ``seeds``, ``rung``. Without truth also ``F`` and ``G``, the squared residuals, and ``F_se``,
            ``G_se``, their standard errors.
        sensitivity: how the score changes when one setting moves and the others stay at their best: ``setting``,
            ``value`` and the columns of the ranking, the best one's row included; on the seeds of the last rung.
        spec: what was spent and how.
    """

    method: Method
    settings: dict[str, float]
    metric: str
    ranking: pd.DataFrame
    sensitivity: pd.DataFrame
    spec: dict[str, Any]

    def plot(self) -> Figure:
        """The sensitivity to each setting, and the settings of the last rungs around it."""
        from twoclock import plot

        return plot.sensitivity(self.ranking, self.sensitivity, self.metric, self.spec)

    def __repr__(self) -> str:
        best, last = self.ranking.iloc[0], self.ranking[self.ranking["rung"] == self.ranking["rung"].max()]
        tied = int((last["ratio_low"].iloc[1:] <= 1).sum())
        found = ", ".join(f"{path}={text(value)}" for path, value in self.settings.items())
        return (
            f"Tuned({found}; {self.metric} {best['score']:.3g} [{best['low']:.3g}, {best['high']:.3g}] "
            f"after {int(best['steps']):,} steps; of the {len(last) - 1} others in the last rung {tied} may be as good)"
        )


def tune(
    problem: Any,
    method: Method,
    space: Any,
    steps: Any = 100_000,
    budget: Any = None,
    metric: str | None = None,
    *,
    rungs: int = 4,
    order: bool = True,
    seed: int = 0,
    bound: float | None = None,
    progress: bool = False,
) -> Tuned:
    """Find the settings of a method that are best at a horizon, by successive halving over seeds and steps.

    Of 8·2^(rungs−1) settings the better half goes on to the next rung, with twice the steps until the horizon is
    reached and then with twice the seeds. Every rung has seeds of its own and costs the same, and rivals see the same
    samples. A setting with a seed that diverges loses to all that have none, or fewer.

    **With truth** the score is the mean of a metric at the end. **Without** it is what samples alone can tell,

        score = ‖S⁺(E F − B·E G)‖²,    B = F_ω G_ω⁺,    S = F_θ − B·G_θ        (F_θ = E ∂F/∂θ and so on)

    at the final estimates (θ, ω), from as many fresh samples as the run had steps. E G says how far ω is from ω*(θ),
    and E F is ∇h(θ) blurred by just that; B takes it out again. S is the curvature that turns a gradient into a
    distance. So the score is ‖θ−θ*‖² to first order, it has no scale to choose, and a factor in F or G changes no
    ranking. Where θ and ω have more than 64 entries together it is ‖E F − B·E G‖², the squared gradient.
    ``residuals.py`` has the details; ‖E F‖² and ‖E G‖² themselves are in the ranking.

    Args:
        problem: a problem, or a function of a key that makes one, so that each seed has its own instance.
        method: what is tuned; its own settings are tried too if they lie in the space.
        space: path → (low, high), both positive, on a log scale; paths as for ``grid``, also tied ones:
            ``{"alpha.c": (0.1, 10), "alpha.shift,beta.shift": (10, 1000)}``.
        steps: the horizon at which the settings are to be good.
        budget: seed-steps to spend in all, fresh samples included; by default enough for 8 seeds in the first rung.
        metric: a metric of the problem (by default its error, gap or gradient), or "residual" to do without truth.
        rungs: how often; one more doubles the settings that are tried.
        order: try only steps with α ≤ β ≤ λ ≤ 1 up to the horizon, as the theory wants; False for any.
        seed: draws the settings; the runs have the seeds from 1,000,000·(seed + 1) on, apart from those of ``solve``.
        bound: as for ``solve``.
        progress: show a bar of the seed-steps spent.

    >>> import twoclock as tc
    >>> found = tc.tune(tc.problems.quadratic(dim=2), tc.Fast(), {"alpha.c": (0.1, 10)}, steps=200, rungs=2)
    >>> result = tc.solve(tc.problems.quadratic(dim=2), found.method, steps=200, seeds=20)

    Reference: Jamieson & Talwalkar, *Non-stochastic best arm identification and hyperparameter optimization*, 2016.
    """
    import pandas as pd

    steps, rungs, seed = inputs.check_steps(steps), _whole("rungs", rungs, 1, 10), _whole("seed", seed, 0, 4000)
    space = check_space(method, space)
    inputs.check_numbers("float64", bound)
    with jax.enable_x64(True), tally(progress, "seed-steps") as look:
        shapes = stand_in(inputs.check_problem(problem)).example
        _, omega, _ = jax.eval_shape(lambda problem: problem.init(keys.start_key(0)), shapes)
        metric = _metric(shapes, metric)
        plan = _plan(rungs, steps)
        price = _price(plan, metric, len(space))
        seeds = _seeds(budget, price, rungs, steps)
        first = _FIRST_SEED * (seed + 1)
        judge = Judge(
            problem, metric, range(first, first + seeds), WIDTH, bound, lambda spent: look(spent, price * seeds)
        )
        fit.check_fit(judge.example, method)
        fast = any(leaf.size for leaf in jax.tree.leaves(omega))

        def ordered(methods: Sequence[Method]) -> np.ndarray:
            return keeps_order(methods, steps, fast) if order else np.ones(len(methods), bool)

        points = draw(method, space, WIDTH * 2 ** (rungs - 1), seed, ordered)
        rows: list[dict[str, Any]] = []
        for rung, (length, share) in enumerate(plan):
            used = range(first, first + seeds * share)
            first = used.stop
            scores = judge([with_settings(method, point) for point in points], used, length)
            ranks = scores.best_first()
            last = rung == rungs - 1
            told = scores.rows(scores.values[ranks[0]] if last else None)
            left = ranks if last else ranks[len(ranks) // 2 :]
            where = {"steps": length, "seeds": len(used), "rung": rung}
            rows = [{**points[i], **told[i], **where} for i in left] + rows
            if not last:
                points = [points[i] for i in ranks[: len(ranks) // 2]]
        if scores.diverged[ranks[0]].all():
            raise InputError("`space` has no setting that does not diverge; lower its limits, or give more steps")
        best, values = points[ranks[0]], scores.values[ranks[0]]
        moved = [pair for pair in around(best, space) if keeping(method, [pair[1]], ordered)]
        near = judge([with_settings(method, point) for _, point in moved], used, steps).rows(values) if moved else []
    curve = [{"setting": p, "value": best[p], **told[ranks[0]]} for p in space]
    curve += [{"setting": p, "value": point[p], **row} for (p, point), row in zip(moved, near, strict=True)]
    spec = {
        "problem": describe(problem), "method": describe(method), "space": space, "steps": steps, "budget": budget,
        "spent": judge.spent, "order": order, "seed": seed, "best": best,
    }  # fmt: skip
    return Tuned(
        with_settings(method, best),
        best,
        metric,
        pd.DataFrame(rows),
        pd.DataFrame(curve).sort_values(["setting", "value"], ignore_index=True),
        spec,
    )


def _plan(rungs: int, steps: int) -> list[tuple[int, int]]:
    """The steps of each rung, and its seeds in units of the first rung's; a setting costs twice as much each time."""
    return [(max(steps >> max(rungs - 2 - rung, 0), 1), 2 if rung == rungs - 1 else 1) for rung in range(rungs)]


def _price(plan: list[tuple[int, int]], metric: str, settings: int) -> int:
    """Seed-steps for each seed of the first rung, the look around the best setting included."""
    rungs, (steps, share) = len(plan), plan[-1]
    price = sum(WIDTH * 2 ** (rungs - 1 - i) * times * cost(metric, length) for i, (length, times) in enumerate(plan))
    return price + WIDTH * math.ceil(NEIGHBOURS * settings / WIDTH) * share * cost(metric, steps)


def _seeds(budget: Any, price: int, rungs: int, steps: int) -> int:
    """How many seeds in the first rung the budget pays for."""
    if budget is None:
        return _SEEDS
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget >= 2 * price:
        raise InputError(
            f"`budget` must be at least {2 * price:,} seed-steps for rungs={rungs} at steps={steps:,}, got {budget!r}; "
            "raise it, or lower `steps` or `rungs`"
        )
    seeds = int(budget // price)
    return seeds if seeds <= MOST_SEEDS else seeds - seeds % MOST_SEEDS


def _metric(shapes: Any, metric: str | None) -> str:
    """What to compare: what was asked for, or what the problem knows."""
    if metric == RESIDUAL:
        return metric
    known: list[str] = []
    if hasattr(shapes, "measure"):
        known = list(jax.eval_shape(lambda problem: problem.measure(*problem.init(keys.start_key(0))[:2]), shapes))
    if metric is None:
        return preferred_metric(known) or RESIDUAL
    if metric not in known:
        raise InputError(f"`metric` must be one of {', '.join((*known, RESIDUAL))}, got {metric!r}")
    return metric


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"`{name}` must be a whole number from {low} to {high:,}, got {value!r}")
    return int(value)
