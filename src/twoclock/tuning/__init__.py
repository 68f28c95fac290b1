"""Tuning by successive halving, with a known truth or by residuals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import jax

from twoclock import prng, validation
from twoclock.agents.protocol import Agent, is_agent
from twoclock.engine import compatibility, engines
from twoclock.engine.engines import EngineName
from twoclock.engine.loop import tally
from twoclock.engine.protocol import PREFERRED_METRICS
from twoclock.engine.run_batch import make_placeholder
from twoclock.protocols import InputError, Method, Problem, ProblemSource
from twoclock.tuning.halving import Halving, Proposals
from twoclock.tuning.objective import MOST_SEEDS, RESIDUAL, AgentObjective, By, ProblemObjective
from twoclock.tuning.residual import Residual, residual
from twoclock.tuning.search_space import Box, MethodFactory, Tunable, build, check_box, default_box
from twoclock.tuning.tune_result import ScoreTable, Tuned, TunedMethods
from twoclock.validation import run_args

__all__ = ["Residual", "Tuned", "TunedMethods", "residual", "tune"]

Limits = Mapping[str, tuple[float, float]]
_FIRST_SEED = 1_000_000
_SEEDS = 8
_MOST_BUDGET = 10**18
_ORDERED = "α ≤ β ≤ λ"


@overload
def tune(
    problem: object, method: Method | Callable[..., Method] | Agent, *args: Any, order: bool = False, **options: Any
) -> Tuned: ...
@overload
def tune(problem: ProblemSource, method: object, *args: Any, **options: Any) -> TunedMethods: ...
def tune(  # type: ignore[misc]  # the overloads say what comes back, and not every argument
    problem: ProblemSource | object,  # for an agent its environment, as for ``agents.run``
    method: Method | Callable[..., Method] | Mapping[str, Method | Callable[..., Method]] | Agent,
    space: Limits | Mapping[str, Limits | None] | None = None,
    steps: int = 100_000,
    budget: float | None = None,
    metric: str | None = None,
    *,
    by: By = "end",
    order: bool | Literal["both"] = False,
    widen: bool | None = None,
    rungs: int = 4,
    seed: int = 0,
    bound: float | None = None,
    engine: EngineName = "auto",
    progress: bool = False,
    x0: object = None,
    step_timeout: float | None = None,
    processes: int | None = None,
) -> Tuned | TunedMethods:
    """Find the settings of a method that are best at a horizon, by successive halving over seeds and steps.

    Of 8·2^(rungs−1) settings the better ones go to the next rung. It has twice the steps, or twice the seeds once the
    horizon is reached. Half of a rung's settings are survivors, half are new ones between them. Every rung has new
    seeds, which all settings share. A setting with more diverged seeds ranks lower.

    **With truth** the score is the mean of a metric at the end, or the area under its curve. **Without** it is the
    residual of ``tc.residual``, ‖θ−θ*‖² to first order, from as many fresh samples as the run had steps.
    **An agent** is tuned on its environment, by its mean cost or reward over the later half of its steps.

    Args:
        problem: as for ``solve``; for an agent an environment, as for ``agents.run``.
        method: the method to tune; its own settings are tried too if they lie in the space. A mapping of labels to
            methods tunes each with the same budget, and compares the winners on seeds that no tuning has seen. A
            function that makes a method from a few positive numbers is tuned by the arguments that the space names. An
            agent is tuned by its arguments.
        space: path → (low, high), both positive, on a log scale; paths as for ``grid``, also tied ones:
            ``{"alpha.c": (0.1, 10), "alpha.shift,beta.shift": (10, 1000)}``. By default a box around the method's own
            step sizes. For several methods one space for all, or label → space. For an agent, which has no default, the
            paths are those of its arguments: ``{"sigma": (0.1, 3), "method.alpha.c": (0.01, 1)}``.
        steps: the horizon for which the settings are optimised.
        budget: the seed-steps for each method, fresh samples included; by default enough for 8 seeds in the first rung.
        metric: a metric of the problem, which is minimised, or "residual", which needs no known answer. By default its
            error, gap or gradient, or else its residual. For an agent "mean_cost", its default if it knows its costs,
            or "mean_reward" or "mean_return", which are maximised.
        by: "end", the metric's mean over seeds at the horizon; "area", the geometric mean of those means over the last
            two decades of steps, which is the area under the curve in a log-log picture.
        order: True tries only steps with α ≤ β ≤ λ up to the horizon, as the theory needs; "both" tunes with and
            without this condition, and compares. λ ≤ 1 is always required.
        widen: while the leader lies at an edge of the box, make it twice as wide there (on the log scale) and try
            settings from the new part. The budget includes this work, which is at most that of two rungs. By default
            only the default box is widened.
        rungs: the number of rungs; one more doubles the number of settings.
        seed: draws the settings; the runs have the seeds from 1,000,000·(seed + 1) on, apart from those of ``solve``.
        bound, engine: as for ``solve``.
        progress: show a bar of the seed-steps spent.
        x0, step_timeout, processes: for an agent's environment, as for ``agents.run``.

    >>> import twoclock as tc
    >>> found = tc.tune(tc.problems.quadratic(dim=2), tc.Fast(), {"alpha.c": (0.1, 10)}, steps=200, rungs=2)
    >>> result = tc.solve(tc.problems.quadratic(dim=2), found.method, steps=200, seeds=20)

    Reference: Jamieson & Talwalkar, *Non-stochastic best arm identification and hyperparameter optimization*, 2016.
    """
    steps, rungs = run_args.check_steps(steps), validation.whole("rungs", rungs, 1, 10)
    seed = validation.whole("seed", seed, 0, 4000)
    for name, value, choices in (
        ("by", by, ("end", "area")), ("order", order, (False, True, "both")), ("widen", widen, (None, False, True))
    ):  # fmt: skip
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            words = " or ".join(map(repr, choices))
            raise InputError(f"`{name}` must be {words}, got {validation.short_repr(value)}")
    progress = validation.flag("progress", progress)
    if is_agent(method):
        if (by, order, bound, engine) != ("end", False, None, "auto"):
            raise InputError(
                "`by`, `order`, `bound` and `engine` are for methods; an agent is tuned by what it is paid"
            )
        agents = AgentObjective(problem, method, metric, x0, step_timeout, processes)
        box, proposals = agents.check_box(space), Proposals(agents.settings, steps, False, True, seed)
        halving = Halving(proposals, agents, box, rungs, bool(widen), rivals=False)
        return _search({"": halving}, budget, "end", progress)
    if not (x0 is step_timeout is processes is None):
        raise InputError("`x0`, `step_timeout` and `processes` are for agents on an environment")
    source = run_args.check_problem(problem)
    run_args.check_numbers("float64", bound)
    engine_name = engines.resolve(engine)
    with jax.enable_x64(True):
        compatibility.check_source(source)
        example = make_placeholder(source).example
        _, omega, _ = jax.eval_shape(lambda problem: problem.init(prng.start_key(0)), example)
        fast = any(leaf.size for leaf in jax.tree.leaves(omega))
        entries = _check_entries(method, space, order, widen, fast)
        objective = ProblemObjective(source, _choose_metric(example, metric, by), by, bound, engine_name)
        searches = {
            label: Halving(
                Proposals(tunable, steps, ordered, fast, seed), objective, box, rungs, grows, rivals="" not in entries
            )
            for label, (tunable, box, ordered, grows) in entries.items()
        }
        return _search(searches, budget, by, progress)


def _search(searches: Mapping[str, Halving], budget: object, by: By, progress: bool) -> Tuned | TunedMethods:
    """Tune each within the budget; if there are several, compare the winners on fresh seeds."""
    import pandas as pd

    prices = {label: halving.price() for label, halving in searches.items()}
    halving, dearest = next(iter(searches.values())), max(prices.values())
    objective, rungs, steps, seed = halving.objective, halving.rungs, halving.proposals.steps, halving.proposals.seed
    if budget is None:
        budget = _SEEDS * dearest
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 2 * dearest <= budget <= _MOST_BUDGET:
        raise InputError(
            f"`budget` must be at least {2 * dearest:,} seed-steps for rungs={rungs} at steps={steps:,}, and "
            f"at most 10¹⁸, got {validation.short_repr(budget)}; raise it, or lower `steps` or `rungs`"
        )
    seeds = {label: int(budget // price) for label, price in prices.items()}  # in the first rung of each
    seeds = {label: n if n <= MOST_SEEDS else n - n % MOST_SEEDS for label, n in seeds.items()}
    most, first = max(seeds.values()), _FIRST_SEED * (seed + 1)
    total = sum(prices[label] * seeds[label] for label in searches)
    with tally(progress, "seed-steps") as look, objective.session(most):
        objective.look = lambda: look(objective.spent, total)
        objective.check([build(each.proposals.method, {}) for each in searches.values()], range(first, first + most))
        asked = {"steps": steps, "budget": int(budget), "by": by, "seed": seed, **objective.facts}
        tuned = {label: each.search(first, seeds[label], asked) for label, each in searches.items()}
        if not halving.rivals:
            return tuned[""]
        fresh = first + (rungs + 1) * most  # after those of every rung
        shared, parts, spent = range(fresh, fresh + 2 * min(seeds.values())), [], []
        for one in tuned.values():
            before = objective.spent
            parts.append(objective([one.method], shared, steps, len(shared) // 2, width=1))
            spent.append(one.spec["spent"] + objective.spent - before)
    scores, labels = functools.reduce(ScoreTable.join, parts), list(tuned)
    ranks, where = scores.best_first().tolist(), {"steps": steps, "seeds": len(shared)}
    rows = scores.rows(ranks[0])
    ranking = pd.DataFrame([{"label": labels[i], **rows[i], **where, "spent": spent[i]} for i in ranks])
    return TunedMethods(tuned, ranking, objective.metric, asked)


def _check_entries(
    method: object, space: object, order: bool | Literal["both"], widen: bool | None, fast: bool
) -> dict[str, tuple[Tunable, Box, bool, bool]]:
    """What to tune, its box, whether α ≤ β ≤ λ is required and whether the box may widen, by label.

    A single method has the empty label. By default the default box may widen, and no other.
    """
    methods = method if isinstance(method, Mapping) else {"": method}
    if not methods:
        raise InputError("`method` must name at least one method, got an empty mapping")
    validation.check_labels("method", methods)
    spaces = dict.fromkeys(methods, space)
    if isinstance(method, Mapping) and isinstance(space, Mapping) and any(label in methods for label in space):
        if odd := ", ".join(str(label) for label in set(space) ^ set(methods)):
            raise InputError(
                f"`space` must have an entry for each method, or be one for all; {odd} is in one of them only"
            )
        spaces = dict(space)
    entries: dict[str, tuple[Tunable, Box, bool, bool]] = {}
    for label, each in methods.items():
        limits = spaces[label]
        grows = limits is None if widen is None else widen
        try:
            tunable: Tunable
            if callable(each) and not isinstance(each, (type, Method)):
                tunable = MethodFactory.of(each, limits)
                box = check_box(tunable, limits)
            else:
                tunable = run_args.check_method(each)
                box = default_box(tunable, fast) if limits is None else check_box(tunable, limits)
        except InputError as error:
            raise InputError(f"{error} (for the method {label!r})" if label else str(error)) from None
        if order == "both":
            entries[f"{label}, {_ORDERED}" if label else _ORDERED] = tunable, box, True, grows
            entries[label or "any order"] = tunable, box, False, grows
        else:
            entries[label] = tunable, box, order, grows
    if len(entries) < len(methods) * (2 if order == "both" else 1):
        raise InputError("`method` has two labels that order='both' cannot distinguish; choose others")
    return entries


def _choose_metric(example: Problem, metric: object, by: By) -> str:
    """The metric: the requested one, or an error that the problem measures, or the residual."""
    if metric is not None and not isinstance(metric, str):
        raise InputError(f"`metric` must be text, got {validation.short_repr(metric)}; leave it out to have it chosen")
    known: list[str] = []
    if metric != RESIDUAL and example.knows("measure"):
        known = list(jax.eval_shape(lambda problem: problem.measure(*problem.init(prng.start_key(0))[:2]), example))
    if metric is None:
        metric = next((name for name in PREFERRED_METRICS if name in known), RESIDUAL)
    elif metric != RESIDUAL and metric not in known:
        raise InputError(
            f"`metric` must be one of {', '.join((*known, RESIDUAL))}, got {validation.short_repr(metric)}"
        )
    if metric == RESIDUAL and by == "area":
        others = f"name one of {', '.join(known)}" if known else "use by='end'"
        raise InputError(f"`by='area'` needs a metric with known truth, and the residual is of the end alone; {others}")
    return metric
