"""The nests of the experiment on clocks are what they are said to be, and its rules follow the records."""

import jax
import numpy as np
import pytest

import made_up
from reproduction.experiments import clocks
from reproduction.verdicts import kind


@pytest.mark.parametrize("levels", [2, 3, 4])
def test_a_nest_is_solved_in_its_order_and_unstable_on_one_clock(levels):
    """The Jacobian by derivatives; with the later levels solved for, each level has the slope 1 in its own variable."""
    problem = clocks.nest(levels)

    def joint(x):
        at = [x[i] * np.ones(3) for i in range(levels)]
        silent = np.zeros((levels, 3))
        parts = (problem.F(at[0], tuple(at[1:]), silent), *problem.G(at[0], tuple(at[1:]), silent))
        return jax.numpy.stack([part[0] for part in parts])

    with jax.enable_x64(True):
        A = np.asarray(jax.jacobian(joint)(np.zeros(levels)))
    for i in range(levels):
        inner = A[i:, i:]
        schur = inner[0, 0] - inner[0, 1:] @ np.linalg.solve(inner[1:, 1:], inner[1:, 0]) if i < levels - 1 else A[i, i]
        assert schur == pytest.approx(1)
    assert np.linalg.eigvals(A).real.min() < 0
    clock = np.diag(clocks._RATIO ** np.arange(levels))
    assert np.linalg.eigvals(clock @ A).real.min() > 0.5


@pytest.mark.parametrize(("power", "wanted"), [(1.0, "yes"), (0.6, "no")])
def test_a_rate_is_judged_by_its_slope(power, wanted):
    with jax.enable_x64(True):
        cases = clocks.cases(quick=False)
    records = made_up.records(cases, lambda case, method, k: (1 + k) ** -power)
    found = {claim.name: claim for claim in clocks.claims(records)}
    assert kind(found["fast one order"].verdict) == wanted
    assert kind(found["single clock"].verdict) == "no"
