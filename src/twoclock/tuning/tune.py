"""Tuning: the step sizes of a method, or the settings of an agent, that are best at a horizon."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

import jax

from twoclock import prng, validation
from twoclock.agents.protocol import Agent, is_agent
from twoclock.engine import compatibility, select_engine
from twoclock.engine.metrics import PREFERRED_METRICS
from twoclock.engine.run_batch import make_placeholder
from twoclock.engine.select_engine import EngineName
from twoclock.progress import tally
from twoclock.protocols import InputError, Method, Problem, ProblemSource
from twoclock.tuning.halving import Candidates, Halving
from twoclock.tuning.objective import MOST_SEEDS, RESIDUAL, AgentObjective, By, Objective, ProblemObjective, ScoreTable
from twoclock.tuning.search_space import Box, MethodFactory, Tunable, build, check_box, default_box
from twoclock.tuning.tune_result import Tuned, TunedMethods
from twoclock.validation import run_args

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Limits = Mapping[str, tuple[float, float]]
_FIRST_SEED = 1_000_000
_SEEDS = 8
_MOST_BUDGET = 10**18
_ORDERED = "α ≤ β ≤ λ"


class Options(TypedDict, total=False):
    """The keywords of ``tune`` that do not change what it returns."""

    by: By
    widen: bool | None
    rungs: int
    seed: int
    bound: float | None
    engine: EngineName
    progress: bool
    x0: object
    step_timeout: float | None
    processes: int | None


@overload
def tune(
    problem: ProblemSource | object,  # for an agent its environment, as for ``agents.run``
    method: Method | Callable[..., Method] | Agent,
    space: Limits | None = None,
    steps: int = 100_000,
    budget: float | None = None,
    metric: str | None = None,
    *,
    order: bool = False,
    **options: Unpack[Options],
) -> Tuned: ...
@overload
def tune(
    problem: ProblemSource,
    method: Mapping[str, Method | Callable[..., Method]],
    space: Limits | Mapping[str, Limits | None] | None = None,
    steps: int = 100_000,
    budget: float | None = None,
    metric: str | None = None,
    *,
    order: bool | Literal["both"] = False,
    **options: Unpack[Options],
) -> TunedMethods: ...
@overload
def tune(
    problem: ProblemSource,
    method: Method | Callable[..., Method],
    space: Limits | None = None,
    steps: int = 100_000,
    budget: float | None = None,
    metric: str | None = None,
    *,
    order: Literal["both"],
    **options: Unpack[Options],
) -> TunedMethods: ...
def tune(
    problem: object,
    method: object,
    space: object = None,
    steps: object = 100_000,
    budget: object = None,
    metric: object = None,
    *,
    by: object = "end",
    order: object = False,
    widen: object = None,
    rungs: object = 4,
    seed: object = 0,
    bound: float | None = None,
    engine: object = "auto",
    progress: bool = False,
    x0: object = None,
    step_timeout: float | None = None,
    processes: int | None = None,
) -> Tuned | TunedMethods:
    """Find the settings of a method that are best at a horizon, by successive halving over seeds and steps.

    Of 8·2^(rungs−1) settings the better ones go to the next rung, with twice the steps until the horizon is reached
    and then with twice the seeds; half of a rung's settings are survivors, half are new ones between them. Every rung
    has seeds of its own and costs the same, and rivals see the same samples. A setting with a seed that diverges loses
    to all that have none, or fewer.

    **With truth** the score is the mean of a metric at the end, or the area under its curve. **Without** it is what
    samples alone can tell,

        score = ‖S⁺(E F − B·E G)‖²,    B = F_ω G_ω⁺,    S = F_θ − B·G_θ        (F_θ = E ∂F/∂θ and so on)

    at the final estimates (θ, ω), from as many fresh samples as the run had steps: ‖θ−θ*‖² to first order, the same
    whatever factor stands before F or G. ``tc.residual`` says the same of any result.

    **An agent** is tuned on its environment, which stands for the problem: by what it is paid while it acts, over the
    later half of its steps, on seeds of its own.

    Args:
        problem: a problem, or a function of a key that makes one, so that each seed has its own instance. For an agent
            an environment, as for ``agents.run``.
        method: what is tuned; its own settings are tried too if they lie in the space. A mapping of labels to methods
            tunes each with the same budget, and compares the winners on seeds that no tuning has seen. A function that
            makes a method from a few positive numbers is tuned by its arguments: the space names them. Or an agent:
            ``Tuned.method`` is then one with the best settings, for ``agents.run``.
        space: path → (low, high), both positive, on a log scale; paths as for ``grid``, also tied ones:
            ``{"alpha.c": (0.1, 10), "alpha.shift,beta.shift": (10, 1000)}``. By default a box around the method's own
            step sizes. For several methods one space for all, or label → space. For an agent, which has no default, the
            paths are those of its arguments: ``{"sigma": (0.1, 3), "method.alpha.c": (0.01, 1)}``.
        steps: the horizon at which the settings are to be good.
        budget: seed-steps to spend on each method, fresh samples included; by default enough for 8 seeds in the first
            rung.
        metric: a metric of the problem, which is minimised, or "residual" to do without truth. By default its error,
            gap or gradient; a problem that has none of them is tuned by its residual, never by some other metric. For
            an agent "mean_cost", or with a minus "mean_reward" or "mean_return"; its costs, where it knows them.
        by: "end", the metric's mean over seeds at the horizon; "area", the geometric mean of those means over the last
            two decades of steps, which is the area under the curve in a log-log picture.
        order: True tries only steps with α ≤ β ≤ λ up to the horizon, as the theory wants; "both" tunes with and
            without, and compares. λ ≤ 1 holds in any case.
        widen: while the leader lies at an edge of the box, make it twice as wide there (on the log scale) and try
            settings from the new part; for at most two rungs' worth of the work, which the budget includes. By default
            the default box is widened, and one that was given is not.
        rungs: how often; one more doubles the settings that are tried.
        seed: draws the settings; the runs have the seeds from 1,000,000·(seed + 1) on, apart from those of ``solve``.
        bound, engine: as for ``solve``.
        progress: show a bar of the seed-steps spent.
        x0, step_timeout, processes: of an agent's environment, as for ``agents.run``.

    >>> import twoclock as tc
    >>> found = tc.tune(tc.problems.quadratic(dim=2), tc.Fast(), {"alpha.c": (0.1, 10)}, steps=200, rungs=2)
    >>> result = tc.solve(tc.problems.quadratic(dim=2), found.method, steps=200, seeds=20)

    Reference: Jamieson & Talwalkar, *Non-stochastic best arm identification and hyperparameter optimization*, 2016.
    """
    search = Search(
        run_args.check_steps(steps),
        validation.whole("rungs", rungs, 1, 10),
        validation.whole("seed", seed, 0, 4000),
        _one_of("by", by, ("end", "area")),
        _one_of("order", order, (False, True, "both")),
        _one_of("widen", widen, (None, False, True)),
        validation.flag("progress", progress),
    )
    if is_agent(method):
        if (by, order, bound, engine) != ("end", False, None, "auto"):
            raise InputError(
                "`by`, `order`, `bound` and `engine` are for methods; an agent is tuned by what it is paid"
            )
        agents = AgentObjective(problem, method, metric, x0, step_timeout, processes)
        entry = Entry(agents.settings, agents.check_box(space), order=False, widen=bool(search.widen))
        return search.run(agents, {"": entry}, budget, fast=True)[0][""]
    if not (x0 is step_timeout is processes is None):
        raise InputError("`x0`, `step_timeout` and `processes` are for agents on an environment")
    source = run_args.check_problem(problem)
    run_args.check_numbers("float64", bound)
    engine_name = select_engine.resolve(engine)
    with jax.enable_x64(True):
        compatibility.check_source(source)
        example = make_placeholder(source).example
        _, omega, _ = jax.eval_shape(lambda problem: problem.init(prng.start_key(0)), example)
        fast = any(leaf.size for leaf in jax.tree.leaves(omega))
        entries = _check_entries(method, space, search, fast)
        objective = ProblemObjective(source, _choose_metric(example, metric, search.by), search.by, bound, engine_name)
        tuned, ranking, spec = search.run(objective, entries, budget, fast)
    return tuned[""] if ranking is None else TunedMethods(tuned, ranking, objective.metric, spec)


@dataclass(frozen=True)
class Entry:
    """One method to tune, its box, whether α ≤ β ≤ λ is required, and whether the box may widen."""

    tunable: Tunable
    box: Box
    order: bool
    widen: bool


@dataclass(frozen=True)
class Search:
    """What ``tune`` was asked for, checked; its arguments have the same names."""

    steps: int
    rungs: int
    seed: int
    by: By
    order: bool | Literal["both"]
    widen: bool | None
    progress: bool

    def run(
        self, objective: Objective, entries: Mapping[str, Entry], budget: object, fast: bool
    ) -> tuple[dict[str, Tuned], pd.DataFrame | None, dict[str, Any]]:
        """Tune every entry, and compare the winners on fresh seeds where there are several; with what was asked."""
        joint = "" not in entries
        searches = {
            label: Halving(
                Candidates(entry.tunable, self.steps, entry.order, fast, self.seed), objective, entry.box, self.rungs,
                entry.widen, joint,
            )
            for label, entry in entries.items()
        }  # fmt: skip
        purse, seeds = _seeds_for(budget, searches)
        most, few, first = max(seeds.values()), min(seeds.values()), _FIRST_SEED * (self.seed + 1)
        total = sum(halving.price() * seeds[label] for label, halving in searches.items())
        with tally(self.progress, "seed-steps") as look, objective.session(most):
            objective.look = lambda: look(objective.spent, total)
            objective.check([build(entry.tunable, {}) for entry in entries.values()], range(first, first + most))
            asked = {"steps": self.steps, "budget": purse, "by": self.by, "seed": self.seed, **objective.facts}
            tuned = {label: halving.search(first, seeds[label], asked) for label, halving in searches.items()}
            if not joint:
                return tuned, None, asked
            fresh = first + (self.rungs + 1) * most  # after those of every rung
            return tuned, _compare(objective, tuned, range(fresh, fresh + 2 * few), self.steps), asked


def _compare(objective: Objective, tuned: Mapping[str, Tuned], seeds: Sequence[int], steps: int) -> pd.DataFrame:
    """Run the winners on the same seeds: one row each, the best first."""
    import pandas as pd

    parts, spent = [], {}
    for label, one in tuned.items():
        before = objective.spent
        parts.append(objective([one.method], seeds, steps, len(seeds) // 2, width=1))
        spent[label] = one.spec["spent"] + objective.spent - before
    scores = functools.reduce(ScoreTable.join, parts)
    ranks = scores.best_first().tolist()
    rows, labels = scores.rows(ranks[0]), list(tuned)
    where = {"steps": steps, "seeds": len(seeds)}
    return pd.DataFrame([{"label": labels[i], **rows[i], **where, "spent": spent[labels[i]]} for i in ranks])


def _check_entries(method: object, space: object, search: Search, fast: bool) -> dict[str, Entry]:
    """What to tune, by label; a single method has the empty one. By default the default box may grow, and no other."""
    methods = method if isinstance(method, Mapping) else {"": method}
    if not methods:
        raise InputError("`method` must name at least one method, got an empty mapping")
    spaces = dict.fromkeys(methods, space)
    if isinstance(method, Mapping) and isinstance(space, Mapping) and any(label in methods for label in space):
        if set(space) != set(methods):
            odd = ", ".join(str(label) for label in set(space) ^ set(methods))
            raise InputError(
                f"`space` must have an entry for each method, or be one for all; {odd} is in one of them only"
            )
        spaces = dict(space)
    entries: dict[str, Entry] = {}
    for label, each in methods.items():
        if not isinstance(label, str):
            raise InputError(f"`method` must map text labels to methods, got the label {label!r}")
        limits = spaces[label]
        widen = limits is None if search.widen is None else search.widen
        try:
            tunable: Tunable
            if callable(each) and not isinstance(each, (type, Method)):
                tunable = MethodFactory.of(each, limits)
            else:
                tunable = run_args.check_method(each)
            if limits is None and isinstance(tunable, Method):
                box = default_box(tunable, fast)
            else:
                box = check_box(tunable, limits)
        except InputError as error:
            raise InputError(f"{error} (for the method {label!r})" if label else str(error)) from None
        if search.order == "both":
            entries[f"{label}, {_ORDERED}" if label else _ORDERED] = Entry(tunable, box, True, widen)
            entries[label or "any order"] = Entry(tunable, box, False, widen)
        else:
            entries[label] = Entry(tunable, box, search.order, widen)
    if len(entries) < len(methods) * (2 if search.order == "both" else 1):
        raise InputError("`method` has two labels that order='both' cannot tell apart; choose others")
    return entries


def _choose_metric(example: Problem, metric: object, by: By) -> str:
    """What to compare: what was asked for, or an error that the problem knows, or the residual; never a guess."""
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


def _seeds_for(budget: object, searches: Mapping[str, Halving]) -> tuple[int, dict[str, int]]:
    """The seed-steps that each method may spend, and how many seeds they pay for in the first rung of each."""
    dearest = max(searches.values(), key=lambda halving: halving.price())
    if budget is None:
        budget = _SEEDS * dearest.price()
    least = 2 * dearest.price()
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not least <= budget <= _MOST_BUDGET:
        raise InputError(
            f"`budget` must be at least {least:,} seed-steps for rungs={dearest.rungs} at steps={dearest.steps:,}, and "
            f"at most 10¹⁸, got {validation.short_repr(budget)}; raise it, or lower `steps` or `rungs`"
        )
    counts = {label: int(budget // halving.price()) for label, halving in searches.items()}
    return int(budget), {
        label: count if count <= MOST_SEEDS else count - count % MOST_SEEDS for label, count in counts.items()
    }


def _one_of(name: str, value: object, choices: tuple[T, ...]) -> T:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    raise InputError(
        f"`{name}` must be {' or '.join(repr(choice) for choice in choices)}, got {validation.short_repr(value)}"
    )
