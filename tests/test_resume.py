"""Continuing a run for more steps, bit-for-bit identical to one long run."""

import pickle

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock.codegen import compiler

METHOD = tc.Polyak(tc.Fast())
MARKS = [0, 50, 100, 160, 250]


def problem():
    """A Markov chain: its environment continues too."""
    return tc.problems.custom(
        F=lambda theta, omega, x: omega - 1,
        G=lambda theta, omega, x: omega - theta + x,
        noise=lambda key: jax.random.normal(key),
        draw=lambda u, theta, env: (0.9 * env + u, 0.9 * env + u),
        theta=0.0, omega=0.0, env=0.0, measure=lambda theta, omega: {"error": (theta - 1) ** 2},
    )  # fmt: skip


P = problem()


@pytest.fixture(scope="module")
def whole():
    with jax.enable_x64(True):
        return tc.solve(P, METHOD, steps=250, seeds=[4, 7], marks=MARKS)


@pytest.fixture(scope="module")
def first():
    with jax.enable_x64(True):
        return tc.solve(P, METHOD, steps=100, seeds=[4, 7], marks=MARKS[:3])


def test_to_the_bits_of_one_long_run(whole, first, tmp_path):
    """From memory, from disk, and in two legs."""
    first.save(tmp_path)
    for start in (first, tc.load(tmp_path), pickle.loads(pickle.dumps(first))):
        assert tc.solve(P, METHOD, steps=250, seeds=[4, 7], marks=MARKS, start=start) == whole
    second = tc.solve(P, METHOD, steps=160, seeds=[4, 7], start=first, marks=[160])
    again = tc.solve(P, METHOD, steps=250, seeds=[4, 7], start=second, marks=[250])
    assert again == whole
    assert all(map(np.array_equal, again.end.carry, whole.end.carry))


def test_marks_are_joined(first):
    """Ten a decade from the step on; those before are what was recorded."""
    steps = []
    result = tc.solve(P, METHOD, 250, [4, 7], start=first, progress=lambda tick: steps.append(tick.step))
    assert result.history["step"].unique().tolist() == [0, 50, 100, 126, 158, 200, 250]
    assert min(steps) == 100


def test_several_methods_and_a_checkpoint(tmp_path):
    methods = {"fast": tc.Fast(), "slower": tc.Fast(alpha=0.01), "standard": tc.Standard()}
    run = {"problem": P, "method": methods, "seeds": 2}
    first = tc.solve(**run, steps=100, marks=[100])
    on = tc.solve(**run, steps=200, marks=[100, 200], start=first, checkpoint=tmp_path)
    assert on == tc.solve(**run, steps=200, marks=[100, 200])
    assert on == tc.solve(**run, steps=200, marks=[100, 200], start=first, checkpoint=tmp_path)
    with pytest.raises(tc.InputError, match=r"`start` must be a mapping with a result for each of 'fast', 'slower'"):
        tc.solve(**run, steps=200, start={"fast": first["fast"]})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"problem": tc.problems.quadratic(dim=2)},
            "its problem differs: Custom there, Quadratic here; use the same arg",
        ),
        ({"problem": problem()}, None),
        (
            {"method": tc.Polyak(tc.Fast(alpha=0.01))},
            r"its method differs: method\.alpha is 2/\(k\+20\) there and 0\.01 h",
        ),
        ({"seeds": 2}, r"its seeds differ: \[4, 7\] there, \[0, 1\] here; write `seeds=\[4, 7\]` to continue it"),
        ({"precision": "float32"}, "its precision differs: float64 there, float32 here; write `precision='float64'`"),
        ({"bound": 9.0}, "its bound differs: None there, 9.0 here"),
        ({"steps": 60}, "`steps` must be the new total, at least the 100 where `start` stopped, got 60"),
        ({"marks": [70, 110]}, "`marks` up to 100 must be those of `start`, which has none at 70; leave them out"),
        ({"start": 3}, "`start` must be a result of `solve`, got 3"),
    ],
)
def test_another_run_is_refused(first, changed, says):
    run = {"problem": P, "method": METHOD, "steps": 250, "seeds": [4, 7], "start": first, **changed}
    if says is None:  # the same computation, written again
        assert tc.solve(**run).last_step.tolist() == [250, 250]
        return
    with pytest.raises(tc.InputError, match=says) as error:
        tc.solve(**run)
    assert "\n" not in str(error.value)


def test_a_function_that_computes_something_else_since_the_run_is_noticed(tmp_path):
    """Its identity is asked for later, in another cell, say, after a number that F reads was changed."""
    target = {"at": 1.0}
    problem = tc.problems.custom(
        F=lambda theta, omega, x: theta - omega - target["at"], G=lambda theta, omega, x: omega - x,
        noise=lambda key: jax.random.normal(key, (2,)), theta=np.zeros(2), omega=np.zeros(2),
    )  # fmt: skip
    run = {"problem": problem, "method": tc.Standard(0.1, 0.1), "seeds": 2, "marks": [100]}
    first = tc.solve(**run, steps=100)
    longer = {**run, "steps": 200, "marks": [100, 200]}
    whole = tc.solve(**longer)
    target["at"] = 5.0
    says = "`start` is of another run: its problem differs, in numbers or code that its description leaves out; use the"
    with pytest.raises(tc.InputError, match=says):
        tc.solve(**longer, start=first)
    saved = tc.load(first.save(tmp_path / "record"))
    with pytest.raises(tc.InputError, match=says):
        tc.solve(**longer, start=saved)
    target["at"] = 1.0
    assert tc.solve(**longer, start=first) == whole
    assert tc.solve(**longer, start=tc.load(first.save(tmp_path / "again"))) == whole


def test_a_renamed_metric_is_another_run(tmp_path):
    def named(name):
        return tc.problems.custom(
            F=lambda theta, omega, x: omega - 1, G=lambda theta, omega, x: omega - theta + x, theta=0.0, omega=0.0,
            noise=lambda key: jax.random.normal(key), measure=lambda theta, omega: {name: theta**2},
        )  # fmt: skip

    first = tc.solve(named("a"), tc.Fast(), 50, 2, checkpoint=tmp_path / "run")
    for start in (first, tc.load(first.save(tmp_path / "record"))):
        with pytest.raises(tc.InputError, match=r"its metrics differ: \['a'.*\] there, \['b'.*\] here"):
            tc.solve(named("b"), tc.Fast(), 100, 2, start=start)
    with pytest.raises(tc.InputError, match=r"its metrics differ: \['a'.*\] there, \['b'.*\] here"):
        tc.solve(named("b"), tc.Fast(), 50, 2, checkpoint=tmp_path / "run")


@pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")
def test_it_goes_on_with_the_engine_that_it_ran_on():
    run = {"problem": P, "method": tc.Fast(), "seeds": 2}
    first = tc.solve(**run, steps=100, marks=[100], engine="c")
    on = tc.solve(**run, steps=200, marks=[100, 200], start=first)
    assert on.spec["engine"] == "c"
    assert on == tc.solve(**run, steps=200, marks=[100, 200], engine="c")
