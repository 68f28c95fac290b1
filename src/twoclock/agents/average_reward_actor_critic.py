"""An actor-critic for the reward of a step in the long run, which learns while it acts."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock import validation
from twoclock.agents.protocol import LearnerAgent, check_index, check_reward
from twoclock.intervals.bootstrap import Estimate
from twoclock.intervals.random_scaling import RecentMean
from twoclock.methods import Standard
from twoclock.online import Learner
from twoclock.problems.average_reward import GainOperators
from twoclock.problems.entropy_mdp import SoftOperators, Step
from twoclock.protocols import Method, PyTree
from twoclock.schedules import Power
from twoclock.storage.atomic_file import Document
from twoclock.storage.record import Record
from twoclock.validation import check_size, run_args
from twoclock.validation.arrays import Array, Number

_HOLD = 2e4  # samples with constant step sizes, which then fall as k^−½


class AverageRewardActorCritic(LearnerAgent):
    """Learns the policy with the largest reward per step, with a bonus −τ log π(a|s), on finite states.

    The operators are those of `problems.average_reward`: an actor, the gain J and a differential critic V, on three
    clocks. After a terminated episode comes the state that the environment is reset to, so the last sample is learnt
    from when the next episode begins. An episode that is only cut off is no end.

    Args:
        states: the number of states, which are numbered from 0; such as ``env.observation_space.n``.
        actions: the number of actions.
        temperature: τ, in units of the reward.
        method: by default `Standard` with step 0.1 for the actor and (0.01, 0.2) for gain and critic. These are
            constant for some 20,000 samples and then fall as k^−½. They suit rewards of order 1.
        seed: of its actions.

    A shop: staying earns 1 per step, going and coming back earns 3 every other step.

    >>> import twoclock as tc
    >>> agent, s = tc.agents.AverageRewardActorCritic(states=2, actions=2, temperature=0.05), 0
    >>> for _ in range(4000):
    ...     a = agent.act(s)
    ...     t = int(s == 0 and a == 1)
    ...     agent.observe(s, a, t, reward=3.0 if s else 1.0 - a)
    ...     s = t
    >>> bool(agent.policy[0, 1] > 0.9), bool(abs(agent.gain().value - 1.5) < 0.1)
    (True, True)

    Reference: Sutton & Barto, *Reinforcement learning*, 2018, section 13.6.
    """

    _NUMBERS = ("states", "actions", "temperature", "seed")
    _ARRAYS = ()
    _STREAM = 0x617261

    def __init__(
        self, states: int, actions: int, temperature: float, *, method: Method | None = None, seed: int = 0
    ) -> None:
        self.states, self.actions = validation.whole("states", states), validation.whole("actions", actions, least=2)
        check_size("`states`, `actions`", 4 * self.states * self.actions)
        self.temperature = validation.number("temperature", temperature, 0)
        if method is None:
            actor, gain, critic = (Power(first * _HOLD**0.5, p=0.5, shift=_HOLD) for first in (0.1, 0.01, 0.2))
            method = Standard(actor, (gain, critic))
        self.method = run_args.check_method(method)
        self._set_seed(seed)
        self._rewards = RecentMean()
        self._waiting: tuple[int, int, float] | None = None  # the last sample of an episode, until the next begins
        soft = SoftOperators(np.full(self.states, self.temperature), np.ones((1, 1, 1)), 1.0)
        operators = GainOperators(soft)
        theta, omega = np.zeros((self.states, self.actions)), (np.zeros(()), np.zeros(self.states))
        self._learner = Learner(
            operators.F, operators.G, self.method, theta, omega,
            measure=self._measure, example=self._sample(0, 0, 0, 0.0),
        )  # fmt: skip

    def act(self, x: int) -> int:
        """An action in state x."""
        chances = self.probabilities(x)
        return min(int(np.searchsorted(np.cumsum(chances), self._rng.random())), self.actions - 1)

    def probabilities(self, x: int) -> Float[np.ndarray, " actions"]:
        """The action probabilities π(·|x)."""
        s = check_index("x", x, self.states)
        logits: np.ndarray = self._learner.peek(lambda state: +state.theta[s])
        weights: np.ndarray = np.exp(logits - logits.max())
        return weights / weights.sum()

    def _learn(self, x: PyTree, u: PyTree, x_next: PyTree, reward: float | None, ended: bool, cut: bool) -> None:
        s, t = check_index("x", x, self.states), check_index("x_next", x_next, self.states)
        a, earned = check_index("u", u, self.actions), check_reward(reward)
        if self._waiting is not None:
            (before, action, paid), self._waiting = self._waiting, None
            self._learner.update(self._sample(before, action, s, paid))
        if ended:
            self._waiting = s, a, earned
        else:
            self._learner.update(self._sample(s, a, t, earned))
        self._rewards.add(earned)

    @property
    def policy(self) -> Float[np.ndarray, "s a"]:
        """The learnt policy π[s, a]."""
        with jax.enable_x64(True):
            return np.asarray(jax.nn.softmax(jnp.asarray(self._learner.theta)))

    def gain(self, level: float = 0.95) -> Estimate:
        """The mean reward of a step, without the bonus, over the later half of them or more, by random scaling."""
        return self._rewards.estimate(level)

    @classmethod
    def load(cls, path: str | Path, method: Method | None = None) -> AverageRewardActorCritic:
        """Load a saved agent; pass its method again if that holds a function.

        Args:
            path: the folder of ``save``.
            method: the method of the saved agent, if it holds a function.
        """
        return cls._load(path, method)

    def _state(self) -> tuple[Document, dict[str, PyTree]]:
        return {"rewards": self._rewards.numbers, "waiting": self._waiting}, {}

    def _take_up(self, about: Document, record: Record) -> None:
        super()._take_up(about, record)
        self._rewards = RecentMean(about["rewards"])
        self._waiting = None if about["waiting"] is None else tuple(about["waiting"])

    def __repr__(self) -> str:
        how = "diverged" if self.diverged else f"gain {self.gain()}" if self._rewards.count else "no sample yet"
        return f"AverageRewardActorCritic({self.states} states, {self.actions} actions, {self.steps:,} samples, {how})"

    def _sample(self, s: int, a: int, t: int, reward: float) -> Step:
        here, action, after = (np.asarray(i, np.int32) for i in (s, a, t))
        return Step(here, action, after, np.asarray(reward), np.ones(()), horizon=None)

    def _measure(self, theta: Array, omega: tuple[Array, Array]) -> dict[str, Number]:
        log_pi = jax.nn.log_softmax(theta)
        return {"entropy": jnp.mean(-jnp.sum(jnp.exp(log_pi) * log_pi, axis=1)), "gain": jnp.asarray(omega[0])}
