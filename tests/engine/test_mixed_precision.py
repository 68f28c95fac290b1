"""F and G in bfloat16 on float32 iterates: ``precision="bfloat16"``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

RNG = np.random.default_rng(0)
A = RNG.normal(size=(3, 3)) / 3 + np.eye(3)


def linear():
    """ω follows θ and θ solves Aθ = 1."""
    return tc.problems.custom(
        F=lambda theta, omega, x: jnp.asarray(A, omega.dtype) @ omega - 1,
        G=lambda theta, omega, x: omega - theta + x / 10,
        noise=lambda key: jax.random.normal(key, (3,)),
        theta=np.zeros(3),
        omega=np.zeros(3),
        measure=lambda theta, omega: {"error": jnp.sum((theta - np.linalg.solve(A, np.ones(3))) ** 2)},
    )


METHOD = tc.Polyak(tc.Standard("2/(k+10)^0.7", "4/(k+10)^0.7"))


def test_products_are_of_bfloat16_and_all_that_is_carried_is_float32():
    seen = set()

    def F(theta, omega, x):
        seen.add(str(jnp.result_type(theta, omega, x)))
        return omega - 1

    problem = tc.problems.custom(
        F=F, G=lambda theta, omega, x: omega - theta + x, noise=jax.random.normal, theta=0.0, omega=0.0
    )
    result = tc.solve(problem, METHOD, steps=50, seeds=2, precision="bfloat16")
    assert seen == {"bfloat16"}
    assert result.theta.dtype == np.float32
    assert all(leaf.dtype != jnp.bfloat16 for leaf in result.end.carry)


def test_the_solution_is_that_of_float32_up_to_the_rounding_of_the_operators():
    """F is rounded to 2⁻⁸ of its parts; the averages of 3,000 roundings stay well below that."""
    single, mixed = (
        tc.solve(linear(), METHOD, steps=3000, seeds=4, precision=precision) for precision in ("float32", "bfloat16")
    )
    assert 1e-6 < np.abs(mixed.theta - single.theta).max() < 0.02
    assert mixed.history["error"].iloc[-1] < 0.01


def test_each_seed_may_have_a_problem_of_its_own():
    """The numbers of the problem are cast too: under strict promotion a float32 matrix would be an error."""
    source = tc.problems.random_policy_evaluation
    single, mixed = (
        tc.solve(source, tc.Fast(), steps=1000, seeds=4, precision=precision).history.query("step == 1000")["error"]
        for precision in ("float32", "bfloat16")
    )
    assert not np.array_equal(single, mixed)
    np.testing.assert_allclose(mixed, single, rtol=0.1)


def test_small_steps_are_not_lost_although_bfloat16_has_eight_bits():
    """Steps of 1e-5 on θ near 1 are below its last bit in bfloat16, and in float32 compensated."""
    problem = tc.problems.custom(
        F=lambda theta, omega, x: jnp.ones_like(theta),
        G=lambda theta, omega, x: omega,
        noise=lambda key: jnp.zeros(()),
        theta=1.0,
        omega=0.0,
    )
    result = tc.solve(problem, tc.Standard(1e-5, 0.1), steps=1000, seeds=1, precision="bfloat16")
    assert result.theta[0] == pytest.approx(0.99, abs=1e-6)


def test_a_record_keeps_it_and_a_run_continues_in_it(tmp_path):
    problem = linear()
    whole = tc.solve(problem, METHOD, steps=200, seeds=2, precision="bfloat16")
    half = tc.solve(problem, METHOD, steps=100, seeds=2, precision="bfloat16")
    half.save(tmp_path / "half")
    again = tc.solve(
        problem, METHOD, steps=200, seeds=2, precision="bfloat16", start=tc.load(tmp_path / "half"), marks=[0, 100, 200]
    )
    np.testing.assert_array_equal(again.theta, whole.theta)
    with pytest.raises(tc.InputError, match="precision"):
        tc.solve(problem, METHOD, steps=200, seeds=2, precision="float32", start=tc.load(tmp_path / "half"))


def test_the_default_and_sweeps_refuse_it_in_one_line():
    with pytest.raises(tc.InputError, match='or precision="float32"'):
        tc.solve(linear(), steps=10, precision="bfloat16")
    with pytest.raises(tc.InputError, match="`precision` must be"):
        tc.sweep({"a": linear()}, {"m": METHOD}, steps=10, precision="bfloat16")
    with pytest.raises(tc.InputError, match="`precision` must be"):
        tc.Learner(lambda t, w, x: w, lambda t, w, x: w - t + x, METHOD, theta=0.0, omega=0.0, precision="bfloat16")
