"""Step sizes found by successive halving, with the answer known or not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Unpack, overload

import jax

from twoclock import prng, validation
from twoclock.agents.protocol import Agent, is_agent
from twoclock.engine import compatibility, select_engine
from twoclock.engine.run_batch import make_placeholder
from twoclock.progress import tally
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.run_identity import describe
from twoclock.tuning.agent_tuning import Environment, tune_agent
from twoclock.tuning.arguments import Limits, Options, counter, entries, metric_of, one_of, seeds_for, whole
from twoclock.tuning.halving import WIDTH, Halving, Plan
from twoclock.tuning.method_factory import made
from twoclock.tuning.objective import RESIDUAL, Objective
from twoclock.tuning.proposals import Candidates
from twoclock.tuning.residual_validity import check_meaning, follows_theta
from twoclock.tuning.residuals import Oracle
from twoclock.tuning.scores import By, Scores
from twoclock.tuning.tune_result import Tuned, TunedMethods

if TYPE_CHECKING:
    import pandas as pd

_FIRST_SEED = 1_000_000


@overload
def tune(
    problem: ProblemSource,
    method: Method | Callable[..., Method],
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
@overload
def tune(
    problem: Environment,
    method: Agent,
    space: Limits,
    steps: int = 100_000,
    budget: float | None = None,
    metric: str | None = None,
    *,
    x0: object = None,
    limit: float | None = None,
    processes: int | None = None,
    **options: Unpack[Options],
) -> Tuned: ...
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
    limit: float | None = None,
    processes: int | None = None,
) -> Tuned | TunedMethods:
    """Find the settings of a method that are best at a horizon, by successive halving over seeds and steps.

    Of 8·2^(rungs−1) settings the better ones go on to the next rung, with twice the steps until the horizon is reached
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
            without, and compares. λ ≤ 1 is kept in any case.
        widen: while the leader lies at an edge of the box, make it twice as wide there (on the log scale) and try
            settings from the new part; for at most two rungs' worth of the work, which the budget includes. By default
            the default box is widened, and one that was given is not.
        rungs: how often; one more doubles the settings that are tried.
        seed: draws the settings; the runs have the seeds from 1,000,000·(seed + 1) on, apart from those of ``solve``.
        bound, engine: as for ``solve``.
        progress: show a bar of the seed-steps spent.
        x0, limit, processes: of an agent's environment, as for ``agents.run``.

    >>> import twoclock as tc
    >>> found = tc.tune(tc.problems.quadratic(dim=2), tc.Fast(), {"alpha.c": (0.1, 10)}, steps=200, rungs=2)
    >>> result = tc.solve(tc.problems.quadratic(dim=2), found.method, steps=200, seeds=20)

    Reference: Jamieson & Talwalkar, *Non-stochastic best arm identification and hyperparameter optimization*, 2016.
    """
    if is_agent(method):
        if (by, order, bound, engine) != ("end", False, None, "auto"):
            raise InputError(
                "`by`, `order`, `bound` and `engine` are for methods; an agent is tuned by what it is paid"
            )
        given = {"x0": x0, "limit": limit, "processes": processes}
        return tune_agent(problem, method, space, steps, budget, metric, rungs, seed, widen, progress, **given)
    if not (x0 is limit is processes is None):
        raise InputError("`x0`, `limit` and `processes` are for agents on an environment")
    source = validation.check_problem(problem)
    horizon, halvings, drawn = validation.check_steps(steps), whole("rungs", rungs, 1, 10), whole("seed", seed, 0, 4000)
    validation.check_numbers("float64", bound)
    walker = select_engine.resolve(engine)
    validation.flag("progress", progress)
    goal: By = one_of("by", by, ("end", "area"))
    kept = one_of("order", order, (False, True, "both"))
    grows = one_of("widen", widen, (None, False, True))
    joint = isinstance(method, Mapping) or kept == "both"
    with jax.enable_x64(True), tally(progress, "seed-steps") as look:
        compatibility.check_source(source)
        example = make_placeholder(source).example
        _, omega, _ = jax.eval_shape(lambda problem: problem.init(prng.start_key(0)), example)
        fast = any(leaf.size for leaf in jax.tree.leaves(omega))
        asked, name = entries(method, space, kept, grows, fast), metric_of(example, metric, goal)
        plans = {
            label: Plan(halvings, horizon, name, len(entry.box), entry.widen, joint) for label, entry in asked.items()
        }
        purse, seeds = seeds_for(budget, plans)
        add = counter(look, sum(plan.price() * seeds[label] for label, plan in plans.items()))
        first = _FIRST_SEED * (drawn + 1)
        judges = {
            n: Objective(source, name, goal, range(first, first + n), WIDTH, bound, add, engine=walker)
            for n in seeds.values()
        }
        for label, entry in asked.items():
            seen = judges[seeds[label]].example
            one = made(entry.method, {})
            compatibility.check_fit(Oracle(seen) if name == RESIDUAL else seen, one)
            if name == RESIDUAL:
                check_meaning(seen, one)
        rough = name == RESIDUAL and follows_theta(seen)
        spec = {"problem": describe(source), "steps": horizon, "budget": purse, "by": goal, "seed": drawn}
        found: dict[str, Tuned] = {}
        for label, entry in asked.items():
            candidates = Candidates(entry.method, horizon, entry.order, fast, drawn)
            halving = Halving(candidates, judges[seeds[label]], plans[label], entry.box)
            halving.search(first, seeds[label])
            how = {"given": entry.box, "order": entry.order, "widen": entry.widen}
            found[label] = halving.tuned(name, {**spec, **how, "rough": rough})
        if not joint:
            return found[""]
        fresh, few = first + (halvings + 1) * max(seeds.values()), min(seeds.values())  # after those of every rung
        judge = Objective(source, name, goal, range(fresh, fresh + few), 1, bound, add, judges[few].unit, walker)
        ranking = _compare(judge, found, range(fresh, fresh + 2 * few), horizon)
    return TunedMethods(found, ranking, name, spec)


def _compare(judge: Objective, found: Mapping[str, Tuned], seeds: Sequence[int], steps: int) -> pd.DataFrame:
    """The winners on the same seeds, a row each, the best first."""
    import pandas as pd

    parts, spent = [], {}
    for label, tuned in found.items():
        before = judge.spent
        parts.append(judge([tuned.method], seeds, steps))
        spent[label] = tuned.spec["spent"] + judge.spent - before
    scores = functools.reduce(Scores.joined, parts)
    ranks = scores.best_first().tolist()
    rows = scores.rows(ranks[0])
    where = {"steps": steps, "seeds": len(seeds)}
    return pd.DataFrame([{"label": label, **rows[i], **where, "spent": spent[label]}
                         for i, label in ((i, list(found)[i]) for i in ranks)])  # fmt: skip
