"""What a first call does not do: import pandas, and trace what a method of this library does to its own state."""

import subprocess
import sys

import numpy as np

import twoclock as tc
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
