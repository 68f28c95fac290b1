"""An evaluator on a small chain that it sees only through samples: against least squares and the exact answer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

GAMMA, STEPS = 0.8, 12_000
TARGET, BEHAVIOUR = np.tile([0.3, 0.7], (4, 1)), np.full((4, 2), 0.5)
FEATURES = np.array([[1.0, 0.0], [0.6, 0.5], [0.2, 0.8], [0.0, 1.0]])


def chain():
    """Four states; action 1 tends to go up, and state 3 ends the episode with a reward."""
    P, r, gamma = np.zeros((4, 2, 4)), np.zeros((4, 2, 4)), np.full((4, 2, 4), GAMMA)
    for s in range(4):
        for a, up in enumerate((0.3, 0.8)):
            P[s, a, min(s + 1, 3)] += up
            P[s, a, max(s - 1, 0)] += 1 - up
    P[3], r[3], gamma[3] = np.eye(4)[0], 1.0, 0.0
    r[0] = -0.2
    return tc.models.Mdp(P, r, gamma)


MDP = chain()


def stream(steps=STEPS, seed=0):
    """s, a, s', r, terminated."""
    rng, s = np.random.default_rng(seed), 0
    for _ in range(steps):
        a = int(rng.random() >= BEHAVIOUR[s, 0])
        t = int(rng.choice(4, p=MDP.P[s, a]))
        yield s, a, t, float(MDP.r[s, a, t]), MDP.gamma[s, a, t] == 0
        s = t


SAMPLES = list(stream())


def ratio(x, u):
    return TARGET[x, u] / BEHAVIOUR[x, u]


def lstd(samples):
    A, b = np.zeros((2, 2)), np.zeros(2)
    for s, a, t, r, over in samples:
        phi, ahead = FEATURES[s], 0.0 if over else GAMMA * FEATURES[t]
        A += ratio(s, a) * np.outer(phi, phi - ahead)
        b += ratio(s, a) * r * phi
    return np.linalg.solve(A, b)


def watched(agent, samples):
    for s, a, t, r, over in samples:
        agent.observe(s, a, t, r, over)
    return agent


@functools.cache
def exact():
    return tc.problems.policy_evaluation(MDP, FEATURES, TARGET, BEHAVIOUR, sampling="markov").truth.theta_star


@pytest.mark.parametrize("operator", ["td", "tdc", "tdrc"])
def test_near_least_squares_on_the_same_samples(operator, tmp_path):
    """The mean of the iterates is near LSTD, the exact values are in the intervals, and a saved agent resumes."""
    agent = tc.agents.Evaluator(ratio, FEATURES, GAMMA, operator=operator, skip=1000)
    watched(agent, SAMPLES[:-500])
    if operator == "tdc":
        agent.save(tmp_path / "a")
    watched(agent, SAMPLES[-500:])
    if operator == "tdc":
        again = watched(tc.agents.Evaluator.load(tmp_path / "a", ratio), SAMPLES[-500:])
        assert np.array_equal(again.theta, agent.theta)
        assert again.interval().equals(agent.interval())
    assert agent.theta == pytest.approx(lstd(SAMPLES), abs=0.03)
    found = agent.interval(0.99)
    assert found["output"].tolist() == [f"value[{s}]" for s in range(4)]
    want = FEATURES @ exact()
    assert ((found["low"] < want) & (want < found["high"])).all()
    assert (found["high"] - found["low"]).max() < 0.3
    assert agent.value(2) == pytest.approx(found["estimate"][2])
    assert agent.history["value"].iloc[-1] == pytest.approx(found["estimate"].mean())
    assert (agent.steps, agent.diverged) == (STEPS, False)


def test_a_truncated_episode_has_a_value_after_it():
    """One state, reward 1, γ = ½: worth 1 where each step ends the episode, 2 where it only cuts it."""
    worth = {}
    for how in ("terminated", "truncated"):
        agent = tc.agents.Evaluator(1.0, [[1.0]], 0.5, operator="td", method=tc.Standard(0.3), intervals=False)
        for _ in range(300):
            agent.observe(0, None, 0, 1.0, **{how: True})
        worth[how] = agent.value(0)
    assert worth == pytest.approx({"terminated": 1.0, "truncated": 2.0})


def test_trace_runs_through_an_episode_and_ends_with_it():
    """TD(λ) by hand over two episodes, with falling steps."""
    agent = tc.agents.Evaluator(
        1.0, FEATURES, GAMMA, operator="td", lam=0.7, method=tc.Standard(0.1, 1.0), intervals=False
    )
    theta, e, first = np.zeros(2), np.zeros(2), True
    for s, a, t, r, over in SAMPLES[:60]:
        agent.observe(s, a, t, r, over)
        e = (0 if first else GAMMA * 0.7) * e + FEATURES[s]
        theta = theta + 0.1 * (r + (0 if over else GAMMA) * FEATURES[t] @ theta - FEATURES[s] @ theta) * e
        first = over
    assert agent.theta == pytest.approx(theta, rel=1e-9)


def network(params, phi):
    return jnp.tanh(params @ phi)


def test_a_network_needs_no_step_size(tmp_path):
    """On-policy, with an Equinox module; a saved agent resumes. It ends near, not at, the exact values."""
    eqx = pytest.importorskip("equinox")
    module = eqx.nn.MLP(4, "scalar", 6, depth=1, activation=jnp.tanh, key=jax.random.key(0))
    options = {"value": lambda module, x: module(x), "params": module}
    agent = tc.agents.Evaluator(1.0, lambda x: np.eye(4)[x], GAMMA, at=range(4), operator="td", lam=0.5, **options)
    exact = tc.problems.policy_evaluation(MDP, np.eye(4), BEHAVIOUR).truth.theta_star
    watched(agent, SAMPLES[:2500])
    agent.save(tmp_path / "a")
    again = tc.agents.Evaluator.load(tmp_path / "a", features=lambda x: np.eye(4)[x], **options)
    for one in (agent, again):
        watched(one, SAMPLES[2500:3000])
    values = [agent.value(s) for s in range(4)]
    assert [again.value(s) for s in range(4)] == values
    assert np.abs(values - exact).max() < 0.15 < np.abs(exact).max() / 4
    assert agent.interval()["note"].str.contains("constant steps").all()


@functools.cache
def plain():
    return tc.agents.Evaluator(1.0, np.eye(2), 0.9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tc.agents.Evaluator(1.0, lambda x: x, 0.9), "`at` must be given"),
        (lambda: tc.agents.Evaluator(1.0, np.zeros((2, 2)), 0.9), "`features` must not all be zero"),
        (lambda: tc.agents.Evaluator(1.0, np.eye(2), 0.9, operator="sarsa"), "`operator` must be"),
        (lambda: tc.agents.Evaluator(1.0, np.eye(2), 0.9, lam=0.5), "`operator` must be 'td' with `lam`"),
        (
            lambda: tc.agents.Evaluator(1.0, np.eye(2), 0.9, operator="td", lam=0.5, method=tc.Standard(0.1, 0.1)),
            "`method` must move the trace whole",
        ),
        (lambda: tc.agents.Evaluator(1.0, None, 0.9, at=[[0.0]], value=network), "`value` and `params` go together"),
        (
            lambda: tc.agents.Evaluator(1.0, None, 0.9, at=[[0.0, 0.0]], value=network, params=np.ones(2)),
            "`method` must be given for a network with operator 'tdc'",
        ),
        (
            lambda: tc.agents.Evaluator(
                1.0, np.eye(4), 0.9, operator="td", value=lambda p, x: p * x, params=np.ones(4)
            ),
            r"`value` must return one number, got shape \(4,\)",
        ),
        (lambda: tc.agents.Evaluator(-1.0, np.eye(2), 0.9), "`policy_ratio` must be"),
        (lambda: plain().act(0), "give `behaviour=`"),
        (lambda: plain().observe(2, 0, 0, 1.0), "`x` must lie between 0 and 1, got 2"),
        (lambda: plain().observe(0, 0, 0), "`reward` must be a number"),
        (lambda: plain().observe(0, 0, 0, np.nan), "`reward` must be finite"),
    ],
)
def test_one_line(call, words):
    with pytest.raises(tc.InputError, match=words):
        call()


def test_loading_with_other_functions_is_refused(tmp_path):
    def ratio(c):
        return lambda x, u: c

    def features(c):
        return lambda x: np.array([1.0, c * x])

    agent = tc.agents.Evaluator(ratio(1.0), features(1.0), 0.9, at=[0.5])
    agent.observe(0.1, None, 0.2, 1.0)
    agent.save(tmp_path / "a")
    again = tc.agents.Evaluator.load(tmp_path / "a", ratio(1.0), features(1.0))
    assert again.value(0.5) == agent.value(0.5)
    for arguments in ((ratio(2.0), features(1.0)), (ratio(1.0), features(2.0)), (1.0, features(1.0))):
        with pytest.raises(tc.InputError, match=r"`(policy_ratio|features)` must be what it was"):
            tc.agents.Evaluator.load(tmp_path / "a", *arguments)
    with pytest.raises(tc.InputError):
        tc.agents.Evaluator.load(tmp_path / "a", ratio(1.0))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_changed_constant_in_a_network_is_seen(compiled):
    size = [1.0]

    def network(params, x):
        return params * size[0] * x[0]

    value, x = jax.jit(network) if compiled else network, np.ones(1)
    make = functools.partial(tc.agents.Evaluator, 1.0, None, 0.5, at=[x], value=value, params=2.0, operator="td")
    assert make().value(x) == 2
    size[0] = 7.0
    assert make().value(x) == 14


def test_intervals_that_are_an_array_of_text_are_refused_in_one_line():
    with pytest.raises(tc.InputError, match="`intervals` must be True or False"):
        tc.agents.Evaluator(1.0, None, GAMMA, intervals=np.array(["blocks", "blocks"]))
