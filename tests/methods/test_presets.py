"""Methods of the literature, each transcribed in a few lines of NumPy from its published update, on like samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import methods, prng

STEPS = 50
RIDGE = 0.1


def samples(problem, seed=0):
    """The batches that the library draws for this seed."""
    theta, _, env = problem.init(prng.start_key(seed))

    def step(env, k):
        x, env = problem.draw(problem.noise(prng.step_key(seed, k)), theta, env)
        return env, x

    drawn = jax.tree.map(np.asarray, jax.lax.scan(step, env, jnp.arange(STEPS))[1])
    return tuple(level.batch for level in drawn) if isinstance(drawn, tuple) else drawn.batch


@pytest.fixture(scope="module")
def bilevel():
    with jax.enable_x64(True):
        problem = tc.problems.quadratic_bilevel(dim_x=3, dim_y=4, v_scale=1.0)
        return problem, samples(problem)


def directions(k, x, y, v, drawn):
    """D_x, D_y, D_v of Dagréou et al., their eqs. (2)–(4), with derivatives worked by hand; v is minus ours."""
    (a, b, c), (p, r) = (tuple(part[k] for part in level) for level in drawn)
    n = len(c)
    residual, fit = a @ y - b @ x - c, p @ y - r
    D_y = a.T @ residual / n + RIDGE * y
    D_v = a.T @ (a @ v) / n + RIDGE * v + p.T @ fit / n
    D_x = -b.T @ (a @ v) / n + RIDGE * x
    return D_x, D_y, D_v


def run(problem, method):
    return tc.solve(problem, method, steps=STEPS, seeds=[0])


def agree(result, x, y, v):
    np.testing.assert_allclose(result.theta[0], x, atol=1e-13)
    np.testing.assert_allclose(result.omega[0][0], y, atol=1e-13)
    np.testing.assert_allclose(result.omega[1][0], -v, atol=1e-13)


def test_soba(bilevel):
    """z, v, x move at once: z − ρD_z, v − ρD_v, x − γD_x (Algorithm 1 with SGD directions)."""
    problem, drawn = bilevel
    x, y, v = np.zeros(3), np.zeros(4), np.zeros(4)
    for k in range(STEPS):
        D_x, D_y, D_v = directions(k, x, y, v, drawn)
        x, y, v = x - 0.05 * D_x, y - 0.1 * D_y, v - 0.1 * D_v
    agree(run(problem, methods.soba(0.05, 0.1)), x, y, v)


def test_ma_soba(bilevel):
    """x moves along the old average h, y and z along fresh directions, then h averages in the fresh D_x."""
    problem, drawn = bilevel
    x, y, v, h = np.zeros(3), np.zeros(4), np.zeros(4), np.zeros(3)
    for k in range(STEPS):
        D_x, D_y, D_v = directions(k, x, y, v, drawn)
        x, y, v, h = x - 0.05 * h, y - 0.1 * D_y, v - 0.1 * D_v, 0.8 * h + 0.2 * D_x
    agree(run(problem, methods.ma_soba(0.05, 0.1, 0.2)), x, y, v)


@pytest.mark.parametrize(("convex", "slow", "fast"), [(True, 1.0, 2 / 3), (False, 3 / 5, 2 / 5)])
def test_ttsa_steps(bilevel, convex, slow, fast):
    problem, drawn = bilevel
    x, y, v = np.zeros(3), np.zeros(4), np.zeros(4)
    for k in range(STEPS):
        D_x, D_y, D_v = directions(k, x, y, v, drawn)
        alpha, beta = 0.5 / (k + 10) ** slow, 0.3 / (k + 10) ** fast
        x, y, v = x - alpha * D_x, y - beta * D_y, v - beta * D_v
    agree(run(problem, methods.ttsa(0.5, 0.3, 10.0, strongly_convex=convex)), x, y, v)


def test_sgda():
    """x − η_x ∇_xℓ and y + η_y ∇_yℓ at the same point (Algorithm 2 of Lin et al.)."""
    problem = tc.problems.quadratic_minimax(dim_x=3, dim_y=4)
    A, B, C = samples(problem)
    x, y = np.zeros(3), np.zeros(4)
    for a, b, c in zip(A, B, C, strict=True):
        up = a.T @ (b @ x - c - a @ y) / len(c) - RIDGE * y
        down = b.T @ (a @ y) / len(c) + RIDGE * x
        x, y = x - 0.05 * down, y + 0.1 * up
    result = run(problem, methods.sgda(0.05, 0.1))
    np.testing.assert_allclose(result.theta[0], x, atol=1e-13)
    np.testing.assert_allclose(result.omega[0], y, atol=1e-13)
