"""Step rules for networks, ObGD and Intentional, against their published recurrences written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

GAMMA, LAM = 0.9, 0.8
RNG = np.random.default_rng(0)
START = {"W": RNG.normal(size=(3, 2)), "v": RNG.normal(size=3)}


def value(params, state):
    return params["v"] @ jnp.tanh(params["W"] @ state)


def episode(steps, seed):
    """Samples of one episode, its rewards large enough that errors above 1 occur."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(steps + 1, 2))
    return [
        {
            "s": states[i], "next_state": states[i + 1], "rho": 1.0, "r": float(3 * rng.normal()),
            "gamma": 0.0 if i == steps - 1 else GAMMA, "keep": 0.0 if i == 0 else GAMMA * LAM,
        }
        for i in range(steps)
    ]  # fmt: skip


def gradient(params, s):
    """∇V by hand, as one vector."""
    h = np.tanh(params[:6].reshape(3, 2) @ s)
    return np.concatenate([np.outer(params[6:] * (1 - h**2), s).ravel(), h])


def predicted(params, s):
    return params[6:] @ np.tanh(params[:6].reshape(3, 2) @ s)


def errors(params, e, x):
    """δ, g and the new trace."""
    g = gradient(params, x["s"])
    delta = x["r"] + x["gamma"] * predicted(params, x["next_state"]) - predicted(params, x["s"])
    return delta, g, x["keep"] * e + g


def obgd(params, samples, kappa=2.0, alpha=1.0):
    """Elsayed, Vasan & Mahmood 2024, Algorithm 3."""
    e = np.zeros_like(params)
    for x in samples:
        delta, _, e = errors(params, e, x)
        M = alpha * kappa * max(abs(delta), 1) * np.abs(e).sum()
        params = params + min(alpha / M, alpha) * delta * e
    return params


def intentional(params, samples, clip=20.0, published=False, eta=0.5, beta2=0.999, beta_clip=0.9998):
    """Sharifnassab et al. 2026, as their program has it; σ with the weights of the trace, unless ``published``."""
    e, v, ema, S, W, sigma = np.zeros_like(params), np.zeros_like(params), 1.0, 0.0, 0.0, 0.0
    for t, x in enumerate(samples, 1):
        delta, g, e = errors(params, e, x)
        v = beta2 * v + (1 - beta2) * g**2
        scale = np.sqrt(v / (1 - beta2**t)) + 1e-8
        energy = (g**2 / scale).sum()
        S, W = x["keep"] * S + energy, x["keep"] * W + 1
        sigma += (1 - GAMMA * LAM) * (energy - sigma)
        mean = sigma / (1 - (GAMMA * LAM) ** t) if published else S / W
        step = eta / np.sqrt(mean * (e**2 / scale).sum())
        ema = beta_clip * ema + (1 - beta_clip) * delta**2
        cap = clip * np.sqrt(ema / (1 - beta_clip**t))
        params = params + step * np.clip(delta, -cap, cap) * e / scale
    return params


def learnt(method, samples):
    learner = tc.Learner(*OPERATORS, method, START, jax.tree.map(np.zeros_like, START), engine="xla")
    learner.update_many(samples)
    return np.concatenate([learner.theta["W"].ravel(), learner.theta["v"]])


OPERATORS = tc.problems.trace_operators(value)
EPISODES = episode(12, 1) + episode(10, 2)
FLAT = np.concatenate([START["W"].ravel(), START["v"]])


@pytest.mark.parametrize(
    ("method", "recurrence", "samples"),
    [
        (tc.methods.ObGD(), obgd, EPISODES),
        (tc.methods.Intentional(), intentional, EPISODES),
        (tc.methods.Intentional(clip=0.02), lambda p, xs: intentional(p, xs, clip=0.02), EPISODES),
        (tc.methods.Intentional(), lambda p, xs: intentional(p, xs, published=True), EPISODES[:12]),
    ],
    ids=["obgd", "intentional", "clipped", "as published, within an episode"],
)
def test_steps_equal_the_recurrence_by_hand(method, recurrence, samples):
    """Two episodes, the second of which starts a new trace."""
    want = recurrence(FLAT, samples)
    assert np.abs(want - FLAT).max() > 0.05
    np.testing.assert_allclose(learnt(method, samples), want, rtol=1e-9, atol=1e-12)


def test_a_step_removes_the_intended_fraction_of_the_error():
    """Without a trace V(s) moves by ηδ to first order, and ObGD keeps the sign of the error."""
    F, G = tc.problems.trace_operators(lambda theta, phi: phi @ theta)
    phi, theta = np.array([3.0, -1.0]), np.array([0.5, 2.0])
    x = {"s": phi, "next_state": np.zeros(2), "rho": 1.0, "r": 7.0, "gamma": 0.0, "keep": 0.0}
    before = 7.0 - phi @ theta
    for method, want in ((tc.methods.Intentional(eta=0.25), 0.75), (tc.methods.ObGD(), None)):
        step = jax.jit(lambda theta, method=method: method.step(F, G, method.init(theta, jnp.zeros(2)), x, 0).theta)
        after = 7.0 - phi @ step(theta)
        share = after / before
        assert share == pytest.approx(want, rel=1e-6) if want else 0 < share < 1


def test_traces_average_to_td_lambda():
    """With β = 1 and a small α the mean of the iterates is the TD(λ) solution of a chain, known in closed form."""
    P, r, gamma, lam = np.array([[0.1, 0.9], [0.6, 0.4]]), np.array([1.0, -0.5]), 0.8, 0.7
    features = np.array([[1.0], [0.5]])
    law = np.array([0.4, 0.6])
    D, inverse = np.diag(law), np.linalg.inv(np.eye(2) - gamma * lam * P)
    A = features.T @ D @ inverse @ (np.eye(2) - gamma * P) @ features
    want = np.linalg.solve(A, features.T @ D @ inverse @ r)
    F, G = tc.problems.trace_operators(lambda theta, phi: phi @ theta)
    rng, n = np.random.default_rng(3), 40_000
    s = np.zeros(n + 1, int)
    for i, u in enumerate(rng.random(n)):
        s[i + 1] = u >= P[s[i], 0]
    ones = np.ones(n)
    samples = {
        "s": features[s[:-1]], "next_state": features[s[1:]], "rho": ones, "r": r[s[:-1]], "gamma": gamma * ones,
        "keep": gamma * lam * (np.arange(n) > 0),
    }  # fmt: skip
    step = tc.Power(0.3, p=0.6, shift=10.0)
    learner = tc.Learner(F, G, tc.Polyak(tc.Standard(step, 1.0), power=0.5), np.zeros(1), np.zeros(1))
    learner.update_many(samples)
    assert learner.theta == pytest.approx(want, abs=0.05)
    assert abs(want[0] - _td0(features, law, P, r, gamma)) > 0.2  # λ matters here


def _td0(features, law, P, r, gamma):
    A = features.T @ np.diag(law) @ (np.eye(2) - gamma * P) @ features
    return np.linalg.solve(A, features.T @ np.diag(law) @ r)[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tc.methods.ObGD(kappa=0.0), r"`ObGD\(kappa=…\)` must be positive"),
        (lambda: tc.methods.Intentional(eta=1.5), "`eta` must not exceed 1"),
        (lambda: tc.methods.Intentional(decay=1.0), r"`Intentional\(decay=…\)` must lie in \[0, 1\)"),
        (lambda: learnt(tc.methods.ObGD(), [{k: v for k, v in episode(1, 0)[0].items() if k != "keep"}]), "`keep`"),
    ],
)
def test_wrong_arguments_get_one_line(call, words):
    with pytest.raises(tc.InputError, match=words):
        call()
