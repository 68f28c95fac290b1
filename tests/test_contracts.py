"""One suite over everything the catalogue finds: a new file is held to the contracts without a line here."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from small import SMALL
from twoclock import prng, registry
from twoclock.protocols import IndexedBatch, Method, Problem, Schedule

METHODS = registry.methods()
PROBLEMS = registry.problems()
SCHEDULES = {name: thing for name, thing in registry.schedules().items() if name not in ("Function", "Levels")}
KNOWN = {"error", "gap", "gradient", "tracking"}


@functools.cache
def problem_of(name):
    """The problem, small; the first draw of one that is drawn."""
    with jax.enable_x64(True):
        made = PROBLEMS[name](**SMALL.get(name, {}))
        made = made if isinstance(made, Problem) else jax.jit(made)(prng.instance_key(0))
        return jax.tree.map(jnp.asarray, made)


def dtypes(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name):
    schedule = SCHEDULES[name](0.5)
    assert isinstance(schedule, Schedule)
    values = np.asarray([schedule(k) for k in (0, 1, 10, 10**9)])
    assert values.shape == (4,)
    assert (values >= 0).all()
    assert (np.diff(values) <= 0).all()
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *[SCHEDULES[name](np.asarray(c)) for c in (0.1, 0.2)])
    assert jax.eval_shape(jax.vmap(lambda s: s(3)), stacked).shape == (2,)
    assert jax.eval_shape(schedule, np.int32(3)).dtype == np.float64


def stepped(method, state):
    """A step along operators that need no sample; a method for finite data is given two batches of it."""

    def on(x):
        return method.step(lambda t, w, x: t, lambda t, w, x: w, state, x, jnp.int32(0))

    try:
        return on(None)
    except tc.InputError:
        return on(tuple(IndexedBatch(jnp.zeros((2, 1)), jnp.arange(2), 64) for _ in range(2)))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_method_keeps_structure_and_dtype(name, dtype):
    method = METHODS[name]()
    assert isinstance(method, Method)
    theta, omega = {"a": np.ones(3, dtype), "b": np.zeros((2, 2), dtype)}, (np.zeros(4, dtype),)
    try:
        # Traced, not compiled: shapes and types are all that is asked.
        state = jax.eval_shape(method.init, theta, omega)
    except tc.InputError:  # of a method whose ω is a trace of θ
        omega = theta
        state = jax.eval_shape(method.init, theta, omega)
    after = jax.eval_shape(lambda s: stepped(method, s), state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)] == [
        (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)
    ]
    estimate = jax.eval_shape(method.estimate, after)
    assert jax.tree.structure(estimate) == jax.tree.structure((theta, omega))
    assert dtypes(estimate) == {jnp.dtype(dtype)}


@pytest.mark.parametrize("name", METHODS)
def test_method_traces_once_for_many_numbers(name):
    traced = []

    @jax.jit
    def step(method, state):
        traced.append(1)
        return stepped(method, state)

    method = METHODS[name]()
    state = jax.eval_shape(method.init, np.ones(2), np.ones(2))
    for factor in (1.0, 0.5, 0.25):
        step.trace(jax.tree.map(lambda leaf, c=factor: np.asarray(leaf * c, float), method), state)
    assert len(traced) == 1


# One of each file: what a problem computes with is the same throughout its family.
KINDS = {problem.__module__: name for name, problem in PROBLEMS.items()}.values()


@pytest.mark.parametrize("name", KINDS)
def test_problem_runs_in_single_precision(name):
    """Double precision is what each problem's own tests run in."""
    problem = PROBLEMS[name](**SMALL.get(name, {}))
    result = tc.solve(problem, tc.Fast(1e-4, 1e-3, 1e-2), steps=20, seeds=2, precision="float32")
    assert dtypes((result.theta, result.omega)) == {np.dtype("float32")}
    assert result.metrics
    assert np.isfinite(result.history.to_numpy(float)).all()


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_keeps_its_shapes(name):
    problem = problem_of(name)
    assert isinstance(problem, Problem)

    def once(problem):
        theta, omega, env = problem.init(prng.start_key(1))
        x, after = problem.sample(problem.noise(prng.step_key(1, 0)), theta, omega, env)
        operators = problem.F(theta, omega, x), problem.G(theta, omega, x)
        return (theta, omega), env, after, operators, problem.measure(theta, omega)

    start, env, after, operators, metrics = jax.eval_shape(
        once, problem
    )  # traced, not compiled: shapes are all that is asked
    assert jax.tree.structure(after) == jax.tree.structure(env)
    assert [leaf.dtype for leaf in jax.tree.leaves(after)] == [leaf.dtype for leaf in jax.tree.leaves(env)]
    assert jax.tree.map(jnp.shape, operators) == jax.tree.map(jnp.shape, start)
    assert dtypes(operators) <= {jnp.dtype(float)}
    for metric, value in metrics.items():
        assert value.shape == (), metric


def points(problem, count=3):
    """Points about the start, as near to it as it takes for h to be finite: not every gain stabilises."""
    theta, _, _ = jax.tree.map(np.asarray, jax.jit(lambda problem: problem.init(prng.start_key(2)))(problem))
    height = jax.jit(lambda problem, theta: problem.h(theta) if problem.knows("h") else 0.0)
    for i in range(count):
        rng = np.random.default_rng(i)
        move = jax.tree.map(lambda leaf, rng=rng: rng.standard_normal(leaf.shape), theta)
        near = (jax.tree.map(lambda a, b, s=s: a + s * b, theta, move) for s in 0.05 * 0.5 ** np.arange(20))
        yield next(point for point in near if np.isfinite(height(problem, point)))


def exact_means(problem):
    """The exact means that the problem has, by the operator that they are of: what is optional may be missing."""
    return {name: getattr(problem, f"mean_{name}") for name in ("F", "G") if problem.knows(f"mean_{name}")}


@jax.jit
def known_at(problem, theta):
    """All that a problem knows of its answer at ω*(θ), or its first ω where it knows none: one program a problem."""
    omega = problem.omega_star(theta) if problem.knows("omega_star") else problem.init(prng.start_key(2))[1]
    known = {"omega": omega, "metrics": problem.measure(theta, omega)}
    known["means"] = {operator: mean(theta, omega) for operator, mean in exact_means(problem).items()}
    if problem.knows("h"):
        known["slope"] = jax.grad(problem.h)(theta)
    if problem.knows("field"):
        known["field"] = problem.field(theta)
    return known


@functools.cache
def known(name):
    """What the problem of that name knows at three points."""
    problem = problem_of(name)
    return [known_at(problem, theta) for theta in points(problem)]


def close(got, want, tolerance, like=None):
    """To the tolerance, against the size of what is wanted or, where that is zero, of the terms that cancel."""
    size = (float(np.max(np.abs(leaf), initial=0.0)) for leaf in jax.tree.leaves(want if like is None else like))
    scale = max(1.0, *size)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("name", PROBLEMS)
def test_operator_means_agree_with_h_and_omega_star(name):
    """The mean of F at ω*(θ) is ∇h(θ) (or the field that the problem declares), and the mean of G there is zero."""
    problem = problem_of(name)
    if not (exact_means(problem) and problem.knows("omega_star")):
        pytest.skip("no exact means, or no known ω*")
    for at in known(name):
        if "F" in at["means"] and (at.keys() & {"field", "slope"}):
            close(at["means"]["F"], at.get("field", at.get("slope")), 1e-8)
        if "G" in at["means"]:
            close(at["means"]["G"], jax.tree.map(np.zeros_like, at["omega"]), 1e-8, like=at["omega"])


@pytest.mark.parametrize("name", PROBLEMS)
def test_samples_average_to_the_means(name):
    """At a fixed point, 64 independent runs of the sampler average to the exact means, within six standard errors."""
    problem = problem_of(name)
    if not exact_means(problem):
        pytest.skip("no exact means")

    def average(problem, seed, burn=2_000, steps=4_000):
        theta, omega, env = problem.init(prng.start_key(seed))
        operators = list(exact_means(problem))

        def step(carry, k):
            env, total = carry
            x, env = problem.sample(problem.noise(prng.step_key(seed, k)), theta, omega, env)
            sample = [getattr(problem, operator)(theta, omega, x) for operator in operators]
            return (env, jax.tree.map(lambda t, s: t + jnp.where(k < burn, 0.0, s) / steps, total, sample)), None

        zero = [jax.tree.map(jnp.zeros_like, {"F": theta, "G": omega}[operator]) for operator in operators]
        return jax.lax.scan(step, (env, zero), jnp.arange(burn + steps))[0][1]

    @jax.jit
    def both(problem, seeds):
        theta, omega, _ = problem.init(prng.start_key(0))
        exact = [mean(theta, omega) for mean in exact_means(problem).values()]
        return jax.vmap(average, (None, 0))(problem, seeds), exact

    averages, exact = both(problem, jnp.arange(64, dtype=jnp.uint32))
    for values, mean in zip(jax.tree.leaves(averages), jax.tree.leaves(exact), strict=True):
        error = np.std(values, axis=0) / np.sqrt(64)
        assert (np.abs(np.mean(values, axis=0) - mean) <= 6 * error + 1e-10 * (1 + np.abs(mean))).all()


@pytest.mark.parametrize("name", PROBLEMS)
def test_metrics_mean_what_they_are_called(name):
    problem = problem_of(name)
    at = known(name)[0]
    metrics = at["metrics"]
    assert KNOWN & set(metrics)
    if "tracking" in metrics and problem.knows("omega_star"):
        assert float(metrics["tracking"]) < 1e-16
    if "gradient" in metrics and "slope" in at:
        square = sum(np.sum(np.square(g)) for g in jax.tree.leaves(at["slope"]))
        np.testing.assert_allclose(metrics["gradient"], square, rtol=1e-8)
