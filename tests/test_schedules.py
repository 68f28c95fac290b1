import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import twoclock as tc
from twoclock.param_paths import with_settings
from twoclock.schedules import as_schedule, parse


def test_values():
    assert tc.Constant(0.3)(9) == 0.3
    assert tc.Power(2.0, p=0.5, shift=4.0)(5) == 2 / 3
    assert tc.Power(1.0, floor=0.25)(1) == 0.5
    assert tc.Power(1.0, floor=0.25)(100) == 0.25


@pytest.mark.parametrize("text", ["0.5", "0.8/(k+10)", "2/(k+100)^0.5", "max(1/(k+1), 0.05)", "max(1/(k+4)^0.25, 0.1)"])
def test_text_form_round_trips(text):
    assert str(parse(text)) == text


def test_text_form_is_parsed():
    schedule = parse("max(0.8/(k+10)^0.5, 0.01)")
    assert schedule(6) == 0.8 / 4
    assert schedule(10**9) == 0.01


@jax.numpy_dtype_promotion("standard")  # optax relies on it
def test_any_callable_is_a_schedule():
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


NUMBER = "must be a finite number that is not negative, got"
TEXT = "is not a schedule: .*; write a number, `c/\\(k\\+shift\\)\\^p` or"
BAD = {
    "power p": (lambda: tc.Power(1.0, p=1.5), r"`Power\(p=…\)` must lie in \[0, 1\], got 1.5; for a constant"),
    "power c": (lambda: tc.Power(-1.0), rf"`Power\(c=…\)` {NUMBER} -1"),
    "power shift": (lambda: tc.Power(1.0, shift=0.0), r"`Power\(shift=…\)` must be positive, got 0"),
    "power floor": (lambda: tc.Power(1.0, floor=-1.0), rf"`Power\(floor=…\)` {NUMBER} -1"),
    "power text": (lambda: tc.Power("0.5"), r"`Power\(c=…\)` must be a number, got '0.5'"),
    "power bool": (lambda: tc.Power(True), r"`Power\(c=…\)` must be a number, got True"),
    "power none": (lambda: tc.Power(1.0, p=None), r"`Power\(p=…\)` must be a number, got None"),
    "power complex": (lambda: tc.Power(1j), r"`Power\(c=…\)` must be a number, got 1j"),
    "constant nan": (lambda: tc.Constant(float("nan")), rf"`Constant\(c=…\)` {NUMBER} nan"),
    "constant inf": (lambda: tc.Constant(float("inf")), rf"`Constant\(c=…\)` {NUMBER} inf"),
    "constant text": (lambda: tc.Constant("fast"), r"`Constant\(c=…\)` must be a number, got 'fast'"),
    "constant array": (lambda: tc.Constant(np.ones(3)), r"must be one number, got an array of shape \(3,\)"),
    "list": (lambda: tc.Fast(alpha=[1.0]), "`alpha` must be one schedule, got a sequence of 1; write the number"),
    "none": (lambda: tc.Fast(alpha=None), "`alpha` must be a number, a schedule or a function .* got NoneType"),
    "bool": (lambda: tc.Fast(alpha=True), "`alpha` must be a number, a schedule or a function .* got bool"),
    "complex": (lambda: tc.Standard(beta=1j), "`beta` must be a number, a schedule or a function .* got complex"),
    "nan": (lambda: tc.Fast(beta=float("nan")), f"`beta` {NUMBER} nan"),
    "negative": (lambda: tc.Standard(alpha=-0.1), f"`alpha` {NUMBER} -0.1"),
    "array": (lambda: tc.Standard(alpha=np.ones(2)), r"`alpha` must be one number, got an array .* use `tc.grid`"),
    "array of one bool": (lambda: tc.Standard(np.bool(1)), "`alpha` must be a number, got"),
    "class": (lambda: tc.Fast(alpha=tc.Power), r"`alpha` must be a schedule, got the class Power; call it, `Power\("),
    "method": (lambda: tc.Fast(alpha=tc.Fast()), "`alpha` must be a number, a schedule or a function .* got Fast"),
    "infinite at 0": (lambda: tc.Standard(lambda k: 1 / k), "`alpha` must be finite and not negative, got inf at k=0"),
    "negative at 0": (lambda: tc.Standard(lambda k: -1 / (k + 1)), "`alpha` must be finite .*, got -1 at k=0"),
    "a word": (lambda: tc.Fast(alpha="one"), f"`alpha` {TEXT}"),
    "empty": (lambda: tc.Fast(alpha=""), f"`alpha` {TEXT}"),
    "1/k": (lambda: tc.Fast(alpha="1/k"), r"`alpha` must be finite at k=0, where '1/k' is not; write `1/\(k\+1\)`"),
    "2/k^0.5": (lambda: tc.Fast(beta="2 / k^0.5"), r"`beta` .* '2 / k\^0.5' is not; write `2/\(k\+1\)\^0.5`"),
    "max of 1/(k)": (lambda: tc.Fast(lam="max(1/(k), 0.1)"), r"`lam` must be finite .* write `1/\(k\+1\)`"),
    "open": (lambda: tc.Fast(alpha="1/(k"), f"`alpha` {TEXT}"),
    "closed": (lambda: tc.Fast(alpha="1/k+1)"), f"`alpha` {TEXT}"),
    "no parentheses": (lambda: tc.Fast(alpha="1/k+1"), f"`alpha` {TEXT}"),
    "two points": (lambda: tc.Fast(alpha="1.2.3/(k+1)"), f"`alpha` {TEXT}"),
    "max of a number": (lambda: tc.Fast(alpha="max(1, 2)"), f"`alpha` {TEXT}"),
    "text negative": (lambda: tc.Fast(alpha="-1/(k+1)"), rf"`Power\(c=…\)` {NUMBER} -1"),
    "text shift": (lambda: tc.Fast(alpha="1/(k+0)"), r"`Power\(shift=…\)` must be positive, got 0"),
    "text nan": (lambda: tc.Fast(alpha="nan"), rf"`Constant\(c=…\)` {NUMBER} nan"),
    "λ constant": (lambda: tc.Fast(lam=1.5), "`lam` must not exceed 1, got 1.5 at k=0; take a smaller constant"),
    "λ power": (lambda: tc.Fast(lam="30/(k+20)"), "`lam` must not exceed 1, got 1.5 at k=0"),
    "λ floor": (lambda: tc.Fast(lam=tc.Power(1.0, floor=2.0)), "`lam` must not exceed 1, got 2 at k=0"),
    "λ function": (lambda: tc.Fast(lam=lambda k: 1.25 - k / 8), "`lam` must not exceed 1, got 1.25 at k=0"),
    "λ_g": (lambda: tc.Fast(lam_g=2), "`lam_g` must not exceed 1, got 2 at k=0"),
    "order": (lambda: tc.Fast(order="old"), r"`Fast\(order=…\)` must be 'paper', 'fresh' or 'fresh-g', got 'old'"),
    "power of a mean": (lambda: tc.Polyak(tc.Fast(), power=-1.0), rf"`Polyak\(power=…\)` {NUMBER} -1"),
    "power as text": (lambda: tc.Polyak(power="2"), r"`Polyak\(power=…\)` must be a number, got '2'"),
    "power infinite": (lambda: tc.Polyak(power=float("inf")), rf"`Polyak\(power=…\)` {NUMBER} inf"),
    "mean of a number": (lambda: tc.Polyak(0.5), r"`Polyak\(method=…\)` must have init, step and estimate, got float"),
    "mean of a class": (lambda: tc.Polyak(tc.Fast), r"`Polyak\(method=…\)` .* the class Fast; call it, `Fast\(\)`"),
    "plug in a class": (lambda: tc.PlugIn(tc.Standard), r"`PlugIn\(method=…\)` .* the class Standard; call it"),
    "plug in a number": (lambda: tc.PlugIn(tc.Fast(), 3), r"`PlugIn\(model=…\)` must have prior, statistic and solve"),
    "norm": (lambda: tc.methods.averaged_tdc(0.0), "`mean_sq_feature_norm` must be positive, got 0; it is the mean"),
    "norm as text": (lambda: tc.methods.averaged_tdc("5"), "`mean_sq_feature_norm` must be a number, got '5'"),
    "norm nan": (lambda: tc.methods.averaged_tdc(float("nan")), "`mean_sq_feature_norm` must be positive, got nan"),
    "norms": (lambda: tc.methods.averaged_tdc(np.ones(2)), r"`mean_sq_feature_norm` must be one number, got an array"),
    "ttsa": (lambda: tc.methods.ttsa(-1.0, 1.0), "`alpha` must be a finite number of at least 0, got -1"),
    "soba": (lambda: tc.methods.soba("1/k", 1.0), "`alpha` must be finite at k=0"),
    "ma-soba": (lambda: tc.methods.ma_soba(0.1, 0.1, 1.1), "`lam` must not exceed 1"),
    "sgda": (lambda: tc.methods.sgda(0.1, None), "`beta` must be a number, a schedule or a function"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    make, words = BAD[case]
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_weight_of_one_and_a_function_that_fails_pass_the_constructor():
    """λ = 1 is the standard method; the run reports what is wrong inside a function."""
    assert tc.Fast(lam=1.0, lam_g="2/(k+2)").lam(0) == 1
    assert callable(tc.Fast(lam=lambda k: undefined).lam)  # noqa: F821


def test_settings_are_changed_together():
    """Neither 400/(k+160) nor 40/(k+1600) on the way from one to the other is asked for."""
    new = with_settings(tc.Fast(lam="1/(k+1)"), {"lam.c": 400.0, "lam.shift": 1600.0})
    assert str(new.lam) == "400/(k+1600)"
    assert str(with_settings(tc.Fast(), {"lam": "2/(k+8)", "lam.c": 4.0}).lam) == "4/(k+8)"


@pytest.mark.parametrize("text", ["1e-400", "1e-400/(k+1)", "1/(k+1e-999)", "max(1/(k+1), 2.5e-400)"])
def test_a_number_below_all_floats_is_refused(text):
    with pytest.raises(tc.InputError, match=r"`alpha` is .*, and .*e-\d+ is too small for a float; write 0"):
        tc.Standard(alpha=text)
