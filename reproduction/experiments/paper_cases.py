"""The runs behind the paper's own claims: few programs, shared by many cases, in sizes chosen from measured cost."""

import dataclasses
from functools import partial

import numpy as np

import twoclock as tc
from reproduction.experiment import Case
from reproduction.experiments import fig1_settings, fig2_settings, mdp, table1, theorems
from reproduction.experiments.fig1_settings import FAST, TD, TDC
from reproduction.tuned_settings import settings
from twoclock import Method, Problem

STANDARD, SGD = "Standard", "SGD with the oracle H"
# The two common settings of Figure 2: constant steps, and the schedules that Fast was tuned to.
COMMON = {"constant": "α = 2e-4, β = 2e-3, λ = 0.1", "tuned": "Fast's tuned α and β"}
CORRELATIONS = {0.0: "independent", 1.0: "one draw", -1.0: "opposite"}
ROWS = {"strongly-convex": "strongly-convex", "flat": "pl", "non-convex": "non-convex"}  # shape → row of Table 1
# Temperature 0: steps ∝ k^-½.
COLD = tc.Fast(tc.Power(0.5, p=0.5, shift=400), tc.Power(2.0, p=0.5, shift=400), tc.Power(5.0, p=0.5, shift=400))


def table1_problem(shape: str, coupling: str, correlation: float) -> Problem:
    """A problem of Table 1; the correlation is a number of the program, so that all three share one."""
    made = tc.problems.rates(shape, coupling, dim=2 if shape == "flat" else 1, correlation=0.0)
    return dataclasses.replace(made, correlation=np.float64(correlation))


def all_cases(quick: bool) -> dict[str, Case]:
    return {**_policy_evaluation(quick), **_regulator(quick), **_table1(quick), **_policies(quick)}


def _policy_evaluation(quick: bool) -> dict[str, Case]:
    """Figure 1 with both readings of the factor 2, and TDC's rates.

    F without the factor 2 is F with half of α, and TD(0) is TDC whose ω stays 0: so all are numbers of two programs.
    """
    steps, seeds = (100_000, 60) if quick else (1_000_000, 100)
    half, printed = 2.5e-4, fig1_settings.printed(FAST)
    assert isinstance(printed, tc.Fast)
    methods: dict[str, Method] = {
        f"{FAST}, factor 2": printed,
        f"{TDC}, factor 2": fig1_settings.printed(TDC),
        f"{FAST}, factor 1": dataclasses.replace(printed, alpha=tc.Constant(half)),
        f"{TDC}, factor 1": tc.Standard(half, 2e-3),
        TD: tc.Standard(half, 0.0),
        f"{FAST}, tuned": fig1_settings.tuned(FAST, "50"),
        f"{TDC}, tuned": fig1_settings.tuned(TDC, "50"),
    }
    root = theorems.ROOT
    return {
        "fig1": Case(fig1_settings.source("50", "tdc"), methods, steps, seeds, title="Figure 1, linear values"),
        "markov": Case(
            fig1_settings.source("50", "tdc", "markov"), {FAST: methods[f"{FAST}, tuned"]}, steps, seeds,
            title="linear values, one trajectory",
        ),
        "nonlinear": Case(
            theorems.walk(), {FAST: root, TDC: tc.Standard(root.alpha, root.beta)}, 2 * steps if quick else steps,
            100 if quick else 200, title="nonlinear values",
        ),
    }  # fmt: skip


def _regulator(quick: bool) -> dict[str, Case]:
    problem, fast = tc.problems.paper_lqr(), fig2_settings.tuned(fig2_settings.FAST)
    alpha, beta, lam = (tc.Power(value, p=0.0) for value in (2e-4, 2e-3, 0.1))
    assert isinstance(fast, tc.Fast)
    common: dict[str, Method] = {
        "constant: Fast": tc.Fast(alpha, beta, lam), "constant: Standard": tc.Standard(alpha, beta),
        "tuned: Fast": fast, "tuned: Standard": tc.Standard(fast.alpha, fast.beta),
    }  # fmt: skip
    names = (fig2_settings.FAST, fig2_settings.TWO)
    return {
        "fig2": Case(problem, common, 30_000, 400, title="Figure 2, common steps"),
        "lqr": Case(
            problem, {name: fig2_settings.tuned(name) for name in names}, 100_000 if quick else 1_000_000,
            100 if quick else 300, title="the paper's regulator, tuned steps",
        ),
        "map": Case(
            problem, {name: m for name, m in fig2_settings.grid().items() if name.split()[1] in ("standard", "0.1")},
            *((5_000, 40) if quick else (20_000, 50)), marks=[0], bound=1e6, title="largest safe critic step",
        ),
    }  # fmt: skip


def _table1(quick: bool) -> dict[str, Case]:
    found = {}
    for shape, row in ROWS.items():
        for correlation, words in CORRELATIONS.items():
            if quick and correlation and shape != "strongly-convex":
                continue
            # Non-convex h claims a difference of 0.1 alone, which takes more seeds and steps to see.
            narrow = shape == "non-convex" and correlation == 0
            long = narrow or (correlation == 0 and not quick)
            seeds = (600 if narrow else 300 if long else 400) if not quick else 300 if narrow else 200
            size = (1_000_000 if long else 100_000, seeds)
            found[f"{shape} {words}"] = Case(
                table1_problem(shape, "kinked", correlation), table1.methods(table1.ROWS[row]), *size,
                title=f"Table 1, {shape}, kinked, noise {words}",
            )  # fmt: skip
    size = (100_000, 200) if quick else (1_000_000, 300)
    methods = table1.methods(table1.ROWS["strongly-convex"])
    found["smooth"] = Case(
        table1_problem("strongly-convex", "smooth", 0.0), methods, *size, title="Table 1, strongly convex, smooth"
    )
    for shape, row in ROWS.items():
        sgd: dict[str, Method] = {SGD: table1.methods(table1.ROWS[row])[table1.ONE]}
        problem, same = tc.problems.oracle(table1_problem(shape, "kinked", 0.0)), found[f"{shape} independent"]
        title = f"Table 1, {shape}, SGD with the oracle H"
        found[f"oracle {shape}"] = Case(problem, sgd, same.steps, same.seeds, title=title)
    return found


def _policies(quick: bool) -> dict[str, Case]:
    steps, seeds = (100_000, 40) if quick else (1_000_000, 120)
    found = {}
    for temp in (1.0, 0.1):
        methods = {name: mdp.method(name, **settings("mdp", f"random {temp:g}", name)) for name in (mdp.FAST, mdp.TWO)}
        source = partial(tc.problems.random_entropy_mdp, temp=temp)
        found[f"mdp {temp:g}"] = Case(source, methods, steps, seeds, title=f"random MDPs, τ = {temp:g}")
    cold: dict[str, Method] = {mdp.FAST: COLD}
    source = partial(tc.problems.random_entropy_mdp, temp=0.0)
    found["mdp 0"] = Case(source, cold, steps, seeds, title="random MDPs without entropy")
    return found
