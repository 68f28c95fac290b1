"""Bilevel, minimax and composite problems against closed forms and against exact implicit differentiation."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import prng
from twoclock.problems.bilevel import losses

RNG = np.random.default_rng(0)
A, t = RNG.normal(size=(60, 4)), np.sign(RNG.normal(size=60))


def logistic(y, batch):
    a, t = batch
    return jnp.mean(jnp.logaddexp(0.0, -t * (a @ y)))


def logistic_problem(**options):
    """Per-feature regularisation of a logistic regression."""
    return tc.problems.bilevel(
        outer=lambda x, y, batch: logistic(y, batch) + 0.01 * jnp.sum(x**2),
        inner=lambda x, y, batch: logistic(y, batch) + jnp.sum(jnp.exp(x) * y**2) / 2,
        sampler=(tc.samplers.Minibatches((A[:30], t[:30]), 10), tc.samplers.Minibatches((A[30:], t[30:]), 6)),
        x=np.full(4, -1.0),
        y=np.zeros(4),
        **options,
    )


def solution(inner, x):
    """y*(x) by Newton's method."""
    step = lambda i, y: y - jnp.linalg.solve(jax.hessian(inner, 1)(x, y), jax.grad(inner, 1)(x, y))  # noqa: E731
    return jax.lax.fori_loop(0, 30, step, jnp.zeros(4))


def test_direction_is_the_hypergradient_logistic():
    """Implicit differentiation with whole Hessians at the root; differences of f(x, y*(x)) agree."""
    problem = logistic_problem(v_scale=0.5)
    x = jnp.asarray(RNG.normal(size=4)) - 1

    def outer(x, y):
        return logistic(y, (A[30:], t[30:])) + 0.01 * jnp.sum(x**2)

    def inner(x, y):
        return logistic(y, (A[:30], t[:30])) + jnp.sum(jnp.exp(x) * y**2) / 2

    @jax.jit
    def exact(x):
        y = solution(inner, x)
        v = jnp.linalg.solve(jax.hessian(inner, 1)(x, y), jax.grad(outer, 1)(x, y))
        cross = jax.jacfwd(jax.grad(inner, 1), 0)(x, y)
        return jax.grad(outer, 0)(x, y) - cross.T @ v, (y, v)

    hypergradient, omega = exact(x)
    np.testing.assert_allclose(problem.mean_F(x, omega), hypergradient, atol=1e-12)
    np.testing.assert_allclose(jnp.stack(problem.mean_G(x, omega)), 0.0, atol=1e-12)
    value = jax.jit(jax.vmap(lambda x: outer(x, solution(inner, x))))
    moved = 1e-5 * jnp.eye(4)
    numeric = (value(x[None] + moved) - value(x[None] - moved)) / 2e-5
    np.testing.assert_allclose(hypergradient, numeric, atol=1e-8)


def test_direction_is_the_hypergradient_quadratic():
    problem = tc.problems.quadratic_bilevel(dim_x=3, dim_y=7, samples=40, batch=8)
    x = jnp.asarray(RNG.normal(size=3))
    np.testing.assert_allclose(problem.mean_F(x, problem.omega_star(x)), jax.grad(problem.h)(x), atol=1e-10)
    np.testing.assert_allclose(jnp.concatenate(problem.mean_G(x, problem.omega_star(x))), 0.0, atol=1e-10)


def test_no_hessian_is_made():
    """Nothing in F or G is larger than y, where a Hessian would be its square."""
    size = 1000
    problem = tc.problems.bilevel(
        outer=lambda x, y, batch: jnp.sum(jnp.cos(y)) + x**2,
        inner=lambda x, y, batch: jnp.sum((y - x) ** 2 + jnp.sin(y * x) / 4),
        sampler=lambda key: (None, None),
        x=0.5,
        y=np.zeros(size),
        v_scale=0.1,
    )
    theta, omega, _ = problem.init(prng.start_key(0))
    for operator in (problem.F, problem.G):
        jaxpr = jax.make_jaxpr(operator)(theta, omega, (None, None))
        assert max(v.aval.size for eqn in jaxpr.jaxpr.eqns for v in eqn.outvars) <= size
    assert len(jax.tree.leaves(problem.G(theta, omega, (None, None)))) == 2


def test_variables_are_any_pytree_and_a_sampler_any_function():
    """The same problem with x, y as trees and as vectors takes the same steps."""

    def sampler(key):
        return jax.random.normal(key, (4,)), jax.random.normal(jax.random.fold_in(key, 1), (4,))

    def losses(pick):
        def inner(x, y, e):
            (p, q), z = pick(x), y if isinstance(y, jax.Array) else jnp.concatenate([y["a"], y["b"][0]])
            return jnp.sum((z - p * jnp.arange(4.0) - q + 0.1 * e) ** 2)

        def outer(x, y, e):
            z = y if isinstance(y, jax.Array) else jnp.concatenate([y["a"], y["b"][0]])
            return jnp.sum((z - 1 + 0.1 * e) ** 2) / 2 + sum(w**2 for w in pick(x)) / 10

        return {"outer": outer, "inner": inner, "sampler": sampler}

    flat = tc.problems.bilevel(**losses(lambda x: (x[0], x[1])), x=np.zeros(2), y=np.zeros(4))
    tree = tc.problems.bilevel(
        **losses(lambda x: (x["p"], x["q"])), x={"p": 0.0, "q": 0.0}, y={"a": np.zeros(1), "b": (np.zeros(3),)}
    )
    method = tc.Fast(0.01, 0.05, 0.2)
    a, b = (tc.solve(problem, method, steps=200, seeds=2) for problem in (flat, tree))
    np.testing.assert_allclose(a.theta[:, 0], b.theta["p"], atol=1e-13)
    np.testing.assert_allclose(a.omega[1][:, 1:], b.omega[1]["b"][0], atol=1e-13)


def common_problem(**options):
    """Inner curvature 0.5 to 1, outer curvature up to 2: not monotone as it stands."""
    H, P = np.diag([0.5, 0.8, 1.0]), np.diag([2.0, 1.0, 0.1])
    return tc.problems.bilevel(
        outer=lambda x, y, e: y @ (P @ y) / 2 + x @ x / 2 + e @ y,
        inner=lambda x, y, e: y @ (H @ y) / 2 - x @ y + e @ y,
        sampler=lambda key: (jax.random.normal(key, (3,)), jax.random.normal(jax.random.fold_in(key, 1), (3,))),
        x=np.ones(3),
        y=np.zeros(3),
        **options,
    )


def test_the_scale_keeps_g_strongly_monotone():
    """By eigenvalues of [[H, 0], [−sP, sH]] written out; the theory's constants report the same number."""

    def smallest(s):
        H, P = np.diag([0.5, 0.8, 1.0]), np.diag([2.0, 1.0, 0.1])
        M = np.block([[H, np.zeros((3, 3))], [-s * P, s * H]])
        return np.linalg.eigvalsh((M + M.T) / 2)[0]

    assert smallest(1.0) < 0
    chosen = common_problem()
    s = float(chosen.v_scale)
    assert 0 < s < 1
    assert smallest(s) >= s * 0.5 / 2
    for problem in (chosen, common_problem(v_scale=1.0)):
        found = tc.theory.constants(problem, samples=16, points=1)
        np.testing.assert_allclose(found.mu_g, smallest(float(problem.v_scale)), atol=1e-10)


def test_theory_reports_exact_constants_for_quadratics():
    problem = tc.problems.quadratic_bilevel(dim_x=3, dim_y=4)
    found = tc.theory.constants(problem, samples=16, points=1)
    assert {"L", "mu_h", "mu_g"} <= set(found.exact)
    assert found.mu_g > 0
    np.testing.assert_allclose(found.mu_h, np.linalg.eigvalsh(problem.truth.S)[0], rtol=1e-9)


def test_v_scale_is_one_where_g_is_monotone():
    problem = tc.problems.bilevel(
        outer=lambda x, y, e: jnp.sum(y**2) / 20 + x**2,
        inner=lambda x, y, e: jnp.sum((y - x) ** 2),
        sampler=lambda key: (None, None),
        x=1.0,
        y=np.zeros(2),
    )
    assert float(problem.v_scale) == 1.0


def test_a_clock_of_its_own_for_v_is_what_the_scale_was():
    """β_v = s·β_y on three levels is β on two with the scale s; a power of two loses no bit."""
    scaled, nest = common_problem(v_scale=0.25), common_problem(levels=True)
    assert float(nest.v_scale) == 1.0
    for method in (tc.Fast, tc.Standard):
        rest = ("1/(k+8)",) if method is tc.Fast else ()
        two = tc.solve(scaled, method("1/(k+100)", "4/(k+100)", *rest), 2000, 3)
        three = tc.solve(nest, method("1/(k+100)", ("4/(k+100)", "1/(k+100)"), *rest), 2000, 3)
        np.testing.assert_array_equal(two.theta, three.theta)
        for one, other in zip(two.omega, three.omega, strict=True):
            np.testing.assert_array_equal(one, other)


def test_three_levels_need_no_monotone_g():
    """At s = 1 this G is not monotone; on clocks of their own x, y and v still find the solution, which is at zero."""
    method = tc.Fast("1/(k+400)", ("40/(k+400)", "80/(k+400)"), "160/(k+400)")
    result = tc.solve(common_problem(levels=True), method, steps=20_000, seeds=4)
    np.testing.assert_allclose(result.theta, 0, atol=0.1)


def test_large_inner_problems_are_measured_without_matrices():
    """Two hundred unknowns, more than Lanczos takes steps: the estimate of s still makes G monotone."""
    scale = np.geomspace(0.1, 1.0, 200)
    problem = tc.problems.bilevel(
        outer=lambda x, y, e: jnp.sum(y**2) + x**2,
        inner=lambda x, y, e: jnp.sum(jnp.asarray(scale) * y**2) - x * jnp.sum(y),
        sampler=lambda key: (None, None),
        x=1.0,
        y=np.zeros(200),
    )
    s, h = float(problem.v_scale), 2 * scale
    assert np.min((h + s * h - np.sqrt((h - s * h) ** 2 + 4 * s**2)) / 2) > 0


def test_bilevel_finds_the_solution():
    problem = tc.problems.quadratic_bilevel(dim_x=3, dim_y=3)
    result = tc.solve(problem, tc.Fast("20/(k+500)", "40/(k+500)", "100/(k+500)"), steps=20_000, seeds=4)
    start, end = result.summary("error")["mean"].iloc[[0, -1]]
    assert end < 1e-2 * start


def test_minimax_closed_form():
    """ℓ = ½xᵀAx + xᵀBy − ½yᵀCy: y* = C⁻¹Bᵀx and ∇h = (A + BC⁻¹Bᵀ)x, at any point."""
    A, B, C = np.diag([1.0, 2.0]), np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]]), np.diag([1.0, 2.0, 4.0])
    problem = tc.problems.minimax(
        loss=lambda x, y, e: x @ (A @ x) / 2 + x @ (B @ y) - y @ (C @ y) / 2 + e[:2] @ x + e[2:] @ y,
        sampler=lambda key: jax.random.normal(key, (5,)),
        x=np.ones(2),
        y=np.zeros(3),
    )
    x = jnp.asarray([0.3, -0.7])
    y = jnp.linalg.solve(C, B.T @ x)
    zero = jnp.zeros(5)
    np.testing.assert_allclose(problem.F(x, y, zero), (A + B @ np.linalg.inv(C) @ B.T) @ x, atol=1e-14)
    np.testing.assert_allclose(problem.G(x, y, zero), 0.0, atol=1e-14)
    result = tc.solve(problem, tc.Fast(), steps=20_000, seeds=4)
    assert np.sum(result.theta**2, axis=1).mean() < 1e-2


def test_composite_closed_form():
    """h(x) = ½‖E[M]x − E[b]‖², whose gradient E[M]ᵀ(E[M]x − E[b]) no sample of the loss has as its mean."""
    M, b = RNG.normal(size=(40, 3, 2)) + np.eye(3, 2), RNG.normal(size=(40, 3))
    problem = tc.problems.composite(
        outer=lambda omega, batch: jnp.sum((omega - jnp.mean(batch, axis=0)) ** 2) / 2,
        inner=lambda x, batch: jnp.mean(batch @ x, axis=0),
        sampler=(tc.samplers.Minibatches(M, 8), tc.samplers.Minibatches(b, 8)),
        x=np.zeros(2),
        measure=lambda x, omega: {"error": jnp.sum((x - jnp.linalg.lstsq(M.mean(0), b.mean(0))[0]) ** 2)},
    )
    x = jnp.asarray([0.4, -1.0])
    slope = M.mean(0).T @ (M.mean(0) @ x - b.mean(0))
    np.testing.assert_allclose(problem.omega_star(x), M.mean(0) @ x, atol=1e-14)
    np.testing.assert_allclose(problem.mean_F(x, problem.omega_star(x)), slope, atol=1e-14)
    np.testing.assert_allclose(jax.grad(problem.h)(x), slope, atol=1e-14)
    result = tc.solve(problem, tc.Fast("8/(k+200)", "20/(k+200)", "40/(k+200)"), steps=20_000, seeds=4)
    start, end = result.summary("error")["mean"].iloc[[0, -1]]
    assert end < 0.05 * start


GOOD = {"x": np.zeros(2), "y": np.zeros(3), "sampler": lambda key: (jax.random.normal(key, (4, 3)), None)}


def f(x, y, batch):
    return jnp.sum(y**2) + jnp.sum(x**2)


def g(x, y, batch):
    return jnp.mean((batch @ y - jnp.sum(x)) ** 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tc.problems.bilevel(outer=lambda x, y, b: y**2, inner=g, **GOOD), "`outer` must return one number"),
        (lambda: tc.problems.bilevel(outer=f, inner=lambda x, y, b: b @ y, **GOOD), "`inner` must return one number"),
        (
            lambda: tc.problems.bilevel(
                outer=f,
                inner=lambda x, y, b: jnp.mean((b[0] @ y - b[1]) ** 2),
                **{**GOOD, "sampler": lambda key: ((jnp.ones((4, 3)), jnp.ones(5)), None)},
            ),
            "got 4 and 5",
        ),
        (lambda: tc.problems.bilevel(outer=f, inner=lambda x, y, b: jnp.sum(x) * jnp.sum(y), **GOOD), "curvature"),
        (lambda: tc.problems.bilevel(outer=f, inner=lambda x, y, b: -g(x, y, b), **GOOD), "curvature"),
        (
            lambda: tc.problems.bilevel(outer=f, inner=g, **GOOD, v_scale=0.0),
            "`v_scale` must be a finite number above 0",
        ),
        (lambda: tc.problems.bilevel(outer=f, inner=g, **{**GOOD, "sampler": lambda key: jnp.ones(3)}), "a pair"),
        (lambda: tc.problems.bilevel(outer=f, inner=g, **{**GOOD, "x": [np.nan]}), "`x` must start from finite"),
        (
            lambda: tc.problems.minimax(
                loss=lambda x, y, b: x @ y, sampler=lambda key: None, x=np.ones(2), y=np.ones(2)
            ),
            "`loss`, and so G, is not strongly monotone",
        ),
        (
            lambda: tc.problems.composite(
                outer=lambda w, b: w, inner=lambda x, b: x, sampler=lambda key: (None, None), x=np.ones(2)
            ),
            "`outer` must return one number",
        ),
        (lambda: tc.problems.quadratic_bilevel(batch=65), "`batch` must be a whole number from 1 to 64"),
    ],
)
def test_bad_input_is_one_line(make, words):
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def network_cleaning(**options):
    """Data cleaning with a network: 12 of 40 labels are flipped, and x weighs the items by what clean data say."""
    rng = np.random.default_rng(0)

    def blobs(count):
        label = np.sign(rng.standard_normal(count))
        return label[:, None] + 0.4 * rng.standard_normal((count, 2)), label

    (a, b), clean = blobs(40), blobs(40)
    b[:12] *= -1

    def loss(y, a, b):
        return jnp.logaddexp(0.0, -b * (jnp.tanh(a @ y["W"] + y["b"][None, :]) @ y["v"]))

    def inner(x, y, batch):
        i, *items = batch
        return jnp.mean(jax.nn.sigmoid(x[i]) * loss(y, *items)) + 5e-3 * sum(jnp.sum(p**2) for p in jax.tree.leaves(y))

    return tc.problems.bilevel(
        outer=lambda x, y, batch: jnp.mean(loss(y, *batch)),
        inner=inner,
        sampler=(tc.samplers.Minibatches((np.arange(40), a, b), 10), tc.samplers.Minibatches(clean, 10)),
        x=np.zeros(40),
        y={"W": rng.standard_normal((2, 4)) / 2, "b": np.zeros(4), "v": rng.standard_normal(4) / 2},
        v_scale=0.05,
        **options,
    )


def test_a_network_inside_is_warned_of_and_cleans_its_data():
    measured = (
        r"curvature in y goes from -0\.\d+ to 0\.\d+ at the start and from [\d.e-]+ to [\d.]+ where it was minimised"
    )
    with pytest.warns(tc.problems.CurvatureWarning, match=measured):
        network_cleaning()
    problem = network_cleaning(check=False)  # warnings are errors here: this one is silent
    result = tc.solve(problem, tc.Fast(20.0, 0.1, 0.2), steps=1500, seeds=2)
    weights = jax.nn.sigmoid(result.theta)
    assert weights[:, :12].max() < 0.2
    assert weights[:, 12:].mean() > 0.7


def test_flat_directions_are_warned_of():
    with pytest.warns(tc.problems.CurvatureWarning, match="curvature in y goes from 0 to 2"):
        tc.problems.bilevel(outer=f, inner=lambda x, y, b: y[0] ** 2, **GOOD)


@pytest.mark.parametrize("size", [1, 2, 128, 400])
def test_extreme_eigenvalues_agree_with_dense_ones(size):
    from twoclock.problems.bilevel.losses import extreme_eigenvalues

    rng = np.random.default_rng(size)
    basis, _ = np.linalg.qr(rng.standard_normal((size, size)))
    values = np.sort(rng.uniform(-0.3, 2.0, size))
    matrix = basis * values @ basis.T
    np.testing.assert_allclose(extreme_eigenvalues(lambda v: matrix @ v, size), (values[0], values[-1]), atol=1e-6)
    assert np.isnan(extreme_eigenvalues(lambda v: np.nan * v, 3)).all()


def test_a_network_critic_is_taken_where_it_is_not_checked():
    """A critic tells noise from what a shift x makes of it; it is not concave in its weights."""

    def loss(x, y, batch):
        def critic(a):
            return jnp.tanh(a * y["w"]) @ y["v"]

        return critic(batch + 1.0) - critic(batch + x) - 0.1 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(y))

    options = {"loss": loss, "sampler": lambda key: 0.1 * jax.random.normal(key), "x": 0.0}
    y = {"w": np.array([0.5, -0.3]), "v": np.array([0.4, 0.2])}
    with pytest.raises(tc.InputError, match=r"`loss`, and so G, is not strongly monotone .* or pass check=False"):
        tc.problems.minimax(**options, y=y)
    result = tc.solve(tc.problems.minimax(**options, y=y, check=False), tc.Fast(0.05, 0.1, 0.2), steps=500, seeds=2)
    assert not result.diverged.any()
    with pytest.raises(tc.InputError, match="`check` must be True or False, got 'no'"):
        tc.problems.minimax(**options, y=y, check="no")


def test_a_check_that_takes_long_says_what_it_does_and_how_to_skip_it(monkeypatch, caplog):
    with losses.announce_slow_check("inner", 2_410, "check=False skips it"):
        pass
    assert not caplog.messages
    monkeypatch.setattr(losses, "_PATIENCE", 0.01)
    with losses.announce_slow_check("inner", 2_410, "check=False skips it"):
        time.sleep(0.5)
    assert caplog.messages == [
        "measuring the curvature of `inner` in 2,410 unknowns, which may take from seconds to minutes; check=False "
        "skips it"
    ]
    caplog.clear()
    logistic_problem()
    assert "of `inner` in" in caplog.text, "the whole measurement is inside"


def test_a_check_that_is_skipped_draws_no_batches(monkeypatch):
    def no_probes(*_):
        raise AssertionError("batches are drawn to measure curvature on")

    monkeypatch.setattr(losses, "draw_probes", no_probes)
    logistic_problem(check=False, v_scale=0.25)
    sampler = tc.samplers.Minibatches((A, t), 10)
    tc.problems.minimax(
        lambda x, y, batch: jnp.sum(x * y) - jnp.sum(y**2), sampler, np.zeros(2), np.zeros(2), check=False
    )
    with pytest.raises(AssertionError, match="batches are drawn"):
        logistic_problem(check=False)
