"""A soft actor-critic in environments that it sees only through samples."""

import functools

import numpy as np
import pytest

import twoclock as tc
from twoclock.problems.entropy_mdp import Step

TEMP, GAMMA = 0.3, 0.8
P = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9]]])
R = np.array([[0.0, -0.1], [1.0, 0.2]])
MDP = tc.models.Mdp(P, R, GAMMA)


def walk(agent, steps, seed=0, s=0):
    """Drive the agent; the samples that came of it."""
    rng, samples = np.random.default_rng(seed), []
    for _ in range(steps):
        a = agent.act(s)
        t = int(rng.random() >= P[s, a, 0])
        agent.observe(s, a, t, R[s, a])
        samples.append((s, a, t, R[s, a]))
        s = t
    return samples


def test_learns_the_soft_optimum(tmp_path):
    """Near soft value iteration; bit-for-bit the problem's own operators; a saved agent resumes."""
    method = tc.Polyak(tc.Standard(tc.Power(0.2, p=0.6, shift=10.0), tc.Power(1.0, p=0.6, shift=10.0)), power=1)
    agent = tc.agents.EntropyActorCritic(2, 2, TEMP, gamma=GAMMA, method=method, seed=1)
    samples = walk(agent, 6000)
    soft = MDP.soft(TEMP)
    log_pi, V = soft.solve()
    assert agent.policy == pytest.approx(np.exp(log_pi), abs=0.05)
    assert agent.value == pytest.approx(V, abs=0.2)

    problem = tc.problems.entropy_mdp(MDP, TEMP)
    learner = tc.Learner(problem.F, problem.G, method, np.zeros((2, 2)), np.zeros(2))
    learner.update_many(
        [Step(*(np.int32(i) for i in x[:3]), np.float64(x[3]), np.float64(GAMMA), None) for x in samples]
    )
    assert learner.theta == pytest.approx(agent.result().theta[0], rel=1e-12)

    agent.save(tmp_path / "a")
    again = tc.agents.EntropyActorCritic.load(tmp_path / "a")
    assert walk(agent, 200, seed=5) == walk(again, 200, seed=5)
    assert np.array_equal(again.policy, agent.policy)
    assert again.history.equals(agent.history)
    assert set(agent.history) == {"step", "entropy", "value"}
    assert agent.history["entropy"].iloc[0] == pytest.approx(np.log(2))


def test_features_and_episodes():
    """One feature for both states, a shared preference: it finds the better action; returns are counted by episode."""
    psi = np.tile(np.eye(2)[None], (2, 1, 1))
    agent = tc.agents.EntropyActorCritic(2, 2, 0.05, [[1.0], [1.0]], psi, gamma=0.5, initial_value=2.0)
    assert agent.value == pytest.approx([2.0, 2.0])
    rng = np.random.default_rng(0)
    for _ in range(3000):
        s = int(rng.integers(2))
        a = agent.act(s)
        agent.observe(s, a, 1 - s, float(a), terminated=True)
    assert agent.policy[:, 1] == pytest.approx(np.full(2, 1 / (1 + np.exp(-1 / 0.05))), abs=0.02)
    assert agent.probabilities(0) == pytest.approx(agent.policy[0])
    value, low, high = agent.returns()
    assert low <= value <= high
    assert value > 0.95
    assert agent.value == pytest.approx([1.0, 1.0], abs=0.1)


def test_a_truncated_episode_has_a_value_after_it():
    """One state, reward 1, τ = 0, γ = ½: worth 1 where each step ends the episode, 2 where it only cuts it."""
    worth = {}
    for how in ("terminated", "truncated"):
        agent = tc.agents.EntropyActorCritic(1, 2, 0.0, gamma=0.5)
        for _ in range(300):
            agent.observe(0, agent.act(0), 0, 1.0, **{how: True})
        worth[how] = agent.value[0]
    assert worth == pytest.approx({"terminated": 1.0, "truncated": 2.0}, abs=1e-6)


@functools.cache
def plain():
    return tc.agents.EntropyActorCritic(2, 2, 0.1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tc.agents.EntropyActorCritic(0, 2, 0.1), "`states` must be"),
        (lambda: tc.agents.EntropyActorCritic(2, 2, -0.1), "`temperature` must be"),
        (lambda: tc.agents.EntropyActorCritic(2, 2, 0.1, gamma=1.0), r"`gamma` must lie in \[0, 1\)"),
        (
            lambda: tc.agents.EntropyActorCritic(2, 2, 0.1, np.eye(3)),
            "`features` must have one vector for each of the 2 states",
        ),
        (lambda: plain().act(2), "`x` must lie between 0 and 1, got 2"),
        (lambda: plain().act([0.5, 1]), "`x` must be a whole number"),
        (lambda: plain().observe(0, 3, 1, 0.0), "`u` must lie between 0 and 1, got 3"),
        (lambda: plain().observe(0, 1, 1), "`reward` must be a number"),
    ],
)
def test_one_line(call, words):
    with pytest.raises(tc.InputError, match=words):
        call()
