"""The problems that judge the default method: their solutions solve them, and what counts as a false arrival."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import twoclock as tc
from reproduction.experiments import auto, auto_races
from reproduction.experiments.random_problems import KINDS, draw_problem

# E F = 0 and E G = 0 at the solution, with ω at the root that the solution has there.
OMEGA = {
    "quantiles": 0.0, "absolute value": 0.0, "logistic": 0.0, "exponential": 0.0,
    "tanh from far": 1.0, "clipped from far": 1.0, "cubic G": 1.0, "multiplicative noise": 1.0, "10⁴ entries": 1.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_users_have_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_there_are_enough_kinds_of_every_size():
    assert len(KINDS) >= 24
    races = auto.keys()
    assert len([key for key in races if key.kind != auto.CATALOGUE]) >= 96
    steps = [kind.steps for kind in KINDS.values()]
    assert (min(steps), max(steps)) == (1000, 1_000_000)
    assert sum(case.steps * case.lanes for case in auto.cases(True).values()) < 5_000_000


@pytest.mark.parametrize("kind", OMEGA)
def test_the_operators_have_mean_zero_at_the_solution(kind):
    problem = draw_problem(KINDS[kind].make, (3, 1))
    (theta,) = problem.stars if np.ndim(problem.theta) else problem.stars[0][:, None]
    theta = jnp.reshape(theta, np.shape(problem.theta))

    def means(key):
        at = theta, OMEGA[kind] * theta * jnp.ones_like(problem.omega), problem.noise(key)
        return problem.F(*at), problem.G(*at)

    count = 400 if np.size(theta) > 100 else 20_000
    F, G = jax.jit(lambda keys: jax.vmap(means)(keys))(jax.random.split(jax.random.key(0), count))
    for part in (F, G):
        off = np.abs(part.mean(axis=0)) / (part.std(axis=0) / np.sqrt(count) + 1e-12)
        assert np.max(off) < 5.5


def test_problems_of_a_kind_differ_in_numbers_alone():
    for kind in ("ridge penalty", "KL-DRO", "meta-learning", "odd units"):
        one, two = (jax.tree.structure(draw_problem(KINDS[kind].make, (3, i))) for i in range(2))
        assert one == two, kind


def record(ours, theirs, start, arrived):
    def result(history):
        lost = np.zeros(len(history), bool)
        return tc.Result(np.zeros(2), np.zeros(2), history, lost, np.full(2, 10), {"seeds": [0, 1]})

    frame = {"seed": [0, 1], "step": 10}
    of_auto = pd.DataFrame({**frame, "error": ours, "start": start, "arrived": arrived})
    return {"PL, 1": {"Auto": result(of_auto), "best of 60": result(pd.DataFrame({**frame, "error": theirs}))}}


def test_false_arrivals():
    key = auto.RaceKey("PL", "1")
    for ours, arrived, found in (
        ([1.0, 1.0], [1, 1], (0, 2, True)),
        ([1.0, 21.0], [1, 1], (1, 2, False)),  # 20 times the best
        ([1.0, 21.0], [1, 0], (0, 1, True)),  # and says so
        ([1.0, 9.0], [1, 1], (0, 2, True)),  # within a tenth of the start
        ([1.0, 11.0], [1, 1], (1, 2, True)),  # beyond it
        ([np.inf, 1.0], [1, 1], (1, 2, False)),
    ):
        assert auto.false_arrivals(record(ours, [1.0, 1.0], [100.0, 100.0], arrived), key) == found


@pytest.mark.parametrize("name", auto_races.OPTIMIZERS)
def test_parameter_free_methods_descend_on_a_bowl(name):
    problem = tc.problems.custom(
        F=lambda t, w, x: t - 1 + 0.1 * x, G=lambda t, w, x: w - t + 0.1 * x, noise=lambda key: jax.random.normal(key),
        theta=0.0, omega=0.0,
    )  # fmt: skip
    result = tc.solve(problem, auto_races.ParameterFree(name), steps=3000, seeds=2)
    assert np.all(np.abs(result.theta - 1) < 0.5)
