"""The loop's promises: a trajectory depends on (seed, step) alone, divergence is data, numbers compile nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import prng
from twoclock.protocols import pytree
from twoclock.validation.run_args import log_marks

PROBLEM = tc.problems.quadratic(dim=3)
METHOD = tc.Fast("1/(k+5)", "2/(k+8)", "4/(k+16)")
OPTIONS = {"steps": 700, "seeds": 5}


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.fixture(scope="module")
def reference():
    with jax.enable_x64(True):
        return tc.solve(PROBLEM, METHOD, **OPTIONS)


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_blocks_change_nothing(reference, block):
    assert same(tc.solve(PROBLEM, METHOD, **OPTIONS, block=block).theta, reference.theta)


@pytest.mark.parametrize("marks", [[0], [700], range(0, 700, 13)])
def test_marks_change_nothing(reference, marks):
    result = tc.solve(PROBLEM, METHOD, **OPTIONS, marks=marks)
    assert same(result.theta, reference.theta)
    common = reference.history.merge(result.history, on=["seed", "step"], suffixes=("", "_"))
    assert len(common) >= 5
    assert np.array_equal(common["error"], common["error_"])


def test_grouping_changes_rounding_at_most(reference):
    alone = tc.solve(PROBLEM, METHOD, steps=700, seeds=[3])
    among = tc.solve(PROBLEM, METHOD, steps=700, seeds=[9, 3, 400])
    crowd = tc.solve(PROBLEM, METHOD, steps=700, seeds=128)  # two groups, on two threads
    for other in (alone.theta[0], among.theta[1], crowd.theta[3]):
        np.testing.assert_allclose(other, reference.theta[3], rtol=1e-11)


def test_methods_share_samples_and_a_program(reference, compilations):
    grid = {f"{c}": tc.Fast(tc.Power(c, shift=5.0), "2/(k+8)", "4/(k+16)") for c in (0.5, 1.0, 2.0)}
    results = tc.solve(PROBLEM, grid, **OPTIONS)
    assert list(results) == list(grid)
    np.testing.assert_allclose(results["1.0"].theta, reference.theta, rtol=1e-11)
    assert not np.allclose(results["0.5"].theta, reference.theta, rtol=1e-3)
    before = compilations()
    tc.solve(PROBLEM, {label: tc.Fast(0.01 * i, 0.1, 0.2 + 0.01 * i) for i, label in enumerate(grid)}, **OPTIONS)
    schedules_changed = compilations() - before
    before = compilations()
    tc.solve(PROBLEM, {label: tc.Fast(0.02 * i, 0.3, 0.4 + 0.01 * i) for i, label in enumerate(grid)}, **OPTIONS)
    assert schedules_changed > 0
    assert compilations() == before


def test_a_changed_number_compiles_nothing(compilations):
    tc.solve(PROBLEM, METHOD, **OPTIONS)
    before = compilations()
    tc.solve(PROBLEM, tc.Fast("3/(k+7)", "1/(k+9)^0.7", "1/(k+11)"), **OPTIONS)
    tc.solve(tc.problems.quadratic(dim=3, sigma=0.7, seed=4), METHOD, **OPTIONS)
    assert compilations() == before


def test_step_k_of_seed_s_by_hand():
    """The loop against a plain Python loop that draws the documented keys itself."""
    problem = tc.problems.custom(
        F=lambda t, w, x: w + x[0], G=lambda t, w, x: w - t + x[1], noise=lambda key: jax.random.normal(key, (2,)),
        theta=1.0, omega=0.0,
    )  # fmt: skip
    result = tc.solve(problem, tc.Standard(0.1, 0.2), steps=50, seeds=[6])
    theta, omega = 1.0, 0.0
    for k in range(50):
        x = np.asarray(jax.random.normal(prng.step_key(6, k), (2,)))
        theta, omega = theta - 0.1 * (omega + x[0]), omega - 0.2 * (omega - theta + x[1])
    np.testing.assert_allclose(result.theta[0], theta, rtol=1e-12)
    np.testing.assert_allclose(result.omega[0], omega, rtol=1e-12)


def walker():
    """A Markov chain whose drift feels θ: on-policy sampling carried in the environment."""

    def draw(u, theta, env):
        position = 0.9 * env["position"] + u + 0.1 * theta
        return position, {"position": position, "count": env["count"] + 1}

    return tc.problems.custom(
        F=lambda t, w, x: w, G=lambda t, w, x: w - x, noise=lambda key: jax.random.normal(key), theta=1.0, omega=0.0,
        draw=draw, env={"position": 0.0, "count": 0},
    )  # fmt: skip


def test_environment_is_carried():
    a = tc.solve(walker(), tc.Fast(), steps=300, seeds=3)
    b = tc.solve(walker(), tc.Fast(), steps=300, seeds=3, block=11, marks=[5, 17, 200])
    assert same(a.theta, b.theta)


def runaway(scale=10.0):
    """θ grows tenfold a step where the seed's first number says so, and stays put elsewhere."""

    @pytree
    class Runaway(tc.Problem):
        def init(self, key):
            return jnp.ones(()), jnp.zeros(()), jax.random.bernoulli(key)

        def noise(self, key):
            return jnp.zeros(())

        def draw(self, u, theta, env):
            return env, env

        def F(self, theta, omega, x):
            return jnp.where(x, (1 - scale) * theta, 0.01 * theta)

        def G(self, theta, omega, x):
            return omega

        def measure(self, theta, omega):
            return {"error": theta**2}

    return Runaway()


def test_divergence_is_data():
    result = tc.solve(runaway(), tc.Standard(1.0, 0.5), steps=600, seeds=12)
    assert 0 < result.diverged.sum() < 12
    assert (result.last_step[result.diverged] == 308).all()  # 10³⁰⁸ is the last power of ten in float64
    np.testing.assert_allclose(result.theta[result.diverged], 1e308, rtol=1e-10)
    assert (result.last_step[~result.diverged] == 600).all()
    np.testing.assert_allclose(result.theta[~result.diverged], 0.99**600, rtol=1e-10)
    table = result.summary("error").set_index("step")["diverged"]
    assert table[251] == 0
    assert table[600] == result.diverged.sum()


def test_the_other_seeds_do_not_notice():
    frozen = tc.solve(runaway(), tc.Standard(1.0, 0.5), steps=600, seeds=12)
    calm = tc.solve(runaway(scale=1.01), tc.Standard(1.0, 0.5), steps=600, seeds=12)
    alive = ~frozen.diverged
    assert np.array_equal(frozen.theta[alive], calm.theta[alive])


def test_a_bound_is_a_bound():
    result = tc.solve(runaway(), tc.Standard(1.0, 0.5), steps=100, seeds=12, bound=1e6)
    assert (result.last_step[result.diverged] == 6).all()
    np.testing.assert_allclose(result.theta[result.diverged], 1e6, rtol=1e-12)


def test_every_seed_has_its_own_instance():
    def draw(key):
        return tc.problems.custom(
            F=lambda t, w, x: w, G=lambda t, w, x: w - t, noise=lambda key: jnp.zeros(()),
            theta=jax.random.normal(key), omega=jnp.zeros(()), measure=lambda t, w: {"error": t**2},
        )  # fmt: skip

    many = tc.solve(draw, tc.Standard(0.0, 0.5), steps=10, seeds=[4, 7])
    want = [jax.random.normal(prng.instance_key(seed)) for seed in (4, 7)]
    assert many.theta.tolist() == [float(t) for t in want]


def test_float32_keeps_up_with_float64():
    """Three million 1/k steps on a scalar problem, the same ±1 noise in both. Bare float32 freezes near 1e-6."""

    def sign(key):
        return jnp.where(jax.random.bits(key, (), jnp.uint32) & 1, 1.0, -1.0)

    problem = tc.problems.custom(
        F=lambda t, w, x: t + 0.5 * (w - t) + x, G=lambda t, w, x: w - t + x, noise=sign, theta=1.0, omega=0.0,
        measure=lambda t, w: {"error": t**2},
    )  # fmt: skip
    for method in (tc.Fast("2/(k+10)", "4/(k+20)", "8/(k+40)"), tc.Polyak(tc.Standard("2/(k+10)", "4/(k+20)"))):
        errors = {
            precision: tc.solve(problem, method, steps=3_000_000, seeds=8, marks=[300_000], precision=precision)
            .summary("error")["mean"]
            .to_numpy()
            for precision in ("float64", "float32")
        }
        np.testing.assert_allclose(errors["float32"], errors["float64"], rtol=0.03)


def test_log_marks():
    assert log_marks(1) == [0, 1]
    marks = log_marks(1_000_000)
    assert marks[:4] == [0, 1, 2, 3]
    assert marks[-1] == 1_000_000
    assert marks == sorted(set(marks))
    assert 40 < len(marks) < 70


def test_instances_follow_their_seeds_into_groups():
    """128 seeds walk in two groups, 4 in one; a seed has the same instance and the same path in both."""

    def problem(key):
        return tc.problems.random_policy_evaluation(key, states=4, actions=2, features=2)

    many = tc.solve(problem, tc.Fast(0.01, 0.02, 0.1), steps=50, seeds=128)
    few = tc.solve(problem, tc.Fast(0.01, 0.02, 0.1), steps=50, seeds=[0, 63, 64, 127])
    np.testing.assert_allclose(few.theta, many.theta[[0, 63, 64, 127]], rtol=1e-9)
