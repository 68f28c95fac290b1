"""The contract of an engine: on every engine, step k of seed s is ``lane_step``."""

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock import prng
from twoclock.engine.loop import drive
from twoclock.engine.protocol import lane_start, lane_step, measure_lanes
from twoclock.engine.run_batch import Lanes, make_instances

METHODS = [tc.Fast(), tc.Fast(alpha="5000/(k+20)")]
SEEDS = (3, 5, 8)


def lanes_on(problem, bound=None):
    return Lanes.of(make_instances(problem, SEEDS), METHODS, SEEDS, bound)


class OneByOne:
    """Another engine, as plain as can be: one lane after the other, nothing drawn ahead."""

    name = "one by one"
    stride = 7

    def compile(self, lanes):
        self.lanes, self.where = lanes, (slice(0, lanes.count), slice(0, len(lanes.seeds)))
        self.walk = jax.jit(
            lambda problem, method, stream, carry, lo, hi: jax.lax.fori_loop(
                lo, hi, lambda k, c: lane_step(problem, method, stream, c, k, lanes.bound), carry
            )
        )
        return [self]

    def place(self, carry):
        return carry

    def advance(self, carry, lo, hi):
        def lane(i, j):
            problem = self.lanes.instances.of(slice(j, j + 1)).example
            method, here = at(self.lanes.methods, i), at(carry, (i, j))
            return self.walk(problem, method, prng.step_stream(self.lanes.seeds[j]), here, np.int32(lo), np.int32(hi))

        return stacked([stacked([lane(i, j) for j in range(len(SEEDS))]) for i in range(len(METHODS))])

    def measure(self, carry):
        return measure_lanes(self.lanes.instances, self.lanes.methods, carry)


def at(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


BOWL = tc.problems.quadratic(dim=2)
PROBLEMS = {
    "one for all": BOWL,
    "one per seed": lambda key: jax.tree.map(lambda leaf: leaf * (1 + 0.1 * jax.random.uniform(key)), BOWL),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_another_engine_gives_the_same_result(name):
    """A lane that stays, and one that leaves the bound at the same step."""
    work, marks = lanes_on(PROBLEMS[name], bound=1e3), [0, 10, 25]
    one, other = drive(work, marks), drive(work, marks, engine=OneByOne())
    assert not np.asarray(one.carry.alive)[1].any()
    assert np.asarray(one.carry.alive)[0].all()
    for a, b in zip(jax.tree.leaves((one.carry, one.rows)), jax.tree.leaves((other.carry, other.rows)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_lanes_that_an_engine_refuses_run_on_xla():
    class Choosy:
        name = "none"

        def compile(self, lanes):
            return "it has a loop inside"

    work = lanes_on(BOWL)
    one, other = drive(work, [20]), drive(work, [20], engine=Choosy())
    for a, b in zip(jax.tree.leaves(one.carry), jax.tree.leaves(other.carry), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_start_of_a_lane_depends_on_its_seed_alone():
    work = lanes_on(BOWL)
    carry = drive(work, [0]).carry
    alone = lane_start(work.instances.example, METHODS[0], SEEDS[1])
    for a, b in zip(jax.tree.leaves(carry), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(a[0, 1], b)
