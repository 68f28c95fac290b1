"""Branches that depend on the step number alone and are taken rarely: C is made without them, XLA takes those steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.engine import c_engine, engines
from twoclock.engine.rare_branches import RareSteps, spans

K = jax.ShapeDtypeStruct((), np.int32)
X = jax.ShapeDtypeStruct((3,), np.float64)


def rare_steps(predicate, other=lambda x: jnp.linalg.inv(jnp.diag(x)) @ x):
    def step(x, k):
        return jax.lax.cond(predicate(x, k), other, lambda x: 2 * x, x)

    return RareSteps(step, (X, K), number=1)


@pytest.mark.parametrize(
    "predicate",
    [
        lambda x, k: k % 100 == 3,
        lambda x, k: (k & (k - 1) == 0) & (k > 4),
        lambda x, k: jnp.asarray([1000, 70], jnp.int32)[k % 2] == k,
    ],
)
def test_rare_steps_are_those_that_the_predicate_names(predicate):
    rare = rare_steps(predicate)
    expected = [k for k in range(2_000) if predicate(None, jnp.int32(k))]
    assert rare
    assert rare.between(0, 2_000) == expected
    assert rare.between(50, 1_001) == [k for k in expected if 50 <= k < 1_001]
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(rare.usual(x, jnp.int32(expected[0])), 2 * x)


def test_a_branch_that_most_steps_take_is_the_usual_one():
    rare = rare_steps(lambda x, k: k % 200 != 7, other=lambda x: 3 * x)
    assert rare.between(0, 500) == [7, 207, 407]
    np.testing.assert_array_equal(rare.usual(jnp.ones(3), jnp.int32(7)), 3 * np.ones(3))


@pytest.mark.parametrize(
    "predicate",
    [lambda x, k: k % 10 == 3, lambda x, k: (k % 100 == 3) & (x[0] > 0), lambda x, k: x[0] > 0, lambda x, k: k < 0],
)
def test_branches_that_are_common_or_depend_on_the_state_stay(predicate):
    assert not rare_steps(predicate)


def test_spans_cut_around_each_rare_step():
    assert list(spans(0, 10, [0, 4, 5, 9])) == [(0, 1), (1, 4), (4, 5), (5, 6), (6, 9), (9, 10)]
    assert list(spans(3, 5, [])) == [(3, 5)]


def test_the_default_agrees_on_c_and_on_xla_and_does_not_depend_on_marks():
    problem = tc.problems.quadratic(dim=2)
    on_xla, on_c, marked = (
        tc.solve(problem, None, 700, 3, marks=marks, engine=engine)
        for engine, marks in (("xla", None), ("c", None), ("c", [63, 64, 65, 127, 700]))
    )
    assert on_c.spec["engine"] == "c"
    np.testing.assert_allclose(on_c.theta, on_xla.theta, rtol=1e-6)
    np.testing.assert_array_equal(on_c.theta, marked.theta)
    alone = tc.solve(problem, None, 700, [1], engine="c")
    np.testing.assert_array_equal(on_c.theta[1:2], alone.theta)
    again = tc.solve(problem, None, 700, 3, start=tc.solve(problem, None, 64, 3, engine="c"))
    np.testing.assert_array_equal(on_c.theta, again.theta)


def test_a_program_that_is_called_again_and_again_is_compiled(monkeypatch):
    monkeypatch.setattr(engines, "_spent", {})
    problem, ran = tc.problems.quadratic(dim=2), []
    seconds = 2e4 * 2.0e-6  # what XLA takes for a call, about
    for _ in range(int(3 * engines.WORTH_COMPILING / seconds)):
        ran.append(tc.solve(problem, tc.Fast(), 2e4, 1, marks=[0], engine="auto").spec["engine"])
        if ran[-1] == "c":
            break
    assert ran[-1] == "c"
    assert len(ran) > 2


def test_a_long_program_is_not_compiled_for_a_short_run(monkeypatch):
    monkeypatch.setattr(engines, "_spent", {})
    monkeypatch.setattr(engines, "WORTH_COMPILING", 0.0)
    run = tc.solve(tc.problems.quadratic(dim=2), None, 20, 1, engine="auto")
    assert run.spec["engine_reason"] == c_engine.TOO_SHORT
