"""Predictors with traces, learnt step sizes or reduced variance: published recurrences in NumPy, known fixed points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import methods, prng
from twoclock.models import Mdp

STEPS, LAM = 120, 0.6
SMALL = np.random.default_rng(4)
S, A, D = 4, 2, 3
GAMMA = SMALL.uniform(0.3, 0.95, (S, A, S))
GAMMA[0] = 0  # where episodes end
PARTS = {
    "mdp": Mdp(SMALL.dirichlet(np.ones(S), (S, A)), SMALL.normal(size=(S, A)), GAMMA),
    "features": SMALL.normal(size=(S, D)),
    "target": SMALL.dirichlet(np.ones(A), S),
    "behaviour": SMALL.dirichlet(3 * np.ones(A), S),
}


def evaluation(operator, lam=LAM, **change):
    return tc.problems.policy_evaluation(**(PARTS | change), operator=operator, sampling="markov", lam=lam)


def drawn(problem, steps=STEPS, seed=0):
    """The samples that the library draws for this seed."""

    def all_of(problem):
        theta, _, env = problem.init(prng.start_key(seed))

        def step(env, k):
            x, env = problem.draw(problem.noise(prng.step_key(seed, k)), theta, env)
            return env, x

        return jax.lax.scan(step, env, jnp.arange(steps))[1]

    return jax.tree.map(np.asarray, jax.jit(all_of)(problem))


def run_samples(problem, method, samples, seed=0):
    """The state of a method after these samples."""

    @jax.jit
    def walk(problem, method, samples):
        theta, omega, _ = problem.init(prng.start_key(seed))

        def step(state, at):
            k, x = at
            return method.step(problem.F, problem.G, state, x, k), None

        count = len(jax.tree.leaves(samples)[0])
        return jax.lax.scan(step, method.init(theta, omega), (jnp.arange(count), samples))[0]

    return walk(problem, method, samples)


@functools.cache
def chain():
    """On-policy TD(λ) with its trace for ω, and its samples."""
    problem = tc.problems.with_trace(evaluation("td", behaviour=None))
    return problem, drawn(problem)


def rows(x):
    return zip(x.s, x.r, x.gamma, x.next_state, x.keep, strict=True)


def swift(x, lam, alpha, meta, eta, decay):
    """SwiftTD in the order of its authors' program: one call a state, first what was learnt, then the new trace."""
    n = x.s.shape[1]
    w, z, z_delta, z_bar, p, h, h_old, h_temp, delta_w = (np.zeros(n) for _ in range(9))
    beta, v_delta, v_old, over = np.full(n, np.log(alpha)), 0.0, 0.0, 0
    states = [(x.s[0], 0.0, 0.0), *zip(x.next_state, x.r, x.gamma, strict=True)]
    for phi, reward, gamma in states:
        v = w @ phi
        delta = reward + gamma * v - v_old
        delta_w = delta * z - z_delta * v_delta
        w = w + delta_w
        beta = np.minimum(beta + meta / (np.exp(beta) + 1e-8) * (delta - v_delta) * p, np.log(eta))
        h_old, h = h, h_temp + delta * z_bar - z_delta * v_delta
        z, p, z_bar = gamma * lam * z, gamma * lam * p, gamma * lam * z_bar
        tau, b, v_delta = np.exp(beta) @ phi**2, z @ phi, delta_w @ phi
        z_delta = min(1, eta / tau) * np.exp(beta) * phi
        z, p, z_bar = z + z_delta * (1 - b), p + h_old * phi, z_bar + z_delta * (1 - b - z_bar * phi)
        h_temp = h - h_old * phi * (z - z_delta) - h * z_delta * phi
        if tau > eta:
            over += 1
            h_temp, h, h_old, z_bar = (np.where(phi != 0, 0, a) for a in (h_temp, h, h_old, z_bar))
            beta = beta + np.log(decay) * phi**2
        v_old = v
    return w, over


def true_online(x, alpha):
    """Van Seijen et al. 2016, Algorithm 1, with one step size."""
    w, e, v_old = np.zeros(x.s.shape[1]), np.zeros(x.s.shape[1]), 0.0
    for phi, r, gamma, after, keep in rows(x):
        v, v_next = w @ phi, w @ after
        delta = r + gamma * v_next - v
        e = keep * e + alpha * phi - alpha * keep * (e @ phi) * phi
        w = w + (delta + v - v_old) * e - alpha * (v - v_old) * phi if keep else w + delta * e
        v_old = v_next
    return w


def tidbd(x, alpha, meta):
    w, h, z = (np.zeros(x.s.shape[1]) for _ in range(3))
    beta = np.full_like(w, np.log(alpha))
    for phi, r, gamma, after, keep in rows(x):
        delta = r + gamma * after @ w - phi @ w
        beta = beta + meta * delta * phi * h
        z = keep * z + phi
        w = w + np.exp(beta) * delta * z
        h = h * np.maximum(1 - np.exp(beta) * phi * z, 0) + np.exp(beta) * delta * z
    return w


def test_swift_td_equals_the_program_of_its_authors():
    """With a bound that is met on some samples and not on others, and across ends of episodes."""
    problem, x = chain()
    assert 5 < (x.keep == 0).sum() < STEPS / 2
    setting = {"alpha": 0.1, "meta": 0.02, "eta": 0.2, "decay": 0.99}
    want, over = swift(x, LAM, **setting)
    assert STEPS / 10 < over < STEPS * 0.9
    np.testing.assert_allclose(run_samples(problem, methods.SwiftTD(**setting), x).theta, want, rtol=1e-10)


def test_swift_td_that_learns_no_step_sizes_is_true_online_td():
    problem, x = chain()
    got = run_samples(problem, methods.SwiftTD(alpha=0.1, meta=0.0, eta=1.0), x)
    np.testing.assert_allclose(got.theta, true_online(x, 0.1), rtol=1e-10)


def test_tidbd():
    problem, x = chain()
    got = run_samples(problem, methods.TIDBD(alpha=0.05, meta=0.1), x)
    np.testing.assert_allclose(got.theta, tidbd(x, 0.05, 0.1), rtol=1e-10)
    assert np.ptp(got.log_steps) > 0.1
    plain = run_samples(problem, methods.TIDBD(alpha=0.05, meta=0.0), x)
    np.testing.assert_allclose(plain.theta, run_samples(problem, tc.Standard(0.05, 1.0), x).theta, rtol=1e-12)


def test_trace_as_omega_equals_trace_in_the_sample():
    problem, x = chain()
    inside = problem.problem
    got = run_samples(inside, tc.Standard(0.05, 0.0), drawn(inside))
    np.testing.assert_allclose(got.theta, run_samples(problem, tc.Standard(0.05, 1.0), x).theta, rtol=1e-12)


def test_vrtdc():
    """Epochs of four samples that are gathered and four that are moved on; the mean of the iterates is the anchor."""
    problem = tc.problems.walk_dependent("tdc")
    x = drawn(problem, 27)
    F, G = jax.jit(problem.F), jax.jit(problem.G)
    batch, theta, omega = 4, np.zeros(3), np.zeros(3)
    each = [jax.tree.map(lambda leaf, k=k: leaf[k], x) for k in range(27)]
    for epoch in range(3):
        anchor = theta, omega
        gathered, moved = each[8 * epoch : 8 * epoch + 4], each[8 * epoch + 4 : 8 * epoch + 8]
        mean_F, mean_G = (np.mean([op(*anchor, x) for x in gathered], axis=0) for op in (F, G))
        path = []
        for x_ in moved:
            f, g = (op(theta, omega, x_) - op(*anchor, x_) + mean for op, mean in ((F, mean_F), (G, mean_G)))
            theta, omega = theta - 0.3 * f, omega - 0.5 * g
            path.append((theta, omega))
        theta, omega = np.mean(path, axis=0)
    method = methods.VRTDC(0.3, 0.5, batch=batch)
    state = run_samples(problem, method, x)
    np.testing.assert_allclose(method.estimate(state), (theta, omega), rtol=1e-12)
    assert float(method.report(state)["evaluations"]) == 3 * 4 * 3 + 3


@jax.numpy_dtype_promotion("standard")  # optax relies on it
def test_adam_on_each_level():
    problem = tc.problems.walk_dependent("tdc")
    x = drawn(problem, 20)
    F, G = jax.jit(problem.F), jax.jit(problem.G)
    z, m, v = (np.zeros((2, 3)) for _ in range(3))
    for k in range(20):
        one = jax.tree.map(lambda leaf, k=k: leaf[k], x)
        g = np.array([F(*z, one), G(*z, one)])
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        z = z - np.array([[0.02], [0.1]]) * (m / (1 - 0.9 ** (k + 1))) / (np.sqrt(v / (1 - 0.99 ** (k + 1))) + 1e-8)
    state = run_samples(problem, methods.adam(0.02, 0.1, b2=0.99), x)
    np.testing.assert_allclose([state.theta, state.omega], z, rtol=1e-9)
    one, other = methods.adam(0.1, 0.2, "theta"), methods.adam(0.3, 0.4, "theta")
    assert one.transform_theta is other.transform_theta  # so that another number compiles nothing
    assert one.transform_omega is None


@pytest.mark.parametrize("operator", ["td", "tdc", "gtd2", "tdrc", "etd"])
def test_traces_by_hand(operator):
    """e, the follow-on and the operators of Maei 2011 and Sutton, Mahmood & White 2016, off-policy, γ of each step."""
    problem = evaluation(operator)
    x = drawn(problem)
    Phi = PARTS["features"]
    theta, omega, e, follow, rho, gamma = np.zeros(D), np.zeros(D), np.zeros(D), 0.0, 0.0, 0.0
    for k in range(STEPS):
        phi, after = Phi[x.step.s[k]], Phi[x.step.next_state[k]]
        follow = rho * gamma * follow + 1
        rho = x.step.rho[k]
        M = LAM + (1 - LAM) * follow if operator == "etd" else 1.0
        e = rho * (gamma * LAM * e + M * phi)
        gamma = x.step.gamma[k]
        delta = x.step.r[k] + gamma * after @ theta - phi @ theta
        if operator in ("td", "etd"):
            theta = theta + 0.02 * delta * e
        else:
            f = delta * e - gamma * (1 - LAM) * (e @ omega) * after
            f = (e @ omega) * (phi - gamma * after) if operator == "gtd2" else f
            g = delta * e - (phi @ omega) * phi - (0.5 * omega if operator == "tdrc" else 0)
            theta, omega = theta + 2 * 0.02 * f, omega + 0.05 * g
    if operator == "tdrc":
        problem = tc.problems.policy_evaluation(**PARTS, operator="tdrc", sampling="markov", lam=LAM, ridge=0.5)
    state = run_samples(problem, tc.Standard(0.02, 0.05), x)
    np.testing.assert_allclose(state.theta, theta, rtol=1e-9)
    assert np.abs(theta).max() > 0.1


def test_the_fixed_point_is_that_of_the_forward_view():
    """T^(λ) = (1−λ)Σλⁿ T^{n+1} by its sum; with λ = 1, on-policy, the best fit to the values; with λ = 0, TD(0)."""
    mdp, Phi, pi = PARTS["mdp"], PARTS["features"], PARTS["target"]
    D_, P, r = np.diag(mdp.stationary(PARTS["behaviour"])), mdp.discounted_chain(pi), mdp.reward(pi)
    power, value, chain_, reward = np.eye(S), np.zeros(S), np.zeros((S, S)), np.zeros(S)
    for n in range(400):
        value, power = value + power @ r, power @ P
        chain_, reward = chain_ + (1 - LAM) * LAM**n * power, reward + (1 - LAM) * LAM**n * value
    want = np.linalg.solve(Phi.T @ D_ @ (Phi - chain_ @ Phi), Phi.T @ D_ @ reward)
    np.testing.assert_allclose(evaluation("tdc").truth.theta_star, want, rtol=1e-9)
    monte_carlo = evaluation("td", 1.0, behaviour=None)
    weight = np.sqrt(mdp.stationary(pi))[:, None]
    best = np.linalg.lstsq(weight * Phi, weight[:, 0] * mdp.values(pi), rcond=None)[0]
    np.testing.assert_allclose(monte_carlo.truth.theta_star, best, rtol=1e-9)
    plain = tc.problems.policy_evaluation(**PARTS, operator="td").truth
    np.testing.assert_allclose(evaluation("td", 0.0).truth.theta_star, plain.theta_star, rtol=1e-12)


def test_emphasis_makes_td_stable():
    """The pair of Sutton, Mahmood & White 2016: the TD matrix is −0.2 with the behaviour's law, 3.4 with emphasis."""
    P = np.zeros((2, 2, 2))
    P[:, 0, 0] = P[:, 1, 1] = 1
    right = np.tile([0.0, 1.0], (2, 1))
    pair = functools.partial(
        tc.problems.policy_evaluation, Mdp(P, np.zeros((2, 2)), 0.9), [[1.0], [2.0]], right, np.full((2, 2), 0.5)
    )
    assert pair(operator="td").truth.A.item() == pytest.approx(-0.2)
    assert pair(operator="etd", sampling="markov").truth.A.item() == pytest.approx(3.4)


@pytest.mark.parametrize("operator", ["td", "tdc", "gtd2", "etd"])
def test_samples_average_to_the_means(operator):
    """At a fixed (θ, ω) the operators of 64 chains average to the exact means, within five standard errors."""
    problem = evaluation(operator, 0.4)
    theta = jnp.asarray([0.5, -1.0, 0.3])
    omega = () if operator in ("td", "etd") else jnp.asarray([0.4, 0.1, -0.6])

    @jax.jit
    def means(problem, seeds):
        def one(seed):
            _, _, env = problem.init(prng.start_key(seed))

            def step(env, k):
                x, env = problem.draw(problem.noise(prng.step_key(seed, k)), theta, env)
                return env, (problem.F(theta, omega, x), problem.G(theta, omega, x))

            _, seen = jax.lax.scan(step, env, jnp.arange(1500))
            return jax.tree.map(lambda leaf: leaf[100:].mean(axis=0), seen)

        return jax.vmap(one)(seeds), (problem.mean_F(theta, omega), problem.mean_G(theta, omega))

    got, exact = means(problem, jnp.arange(64, dtype=jnp.uint32))
    for each, want in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True):
        error = np.std(each, axis=0) / 8
        assert (np.abs(np.mean(each, axis=0) - want) < 5 * error).all()
        assert (np.abs(want) > 5 * error).any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: methods.SwiftTD(eta=1.5), r"`SwiftTD\(eta=…\)` must lie in \(0, 1\]"),
        (lambda: methods.TIDBD(alpha=0.0), r"`TIDBD\(alpha=…\)` must be positive"),
        (lambda: methods.VRTDC(batch=0.5), r"`VRTDC\(batch=…\)` must be at least 1"),
        (lambda: methods.adam(0.1, 0.1, "slow"), "`levels` must be 'both', 'theta' or 'omega'"),
        (lambda: tc.problems.boyan("td", "iid", lam=0.5), "needs traces along one chain, got sampling 'iid'"),
        (lambda: tc.problems.boyan("etd"), "operator 'etd' needs traces along one chain"),
        (lambda: tc.problems.boyan("td", "markov", lam=1.5), r"`lam` must lie in \[0, 1\]"),
        (lambda: tc.problems.with_trace(tc.problems.boyan("td", "markov")), "with operator 'td' and a `lam`"),
        (lambda: tc.problems.with_trace(evaluation("td")), "must be on-policy"),
        (lambda: tc.solve(chain()[0], steps=5), "`method` Auto looks for the root of E G"),
        (lambda: tc.solve(evaluation("td"), methods.TIDBD(), steps=2), "`TIDBD` needs an ω of the form of θ"),
        (
            lambda: tc.tune(chain()[0], methods.TIDBD(), {"alpha": (0.01, 0.1)}, 100, metric="residual"),
            "the residual says nothing here: ω is a trace",
        ),
    ],
)
def test_wrong_arguments_get_one_line(call, words):
    with pytest.raises(tc.InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
