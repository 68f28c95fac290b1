"""What the literal readings of Algorithm 2 converge to, proved by exact moments; and the experiment's own wiring."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

import twoclock as tc
from reproduction.experiments import fig2, fig2_settings
from tests.problems.test_lqr_actor_critic import GAIN, exact_mean
from twoclock.problems.lqr.actor_critic import PAPER


def reading(name):
    problem = tc.problems.lqr_actor_critic(PAPER, K0=GAIN)
    return dataclasses.replace(problem, operators=fig2.READINGS[name])


def test_without_the_next_feature_the_actor_only_shrinks_the_gain():
    """With the right sign the critic regresses the cost on zzᵀ. Its root is Ω = diag(Q, R) − J/(d+2)·Σ⁻¹ and F = RK."""
    problem, K = reading("sign corrected"), jnp.asarray(GAIN)
    J = PAPER.J(GAIN, 1.0)
    Omega = np.eye(5) - J / 7 * np.linalg.inv(PAPER.covariance(GAIN, 1.0))
    f, g = exact_mean(problem, K, {"J": J, "Omega": jnp.asarray(Omega)})
    np.testing.assert_allclose(g["Omega"], 0, atol=1e-10)
    np.testing.assert_allclose(f, GAIN, atol=1e-10)  # R is the identity


@pytest.mark.parametrize("name", ["as printed", "z' put in"])
def test_the_printed_sign_drives_the_critic_away(name):
    """Along a change of Ω the mean of G points against it: no step size can make that stable."""
    problem, K = reading(name), jnp.asarray(GAIN)
    base = {"J": 0.0, "Omega": jnp.zeros((5, 5))}
    moved = {"J": 0.0, "Omega": jnp.eye(5)}
    change = exact_mean(problem, K, moved)[1]["Omega"] - exact_mean(problem, K, base)[1]["Omega"]
    assert np.trace(change) < 0


@pytest.mark.parametrize("name", ["both, κ = 1", "both, κ = 2"])
def test_the_corrected_reading_is_the_library(name):
    problem = reading(name)
    ours = tc.problems.lqr_actor_critic(PAPER, K0=GAIN, kappa=float(problem.operators.kappa))
    runs = [tc.solve(p, fig2_settings.tuned(fig2.FAST), steps=100, seeds=2, marks=[100]) for p in (problem, ours)]
    for a, b in zip(*(jax.tree.leaves((run.theta, run.omega)) for run in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_the_rival_of_the_model_is_certainty_equivalence():
    """Moments of some samples: the measured rival is SciPy's Riccati solution on the least-squares plant."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(5, 500))
    v = np.vstack([z, np.hstack([PAPER.A, PAPER.B]) @ z + rng.normal(size=(3, 500))])
    A, B = np.split(np.linalg.lstsq(z.T, v[5:].T)[0].T, [3], axis=1)
    P = solve_discrete_are(A, B, PAPER.Q, PAPER.R)
    K = np.linalg.solve(PAPER.R + B.T @ P @ B, B.T @ P @ A)
    omega = {"M": jnp.asarray(v @ v.T / 500), "seen": jnp.ones(())}
    found = fig2_settings.model_problem().measure({"K": jnp.zeros((2, 3)), "P": jnp.eye(3)}, omega)
    assert float(found["rival"]) == pytest.approx(float(PAPER.J(K, 1.0) - PAPER.J(PAPER.gain, 1.0)), rel=1e-8)
    assert float(found["gap"]) == pytest.approx(float(PAPER.J(np.zeros((2, 3)), 1.0) - PAPER.J(PAPER.gain, 1.0)))


def test_cases_cover_what_the_figure_needs():
    cases = fig2.cases(quick=False)
    guards = {"boeing", "boeing guarded", "bold", "bold guarded"}
    assert set(cases) == {"gap", "around", "expected", "model", "exact", "map"} | guards | set(fig2.READINGS)
    assert cases["gap"].steps == 1_000_000
    assert cases["gap"].seeds >= 100
    assert len(cases["map"].methods) == len(fig2.BETAS) * (len(fig2.LAMBDAS) + 1)
