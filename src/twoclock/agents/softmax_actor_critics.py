"""Actor-critics for finite states and actions which learn while they act: of discounted and of average reward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock import validation
from twoclock.agents.protocol import LearnerAgent, check_index, check_reward
from twoclock.intervals.bootstrap import Estimate
from twoclock.intervals.random_scaling import RecentMean
from twoclock.methods import Standard
from twoclock.models.mdp import read_features
from twoclock.online import Learner
from twoclock.problems.average_reward import GainOperators
from twoclock.problems.entropy_mdp import SoftOperators, Step
from twoclock.protocols import Method, PyTree
from twoclock.schedules import Power
from twoclock.storage.atomic_file import Document
from twoclock.storage.record import Record
from twoclock.validation import check_size, run_args
from twoclock.validation.arrays import Array, Number

# Samples with constant step sizes, which then fall as k^−½.
_HOLD = 2e4


class SoftmaxActorCritic(LearnerAgent):
    """Base of the actor-critics on numbered states and actions, which act by the softmax of their logits."""

    states: int
    actions: int
    _recent: RecentMean  # of what the agent reports an interval of

    def _set_sizes(self, states: object, actions: object) -> None:
        self.states, self.actions = validation.whole("states", states), validation.whole("actions", actions, least=2)
        check_size("`states`, `actions`", 24 * self.states * self.actions)

    def act(self, x: int) -> int:
        """An action in state x."""
        chances = self.probabilities(x)
        return min(int(np.searchsorted(np.cumsum(chances), self._rng.random())), self.actions - 1)

    def probabilities(self, x: int) -> Float[np.ndarray, " actions"]:
        """The action probabilities π(·|x) at the present iterate, before any averaging."""
        s = check_index("x", x, self.states)
        logits: np.ndarray = self._learner.peek(lambda state: self._logits(state, s))
        weights: np.ndarray = np.exp(logits - logits.max())
        return weights / weights.sum()

    def _logits(self, state: PyTree, s: int) -> Float[np.ndarray, " actions"]:
        """The logits of state s as an array of their own, by a state of the method."""
        return +state.theta[s]

    @property
    def policy(self) -> Float[np.ndarray, "s a"]:
        """The learnt policy π[s, a]; of an averaging method, the policy of the mean iterate."""
        with jax.enable_x64(True):
            return np.asarray(jax.nn.softmax(self._all_logits()))

    def _all_logits(self) -> Array:
        """The learnt logits of all states."""
        return jnp.asarray(self._learner.theta)

    def _state(self) -> tuple[Document, dict[str, PyTree]]:
        plain, trees = super()._state()
        return plain | {"recent": self._recent.numbers}, trees

    def _take_up(self, about: Document, record: Record) -> None:
        super()._take_up(about, record)
        self._recent = RecentMean(about["recent"])


def transition(s: int, a: int, t: int, reward: float, discount: float) -> Step:
    """A sample for the operators."""
    here, action, after = (np.asarray(i, np.int32) for i in (s, a, t))
    return Step(here, action, after, np.asarray(reward), np.asarray(discount), horizon=None)


def mean_entropy(logits: Array) -> Number:
    """The entropy of the policy, averaged over states."""
    log_pi = jax.nn.log_softmax(logits)
    return jnp.mean(-jnp.sum(jnp.exp(log_pi) * log_pi, axis=1))


class EntropyActorCritic(SoftmaxActorCritic):
    """Learns a policy for Σ γ^k (r − τ log π(a|s)) while it acts, in any environment with finite states and actions.

        s, _ = env.reset()
        a = agent.act(s)                    # a ~ π(·|s), the policy so far
        t, r, terminated, truncated, _ = env.step(a)
        agent.observe(s, a, t, r, terminated, truncated)

    The operators are those of `problems.entropy_mdp` (`problems.SoftOperators`): F = −Hδ∇log π(a|s), G = −δ∇V(s) with
    δ = r − τ log π(a|s) + γV(s') − V(s) and H = 1/(1 − γ). Where an episode terminated V(s') counts as 0; where it was
    only cut off, it counts in full. Each state weighs as often as it is visited, without the discount of the exact
    gradient of J. With tables the zeros are the same, with features only nearly.

    Args:
        states: the number of states, which are numbered from 0; such as ``env.observation_space.n``.
        actions: the number of actions.
        temperature: τ, the weight of the entropy bonus, in units of the reward.
        features: φ, one row per state, for a linear critic V = φᵀω instead of a table.
        policy_features: ψ[s, a], a vector for each pair, for a policy ∝ exp ψᵀθ instead of a table.
        gamma: the discount, below 1.
        initial_value: the critic's value of every state at the start. The largest possible return makes the agent
            explore unvisited states, which matters where rewards are rare.
        method: by default `Standard` with α = 3(1 − γ) and β = 0.3, constant for some 20,000 samples and then falling
            as k^−½. These steps suit rewards of order 1.
        seed: of its actions.

    >>> import numpy as np, twoclock as tc
    >>> agent = tc.agents.EntropyActorCritic(states=1, actions=2, temperature=0.1, gamma=0.5)
    >>> rng = np.random.default_rng(0)
    >>> for _ in range(2000):
    ...     a = agent.act(0)
    ...     agent.observe(0, a, 0, reward=float(a == 1) + rng.normal())
    >>> bool(agent.policy[0, 1] > 0.8)
    True

    Reference: Zeng & Doan, Section 4.3; Mei et al., *On the global convergence rates of softmax policy gradient
    methods*, 2020.
    """

    _NUMBERS = ("states", "actions", "temperature", "gamma", "initial_value", "seed")
    _ARRAYS = ("features", "policy_features")
    _PLAIN = ("_earned",)
    _FORMAT = 2
    _STREAM = 0x736163

    def __init__(
        self,
        states: int,
        actions: int,
        temperature: float,
        features: ArrayLike | None = None,
        policy_features: ArrayLike | None = None,
        gamma: float = 0.99,
        *,
        initial_value: float = 0.0,
        method: Method | None = None,
        seed: int = 0,
    ) -> None:
        self._set_sizes(states, actions)
        self.temperature = validation.number("temperature", temperature, 0)
        self.gamma = validation.number("gamma", gamma, 0, 1, below=True)
        self.features = None if features is None else read_features("features", features, self.states)
        psi = policy_features
        self.policy_features = None if psi is None else read_features("policy_features", psi, self.states, self.actions)
        if method is None:  # F has the factor H, so α is in units of 1 − γ
            slow, fast = (Power(first * _HOLD**0.5, p=0.5, shift=_HOLD) for first in (3 * (1 - self.gamma), 0.3))
            method = Standard(slow, fast)
        self.method = run_args.check_method(method)
        self.initial_value = validation.number("initial_value", initial_value)
        self._set_seed(seed)
        self._recent, self._earned = RecentMean(), 0.0
        temp, discount = np.full(self.states, self.temperature), np.full((1, 1, 1), self.gamma)
        self._operators = SoftOperators(temp, discount, 1 / (1 - self.gamma), self.features, self.policy_features)
        shape = (self.states, self.actions) if self.policy_features is None else self.policy_features.shape[2:]
        values = np.full(self.states, self.initial_value)
        omega = values if self.features is None else np.linalg.lstsq(self.features, values, rcond=None)[0]
        self._learner = Learner(
            self._operators.F, self._operators.G, self.method, np.zeros(shape), omega,
            measure=self._measure, example=self._sample(0, 0, 0, 0.0, False),
        )  # fmt: skip

    def _logits(self, state: PyTree, s: int) -> Float[np.ndarray, " actions"]:
        psi = self.policy_features
        return super()._logits(state, s) if psi is None else psi[s] @ state.theta

    def _learn(self, x: PyTree, u: PyTree, x_next: PyTree, reward: float | None, ended: bool, cut: bool) -> None:
        s, t = check_index("x", x, self.states), check_index("x_next", x_next, self.states)
        a, earned = check_index("u", u, self.actions), check_reward(reward)
        self._learner.update(self._sample(s, a, t, earned, ended))
        self._earned += earned
        if ended or cut:
            self._recent.add(self._earned)
            self._earned = 0.0

    def _all_logits(self) -> Array:
        return self._operators.logits(super()._all_logits())

    @property
    def value(self) -> Float[np.ndarray, " s"]:
        """The critic's estimate of the soft value V of each state."""
        with jax.enable_x64(True):
            return np.asarray(self._operators.values(jnp.asarray(self._learner.omega)))

    def returns(self, level: float = 0.95) -> Estimate:
        """The mean return of an episode, undiscounted and without the bonus, over the later half of them or more.

        The interval is by random scaling; NaN while there are fewer than a hundred.
        """
        return self._recent.estimate(level)

    def __repr__(self) -> str:
        how = "diverged" if self.diverged else f"return {self.returns()}" if self._recent.count else "no episode yet"
        return f"EntropyActorCritic({self.states} states, {self.actions} actions, {self.steps:,} samples, {how})"

    def _sample(self, s: int, a: int, t: int, reward: float, terminated: bool) -> Step:
        return transition(s, a, t, reward, 0.0 if terminated else self.gamma)

    def _measure(self, theta: Array, omega: Array) -> dict[str, Number]:
        return {
            "entropy": mean_entropy(self._operators.logits(theta)),
            "value": jnp.mean(self._operators.values(omega)),
        }


class AverageRewardActorCritic(SoftmaxActorCritic):
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
    _PLAIN = ("_waiting",)
    _FORMAT = 2
    _STREAM = 0x617261

    def __init__(
        self, states: int, actions: int, temperature: float, *, method: Method | None = None, seed: int = 0
    ) -> None:
        self._set_sizes(states, actions)
        self.temperature = validation.number("temperature", temperature, 0)
        if method is None:
            actor, gain, critic = (Power(first * _HOLD**0.5, p=0.5, shift=_HOLD) for first in (0.1, 0.01, 0.2))
            method = Standard(actor, (gain, critic))
        self.method = run_args.check_method(method)
        self._set_seed(seed)
        self._recent = RecentMean()
        self._waiting: tuple[int, int, float] | None = None  # the last sample of an episode, until the next begins
        soft = SoftOperators(np.full(self.states, self.temperature), np.ones((1, 1, 1)), 1.0)
        operators = GainOperators(soft)
        theta, omega = np.zeros((self.states, self.actions)), (np.zeros(()), np.zeros(self.states))
        self._learner = Learner(
            operators.F, operators.G, self.method, theta, omega,
            measure=self._measure, example=self._sample(0, 0, 0, 0.0),
        )  # fmt: skip

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
        self._recent.add(earned)

    def gain(self, level: float = 0.95) -> Estimate:
        """The mean reward of a step, without the bonus, over the later half of them or more, by random scaling."""
        return self._recent.estimate(level)

    def __repr__(self) -> str:
        how = "diverged" if self.diverged else f"gain {self.gain()}" if self._recent.count else "no sample yet"
        return f"AverageRewardActorCritic({self.states} states, {self.actions} actions, {self.steps:,} samples, {how})"

    def _sample(self, s: int, a: int, t: int, reward: float) -> Step:
        return transition(s, a, t, reward, 1.0)

    def _measure(self, theta: Array, omega: tuple[Array, Array]) -> dict[str, Number]:
        return {"entropy": mean_entropy(theta), "gain": jnp.asarray(omega[0])}
