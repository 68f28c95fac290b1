"""Harder policy evaluation: its tasks are what they are said to be, and its verdicts follow from the records."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest, t

import made_up
import twoclock as tc
from reproduction.experiments import hard_policy_evaluation as beyond
from twoclock.problems import long_walk, ring
from twoclock.protocols import InputError
from twoclock.sampling.transitions import student


@pytest.mark.parametrize("nu", [2.5, 3.0, 30.0])
def test_noise_is_students_t(nu):
    with jax.enable_x64(True):
        words = jax.random.bits(jax.random.key(1), (2, 20_000), jnp.uint32)
        values = np.asarray(student(words[0], words[1], jnp.float64(nu)))
    assert kstest(values, t(nu).cdf).pvalue > 0.01


def test_reward_noise_and_spread_of_a_random_mdp():
    sizes = {"states": 5, "actions": 3, "features": 4, "sampling": "markov"}
    with jax.enable_x64(True):
        plain, heavy, wide = jax.jit(
            lambda key: [
                tc.problems.random_policy_evaluation(key, **sizes, **options)
                for options in ({}, {"reward_noise": 0.5, "nu": 5.0}, {"spread": 8.0})
            ]
        )(jax.random.key(3))

        def reward(key):
            u = heavy.noise(key)
            x, _ = heavy.draw(u, None, jnp.int32(2))
            return x.r, plain.draw(u[:2], None, jnp.int32(2))[0].r

        noisy, exact = (np.asarray(r) for r in jax.jit(jax.vmap(reward))(jax.random.split(jax.random.key(0), 20_000)))
    assert kstest((noisy - exact) / 0.5, t(5.0).cdf).pvalue > 0.01
    np.testing.assert_array_equal(heavy.truth.theta_star, plain.truth.theta_star)
    np.testing.assert_allclose(wide.features, np.asarray(plain.features) * np.geomspace(1, 1 / 8, 4), rtol=1e-12)
    np.testing.assert_allclose(wide.truth.theta_star, plain.truth.theta_star, rtol=1e-6)  # in the span of the features


@pytest.mark.parametrize(
    ("options", "word"), [({"spread": 0.5}, "spread"), ({"nu": 2.0}, "nu"), ({"reward_noise": -1.0}, "reward_noise")]
)
def test_wrong_numbers_are_one_line(options, word):
    with pytest.raises(InputError, match=word):
        tc.problems.random_policy_evaluation(jax.random.key(0), states=3, actions=2, features=2, **options)


def test_the_chains_are_what_they_are_said_to_be():
    problem = ring()
    np.testing.assert_allclose(problem.truth.weights, 1 / 40, rtol=1e-9)
    np.testing.assert_allclose(problem.truth.C, np.diag([1.0] + [0.5] * 8), atol=1e-12)
    walk = long_walk()
    np.testing.assert_allclose(walk.truth.values, np.arange(-9, 10) / 10, atol=1e-9)
    np.testing.assert_allclose(walk.truth.theta_star, walk.truth.values, atol=1e-8)
    assert beyond.panels()["ring"].square == pytest.approx(5.0)
    assert beyond.panels()["walk"].square == pytest.approx(1.0)


def records(error):
    """LSTD's error is 1/k, that of a method in a case error(case, method)/k."""
    return made_up.records(
        beyond.cases(quick=False),
        lambda case, method, k: (1.0 if method == beyond.LSTD else error(case, method)) / (1 + k),
    )


@pytest.mark.parametrize(("ratio", "verdict"), [(1.2, "reproduced"), (1.4, "not reproduced")])
@pytest.mark.parametrize(("fast", "beats"), [(0.8, "reproduced"), (1.0, "not reproduced"), (1.2, "not reproduced")])
def test_verdicts_from_both_sides(ratio, verdict, fast, beats):
    def error(case, method):
        return ratio if method == beyond.ONE else 3.0 * (fast if method == beyond.FAST else 1.0)

    found = records(error)
    claims = beyond.claims(found)
    assert {claim.verdict for claim in claims if "nearly as good" in claim.name} == {verdict}
    assert {claim.verdict for claim in claims if "beats TDC" in claim.name} == {beats}
    assert len(claims) == 1 + 2 * len(beyond.panels())
    assert claims[0].verdict == verdict  # of all tasks together
    assert f"{ratio:.2g}" in beyond.captions(found)["fig1-beyond"]
    assert set(beyond.draw(found)) == set(beyond.ALT)
    assert len(beyond.advice(found)) == 1
