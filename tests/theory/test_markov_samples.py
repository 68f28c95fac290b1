"""Certificates for samples along a Markov chain, held to exact moments on random chains."""

import numpy as np
import pytest

import twoclock as tc

W = 0.5  # ω*(θ) = Wθ


def chain(seed, states=3):
    """A random chain with its stationary distribution, and noise of F and G on its states, squares at most 1."""
    rng = np.random.default_rng(seed)
    stay = rng.uniform(0, 0.9)
    P = stay * np.eye(states) + (1 - stay) * rng.dirichlet(np.ones(states), states)
    pi = np.linalg.solve((P - np.eye(states)).T + np.ones((states, states)), np.ones(states))
    noise = rng.normal(size=(states, 2))
    noise -= pi @ noise
    return P, pi, noise / np.abs(noise).max()


def mixing_time(P, pi):
    """The sum over s ≥ 0 of 2‖Pˢ(x, ·) − π‖ in total variation, from the worst state."""
    total, power = np.zeros(len(P)), np.eye(len(P))
    for _ in range(2000):
        total += np.abs(power - pi).sum(axis=1)
        power = power @ P
    return total.max()


def follow(certificate, P, pi, noise, steps):
    """Exact E‖θ‖² and V along a run of Algorithm 1 on F = θ/2 + (ω − Wθ)/2 + noise, G = ω − Wθ + noise."""
    c, tau, D = certificate.c, certificate.tau, np.array(certificate.weights)
    # Poisson's equation: ν − Pν = noise.
    nu = np.linalg.solve(np.eye(len(P)) - P + np.outer(np.ones(len(P)), pi), noise)
    F, G = np.array([0.5 - W / 2, 0.5, 0, 0]), np.array([-W, 1.0, 0, 0])
    start = np.array([1.0, -1.0, 0.0, 0.0])  # θ, ω, f, g
    p = np.eye(len(P))[0]  # all begin in the first state
    m, M = np.outer(p, start), np.einsum("x,i,j->xij", p, start, start)
    found = []
    for k in range(steps):
        before = c[2] / (k + tau)
        V, z = 0.0, 0.0
        for x in range(len(P)):
            for i, (row, shift) in enumerate(
                [([1.0, 0, 0, 0], 0.0), ([-W, 1.0, 0, 0], 0.0), ([0, 0, 1.0, 0] - F, nu[x, 0]),
                 ([0, 0, 0, 1.0] - G, nu[x, 1])]
            ):  # fmt: skip
                row, away = np.asarray(row), before * shift
                square = row @ M[x] @ row + 2 * away * (row @ m[x]) + p[x] * away**2
                V += D[i] * square
                z += square if i == 0 else 0.0
        found.append((z, V))
        a, b, lam = (v / (k + tau + 1) for v in c)
        T = np.array([[1, 0, -a, 0], [0, 1, 0, -b], lam * F + [0, 0, 1 - lam, 0], lam * G + [0, 0, 0, 1 - lam]])
        h = lam * np.concatenate([np.zeros((len(P), 2)), noise], axis=1)
        moved = m @ T.T
        cross = np.einsum("xi,xj->xij", moved, h)
        M = T @ M @ T.T + cross + cross.transpose(0, 2, 1) + np.einsum("x,xi,xj->xij", p, h, h)
        m = moved + p[:, None] * h
        p, m, M = p @ P, P.T @ m, np.einsum("xy,xij->yij", P, M)
    return np.array(found)


@pytest.mark.parametrize("seed", range(6))
def test_v_falls_and_the_bound_holds_on_random_chains(seed):
    P, pi, noise = chain(seed)
    t = mixing_time(P, pi)
    certificate = tc.certify("strongly-convex", L=1.0, mu_h=0.5, mu_g=1.0, noise=1.0, mixing=t)
    assert all(condition.holds for condition in certificate.conditions)
    z, V = follow(certificate, P, pi, noise, 3000).T
    n = np.arange(3000) + certificate.tau + 1
    assert np.all(V[1:] <= (1 - 2 / n[:-1]) * V[:-1] + certificate.A / n[:-1] ** 2)
    start = {"x": 1.0, "y": (1 + W) ** 2, "f": (0.5 - W / 2 - 0.5) ** 2, "g": (W + 1) ** 2}
    assert np.all(z <= certificate.bound(np.arange(3000), start))


def test_slower_chains_cost_more_and_wrong_arguments_are_one_line():
    known = {"L": 1.0, "mu_h": 1.0, "mu_g": 1.0}
    A = [tc.certify("strongly-convex", **known, mixing=t).A for t in (1.0, 3.0, 30.0)]
    assert sorted(A) == A
    assert A[0] > tc.certify("strongly-convex", **known).A
    for wrong in ({"growth": 1.0}, {"method": "standard"}, {"proof": "paper"}):
        with pytest.raises(tc.InputError, match="`mixing` is for strongly convex h"):
            tc.certify("strongly-convex", **known, mixing=2.0, **wrong)
    with pytest.raises(tc.InputError, match="mixing"):
        tc.certify("strongly-convex", **known, mixing=0.5)
    with pytest.raises(tc.InputError, match="`mixing` is for"):
        tc.certify("pl", **known, mixing=2.0)
