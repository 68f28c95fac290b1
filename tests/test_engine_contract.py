"""Every problem with every method of the catalogue: after 10,000 steps the engine c is where XLA is, to rounding."""

import functools

import jax
import numpy as np
import pytest

from twoclock import catalogue
from twoclock.engine import compiler
from twoclock.engine.cpu import C
from twoclock.engine.drive import drive
from twoclock.engine.instances import instances
from twoclock.engine.lanes import Lanes
from twoclock.engine.xla import Xla

pytestmark = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")

METHODS = catalogue.methods()
PROBLEMS = catalogue.problems()
STEPS, SEEDS = 10_000, (0, 7)
# Smaller than by default, so that the test is short: what is generated is the same, only less of it.
SETTINGS = {
    "random_policy_evaluation": {"states": 5, "actions": 2, "features": 3},
    "random_entropy_mdp": {"states": 3, "actions": 2},
    "quadratic": {"dim": 2},
    "quadratic_bilevel": {"dim_x": 2, "dim_y": 2, "samples": 16, "batch": 2},
    "quadratic_minimax": {"dim_x": 2, "dim_y": 2, "samples": 16, "batch": 2},
}


@functools.cache
def instance(name):
    with jax.enable_x64(True):
        return instances(PROBLEMS[name](**SETTINGS.get(name, {})), SEEDS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_agrees_with_xla_to_rounding(problem, method):
    """A tenth of the default steps, where a method has any: a run that blows up says nothing of rounding."""
    small = jax.tree.map(lambda leaf: 0.1 * leaf if np.ndim(leaf) == 0 else leaf, METHODS[method]())
    lanes = Lanes.of(instance(problem), [small], SEEDS, 1e3)
    c = drive(lanes, [STEPS], engine=C())
    if c.engine != "c":
        pytest.skip(c.engine_reason)
    xla = drive(lanes, [STEPS], engine=Xla())
    np.testing.assert_array_equal(c.carry.alive, xla.carry.alive)
    np.testing.assert_array_equal(c.carry.last, xla.carry.last)
    for got, want in zip(jax.tree.leaves(c.carry), jax.tree.leaves(xla.carry), strict=True):
        if want.size:
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9 * max(1.0, float(np.max(np.abs(want)))))
