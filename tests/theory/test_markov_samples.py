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


class Drawn:
    """A random problem on a random chain, θ in two dimensions, with a kink in ω* and noise that depends on (θ, ω).

    h is ½θᵀHθ, with a flat direction for PL; for non-convex h a sum of 1 − cos θ_i. F(θ, ω*(θ)) is ∇h/S.
    """

    def __init__(self, rng, structure, S=1.0):
        self.structure, self.S = structure, S
        self.P, self.pi, noise = chain(int(rng.integers(1 << 31)), int(rng.integers(2, 6)))
        self.t = max(1.0, mixing_time(self.P, self.pi))
        size, self.bends = 10 ** rng.uniform(-1, 1), rng.uniform(0, 1)
        self.noise = size * np.column_stack([noise[:, :1] * rng.dirichlet([1, 1]) ** 0.5, noise[:, 1]])
        self.nu = np.linalg.solve(np.eye(len(self.P)) - self.P + self.pi, self.noise)
        self.h = rng.uniform(0.2, 2) * np.array([1.0, 0.0 if structure == "pl" else rng.uniform(0.3, 1)])
        self.w, self.u, self.g = rng.normal(size=2) * 0.5, rng.normal(size=2) * 0.5, rng.uniform(0.3, 2)
        norm = np.linalg.norm
        slope = max(self.h) / S + norm(self.u) * norm(self.w)
        largest = max(slope, norm(self.u), self.g * max(1, norm(self.w)), max(self.h), norm(self.w))
        self.known = {"L": largest + self.bends * size, "mu_g": self.g, "noise": size**2}
        if structure != "non-convex":
            self.known["mu_h"] = min(self.h[self.h > 0]) / (1 if structure == "strongly-convex" else S**2)

    def gradient(self, theta):
        return self.h * (np.sin(theta) if self.structure == "non-convex" else theta)

    def distance(self, theta):
        if self.structure == "strongly-convex":
            return np.sum(theta**2, axis=-1)
        square = 2 * (1 - np.cos(theta)) if self.structure == "non-convex" else theta**2
        return np.sum(self.h * square, axis=-1) / 2

    def operators(self, theta, omega, table, x):
        """The mean F and G, and the given table of the states at (θ, ω, x)."""
        y = omega - np.abs(theta) @ self.w
        bent = np.stack([np.cos(self.bends * theta[:, 0])] * 2 + [np.cos(self.bends * omega)], axis=-1)
        return self.gradient(theta) / self.S + y[:, None] * self.u, self.g * y, table[x] * bent

    def value(self, D, theta, omega, f, g, x, before):
        F, G, nu = self.operators(theta, omega, self.nu, x)
        y = omega - np.abs(theta) @ self.w
        df, dg = f - F + before * nu[:, :2], g - G + before * nu[:, 2]
        return D[0] * self.distance(theta) + D[1] * y**2 + D[2] * np.sum(df**2, axis=-1) + D[3] * dg**2


def largest_excess(problem, certificate, rng, points=1500):
    """The largest (E V₊ − what V may be)/(what the noise may add) of a step from random points, expectations exact."""
    power, D, found = 0.5 if problem.structure == "non-convex" else 1.0, certificate.weights, -np.inf
    for k in (0, 1, 100, 10**5):
        n = k + certificate.tau + 1
        a, b, lam = (c / n**power for c in certificate.c)
        before = certificate.c[2] / (n - 1) ** power if k or power == 1 else lam
        theta, x = rng.normal(size=(points, 2)), rng.integers(len(problem.P), size=points)
        away, r, s = rng.normal(size=points), rng.normal(size=(points, 2)), rng.normal(size=points)
        theta, r = (v * 10 ** rng.uniform(-3, 3, (points, 1)) for v in (theta, r))
        away, s = (v * 10 ** rng.uniform(-3, 3, points) for v in (away, s))
        omega = np.abs(theta) @ problem.w + away
        F, G, noise = problem.operators(theta, omega, problem.noise, x)
        f, g = F + r, G + s
        moved = theta - a * f, omega - b * g, f + lam * (F + noise[:, :2] - f), g + lam * (G + noise[:, 2] - g)
        V = problem.value(D, theta, omega, f, g, x, before)
        nexts = range(len(problem.P))
        after = sum(problem.P[x, j] * problem.value(D, *moved, np.full(points, j), lam) for j in nexts)
        fall = 2 / n * V
        if problem.structure == "non-convex":
            fall = certificate.rate / n**power * np.sum(problem.gradient(theta) ** 2, axis=-1)
        added = certificate.A * problem.known["noise"] / n ** (2 * power)
        found = max(found, np.max((after - V + fall) / (added + 1e-9 * V)))
    return found


@pytest.mark.parametrize("structure", ["strongly-convex", "pl", "non-convex"])
def test_v_falls_from_random_points_of_random_problems_for_random_constants(structure):
    rng = np.random.default_rng(20261119)
    alone = []
    for i in range(12):
        S = rng.uniform(0.7, 1.4) if structure == "pl" and i % 3 == 0 else 1.0
        problem = Drawn(rng, structure, S)
        if structure == "pl" and S != 1:
            problem.known["metric"] = (0.7, 1.4)
        certificate = tc.certify(structure, **problem.known, mixing=problem.t)
        assert largest_excess(problem, certificate, rng) <= 1
        alone.append(largest_excess(problem, tc.certify(structure, **problem.known), rng))
    assert max(alone) > 1  # the certificate for independent samples does not hold on chains


@pytest.mark.parametrize("structure", ["pl", "non-convex"])
def test_means_along_runs_on_chains_stay_below_the_bound(structure):
    """Means over 400 runs; PL with a flat direction, and h = Σ(1 − cos θ_i), at every step of 3,000."""
    rng = np.random.default_rng(7)
    for _ in range(3):
        problem = Drawn(rng, structure)
        certificate = tc.certify(structure, **problem.known, mixing=problem.t)
        runs, power = 400, 0.5 if structure == "non-convex" else 1.0
        theta, omega, f, g = np.full((runs, 2), 0.5), np.zeros(runs), np.zeros((runs, 2)), np.zeros(runs)
        x, at_least = np.zeros(runs, int), np.inf
        F, G, _ = problem.operators(theta, omega, problem.noise, x)
        y = (np.abs(theta) @ problem.w)[0]
        start = {"x": problem.distance(theta)[0], "y": y**2, "f": np.sum(F[0] ** 2), "g": G[0] ** 2}
        for k in range(3000):
            a, b, lam = (c / (k + certificate.tau + 1) ** power for c in certificate.c)
            F, G, noise = problem.operators(theta, omega, problem.noise, x)
            metric = problem.distance(theta)
            if structure == "non-convex":
                metric = np.sum(problem.gradient(theta) ** 2, axis=1)
            at_least = min(at_least, metric.mean()) if structure == "non-convex" else metric.mean()
            assert at_least <= certificate.bound(k, start)
            theta, omega = theta - a * f, omega - b * g
            f, g = f + lam * (F + noise[:, :2] - f), g + lam * (G + noise[:, 2] - g)
            x = (rng.random(runs)[:, None] > np.cumsum(problem.P[x], axis=1)).sum(axis=1).clip(max=len(problem.P) - 1)


@pytest.mark.parametrize("structure", ["strongly-convex", "pl", "non-convex"])
def test_slower_chains_cost_more_than_faster_ones(structure):
    known = {"L": 1.0, "mu_h": 1.0, "mu_g": 1.0}
    bounds = [tc.certify(structure, **known, mixing=t).bound(2**31, 1.0) for t in (1.0, 3.0, 30.0, 3e3)]
    assert sorted(bounds) == bounds
    assert bounds[0] > tc.certify(structure, **known).bound(2**31, 1.0)


def test_chains_with_more_than_two_levels_and_wrong_arguments_are_one_line():
    known = {"L": 1.0, "mu_h": 1.0, "mu_g": 1.0}
    three = tc.certify("pl", L=1.0, mu_h=1.0, mu_g=(1.0, 1.0), mixing=5.0)
    assert three.A > tc.certify("pl", L=1.0, mu_h=1.0, mu_g=(1.0, 1.0)).A
    for wrong in ({"growth": 1.0}, {"method": "standard"}, {"proof": "paper"}):
        with pytest.raises(tc.InputError, match="`mixing` is for method='fast'"):
            tc.certify("strongly-convex", **known, mixing=2.0, **wrong)
    with pytest.raises(tc.InputError, match="mixing"):
        tc.certify("strongly-convex", **known, mixing=0.5)
