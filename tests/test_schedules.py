import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import twoclock as tc
from twoclock.schedules import as_schedule, parse


def test_values():
    assert tc.Constant(0.3)(9) == 0.3
    assert tc.Power(2.0, p=0.5, shift=4.0)(5) == 2 / 3
    assert tc.Power(1.0, floor=0.25)(1) == 0.5
    assert tc.Power(1.0, floor=0.25)(100) == 0.25


@pytest.mark.parametrize("text", ["0.5", "0.8/(k+10)", "2/(k+100)^0.5", "max(1/(k+1), 0.05)", "max(1/(k+4)^0.25, 0.1)"])
def test_text_goes_there_and_back(text):
    assert str(parse(text)) == text


def test_text_means_what_it_says():
    schedule = parse("max(0.8/(k+10)^0.5, 0.01)")
    assert schedule(6) == 0.8 / 4
    assert schedule(10**9) == 0.01


@jax.numpy_dtype_promotion("standard")  # optax relies on it
def test_anything_callable_will_do():
    cosine = optax.cosine_decay_schedule(0.1, 100)
    schedule = as_schedule(cosine, "alpha")
    np.testing.assert_allclose(schedule(50), 0.05, rtol=1e-6)
    method = tc.Fast(alpha=cosine, beta=lambda k: 1 / (k + 2.0), lam=0.5)
    assert method.beta(2) == 0.25
    problem = tc.problems.quadratic(dim=2)
    assert np.isfinite(tc.solve(problem, method, steps=50, seeds=2).theta).all()


def test_numbers_are_leaves():
    assert jax.tree.leaves(tc.Power(1.0, p=0.5, shift=2.0)) == [1.0, 0.5, 2.0, 0.0]
    grid = jax.vmap(lambda c: tc.Power(c)(1))(jnp.asarray([1.0, 2.0]))
    assert grid.tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tc.Power(1.0, p=1.5), r"`Power\(p=…\)` must lie in \[0, 1\], got 1.5; for a constant"),
        (lambda: tc.Power(-1.0), r"`Power\(c=…\)` must .* got -1"),
        (lambda: tc.Power(1.0, shift=0.0), r"`Power\(shift=…\)` must be positive, got 0"),
        (lambda: tc.Constant(float("nan")), r"`Constant\(c=…\)` must be a finite number"),
        (lambda: tc.Constant("fast"), r"`Constant\(c=…\)` must be a number"),
        (lambda: tc.Constant(np.ones(3)), r"must be one number, got an array of shape \(3,\)"),
        (lambda: tc.Fast(alpha=[1.0]), "`alpha` must be a number, a schedule or a function"),
        (lambda: tc.Fast(alpha="one"), "`alpha` is not a schedule: 'one'; write a number"),
        (lambda: tc.Polyak(tc.Fast(), power=-1.0), r"`Polyak\(power=…\)`"),
        (lambda: tc.Polyak(0.5), r"`Polyak\(method=…\)` must be a method"),
    ],
)
def test_bad_input_is_one_line(make, words):
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
