"""The kernels for a GPU, run on the CPU one thread after the other: all with the same bits, near those of "c"."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from threads import needs_compiler, on_the_cpu
from twoclock import prng
from twoclock.codegen import CodeTarget, Unsupported
from twoclock.engine import lane_program
from twoclock.engine.c_engine import CEngine
from twoclock.engine.cuda_engine import CudaProgram, entries_of
from twoclock.engine.engines import start
from twoclock.engine.run_batch import Lanes, make_instances

SEEDS, STEPS = (3, 5, 8), 60
METHODS = [tc.Fast("0.02/(k+100)", "0.2/(k+100)", lam) for lam in ("20/(k+100)", "10/(k+100)")]


def lqr():
    return tc.problems.lqr_actor_critic(tc.models.Lqr(np.eye(2) * 0.5, np.eye(2), np.eye(2), np.eye(2)), sigma=1.0)


def wild():
    """θ overflows in some lanes, after some steps of theirs: twice is too much, and the sign of the noise decides."""
    return tc.problems.custom(
        F=lambda theta, omega, x: -theta * jnp.exp(jnp.where(x > 2.0, 700.0, 1.0)),
        G=lambda theta, omega, x: omega - x,
        noise=lambda key: jax.random.normal(key),
        theta=1.0,
        omega=0.0,
    )


class Kernels:
    """The programs of some lanes, and the carry that the engine "c" comes to."""

    def __init__(self, problem, methods, bound, folder):
        self.folder, self.shape = folder, (len(methods), len(SEEDS))
        with jax.enable_x64(True):
            lanes = Lanes.of(make_instances(problem, SEEDS), methods, SEEDS, bound)
            self.begin = start(lanes)
            (program,) = CEngine().compile(lanes)
            self.expected = jax.tree.leaves(program.advance(program.place(self.begin), 0, STEPS))
            self.tables = list(map(np.ascontiguousarray, lane_program.tables(lanes)))
            self.streams = prng.stream_words(lanes.seeds)
            self.checked = lane_program.checked_source(lanes, CodeTarget(cuda=True))
            self.unchecked = lane_program.unchecked_source(lanes)
            self.few = [lane_program.few_source(lanes, in_a_block) for in_a_block in (8, 32)]
        self.count = len(methods) * len(SEEDS)

    def leaves(self, step):
        """The carry at the beginning, and the step from which each lane must run checked."""
        carry = [np.array(leaf, order="C") for leaf in jax.tree.leaves(self.begin)]
        return [*carry, np.full(self.count + 1, step, np.int64)]

    def launch(self, source, lo, hi, leaves):
        given = [*self.tables, *map(np.ascontiguousarray, source.constants)]
        run = on_the_cpu(source, self.folder)
        run(self.count, lo, hi, self.shape, given, leaves, self.streams)


@needs_compiler
@pytest.mark.parametrize(
    ("make", "bound", "ends", "methods"),
    [
        (lqr, 1e6, False, METHODS),
        (lqr, None, False, METHODS[:1]),
        (tc.problems.boyan, None, False, METHODS),
        (wild, None, True, METHODS),
        (lqr, 1.7, True, METHODS),
    ],
    ids=["normal noise", "one method", "random words", "overflow", "out of bounds"],
)
def test_checked_unchecked_and_few_kernels_give_the_same_bits(make, bound, ends, methods, tmp_path):
    kernels = Kernels(make(), methods, bound, tmp_path)
    checked = kernels.leaves(0)
    kernels.launch(kernels.checked, 0, STEPS, checked)
    results = [checked]
    for source in (kernels.unchecked, *kernels.few):
        leaves = kernels.leaves(-1)
        for lo, hi in ((0, 5), (5, STEPS)):
            kernels.launch(source, lo, hi, leaves)
        assert (leaves[-1] >= 0).any() == ends
        kernels.launch(kernels.checked, 0, STEPS, leaves)
        results.append(leaves)
    assert not np.array_equal(kernels.expected[0], jax.tree.leaves(kernels.begin)[0])
    alive = kernels.expected[-2]
    assert alive.any()
    assert bool(alive.all()) != ends
    for found in results[1:]:
        for a, b in zip(checked[:-1], found[:-1], strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(kernels.expected, checked[:-1], strict=True):  # the kernels fuse products with sums
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@needs_compiler
def test_a_diverged_lane_keeps_its_state(tmp_path):
    kernels = Kernels(wild(), METHODS, None, tmp_path)
    for source in (kernels.unchecked, *kernels.few):
        leaves = kernels.leaves(-1)
        leaves[-3][:] = False
        before = [leaf.copy() for leaf in leaves]
        kernels.launch(source, 0, STEPS, leaves)
        for a, b in zip(before, leaves, strict=True):
            np.testing.assert_array_equal(a, b)


def in_the_loop(source):
    return source.text.split("for(int64_t step")[1].split("for(int j")[0]


def test_a_step_watches_only_numbers_that_can_become_finite_again():
    def lanes(project=None):
        method = tc.Fast(0.1, 0.1, 0.1, project_theta=project)
        return Lanes.of(make_instances(wild(), SEEDS), [method], SEEDS, None)

    with jax.enable_x64(True):
        plain = lane_program.unchecked_source(lanes())
        clipped = lane_program.unchecked_source(lanes(lambda theta: jnp.clip(theta, -1.0, 1.0)))
    assert "watched(" not in in_the_loop(plain)
    assert plain.text.split("walk(")[1].count("watched(") == 4  # after the steps, for each array of the state
    assert in_the_loop(clipped).count("watched(") == 1


def test_a_product_that_one_sum_takes_is_fused_with_it():
    text = in_the_loop(lane_program.unchecked_source(Lanes.of(make_instances(lqr(), SEEDS), METHODS, SEEDS, None)))
    assert text.count("fma") > 40
    plain = lane_program.usual_source(Lanes.of(make_instances(lqr(), SEEDS), METHODS, SEEDS, None), CodeTarget())
    assert "fma" not in in_the_loop(plain.source)


def test_indices_are_handed_over_rather_than_rows():
    """A sample drawn from a table: its row is read where it is used, and nothing of the schedule is computed there."""
    rows = jnp.arange(64.0).reshape(8, 8)
    problem = tc.problems.custom(
        F=lambda theta, omega, x: rows[x] * (theta @ rows[x]) - omega,
        G=lambda theta, omega, x: omega - theta,
        noise=lambda key: jax.random.randint(key, (), 0, 8),
        theta=jnp.zeros(8),
        omega=jnp.zeros(8),
    )
    made = lane_program.few_source(Lanes.of(make_instances(problem, (0,)), [tc.Fast()], (0,), None), 8)
    handed = [line for line in made.text.splitlines() if line.startswith("__shared__")]
    assert sum("int32_t" in line for line in handed) == 1
    assert len(handed) <= 4
    ahead, step = made.text.split("walk(")[1].split("else if(runs")
    assert not any(dear in step for dear in ("/", "rotate("))
    assert "rotate(" in ahead


def test_a_step_that_depends_on_the_state_throughout_has_no_kernel_for_few_lanes():
    still = tc.problems.custom(lambda t, w, x: t - w, lambda t, w, x: w - 1, lambda key: (), 0.0, 0.0)
    lanes = Lanes.of(make_instances(still, (0,)), [tc.Fast(alpha=0.1, beta=0.1, lam=1.0)], (0,), None)
    with pytest.raises(Unsupported, match="nothing to do ahead"):
        lane_program.few_source(lanes, 8)


def matrix_lanes(factors, begin):
    """θ ∈ R²ˣ² with independent entries."""
    problem = tc.problems.custom(
        F=lambda theta, omega, x: theta - x * jnp.asarray(factors),
        G=lambda theta, omega, x: omega - x,
        noise=lambda key: jax.random.normal(key),
        theta=jnp.asarray(begin),
        omega=0.0,
    )
    return Lanes.of(make_instances(problem, SEEDS), METHODS[:1], SEEDS, None)


def test_one_half_of_a_symmetric_matrix_is_computed():
    with jax.enable_x64(True):
        lanes = Lanes.of(make_instances(lqr(), SEEDS), METHODS, SEEDS, None)
        made = lane_program.unchecked_source(lanes)
        # Ω and its average are 4×4: for each entry below the diagonal stands the one above it.
        below = [(4 * i + j, 4 * j + i) for i in range(4) for j in range(i)]
        assert [twin[1:] for twin in made.twins] == below * 2
        assert lane_program.unchecked_source(lanes, symmetric=False).twins == ()
        assert lane_program.unchecked_source(lanes, symmetric=False).text.count("=") > made.text.count("=") + 6 * len(
            below
        )


def test_entries_that_a_step_distinguishes_are_not_merged():
    zero = [[0.0, 0.0], [0.0, 0.0]]
    with jax.enable_x64(True):
        assert len(lane_program.few_source(matrix_lanes([[1.0, 2.0], [2.0, 1.0]], zero), 8).twins) == 2
        assert not lane_program.few_source(matrix_lanes([[1.0, 2.0], [3.0, 1.0]], zero), 8).twins


def test_a_matrix_that_is_not_symmetric_at_first_is_computed_in_full():
    for corner, one_half in ((0.5, True), (-0.5, False)):
        with jax.enable_x64(True):
            lanes = matrix_lanes([[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.5], [corner, 0.0]])
            checked, unchecked = (
                lane_program.checked_source(lanes, CodeTarget(cuda=True)),
                lane_program.few_source(lanes, 8),
            )
            kernel = CudaProgram(lanes, (slice(0, 1), slice(0, len(SEEDS))), checked, unchecked, jax.devices()[0])
            kernel.place(start(lanes))
            assert bool(kernel.unchecked.twins) == one_half


def test_entries_of_a_row_are_read_from_its_bytes():
    errors = np.arange(6.0).reshape(2, 3)  # methods × seeds
    theta = np.arange(12, dtype=np.float32).reshape(2, 3, 2)  # two entries for each lane
    row = np.zeros(512, np.uint8)
    for begin, values in ((0, errors), (256, theta)):
        row[begin : begin + values.nbytes] = values.ravel().view(np.uint8)
    parts = [jax.ShapeDtypeStruct((), np.float64), jax.ShapeDtypeStruct((2,), np.float32)]
    found = entries_of(row, [0, 256], parts, (2, 3))
    for entry, expected in zip(found, [errors, theta[..., 0], theta[..., 1]], strict=True):
        np.testing.assert_array_equal(entry, expected)
