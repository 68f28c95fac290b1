"""What a first call does not do: import pandas, and trace what a method of this library does to its own state."""

import re
import subprocess
import sys

import jax
import numpy as np

import twoclock as tc
from twoclock.codegen import CodeTarget
from twoclock.engine import lane_program
from twoclock.engine.run_batch import Lanes, make_instances
from twoclock.methods.zap import Zap


def test_a_run_imports_pandas_only_for_its_table():
    code = (
        "import sys, twoclock as tc\n"
        "result = tc.solve(tc.problems.quadratic(dim=2), steps=200, seeds=3)\n"
        "assert result.metrics and 'pandas' not in sys.modules\n"
        "assert result.history.shape[0] == 3 * len(result.spec['marks']) and 'pandas' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_what_is_reported_at_the_end_is_the_last_row_of_each_seed_of_the_table():
    result = tc.solve(tc.problems.quadratic(dim=2), tc.Zap(), steps=500, seeds=4)
    before = result._reported()  # of the rows
    last = result.history.groupby("seed").tail(1)
    assert set(before) == set(result.metrics) == set(result._reported())
    for name, values in before.items():
        np.testing.assert_array_equal(values, last[name])


def test_no_step_of_zap_is_compiled_that_refines(monkeypatch):
    """Its equations are solved by NumPy, so that tracing them would be time lost."""
    seen = []
    refine = Zap.refine

    def noted(self, state, k):
        seen.append(type(state.curved))
        return refine(self, state, k)

    monkeypatch.setattr(Zap, "refine", noted)
    tc.solve(tc.problems.quadratic(dim=2), steps=2000, seeds=2, engine="c")
    assert set(seen) == {np.ndarray}


def program(problem, method, width=8):
    with jax.enable_x64(True):
        lanes = Lanes.of(make_instances(problem, range(8)), [method], range(8), None)
        carry = lane_program._example(lanes).carry
        return lane_program.usual_source(lanes, CodeTarget(width)).source.text, carry


def test_the_draws_of_a_step_are_one_loop_so_that_their_code_is_compiled_once():
    for dim in (5, 10, 50):  # up to four draws are written out
        text, _ = program(tc.problems.quadratic(dim=dim), tc.Fast())
        assert text.count(",24)") == 2 * 2  # two hashes, of the step's key and of a draw, of 20 rounds each


def test_a_state_that_no_step_reads_or_changes_is_neither_loaded_nor_checked():
    text, carry = program(tc.problems.quadratic(dim=7), tc.methods.Auto())
    loaded = {int(number) for number in re.findall(r"leaves\[(\d+)\]", text)}
    numbers = jax.tree.unflatten(jax.tree.structure(carry), range(len(jax.tree.leaves(carry))))
    model = numbers.state.model
    assert {*jax.tree.leaves(model.c), model.cov, model.count, numbers.alive} <= loaded
    # The Jacobian is taken at step 0, which is not one of these steps, and the earlier model is for moves alone.
    untouched = {*jax.tree.leaves(numbers.state.trial.model), *jax.tree.leaves(model.J), model.late_J, model.spread}
    assert not untouched & loaded
