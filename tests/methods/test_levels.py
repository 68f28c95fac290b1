"""More than two clocks: a step size for each level of ω, against the recurrence and in every main function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import prng
from twoclock.methods import serialize
from twoclock.protocols import InputError


def nest():
    """θ* = 1, y(θ) = θ, w(θ, y) = θ + y; each operator is its own error plus a pull from the levels after it."""
    return tc.problems.custom(
        F=lambda theta, omega, x: theta - 1 + (omega[0] - theta) / 2 + (omega[1] - theta - omega[0]) / 4 + x[0],
        G=(
            lambda theta, omega, x: omega[0] - theta + (omega[1] - theta - omega[0]) / 2 + x[1],
            lambda theta, omega, x: omega[1] - theta - omega[0] + x[2],
        ),
        noise=lambda key: jax.random.normal(key, (3,)),
        theta=0.0,
        omega=(0.0, 0.0),
        measure=lambda theta, omega: {
            "error": (theta - 1) ** 2,
            "tracking_1": (omega[0] - theta) ** 2,
            "tracking_2": (omega[1] - theta - omega[0]) ** 2,
        },
    )


LEVELS = ("8/(k+40)", "16/(k+80)")
FAST = tc.Fast("2/(k+20)", LEVELS, "40/(k+160)", lam_g=("20/(k+160)", 0.3))


def test_fast_on_three_levels_is_the_recurrence():
    """x_i ← x_i − α_i f_i with the old f_i, then f_i ← (1−λ)f_i + λF_i at the old x, all on one sample."""
    problem, seed, steps = nest(), 3, 40
    result = tc.solve(problem, FAST, steps, [seed], marks=range(steps + 1))
    with jax.enable_x64(True):
        noise = np.array([problem.noise(prng.step_key(seed, k)) for k in range(steps)])
    x, f = np.zeros(3), np.zeros(3)
    for k in range(steps):
        t, y, w = x
        F = np.array([t - 1 + (y - t) / 2 + (w - t - y) / 4, y - t + (w - t - y) / 2, w - t - y]) + noise[k]
        lam = np.array([40 / (k + 160), 20 / (k + 160), 0.3])
        x, f = x - np.array([2 / (k + 20), 8 / (k + 40), 16 / (k + 80)]) * f, (1 - lam) * f + lam * F
    np.testing.assert_allclose([result.theta[0], *(leaf[0] for leaf in result.omega)], x, rtol=1e-12)


@pytest.mark.parametrize("method", [tc.Fast, tc.Standard])
def test_one_step_size_serves_all_levels(method):
    one, each = method(beta="8/(k+40)"), method(beta=("8/(k+40)", "8/(k+40)"))
    a, b = (tc.solve(nest(), m, 300, 3) for m in (one, each))
    np.testing.assert_array_equal(a.theta, b.theta)


def test_levels_agree_on_the_engines():
    c, xla = (tc.solve(nest(), FAST, 20_000, 4, engine=engine) for engine in ("c", "xla"))
    np.testing.assert_allclose(c.theta, xla.theta, rtol=1e-9)
    np.testing.assert_allclose(c.history["tracking_2"], xla.history["tracking_2"], rtol=1e-6, atol=1e-12)


def test_levels_in_grids_records_sweeps_and_learners(tmp_path):
    settings = tc.grid(FAST, **{"beta.1.c": [4.0, 8.0], "beta.2": ["16/(k+80)"]})
    assert [str(method.beta) for method in settings.values()] == ["4/(k+40); 16/(k+80)", "8/(k+40); 16/(k+80)"]
    assert str(serialize.from_json(serialize.to_json(FAST)).beta) == "8/(k+40); 16/(k+80)"
    result = tc.solve(nest(), FAST, 200, 2)
    assert tc.load(result.save(tmp_path / "run")) == result
    assert result.spec["method"]["beta"] == "8/(k+40); 16/(k+80)"
    longer = tc.solve(nest(), FAST, 400, 2, start=result)
    np.testing.assert_array_equal(longer.theta, tc.solve(nest(), FAST, 400, 2).theta)
    with pytest.raises(InputError, match=r"`beta\.1\.d` is not a setting of Fast; did you mean `beta\.1"):
        tc.grid(FAST, **{"beta.1.d": [1.0]})


def test_the_inner_variable_and_the_adjoint_of_a_bilevel_problem_have_clocks_of_their_own():
    problem = tc.problems.quadratic_bilevel(3, 3, 48, 8)
    method = tc.Standard("0.5/(k+50)", ("5/(k+50)", "20/(k+50)"))
    history = tc.solve(problem, method, 3000, 5).history
    start, end = (history[history["step"] == step]["error"].mean() for step in (0, 3000))
    assert end < 0.1 * start


def test_means_of_iterates_have_intervals_with_a_step_for_each_level():
    levels = ("4/(k+40)^0.6", "8/(k+80)^0.7")
    result = tc.solve(nest(), tc.Polyak(tc.Standard("1/(k+20)^0.6", levels), intervals=True), 20_000, 8)
    table = result.interval()
    assert ((table["low"] < 1) & (table["high"] > 1)).sum() >= 6
    assert (table["high"] - table["low"]).max() < 0.2
    assert table["note"].str.contains("alpha/beta_2 is not constant").all()
    constant = tc.RichardsonRomberg(tc.Standard(0.05, (0.1, 0.2)), intervals=True)
    assert abs(tc.solve(nest(), constant, 20_000, 8).theta.mean() - 1) < 0.05


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tc.Fast(alpha=("1/(k+1)", 0.1)), "`alpha` must be one schedule"),
        (lambda: tc.Fast(beta=()), "or one per level of ω, got an empty sequence"),
        (lambda: tc.Standard(beta=(0.1, -1.0)), r"`beta\[1\]` must be a finite number that is not negative"),
        (lambda: tc.solve(nest(), tc.Fast(beta=(0.1,) * 3), 10), "must have one per level of ω, which has 2"),
        (lambda: tc.solve(tc.problems.quadratic(), tc.Fast(beta=(0.1, 0.1)), 10), "which has 1"),
        (lambda: tc.problems.custom(lambda t, o, x: t, (lambda t, o, x: o,) * 2, jnp.ones, 0.0, 0.0), "got a float"),
    ],
)
def test_wrong_levels_get_one_line(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_a_constant_of_the_users_own_in_draw_is_not_taken_for_an_argument():
    """A default binds a loop's number; ω must not be handed over in the place of ``env``."""
    seen = []
    for scale in (1.0, 2.0):

        def draw(u, theta, env, scale=scale):
            return env + scale, env + scale

        problem = tc.problems.custom(
            F=lambda theta, omega, x: omega,
            G=lambda theta, omega, x: x,  # ω ← ω − x: the sum of env's values
            noise=jax.random.normal,
            draw=draw,
            theta=0.0,
            omega=100.0,
            env=0.0,
        )
        seen.append(float(tc.solve(problem, tc.Standard(0.0, 1.0), 3, [1]).omega[0]))
    assert seen == [100 - (1 + 2 + 3), 100 - (2 + 4 + 6)]


def test_samples_may_depend_on_the_fast_variable():
    """X ~ N(ω, 1) and G = ω − X/2 − 1, so ω* = 2; the chain's sample is drawn at the current ω."""
    problem = tc.problems.custom(
        F=lambda theta, omega, x: theta - omega,
        G=lambda theta, omega, x: omega - x / 2 - 1,
        noise=jax.random.normal,
        draw=lambda u, theta, omega, env: (omega + u, env + omega),
        theta=0.0,
        omega=0.0,
        env=0.0,
        measure=lambda theta, omega: {"error": (theta - 2) ** 2, "tracking": (omega - 2) ** 2},
    )
    short = tc.solve(problem, tc.Standard(0.1, 0.1), 3, [5], marks=range(4))
    with jax.enable_x64(True):
        noise = [float(problem.noise(prng.step_key(5, k))) for k in range(3)]
    theta = omega = 0.0
    for u in noise:
        theta, omega = theta - 0.1 * (theta - omega), omega - 0.1 * (omega - (omega + u) / 2 - 1)
    np.testing.assert_allclose([short.theta[0], short.omega[0]], [theta, omega], rtol=1e-12)
    runs = {engine: tc.solve(problem, tc.Fast(), 20_000, 8, engine=engine) for engine in ("xla", "c")}
    for result in runs.values():
        assert result.history.groupby("step")["error"].mean().iloc[-1] < 0.01
    np.testing.assert_allclose(runs["c"].theta, runs["xla"].theta, rtol=1e-9)


def test_a_problem_class_may_declare_a_draw_that_sees_omega():
    @tc.protocols.pytree
    class Field(tc.Problem):
        def init(self, key):
            return jnp.zeros(()), jnp.zeros(()), None

        def noise(self, key):
            return jax.random.normal(key)

        def draw(self, u, theta, omega, env):
            return u + omega, env

        def F(self, theta, omega, x):
            return theta - x

        def G(self, theta, omega, x):
            return omega - 1

        def measure(self, theta, omega):
            return {"error": (theta - 1) ** 2}

    history = tc.solve(Field(), tc.Standard("1/(k+1)", "1/(k+1)"), 5000, 8).history
    assert history.groupby("step")["error"].mean().iloc[-1] < 0.01
