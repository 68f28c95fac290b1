"""Agents for the average reward and under a limit, in environments that they see only through samples."""

import gymnasium as gym
import numpy as np
import pytest

import twoclock as tc
from twoclock.protocols import InputError

RIVER = tc.problems.river_swim(0.05, states=3)


def river(x, u, rng):
    """One step of RiverSwim."""
    soft = RIVER.truth.soft
    return int(rng.choice(3, p=np.asarray(soft.P)[x, u])), float(np.asarray(soft.r)[x, u])


def test_the_operators_of_the_agent_are_those_of_the_problem():
    agent = tc.agents.AverageRewardActorCritic(3, 2, 0.05, seed=3)
    learner = tc.Learner(RIVER.F, RIVER.G, agent.method, np.zeros((3, 2)), (np.zeros(()), np.zeros(3)))
    rng, s = np.random.default_rng(0), 0
    for _ in range(300):
        a = agent.act(s)
        t, r = river(s, a, rng)
        agent.observe(s, a, t, r)
        learner.update(agent._sample(s, a, t, r))
        s = t
    np.testing.assert_allclose(agent.result().theta[0], learner.theta, rtol=1e-12)


def test_the_average_reward_of_a_river_is_learnt_with_its_interval():
    agent = tc.agents.AverageRewardActorCritic(3, 2, 0.05)
    result = tc.agents.run(agent, river, steps=15_000, seeds=1, x0=0, processes=1)
    best = float(tc.problems.river_swim(states=3).best)
    assert result.history["mean_reward"].iloc[-1] > 0.85 * best
    assert result.interval()["estimate"].iloc[0] == pytest.approx(result.history["mean_reward"].iloc[-1])


def test_an_episode_that_ends_leads_to_the_next_start(tmp_path):
    """Two states and one step each: the value after an end is that of the state that follows."""
    agent = tc.agents.AverageRewardActorCritic(2, 2, 0.0)
    agent.observe(0, 0, 1, 1.0, terminated=True)
    assert agent.steps == 0
    agent.save(tmp_path / "a")
    again = tc.agents.AverageRewardActorCritic.load(tmp_path / "a")
    for one in (agent, again):
        one.observe(0, 1, 1, 0.0)
        assert one.steps == 2
    np.testing.assert_array_equal(agent.policy, again.policy)
    assert agent.gain().value == pytest.approx(0.5)


class TwoPurchases(gym.Env):
    """Buy or not, twice, at a cost of 1 each: the first pays 1; the second 2 after a first one, or half of the time."""

    observation_space, action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return 0, {}

    def step(self, action):
        earned = float(action) * (2 if self.state == 1 else 1)
        if self.state == 0:
            self.state = 1 if action == 1 or self.np_random.random() < 0.5 else 2
            return self.state, earned, False, False, {}
        return 2, earned, True, False, {}


def price(x, u, x_next, reward, terminated):
    return float(u)


def test_a_limit_is_learnt_in_gymnasium(tmp_path):
    P, gamma = np.zeros((3, 2, 3)), np.full((3, 2, 3), 0.9)
    P[0, 0, 1:], P[0, 1, 1], P[1:, :, 2] = 0.5, 1, 1
    gamma[1:] = 0
    mdp, costs = tc.models.Mdp(P, [[0, 1], [0, 2], [0, 1]], gamma), np.tile([0.0, 1.0], (3, 1))
    exact = tc.models.constrained_optimum(mdp, costs, 0.8, 0.5, 0)
    assert exact.free_cost > 1
    steps = tc.Standard("100/(k+5000)", ("200/(k+5000)", "1000/(k+5000)"))
    agent = tc.agents.ConstrainedActorCritic(3, 2, price, limit=0.8, temperature=0.5, gamma=0.9, method=steps)
    env = TwoPurchases()
    s, _ = env.reset(seed=0)
    for _ in range(20_000):
        a = agent.act(s)
        t, r, terminated, truncated, _ = env.step(a)
        agent.observe(s, a, t, r, terminated, truncated)
        s = env.reset()[0] if terminated or truncated else t
    assert agent.multiplier == pytest.approx(exact.multiplier, rel=0.1)
    np.testing.assert_allclose(agent.policy[:2], exact.policy[:2], atol=0.08)
    assert agent.cost().value == pytest.approx(0.8, abs=0.1)
    value, low, high = agent.violation()
    assert low < value < high
    assert value == pytest.approx(agent.cost().value - 0.8)
    agent.save(tmp_path / "b")
    again = tc.agents.ConstrainedActorCritic.load(tmp_path / "b", price)
    assert again.multiplier == agent.multiplier
    assert again.cost() == agent.cost()
    assert [again.act(0) for _ in range(5)] == [agent.act(0) for _ in range(5)]
    assert tc.agents.fresh(agent, seed=1).steps == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": 1.0}, "`cost` must be a function"),
        ({"temperature": 0.0}, "`temperature`"),
        ({"gamma": 1.0}, "`gamma`"),
        ({"limit": np.nan}, "`limit`"),
    ],
)
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        tc.agents.ConstrainedActorCritic(
            **{"states": 2, "actions": 2, "cost": price, "limit": 1, "temperature": 1, **change}
        )


def test_a_cost_that_is_no_number_is_refused():
    agent = tc.agents.ConstrainedActorCritic(2, 2, lambda x, u, x_next, reward, terminated: np.inf, 1.0, 0.1)
    with pytest.raises(InputError, match="`cost` must return a finite number, got inf"):
        agent.observe(0, 0, 1, 0.0)
