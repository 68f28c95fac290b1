"""Finite mean fields: exact answers against optimisation by SciPy, exact means, and runs that find their own answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import twoclock as tc
from tests.models.test_mdp import random_mdp
from twoclock.models import FiniteField
from twoclock.problems.entropy_mdp import Step
from twoclock.protocols import InputError

SLOW = ("population", "policy")


def field(seed=0, temp=0.2):
    """A random field whose crowd costs are not symmetric."""
    rng = np.random.default_rng(seed)
    mdp, _ = random_mdp(seed, states=4, actions=2)
    crowd = rng.normal(size=(4, 4))
    return FiniteField(mdp, crowd @ crowd.T + 0.5 * (crowd - crowd.T), temp)


@pytest.mark.parametrize("seed", range(3))
def test_the_social_optimum_is_scipys(seed):
    model = field(seed)
    best = model.solve("policy")
    found = minimize(
        lambda x: -model.social_return(x.reshape(4, 2)), np.zeros(8), method="BFGS", options={"gtol": 1e-9}
    )
    assert model.social_return(best.log_pi) == pytest.approx(-found.fun, abs=1e-9)
    assert model.social_return(model.solve("population").log_pi) < -found.fun


@pytest.mark.parametrize("seed", range(3))
def test_no_agent_gains_at_the_nash_equilibrium(seed):
    model = field(seed)
    law, log_pi = model.solve("population")
    np.testing.assert_allclose(model.exact.evaluate(log_pi).law, law, atol=1e-9)
    alone = model.with_crowd(law, "population")
    found = minimize(
        lambda x: -alone.evaluate(x.reshape(4, 2)).gain, np.zeros(8), method="BFGS", options={"gtol": 1e-9}
    )
    assert alone.evaluate(log_pi).gain == pytest.approx(-found.fun, abs=1e-9)


@pytest.mark.parametrize("slow", SLOW)
def test_the_exact_answer_is_a_root_of_the_exact_means(slow):
    problem = tc.problems.mean_field(field(1), slow)
    with jax.enable_x64(True):
        theta = jnp.asarray(problem.law if slow == "population" else problem.log_pi)
        omega = problem.omega_star(theta)
        for leaf in jax.tree.leaves((problem.mean_F(theta, omega), problem.mean_G(theta, omega))):
            np.testing.assert_allclose(leaf, 0, atol=1e-8)
        metrics = problem.measure(theta, omega)
    for name in ("error", "population_error", "consistency", "tracking"):
        assert float(metrics[name]) == pytest.approx(0, abs=1e-12), name
    assert float(metrics["exploitability"]) == pytest.approx(0, abs=1e-8) or slow == "policy"


@pytest.mark.parametrize("slow", SLOW)
def test_the_exact_means_are_those_of_the_samples(slow):
    """Every transition, weighed by the stationary distribution of the policy."""
    problem = tc.problems.mean_field(field(2), slow)
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        law, logits = jnp.asarray(rng.dirichlet(np.ones(4))), jnp.asarray(rng.normal(size=(4, 2)))
        theta, omega = problem._pack((law, logits, jnp.asarray(0.3), jnp.asarray(rng.normal(size=4))))
        soft, settled = problem.agent.truth.soft, problem.agent.truth.evaluate(logits).law
        pi, total = jax.nn.softmax(logits), None
        for s, a, t in np.ndindex(4, 2, 4):
            r = np.asarray(problem.agent.r)[s, a, t % problem.agent.r.shape[2]] - (problem.price @ law)[s]
            x = Step(jnp.int32(s), jnp.int32(a), jnp.int32(t), r, None, None)
            weight = settled[s] * pi[s, a] * np.asarray(soft.P)[s, a, t]
            part = jax.tree.map(
                lambda leaf, w=weight: w * leaf, (problem.F(theta, omega, x), problem.G(theta, omega, x))
            )
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        exact = problem.mean_F(theta, omega), problem.mean_G(theta, omega)
        for ours, mean in zip(jax.tree.leaves(total), jax.tree.leaves(exact), strict=True):
            np.testing.assert_allclose(ours, mean, atol=1e-10)


STEPS = {
    "population": tc.Standard("50/(k+5000)", ("2000/(k+20000)", "500/(k+5000)", "4000/(k+10000)")),
    "policy": tc.Standard("500/(k+20000)", ("1000/(k+2000)", "1000/(k+5000)", "5000/(k+10000)")),
}


@pytest.mark.parametrize("slow", SLOW)
def test_a_run_finds_its_own_answer_and_not_the_other(slow):
    problem = tc.problems.beach_bar(slow)
    other = tc.problems.beach_bar("policy" if slow == "population" else "population")
    apart = float(np.square(problem.law - other.law).sum())
    result = tc.solve(problem, STEPS[slow], steps=300_000, seeds=2, marks=[300_000])
    assert result.history["population_error"].mean() < 0.1 * apart


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crowd": np.eye(3)}, "`crowd` must have the shape"),
        ({"crowd": 1e308 * np.eye(4)}, r"`crowd` must be at most 1e\+100"),
        ({"crowd": -np.eye(4)}, r"`crowd` must have C \+ Cᵀ positive semidefinite"),
        ({"temp": 0.0}, "`temp`"),
        ({"mdp": None}, "`mdp` must be"),
    ],
)
def test_wrong_fields_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        FiniteField(**{"mdp": random_mdp(0, states=4)[0], "crowd": np.eye(4), "temp": 0.1, **change})
