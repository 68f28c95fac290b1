"""What JAX would freeze, round or refuse in its own words is found before the run, by tracing alone."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.engine import compatibility, program_digest

RATES = np.asarray([0.1, 0.3, 0.7])
COUNTER = itertools.count()
RNG = np.random.default_rng(0)


def bowl(**changed):
    parts = {
        "F": lambda theta, omega, x: omega - 1, "G": lambda theta, omega, x: omega - theta + x,
        "noise": lambda key: jax.random.normal(key, (3,)), "theta": np.zeros(3), "omega": np.zeros(3),
    }  # fmt: skip
    return tc.problems.custom(**{**parts, **changed})


def solve(problem, method=None, **options):
    return tc.solve(problem, method or tc.Standard(0.5, 0.5), **{"steps": 4, "seeds": 2, **options})


class Drifting(tc.Problem):
    """A problem whose start is another each time."""

    def __init__(self, theta):
        self.theta = theta

    def init(self, key):
        return self.theta + RNG.normal(), jnp.zeros(3), None

    noise = staticmethod(lambda key: jax.random.normal(key, (3,)))
    draw = staticmethod(lambda u, theta, env: (u, env))
    F = staticmethod(lambda theta, omega, x: omega)
    G = staticmethod(lambda theta, omega, x: omega - theta)


jax.tree_util.register_pytree_node(Drifting, lambda p: ((p.theta,), None), lambda aux, leaves: Drifting(*leaves))


class Branching(Drifting):
    """One whose environment begins at a constant, and whose draw asks for its value."""

    init = staticmethod(lambda key: (np.zeros(3), np.zeros(3), np.zeros(())))
    draw = staticmethod(lambda u, theta, env: (u if env > 0 else -u, env))


jax.tree_util.register_pytree_node(Branching, lambda p: ((p.theta,), None), lambda aux, leaves: Branching(*leaves))

FROZEN = {
    "noise": lambda: bowl(noise=lambda key: np.random.normal(size=3)),  # noqa: NPY002
    "noise, jitted": lambda: bowl(noise=jax.jit(lambda key: RNG.normal() * jnp.ones(3))),
    "draw": lambda: bowl(draw=lambda u, theta, env: (u * RNG.random(), env)),
    "F": lambda: bowl(F=lambda theta, omega, x: omega * next(COUNTER)),
    "F, inside": lambda: bowl(F=lambda theta, omega, x: jax.vmap(jax.jit(lambda w: w + RNG.random()))(omega)),
    "G": lambda: bowl(G=lambda theta, omega, x: omega - theta + time.perf_counter_ns()),
    "measure": lambda: bowl(measure=lambda theta, omega: {"error": theta @ RNG.random(3)}),
    "init": lambda: Drifting(jnp.zeros(3)),
    "problem": lambda: lambda key: bowl(theta=RNG.random(3)),
}


@pytest.mark.parametrize("case", FROZEN)
def test_impure_functions_of_a_problem_are_refused(case):
    name = case.partition(",")[0]
    with pytest.raises(tc.InputError, match=rf"^`{name}` must depend on its arguments alone.*from the key"):
        solve(FROZEN[case]())


def test_a_step_cannot_branch_on_a_constant_start():
    """In a run a step is traced once for all that comes; what holds at the start need not hold later."""
    problem = Branching(jnp.zeros(3))
    assert program_digest.ShapeRecorder(problem, tc.Standard()).traced is None
    with pytest.raises(tc.InputError, match="`draw` must not branch on a value that is only known in the run"):
        solve(problem)


def test_an_impure_schedule_is_refused():
    with pytest.raises(tc.InputError, match=r"^`alpha` must depend on its arguments alone.*; make it a function of k"):
        solve(bowl(), tc.Standard(alpha=lambda k: 0.1 * RNG.random() + 0.0 * k.astype(float)))


def test_sweeps_and_tuning_refuse_impure_functions():
    with pytest.raises(tc.InputError, match=r"^`noise` must depend"):
        tc.sweep({"a": FROZEN["noise"]()}, {"b": tc.Standard()}, 4, 2)
    with pytest.raises(tc.InputError, match=r"^`problem` must depend"):
        tc.tune(FROZEN["problem"](), tc.Standard(), steps=20)


def test_a_function_may_cache_what_it_makes_once():
    kept = {}

    def F(theta, omega, x):
        if "matrix" not in kept:
            kept["matrix"] = RNG.random((3, 3))
        return kept["matrix"] @ omega

    assert not solve(bowl(F=F)).diverged.any()


def test_a_constant_changed_between_runs_takes_effect():
    target = np.ones(3)
    scale = [1.0]

    def F(theta, omega, x):
        return scale[0] * (theta - target)

    problem = bowl(F=F)
    method = tc.Standard(1.0, 0.5)
    np.testing.assert_array_equal(solve(problem, method, steps=1).theta, 1.0)
    target[:] = 2.0  # in place, and JAX still holds the program that it was part of
    np.testing.assert_array_equal(solve(problem, method, steps=1).theta, 2.0)
    scale[0] = 0.5
    np.testing.assert_array_equal(solve(problem, method, steps=1).theta, 1.0)


def test_a_checked_lane_is_traced_once_and_checked_again_if_it_changed():
    calls, after = [], {"now": lambda omega: omega}

    def F(theta, omega, x):
        calls.append(None)
        return after["now"](omega)

    problem, method = bowl(F=F), tc.Standard(0.5, 0.5)
    first = solve(problem, method).theta
    calls.clear()
    np.testing.assert_array_equal(solve(problem, method).theta, first)
    assert len(calls) == 1
    after["now"] = lambda omega: omega * next(COUNTER)
    with pytest.raises(tc.InputError, match=r"^`F` must depend on its arguments alone"):
        solve(problem, method)
    after["now"] = lambda omega: omega[:2]
    with pytest.raises(tc.InputError, match=r"^`F` must return the shapes of theta"):
        solve(problem, method)
    after["now"] = lambda omega: omega
    np.testing.assert_array_equal(solve(problem, method).theta, first)


def test_the_name_of_a_metric_is_checked_though_the_program_has_passed():
    """The same program with a metric of another name: a column of histories would replace it."""
    for name in ("error", "gap"):
        assert solve(bowl(measure=lambda theta, omega, name=name: {name: jnp.sum(theta)})).metrics == [name]
    for name in ("seed", "step", "diverged"):
        with pytest.raises(tc.InputError, match=f"`measure` must not call a metric '{name}'"):
            solve(bowl(measure=lambda theta, omega, name=name: {name: jnp.sum(theta)}))


def test_the_checks_call_each_function_at_most_three_times():
    calls = []

    def noting(name, value):
        calls.append(name)
        return value

    problem = bowl(
        F=lambda theta, omega, x: noting("F", omega),
        G=lambda theta, omega, x: noting("G", omega - theta),
        measure=lambda theta, omega: noting("measure", {"error": jnp.sum(theta**2)}),
    )
    compatibility.check_fit(problem, tc.Standard(0.5, 0.5))
    assert set(calls) == {"F", "G", "measure"}
    assert max(map(calls.count, calls)) <= 3  # one more where arrays of the other precision are met


def test_a_function_that_alternates_is_refused_each_time():
    turns = itertools.cycle([1.0, 2.0])
    problem, method = bowl(F=lambda theta, omega, x: omega * next(turns)), tc.Standard(0.5, 0.5)
    for _ in range(4):
        with pytest.raises(tc.InputError, match="must depend on its arguments alone"):
            solve(problem, method)


def test_a_stale_jitted_function_of_the_user_is_traced_again():
    scale = [1.0]
    F = jax.jit(lambda theta, omega, x: scale[0] * (theta - jnp.ones(3)))
    F(jnp.zeros(3), jnp.zeros(3), jnp.zeros(3))
    scale[0] = 2.0
    np.testing.assert_array_equal(solve(bowl(F=F), tc.Standard(1.0, 0.5), steps=1).theta, 2.0)


@pytest.mark.parametrize("order", [("float64", "float32", "float64"), ("float32", "float64")])
def test_numpy_arrays_follow_the_precision_of_the_run(order):
    rates = RATES.copy()
    problem = bowl(
        F=lambda theta, omega, x: jnp.take(rates, jnp.arange(3)) + jnp.asarray(rates) + jnp.dot(rates, theta)
    )
    for precision in order:
        found = solve(problem, tc.Standard(1.0, 0.5), steps=1, precision=precision).theta
        assert found.dtype == precision
        np.testing.assert_array_equal(found[0], -2 * rates.astype(precision))


def test_a_users_own_single_precision_does_not_round_a_double_run():
    rates = RATES.copy()

    @jax.jit
    def F(theta, omega, x):
        return theta + jnp.asarray(rates)

    with jax.enable_x64(False):
        F(jnp.zeros(3), None, None)  # tried at the prompt, as JAX starts
    np.testing.assert_array_equal(solve(bowl(F=F), tc.Standard(1.0, 0.5), steps=1).theta[0], -rates)


def test_single_precision_arrays_stay_and_compile_once(compilations):
    data = RATES.astype(np.float32)
    problem = bowl(F=lambda theta, omega, x: theta + jnp.asarray(data).astype(float))
    first = solve(problem).theta
    solve(problem)
    before = compilations()
    np.testing.assert_array_equal(solve(problem).theta, first)
    assert compilations() == before


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("seeds", [1, 70])
def test_callbacks_into_python_have_the_precision_of_the_run(precision, seeds):
    def F(theta, omega, x):
        like = jax.ShapeDtypeStruct(omega.shape, omega.dtype)
        return jax.pure_callback(lambda w: np.asarray(w) / 3, like, omega, vmap_method="expand_dims")

    with jax.enable_x64(False):  # as a user's process starts
        back, there = (
            solve(bowl(F=f), seeds=seeds, precision=precision)
            for f in (F, lambda theta, omega, x: omega / jnp.asarray(3, omega.dtype))
        )
    np.testing.assert_allclose(back.theta, there.theta, atol=1e-14 if precision == "float64" else 1e-6)
    assert jnp.asarray(0.0).dtype == "float64"  # the setting of the tests


def test_a_value_of_an_earlier_trace_is_refused_in_one_line():
    kept = [0.0]

    def F(theta, omega, x):
        before, kept[0] = kept[0], theta
        return theta - before

    problem = tc.problems.custom(F, lambda t, w, x: w - t, lambda key: jax.random.normal(key), 0.0, 0.0)
    with pytest.raises(tc.InputError, match="must not keep a value of the run"):
        tc.solve(problem, tc.Fast(), 50, 2)


@pytest.mark.parametrize("problem", [tc.problems.frozen_lake(), tc.problems.double_integrator()])
def test_the_closed_forms_of_this_library_are_no_functions_of_a_user(problem):
    """Else each trace is made twice, and each run compiles them again."""
    assert not program_digest.trace_lane(problem, tc.Standard()).user_jitted


def test_closed_forms_of_the_library_are_not_taken_for_a_users_functions():
    """Otherwise a lane with them would be traced a second time at each call."""
    plant = tc.models.Lqr(np.eye(2) * 0.5, np.eye(2), np.eye(2), np.eye(2))
    mdp = tc.models.Mdp(np.full((2, 2, 2), 0.5), np.eye(2), 0.5)
    for problem in (tc.problems.lqr_actor_critic(plant), tc.problems.entropy_mdp(mdp, temp=0.1)):
        with jax.enable_x64(True):
            assert not program_digest.trace_lane(problem, tc.Fast()).user_jitted
