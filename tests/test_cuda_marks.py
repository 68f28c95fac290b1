"""The kernel that measures on a GPU, tried on the CPU: one launch gives the rows that XLA gives."""

import jax
import numpy as np
import pytest

import twoclock as tc
from small import SMALL
from threads import needs_compiler, on_the_cpu
from twoclock import catalogue
from twoclock.engine import rows, traced
from twoclock.engine.codegen.ir import Unsupported
from twoclock.engine.cpu import pointers
from twoclock.engine.instances import instances
from twoclock.engine.lanes import Lanes
from twoclock.engine.xla import Xla, start

SEEDS = (3, 5, 8)
METHODS = [tc.Fast(1e-5, beta, 1e-2) for beta in (1e-3, 2e-3)]
TRACKED = [tc.Polyak(method, intervals=True) for method in METHODS]
# Metrics for which XLA has a library: a kernel has none.
WITH_XLA = {
    **dict.fromkeys(("forest", "frozen_lake", "random_entropy_mdp"), "operation lu"),
    "spiral": "operation custom_vmap_call",
}


def walked(problem, methods, steps=3):
    """Lanes a few steps from their start, so that no two of them are alike."""
    lanes = Lanes.of(instances(problem, SEEDS), methods, SEEDS, None)
    (program,) = Xla().compile(lanes)
    return lanes, program.advance(program.place(start(lanes)), 0, steps)


def by_the_kernel(lanes, carry, folder):
    made = traced.measuring(lanes)
    parts, structure = jax.tree.flatten(made.row)
    row = [np.full((*lanes.shape, *part.shape), 77, part.dtype) for part in parts]
    tables = list(map(np.ascontiguousarray, [*traced.tables(lanes), *made.source.constants]))
    leaves = [np.array(leaf, order="C") for leaf in jax.tree.leaves(carry)]
    before = [leaf.copy() for leaf in leaves]
    launch = on_the_cpu(made.source, folder)
    count = len(METHODS) * len(SEEDS)
    streams = np.asarray(traced.streams(lanes))
    launch(count, 0, 1, *lanes.shape, pointers(tables), pointers([*leaves, *row]), streams.ctypes.data)
    for a, b in zip(before, leaves, strict=True):
        np.testing.assert_array_equal(a, b)
    return rows.flat(jax.tree.unflatten(structure, row), lanes=2)


def check(problem, methods, folder):
    lanes, carry = walked(problem, methods)
    found, expected = by_the_kernel(lanes, carry, folder), rows.measure(lanes.instances, lanes.methods, carry)
    assert list(found) == list(expected)
    for name, there in expected.items():
        assert (found[name].dtype, found[name].shape) == (there.dtype, there.shape), name
        np.testing.assert_allclose(found[name], there, rtol=1e-9, atol=1e-12, err_msg=name)
    return found


@needs_compiler
@pytest.mark.parametrize("name", sorted(set(catalogue.problems()) - set(WITH_XLA)))
def test_a_launch_measures_what_xla_measures(name, tmp_path):
    with jax.enable_x64(True):
        check(catalogue.problems()[name](**SMALL.get(name, {})), METHODS, tmp_path)
