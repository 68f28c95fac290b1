"""Figure 2: what is compared, readings of Algorithm 2, and two clocks on a model beside certainty equivalence."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from reproduction.comparisons import last_mean, last_values
from reproduction.experiment import Claim, Records
from reproduction.tuned_settings import Limits, MethodSearch, settings
from reproduction.verdicts import decide
from twoclock import Method, Result
from twoclock.intervals import ratio_of_means
from twoclock.protocols import Operator, PyTree, Scalar, pytree, static

FAST, SAME, TWO = "Fast", "Standard, Fast's exponents", "Standard, 1 and 2/3"
AVERAGED, RIVAL = "Fast, iterates averaged", "certainty equivalence"
LABELS = (FAST, SAME, TWO, AVERAGED, RIVAL)
# The box in which `tc.tune` looks first; it widens it while the leader lies at an edge. No order is imposed.
_BOX: Limits = {"c": (0.25, 8.0), "ratio": (0.25, 32.0), "shift": (600.0, 60_000.0)}
BOXES: dict[str, Limits] = {FAST: {**_BOX, "weight": (2.0, 200.0)}, SAME: _BOX, TWO: _BOX}

EXPECTED = "Fast, expected action"
PAPER = tc.problems.paper_lqr().lqr

# The map has constant steps, so that a cell is one pair of numbers; α = β/10.
BETAS = (0.002, 0.0024, 0.0028, 0.0034, 0.004, 0.0048, 0.0056, 0.0068, 0.008)
LAMBDAS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)

# Where the guard is shown: a plant that no ordinary step survives, and steps that the paper's plant does not survive.
ORDINARY = tc.Fast(tc.Power(3.0, shift=1000.0), tc.Power(3.0, shift=1000.0), tc.Power(100.0, shift=1000.0))
BOLD = tc.Fast(tc.Power(4.0, shift=400.0), tc.Power(4.0, shift=400.0), tc.Power(40.0, shift=400.0))

PLANTS = {"boeing": "Boeing 747", "bold": "the paper's plant, large steps"}


def with_steps(name: str, c: float, ratio: float, shift: float, weight: float = 1.0) -> tc.Fast | tc.Standard:
    """α = c/(k + shift), and β and λ in proportion.

    Args:
        ratio: β/α, at every step; where β has the exponent 2/3, at the start.
        weight: λ/β, at every step; less where λ would begin above 1.
    """
    alpha, critic = tc.Power(c, shift=shift), ratio * c
    if name == TWO:
        return tc.Standard(alpha, tc.Power(critic * shift ** (-1 / 3), p=2 / 3, shift=shift))
    beta = tc.Power(critic, shift=shift)
    lam = tc.Power(min(weight * critic, shift), shift=shift)
    return tc.Standard(alpha, beta) if name == SAME else tc.Fast(alpha, beta, lam)


NESTED = "Standard, nested loop of 100"


@pytree
class NestedLoop(Method):
    """``Standard`` whose gain waits: ω moves with every sample, θ once in ``inner`` of them, ``inner`` times as far.

    The idea of the nested-loop actor-critics (Yang et al. 2019; Ju et al. 2022; Zhou & Lu 2023), on one trajectory.
    """

    method: tc.Standard
    inner: int = static(default=100)

    def init(self, theta: PyTree, omega: PyTree) -> PyTree:
        return self.method.init(theta, omega)

    def step(self, F: Operator, G: Operator, state: PyTree, x: PyTree, k: Scalar) -> PyTree:
        now = jnp.where(jnp.asarray(k) % self.inner == self.inner - 1, float(self.inner), 0.0)

        def rarely(theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: now.astype(leaf.dtype) * leaf, F(theta, omega, x))

        return self.method.step(rarely, G, state, x, k)


def searches() -> dict[str, MethodSearch]:
    methods = {name: (partial(with_steps, name), box) for name, box in BOXES.items()}
    title = "the paper's regulator"
    problem = tc.problems.paper_lqr()
    return {"gap": MethodSearch(problem, methods, 1_000_000, "gap", runs=1040, title=title, contains={FAST: SAME})}


def tuned(name: str) -> tc.Fast | tc.Standard:
    return with_steps(name, **settings("fig2", "gap", name))


def compared() -> dict[str, Method]:
    """The tuned ones, Fast's averaged iterates, and certainty equivalence while Fast acts."""
    fast = tuned(FAST)
    rival: Method = tc.PlugIn(fast, tc.models.CertaintyEquivalence(PAPER.Q, PAPER.R, sigma=1.0))
    same = tuned(SAME)
    assert isinstance(same, tc.Standard)
    found: dict[str, Method] = {FAST: fast, SAME: same, TWO: tuned(TWO), AVERAGED: tc.Polyak(fast, power=2.0)}
    return found | {NESTED: NestedLoop(same), RIVAL: rival}


def grid() -> dict[str, Method]:
    """The cells of the map: standard and Fast for every β, Fast for every λ."""
    cells: dict[str, Method] = {f"{beta} standard": tc.Standard(beta / 10, beta) for beta in BETAS}
    return cells | {f"{beta} {lam}": tc.Fast(beta / 10, beta, lam) for beta in BETAS for lam in LAMBDAS}


def diverged_share(records: Records) -> np.ndarray:
    """Rows: standard, then λ from large to small; columns: β from small to large."""
    rows = ("standard", *LAMBDAS)
    return np.array([[records["map"][f"{beta} {row}"].diverged.mean() for beta in BETAS] for row in rows])


def start(result: Result) -> float:
    """The gap before the first step."""
    return float(result.history.loc[result.history["step"] == 0, "gap"].iloc[0])


@pytree
class Reading(tc.problems.ActorCritic):
    """The critic of Algorithm 2 by a reading of its last line: with its sign or the other, with z' or without."""

    sign: Scalar = 1.0
    bootstrap: bool = static(default=True)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        zz, surprise = _outer(x["z"]), omega["J"] - x["c"]
        delta = jnp.sum(omega["Omega"] * (zz - _outer(x["next"]) if self.bootstrap else zz)) + surprise
        return {"J": self.kappa * surprise, "Omega": self.sign * delta * zz}


def _outer(v: jax.Array) -> jax.Array:
    return v[:, None] * v[None, :]


READINGS = {
    "as printed": Reading(kappa=1.0, sign=-1.0, bootstrap=False),
    "sign corrected": Reading(kappa=1.0, sign=1.0, bootstrap=False),
    "z' put in": Reading(kappa=1.0, sign=-1.0, bootstrap=True),
    "both, κ = 1": Reading(kappa=1.0),
    "both, κ = 2": Reading(kappa=2.0),
}


MODEL = "two clocks on a model"
MODEL_METHODS: dict[str, Method] = {MODEL: tc.methods.running_means()}
# The most that its mean gap may be of certainty equivalence's, at each of these steps that a run has, and at its end.
_MOST, _AT = 1.1, (1000, 10_000, 100_000)
# Steps of the Riccati recursion after which nothing moves any more: on this plant the error falls by 0.5² a step.
_TO_THE_END = 60
Arrays = dict[str, jax.Array | np.ndarray]


@pytree
class WithRival(tc.problems.LqrModel):
    """Measures beside its gap that of the Riccati solution on the same moments: certainty equivalence."""

    def measure(self, theta: Arrays, omega: Arrays) -> Arrays:
        def on(_: int, policy: Arrays) -> Arrays:
            return jax.tree.map(jnp.subtract, policy, self.operators.F(policy, omega, None))

        solved = jax.lax.fori_loop(0, _TO_THE_END, on, theta)  # compiles in a third of the time of `models.riccati`
        lqr, sigma = self.plant.lqr, self.plant.sigma
        gap, rival = jax.vmap(lambda K: lqr.J(K, sigma))(jnp.stack([theta["K"], solved["K"]])) - self.plant.J_star
        return {"gap": gap, "rival": rival}


def model_problem() -> WithRival:
    made = tc.problems.lqr_model(PAPER)
    return WithRival(made.plant, made.operators)


def one_riccati_step(records: Records) -> Claim:
    result, fast = records["model"][MODEL], records["gap"]["Fast"]
    marks = set(result.history["step"].tolist())
    ratios = {
        step: ratio_of_means(last_values(result, "gap", step), last_values(result, "rival", step))
        for step in sorted({*marks.intersection(_AT), max(marks)})
    }
    return Claim(
        "one-riccati-step-is-enough",
        "Two clocks on a model, one Riccati step a sample, cost no more than certainty equivalence on the same samples",
        "not in the paper; its two operators, with the model as the slow variable",
        f"the mean gap over that of the Riccati solution on the same samples has a 95 % interval below {_MOST} "
        "at 10³, 10⁴ and 10⁵ steps, as far as the run goes, and at its end; no seed diverges",
        {
            **{f"over certainty equivalence at {step:,} steps": found for step, found in ratios.items()},
            "mean gap at the end": last_mean(result, "gap"),
            "Fast's mean gap over it": last_mean(fast, "gap") / last_mean(result, "gap"),
            "share of seeds diverged": float(result.diverged.mean()),
        },
        decide(all(found.high < _MOST for found in ratios.values()) and not result.diverged.any()),
        ("model", "gap"),
    )
