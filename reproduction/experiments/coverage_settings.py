"""Coverage: the tasks on which intervals are tried, what is known of them, and what the records say, as one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

import twoclock as tc
from reproduction.experiment import Records
from reproduction.tuned_settings import holding
from twoclock import Method, Problem, Result
from twoclock.models import limit_law
from twoclock.protocols import Key

How = Literal["random-scaling", "blocks"]
Vector = Float[np.ndarray, " d"]
Sample = tuple[Float[Array, " d"], Float[Array, ""]]

LEVELS = (0.8, 0.9, 0.95, 0.99)
MARKED = (10_000, 100_000, 1_000_000)
PUBLISHED_AT = {"linear-5": 40_000, "linear-20": 100_000, "logistic-5": 40_000}
# Coverage and length of 95 % intervals by random scaling, then by batch means: bangoz/sa-inference's arrays.
PUBLISHED = {
    "linear-5": (0.949, 0.0260, 0.867, 0.0151),
    "linear-20": (0.970, 0.0177, 0.889, 0.0110),
    "logistic-5": (0.951, 0.0636, 0.559, 0.0190),
}
CONSTANT, FALLING = "SGD, constant steps", "SGD, falling steps"
TD, TDC, FAST_TDC, GTD2, LSTD = "TD", "TDC", "Fast TDC", "GTD2", "LSTD, block scores"
DEFAULT = "no method"
OPERATORS = {"td": (TD,), "tdc": (TDC, FAST_TDC), "gtd2": (GTD2,)}
CHAINS = {"mdp": "a random MDP of the paper", "walk": "a slow walk"}
_SHORT = {"mdp": "random MDP", "walk": "slow walk"}
SAMPLINGS = {"iid": "independent samples", "markov": "one chain"}
SIZES = {"states": 50, "actions": 50, "features": 10}
SKIP = 1000


@dataclass(frozen=True)
class Task:
    """A problem whose answer is known.

    Args:
        part: (a) published figures, (b) policy evaluation, (c) bilevel, (d) a regulator.
        title: a description.
        short: a short description.
        problem: makes it.
        methods: label → method, with intervals.
        truth: the true values of the outputs, in their order.
        spread: the standard deviation of each output's limit law, √n(y_n − y*); None where only the seeds tell it.
        how: the intervals to judge.
        seeds, steps: of a full run.
    """

    part: str
    title: str
    short: str
    problem: Callable[[], Problem]
    methods: Mapping[str, Method]
    truth: Vector
    spread: Vector | None
    how: How = "random-scaling"
    seeds: int = 200
    steps: int = MARKED[-1]


def noise(dim: int, key: Key) -> Sample:
    """x ~ N(0, I) and a number for the response: normal noise, or what is compared with a probability."""
    one, two = jax.random.split(key)
    return jax.random.normal(one, (dim,)), jax.random.normal(two, ())


def linear(theta: Array, omega: tuple[()], x: Sample) -> Array:
    """The gradient of ½(xᵀθ − y)², y = xᵀβ + ε."""
    features, error = x
    return (features @ (theta - _coefficients(theta.size)) - error) * features


def logistic(theta: Array, omega: tuple[()], x: Sample) -> Array:
    """The gradient of the logistic loss, y = 1 with probability σ(xᵀβ), by the normal number's quantile."""
    features, number = x
    y = jax.scipy.special.ndtr(number) < jax.nn.sigmoid(features @ _coefficients(theta.size))
    return (jax.nn.sigmoid(features @ theta) - y.astype(theta.dtype)) * features


def nothing(theta: Array, omega: tuple[()], x: Sample) -> tuple[()]:
    """There is no fast variable."""
    return omega


def error(theta: Array, omega: tuple[()]) -> dict[str, Array]:
    return {"error": jnp.sum(jnp.square(theta - _coefficients(theta.size)))}


def _coefficients(dim: int) -> Array:
    return jnp.linspace(0.0, 1.0, dim + 1)[1:]


def _regression(model: str, d: int) -> Task:
    beta = np.linspace(0, 1, d + 1)[1:]
    F = {"linear": linear, "logistic": logistic}[model]
    # A curved operator adds a bias of the size of the step, too: at k^−0.6 that of the logistic one is 1.1 standard
    # deviations at 10⁵ samples, and 95 % intervals cover .91.
    step = holding(0.05, 500.0, 0.6) if model == "linear" else holding(0.2, 500.0, 0.75)
    falling = tc.Polyak(tc.Standard(step, step), skip=SKIP, intervals=True)
    methods = {CONSTANT: tc.Polyak(tc.Standard(0.01, 0.01), intervals=True), **({FALLING: falling} if d < 20 else {})}
    spread = np.ones(d) if model == "linear" else np.sqrt(np.diag(np.linalg.inv(_information(beta))))
    make = partial(tc.problems.custom, F, nothing, partial(noise, d), np.zeros(d), (), measure=error)
    title = f"{model} regression, {d} coefficients"
    return Task("a", title, title, make, methods, beta, spread, seeds=400)


def _information(beta: Vector) -> Float[np.ndarray, "d d"]:
    """E[p(1−p)xxᵀ] of logistic regression with x ~ N(0, I): along β and across it, by Gauss and Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    p = 1 / (1 + np.exp(-np.linalg.norm(beta) * nodes))
    weights = weights / weights.sum() * p * (1 - p)
    along = np.outer(beta, beta) / (beta @ beta)
    return weights.sum() * (np.eye(len(beta)) - along) + weights @ nodes**2 * along


@cache
def random_mdp(seed: int = 0) -> tc.problems.SlowWalkSetting:
    """One draw of the paper's random MDPs (``problems.random_policy_evaluation``), with its parts at hand."""
    rng, (S, A, d) = np.random.default_rng(seed), SIZES.values()
    P = rng.uniform(size=(S, A, S))
    P /= P.sum(axis=2, keepdims=True)
    psi, Phi, theta = rng.normal(size=(S, A)), rng.normal(size=(S, d)), rng.normal(size=d)
    pi = np.exp(psi) / np.exp(psi).sum(axis=1, keepdims=True)
    r = Phi @ theta - 0.5 * np.einsum("sa,sat->st", pi, P) @ Phi @ theta
    mdp = tc.models.Mdp(P, np.tile(r[:, None], A), 0.5)
    return {"mdp": mdp, "features": Phi, "target": pi, "behaviour": np.full((S, A), 1 / A)}


def parts(chain: str) -> tc.problems.SlowWalkSetting:
    return random_mdp() if chain == "mdp" else tc.problems.slow_walk_setting()


def _evaluation(chain: str, operator: str, sampling: str) -> Task:
    given = parts(chain)
    law = limit_law(**given, sampling=sampling)
    # The memory of a chain adds a bias of the size of the step: where it is long, steps fall earlier.
    power = 0.6 if chain == "mdp" else 0.75
    step = holding(0.1 / float(np.mean(np.sum(np.square(given["features"]), axis=1))), 300.0, power)
    methods: dict[str, Method] = {}
    for name in OPERATORS[operator]:
        base = tc.Fast(step, step, 0.5) if name == FAST_TDC else tc.Standard(step, step)
        methods[name] = tc.Polyak(base, skip=SKIP, intervals=True)
    title = f"{CHAINS[chain]}, {' and '.join(OPERATORS[operator])}, {SAMPLINGS[sampling]}"
    short = f"{_SHORT[chain]}, {SAMPLINGS[sampling]}"
    make = partial(tc.problems.policy_evaluation, **given, operator=operator, sampling=sampling)
    return Task("b", title, short, make, methods, law.theta, np.sqrt(np.diag(law.covariance())))


def _blocks(chain: str, seeds: int, steps: int) -> Task:
    return replace(
        task(f"{chain}-td-markov"), title=f"{CHAINS[chain]}, LSTD, one chain",
        methods={LSTD: tc.methods.BatchMeans(tc.methods.Lstd())}, how="blocks", seeds=seeds, steps=steps,
    )  # fmt: skip


def _bilevel() -> Task:
    problem, step = tc.problems.quadratic_bilevel(replace=True), holding(0.2, 300.0, 0.7)
    title = "bilevel least squares, five outer and five inner variables"
    methods = {"Fast": tc.Polyak(tc.Fast(step, step, 0.5), skip=SKIP, intervals=True)}
    return Task("c", title, title.split(",")[0], lambda: problem, methods, np.asarray(problem.truth.x_star), None)


def _regulator() -> Task:
    problem, step = tc.problems.paper_lqr(), holding(4 / 6000, 6000.0, 0.6)
    methods = {"Fast": tc.Polyak(tc.Fast(step, step, 0.1), skip=5 * SKIP, intervals=True)}
    title, short = "the gain of the paper's regulator", "the regulator's gain"
    return Task("d", title, short, lambda: problem, methods, np.asarray(problem.K_star).ravel(), None)


def _default(label: str) -> Task:
    """The same problem without a method, at the end of a run, which is where its intervals are."""
    of = task(label)
    return replace(of, methods={DEFAULT: tc.Auto()}, how="blocks", seeds=200, steps=MARKED[1])


# By label; what is known of a task is worked out when it is first asked for.
_MAKERS: dict[str, Callable[[], Task]] = {
    "linear-5": partial(_regression, "linear", 5),
    "linear-20": partial(_regression, "linear", 20),
    "logistic-5": partial(_regression, "logistic", 5),
    **{
        f"{chain}-{operator}-{sampling}": partial(_evaluation, chain, operator, sampling)
        for chain in CHAINS
        for sampling in SAMPLINGS
        for operator in OPERATORS
    },
    "walk-blocks-markov": partial(_blocks, "walk", 200, MARKED[-1]),
    "mdp-blocks-markov": partial(_blocks, "mdp", 100, MARKED[1]),
    "bilevel": _bilevel,
    "lqr": _regulator,
    **{
        f"{DEFAULT}: {label}": partial(_default, label)
        for label in ("linear-5", "logistic-5", "mdp-tdc-iid", "walk-td-markov", "bilevel", "lqr")
    },
}
LABELS = tuple(_MAKERS)


@cache
def task(label: str) -> Task:
    return _MAKERS[label]()


LOW, HIGH = 0.93, 0.97
# The runs at which the standard error of a share is .01, and the fewest from which a share says anything.
_MANY, _LEAST = 400, 100
_ENOUGH = 0.05  # the share of intervals without a note from which on their coverage is judged


def table(records: Records) -> pd.DataFrame:
    """One row for each case, method, step and level.

    coverage, length: of all intervals · clean, noted: the coverage of those without and with a note; NaN where there
    are none · quiet: the share without · ratio: the mean length over the oracle's · first, first_length: of the first
    output alone · spread: the standard deviation of the estimates over seeds, over the oracle's · runs: the seeds
    """
    runs = [(case, method, result) for case, results in records.items() for method, result in results.items()]
    return pd.concat([_read(result, case).assign(method=method) for case, method, result in runs], ignore_index=True)


@lru_cache(maxsize=64)  # several of the experiment's parts ask for the table
def _read(result: Result, case: str) -> pd.DataFrame:
    known = set(result.history["step"].unique().tolist())
    steps = sorted(known & {*MARKED, PUBLISHED_AT.get(case, MARKED[0])}) or [max(known)]
    rows = [_row(result, task(case), step, level) for step in steps for level in LEVELS]
    return pd.DataFrame(rows).assign(case=case)


def _row(result: Result, of: Task, step: int, level: float) -> dict[str, float | str]:
    from scipy.special import ndtri

    frame = result.interval(level, of.how, step=step)
    outputs = len(frame["output"].unique())
    estimate, low, high = (frame[name].to_numpy().reshape(-1, outputs) for name in ("estimate", "low", "high"))
    quiet = (frame["note"] == "").to_numpy().reshape(-1, outputs)
    covers, length = (low <= of.truth[:outputs]) & (of.truth[:outputs] <= high), high - low
    over_seeds = estimate.std(axis=0)
    oracle = over_seeds if of.spread is None else of.spread[:outputs] / np.sqrt(step)
    return {
        "part": of.part,
        "title": of.title,
        "step": step,
        "level": level,
        "runs": len(estimate),
        "coverage": float(covers.mean()),
        "quiet": float(quiet.mean()),
        "clean": _mean(covers[quiet]),
        "noted": _mean(covers[~quiet]),
        "length": float(np.nanmean(length)),
        "ratio": float(np.mean(np.nanmean(length, axis=0) / (2 * ndtri((1 + level) / 2) * oracle))),
        "first": float(covers[:, 0].mean()),
        "first_length": float(np.nanmean(length[:, 0])),
        "spread": float(np.mean(over_seeds / oracle)),
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def of_run(found: pd.DataFrame, case: str, method: str) -> pd.DataFrame:
    """The rows of one run."""
    return found[(found["case"] == case) & (found["method"] == method)]


def run_name(case: str, method: str) -> str:
    """A run in few words.

    >>> run_name("walk-tdc-markov", "Fast TDC")
    'slow walk, one chain: Fast TDC'
    """
    return f"{task(case).short}: {method}"


def run_names(found: pd.DataFrame) -> list[str]:
    """The run of each row."""
    return [run_name(str(case), str(method)) for case, method in zip(found["case"], found["method"], strict=True)]


def at_95(found: pd.DataFrame) -> pd.DataFrame:
    return found[found["level"] == 0.95]


def late(found: pd.DataFrame) -> pd.DataFrame:
    """The rows of 95 % intervals from 10⁵ samples on; of a shorter run those at its end."""
    rows = at_95(found)
    enough = rows[(rows["step"] >= MARKED[1]) & rows["step"].isin(MARKED)]
    return enough if len(enough) else rows[rows["step"] == rows["step"].max()]


def judged(found: pd.DataFrame) -> pd.DataFrame:
    """The late rows with enough intervals that carry no note, and whether those cover as often as they should."""
    rows = late(found)
    rows = rows[rows["quiet"] >= _ENOUGH]
    held = [covers(share, runs) for share, runs in zip(rows["clean"], rows["runs"], strict=True)]
    return rows.assign(held=pd.Series(held, rows.index, dtype=object))


def covers(share: float, runs: int) -> bool | None:
    """Whether a share of runs lies in [.93, .97]; of fewer than 400 whether it is within two standard errors of it.

    >>> covers(0.925, 1000), covers(0.925, 250), covers(0.90, 250), covers(0.95, 20)
    (False, True, False, None)
    """
    if runs < _LEAST:
        return None
    slack = 0.0 if runs >= _MANY else 2 * float(np.sqrt(0.95 * 0.05 / runs))
    return bool(LOW - slack <= share <= HIGH + slack)


def failures(found: pd.DataFrame) -> tuple[float, float]:
    """The share of 95 % intervals that miss, without and with a note, over all runs and marks alike."""
    rows = at_95(found)

    def missing(column: str, share: pd.Series) -> float:
        known = rows[column].notna() & (share > 0)
        return float(np.average(1 - rows[column][known], weights=share[known])) if known.any() else float("nan")

    return missing("clean", rows["quiet"]), missing("noted", 1 - rows["quiet"])
