"""Each method against a recurrence worked by hand, in numbers that binary fractions hold exactly."""

import decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.engine.run_batch import group_by_program
from twoclock.tree_math import Sum


def F(theta, omega, x):
    return theta + omega + x


def G(theta, omega, x):
    return omega - 2 * theta


X = (1.0, -2.0, 0.5)


def walk(method, theta=1.0, omega=0.0, xs=X):
    state = method.init(jnp.asarray(theta), jnp.asarray(omega))
    states = [state]
    step = jax.jit(lambda m, s, x, k: m.step(F, G, s, x, k))
    for k, x in enumerate(xs):
        states.append(step(method, states[-1], jnp.asarray(x), k))
    return states


def test_standard_by_hand():
    # α = 1/2, β = 1/4.
    # k=0: F = 1+0+1 = 2,        G = 0−2 = −2        θ = 1−1 = 0,         ω = 0+1/2 = 1/2
    # k=1: F = 0+1/2−2 = −3/2,   G = 1/2             θ = 3/4,             ω = 1/2−1/8 = 3/8
    # k=2: F = 3/4+3/8+1/2=13/8, G = 3/8−3/2 = −9/8  θ = 3/4−13/16=−1/16, ω = 3/8+9/32 = 21/32
    states = walk(tc.Standard(alpha=0.5, beta=0.25))
    assert [float(s.theta) for s in states] == [1, 0, 3 / 4, -1 / 16]
    assert [float(s.omega) for s in states] == [0, 1 / 2, 3 / 8, 21 / 32]


def test_fast_paper_by_hand():
    # α = 1/2, β = 1/4, λ = 1/2 for f and 1/4 for g; θ and ω move with the old f and g.
    # k=0: θ₁ = 1,   ω₁ = 0;     F = 2, G = −2:        f₁ = 1,   g₁ = −1/2
    # k=1: θ₂ = 1/2, ω₂ = 1/8;   F = 1+0−2 = −1, G=−2: f₂ = 0,   g₂ = −3/8−1/2 = −7/8
    # k=2: θ₃ = 1/2, ω₃ = 11/32; F = 9/8, G = −7/8:    f₃ = 9/16, g₃ = −21/32−7/32 = −7/8
    states = walk(tc.Fast(alpha=0.5, beta=0.25, lam=0.5, lam_g=0.25))
    assert [float(s.theta) for s in states] == [1, 1, 1 / 2, 1 / 2]
    assert [float(s.omega) for s in states] == [0, 0, 1 / 8, 11 / 32]
    assert [float(s.f) for s in states] == [0, 1, 0, 9 / 16]
    assert [float(s.g) for s in states] == [0, -1 / 2, -7 / 8, -7 / 8]


def test_fast_fresh_by_hand():
    # The same numbers, but f and g are blended first.
    # k=0: F = 2, G = −2:      f = 1,   g = −1/2;  θ = 1/2, ω = 1/8
    # k=1: F = 5/8−2 = −11/8, G = 1/8−1 = −7/8:  f = 1/2−11/16 = −3/16, g = −3/8−7/32 = −19/32
    #      θ = 1/2+3/32 = 19/32, ω = 1/8+19/128 = 35/128
    states = walk(tc.Fast(alpha=0.5, beta=0.25, lam=0.5, lam_g=0.25, order="fresh"), xs=X[:2])
    assert [float(s.theta) for s in states] == [1, 1 / 2, 19 / 32]
    assert [float(s.omega) for s in states] == [0, 1 / 8, 35 / 128]
    assert [float(s.f) for s in states] == [0, 1, -3 / 16]
    assert [float(s.g) for s in states] == [0, -1 / 2, -19 / 32]


def test_fast_from_given_averages_by_hand():
    # As above, with f₀ = 2 and g₀ = −2.
    # k=0: θ₁ = 0,    ω₁ = 1/2;    F = 2, G = −2:       f₁ = 2,    g₁ = −3/2−1/2 = −2
    # k=1: θ₂ = −1,   ω₂ = 1;      F = −3/2, G = 1/2:   f₂ = 1/4,  g₂ = −3/2+1/8 = −11/8
    # k=2: θ₃ = −9/8, ω₃ = 43/32;  F = 1/2, G = 3:      f₃ = 3/8,  g₃ = −33/32+3/4 = −9/32
    states = walk(tc.Fast(alpha=0.5, beta=0.25, lam=0.5, lam_g=0.25, f0=2.0, g0=-2.0))
    assert [float(s.theta) for s in states] == [1, 0, -1, -9 / 8]
    assert [float(s.omega) for s in states] == [0, 1 / 2, 1, 43 / 32]
    assert [float(s.f) for s in states] == [2, 2, 1 / 4, 3 / 8]
    assert [float(s.g) for s in states] == [-2, -2, -11 / 8, -9 / 32]


def test_averages_start_as_trees_like_theta_and_omega():
    method = tc.Fast(f0={"a": np.ones(2), "b": 3}, g0=(np.float32(0.1), np.ones((1, 2))))
    state = method.init({"a": jnp.zeros(2), "b": jnp.zeros(())}, (jnp.zeros(()), jnp.zeros((1, 2))))
    assert state.f["b"] == 3
    assert state.g[1].shape == (1, 2)
    assert float(state.g[0]) == float(np.float32(0.1))
    with pytest.raises(tc.InputError, match=r"`Fast\(g0=…\)` must have the shapes of ω, \(3,\), got \(2,\)"):
        tc.Fast(g0=np.ones(2)).init(jnp.zeros(1), jnp.zeros(3))
    with pytest.raises(tc.InputError, match=r"`Fast\(f0=…\)` must have the shapes of θ"):
        tc.Fast(f0=()).init(jnp.zeros(()), jnp.zeros(3))


def test_starts_of_the_averages_are_numbers_of_one_program():
    methods = {f"{f0:g}": tc.Fast(0.01, 0.02, 0.1, f0=np.array([f0]), g0=np.array([-f0])) for f0 in (0.0, 1.0, 4.0)}
    assert group_by_program(methods | {"None": tc.Fast(0.01, 0.02, 0.1)}) == [["0", "1", "4"], ["None"]]
    problem = tc.problems.rates("strongly-convex", "smooth", noise=0.0)
    theta, omega, _ = map(np.asarray, problem.init(jax.random.key(0)))
    for engine in ("xla", "c"):
        results = tc.solve(problem, methods | {"None": tc.Fast(0.01, 0.02, 0.1)}, steps=40, seeds=1, engine=engine)
        np.testing.assert_array_equal(results["0"].theta, results["None"].theta)
        for f0 in (1.0, 4.0):
            x, y, f, g = theta, omega, f0, -f0
            for _ in range(40):
                F, G = np.asarray(problem.mean_F(x, y)), np.asarray(problem.mean_G(x, y))
                x, y, f, g = x - 0.01 * f, y - 0.02 * g, 0.9 * f + 0.1 * F, 0.9 * g + 0.1 * G
            np.testing.assert_allclose(results[f"{f0:g}"].theta, [x], rtol=1e-12)
            np.testing.assert_allclose(results[f"{f0:g}"].omega, [y], rtol=1e-12)


def test_one_of_two_starts_that_does_not_fit_is_refused():
    problem = tc.problems.rates("strongly-convex")
    methods = {"a": tc.Fast(f0=np.zeros(1)), "b": tc.Fast(f0=np.zeros(2))}
    with pytest.raises(tc.InputError, match="shapes of θ"):
        tc.solve(problem, methods, steps=10, seeds=1)


def test_one_lambda_serves_both():
    one, two = walk(tc.Fast(0.5, 0.25, 0.5)), walk(tc.Fast(0.5, 0.25, 0.5, lam_g=0.5))
    assert all(jax.tree.all(jax.tree.map(jnp.array_equal, a, b)) for a, b in zip(one, two, strict=True))


def test_polyak_by_hand():
    # The standard iterates above, with weights 1, 2, 3: θ̄ = (0 + 2·3/4 − 3/16)/6 = 21/96
    averaged = tc.Polyak(tc.Standard(alpha=0.5, beta=0.25), power=1.0)
    states = walk(averaged)
    np.testing.assert_allclose([averaged.estimate(s)[0] for s in states], [1, 0, 1 / 2, 21 / 96], rtol=1e-15)
    plain = walk(averaged.method)
    assert [float(s.theta) for s in states] == [float(s.theta) for s in plain]


def test_polyak_weights():
    method = tc.Polyak(tc.Standard(alpha=tc.Power(0.5), beta=0.25), power=2.5)
    xs = np.random.default_rng(0).standard_normal(40)
    states = walk(method, xs=xs)
    iterates = np.asarray([s.theta for s in states[1:]])
    want = np.average(iterates, weights=np.arange(1, 41) ** 2.5)
    np.testing.assert_allclose(method.estimate(states[-1])[0], want, rtol=1e-13)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 3e-6)])
def test_polyak_weights_of_any_power(dtype, tolerance):
    """Against weights in forty digits. 128 and 1e4 leave the range of floats at the steps 257 and 2."""
    powers, steps = ["0", "0.5", "2.5", "128", "1e4"], 300
    xs = np.random.default_rng(1).standard_normal(steps).astype(dtype)

    @jax.jit
    @jax.vmap
    def means(power):
        method = tc.Polyak(tc.Standard(alpha=1.0, beta=0.0), power=power)

        def step(state, kx):
            k, x = kx
            state = method.step(lambda t, w, x: t - x, lambda t, w, x: w, state, x, k)
            return state, (state.theta, method.estimate(state)[0])

        start = method.init(jnp.zeros((), dtype), jnp.zeros((), dtype))
        return jax.lax.scan(step, start, (jnp.arange(steps), jnp.asarray(xs)))[1]

    with jax.enable_x64(dtype == "float64"), decimal.localcontext(prec=40):
        iterates, got = means(jnp.asarray([float(power) for power in powers]))
        for power, theta, mean in zip(powers, np.asarray(iterates), np.asarray(got), strict=True):
            weights = [decimal.Decimal(k) ** decimal.Decimal(power) for k in range(1, steps + 1)]
            for n in (1, 2, 10, steps):
                total = sum(w * decimal.Decimal(float(t)) for w, t in zip(weights[:n], theta[:n], strict=True))
                assert abs(float(mean[n - 1]) - float(total / sum(weights[:n]))) < tolerance


def test_polyak_weights_stay_right_in_float32_over_many_steps():
    """Σ (k/n)^power is (n+1)/2 for power 1 and (n+1)(2n+1)/6n for power 2; with 0 it is n, and beyond 2²⁴ too."""
    with jax.enable_x64(False):

        @jax.jit
        @jax.vmap
        def weights(power):
            method = tc.Polyak(tc.Standard(0.0, 0.0), power=power)
            start = method.init(jnp.zeros(()), jnp.zeros(()))
            still = lambda t, w, x: t  # noqa: E731
            return jax.lax.fori_loop(0, n, lambda k, s: method.step(still, still, s, None, k), start).weights.value

        n = 200_000
        got = weights(jnp.asarray([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(got, [n, (n + 1) / 2, (n + 1) * (2 * n + 1) / (6 * n)], rtol=1e-6)


EVERY = [
    tc.Fast(), tc.Standard(), tc.Polyak(tc.Fast()), tc.PlugIn(tc.Standard()), tc.methods.Lstd(),
    tc.Polyak(tc.Fast(), intervals=True), tc.RichardsonRomberg(intervals=True),
]  # fmt: skip


@pytest.mark.parametrize("method", EVERY, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("theta", [np.ones(3), 1.0, {"a": np.float64(1), "b": jnp.ones(2, jnp.float32)}], ids=str)
def test_stepping_in_a_user_loop_outside_x64(method, theta):
    """NumPy's float64 and plain floats become float32, compensated; types and structure stay from step to step."""

    def F(theta, omega, x):
        return jax.tree.map(lambda t: t if isinstance(t, jax.core.Tracer) else np.asarray(t, np.float64), theta)

    with jax.enable_x64(False):
        start = state = method.init(theta, (np.zeros(2), jnp.zeros(1)))
        for k in range(3):
            state = method.step(F, lambda t, w, x: w, state, None, k)
        assert jax.tree.structure(state) == jax.tree.structure(start)
        assert {leaf.dtype for leaf in jax.tree.leaves((state, method.estimate(state)))} == {jnp.dtype("float32")}
        sums = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda s: isinstance(s, Sum))
        bare = [jax.tree_util.keystr(path) for path, s in sums if isinstance(s, Sum) and s.residue is None]
        # A relative error of f and g of Fast moves no root.
        assert all(path.endswith((".mean_F", ".mean_G")) for path in bare)
        assert len(bare) < len(sums)


def test_precisions_may_be_mixed():
    """θ in float32 is compensated, ω in float64 needs not be."""
    state = tc.Fast().init(jnp.ones(2, jnp.float32), jnp.ones(2))
    state = tc.Fast().step(lambda t, w, x: w, lambda t, w, x: t, state, None, 0)
    assert (state.theta.dtype, state.f.dtype, state.omega.dtype, state.g.dtype) == tuple(
        map(jnp.dtype, ("float32", "float32", "float64", "float64"))
    )
    assert state.slow.sum.residue is not None
    assert state.fast.sum.residue is None


def test_a_float64_state_is_not_stepped_in_float32():
    ones = jnp.ones(2)
    state = tc.Fast().init(ones, ones)
    with jax.enable_x64(False):
        assert tc.Fast().init(ones, ones).theta.dtype == jnp.float32  # a new one may start from it
    with jax.enable_x64(False), pytest.raises(tc.InputError, match="the state is float64 and JAX is set to float32"):
        tc.Fast().step(lambda t, w, x: t, lambda t, w, x: w, state, None, 0)


@pytest.mark.parametrize("start", [np.zeros(2, int), 0, True, 1j, "zero"])
def test_variables_are_floats(start):
    for method in EVERY:
        with pytest.raises(tc.InputError, match=r"`omega\['y'\]` must be floating point, got .*; write 0.0 for 0"):
            method.init(np.zeros(2), {"y": start})


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (tc.Constant(0.5), "Constant(c=0.5)"),
        (tc.Power(2.0, shift=20.0), "Power(c=2, shift=20)"),
        (tc.Fast(), "Fast(α=2/(k+20), β=8/(k+40), λ=40/(k+160))"),
        (tc.Fast(0.1, 1 / 3, "1/(k+2)", 1.0, "fresh"), "Fast(α=0.1, β=0.333333, λ=1/(k+2), λ_g=1, order='fresh')"),
        (tc.Standard(np.float32(0.5), jnp.cbrt, project_theta=jnp.tanh), "Standard(α=0.5, β=cbrt, project_theta=tanh)"),
        (tc.Polyak(tc.Standard(1, 2), power=2), "Polyak(method=Standard(α=1, β=2), power=2)"),
        (tc.PlugIn(tc.methods.Lstd()), "PlugIn(method=Lstd())"),
        (jax.tree.map(lambda c: np.full(3, c), tc.Standard(1.0, 2.0)), "Standard(α=float64[3], β=float64[3])"),
    ],
)
def test_a_repr_is_one_short_line(thing, text):
    assert repr(thing) == text


STEPS = {"alpha": "0.5/(k+3)", "beta": "0.9/(k+2)^0.6"}


def test_fresh_with_lambda_one_is_standard():
    problem = tc.problems.quadratic(dim=4)
    fast = tc.solve(problem, tc.Fast(**STEPS, lam=1.0, order="fresh"), steps=500, seeds=3)
    standard = tc.solve(problem, tc.Standard(**STEPS), steps=500, seeds=3)
    assert np.array_equal(fast.theta, standard.theta)
    assert np.array_equal(fast.omega, standard.omega)


def test_paper_with_lambda_one_is_standard_one_step_late():
    """The first step goes nowhere since f₀ = 0; step k then uses the sample and the point of step k−1."""
    late = tc.Fast(alpha=0.5, beta=0.25, lam=1.0)
    theta, omega = 1.0, 0.0
    before = (theta, omega)
    for k, state in enumerate(walk(late)[1:]):
        f, g = (F(*before, X[k - 1]), G(*before, X[k - 1])) if k else (0.0, 0.0)
        before = (theta, omega)
        theta, omega = theta - 0.5 * f, omega - 0.25 * g
        assert (float(state.theta), float(state.omega)) == (theta, omega)


def test_variables_are_any_pytree():
    theta = {"w": jnp.ones((2, 3)), "b": (jnp.zeros(()), jnp.ones(4))}
    omega = [jnp.zeros(5)]
    for method in (tc.Fast(), tc.Standard(), tc.Polyak(tc.Fast())):
        state = method.init(theta, omega)
        state = method.step(lambda t, w, x: t, lambda t, w, x: w, state, None, 0)
        got = method.estimate(state)
        assert jax.tree.structure(got) == jax.tree.structure((theta, omega))


@pytest.mark.parametrize(
    "method", [tc.Fast(0.5, 0.25, 0.5), tc.Standard(0.5, 0.25), tc.Polyak(tc.Fast(0.5, 0.25, 0.5))]
)
def test_float32_follows_the_exact_sums(method):
    """Ten thousand steps of 1e-9 from 1: float32 alone would not move, the compensated sum does."""
    size = 1e-9
    method = jax.tree.map(lambda leaf: leaf, method)
    state = method.init(jnp.float32(1), jnp.float32(1))

    def step(state, k):
        return method.step(lambda t, w, x: jnp.float32(-size), lambda t, w, x: jnp.float32(-size), state, None, k), None

    state, _ = jax.lax.scan(step, state, jnp.arange(10_000))
    assert state.theta.dtype == jnp.float32
    np.testing.assert_allclose(float(state.theta) - 1, 0.5 * size * 10_000, rtol=0.03)
