"""An actor-critic under a limit on the expected cost, which learns the limit's multiplier while it acts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock import validation
from twoclock.agents.protocol import check_index, check_reward
from twoclock.agents.softmax_actor_critics import SoftmaxActorCritic, mean_entropy, transition
from twoclock.intervals.bootstrap import Estimate
from twoclock.intervals.random_scaling import RecentMean
from twoclock.methods import Standard
from twoclock.online import Learner
from twoclock.problems.constrained_mdp import ConstrainedOperators, CostStep, Omega
from twoclock.problems.entropy_mdp import SoftOperators
from twoclock.protocols import InputError, Method, PyTree
from twoclock.schedules import Power
from twoclock.storage.atomic_file import Document
from twoclock.storage.record import Record
from twoclock.validation import run_args
from twoclock.validation.arrays import Array, Number

Cost = Callable[[int, int, int, float, bool], float]


class LimitedSample(NamedTuple):
    """One sample: the step with its cost, and the distribution of the first states so far."""

    x: CostStep
    start: Array


class ConstrainedActorCritic(SoftmaxActorCritic):
    """Learns a policy for Σ γ^k (r − τ log π(a|s)) whose discounted cost from a start stays within a limit.

    The operators are those of `problems.constrained_mdp`: the multiplier κ, a softmax policy, and critics of reward and
    cost, on three clocks. The slack is the limit minus the critic's mean cost from the first states of the episodes so
    far. `multiplier` is κ; `cost` and `violation` have intervals.

    Args:
        states: the number of states, which are numbered from 0.
        actions: the number of actions.
        cost: what a step costs, a function of (x, u, x_next, reward, terminated).
        limit: the largest expected discounted cost of an episode.
        temperature: τ, in units of the reward; above 0, since at 0 the best policy jumps with κ.
        gamma: the discount of rewards and costs, below 1.
        method: by default `Standard` with step 5e-5 for κ, 1 − γ for the policy and 0.25 for the critics. These are
            constant for 400,000, 200,000 and 20,000 samples and then fall as 1/k, as for `constrained_mdp` on the lake.
            Larger costs need a smaller step of κ.
        seed: of its actions.

    A coin toss pays 1 and costs 1. Half a toss per episode of one step is allowed; κ is 1 there:

    >>> import twoclock as tc
    >>> def price(x, u, x_next, reward, terminated):
    ...     return float(u == 0)
    >>> steps = tc.Standard("100/(k+1000)", ("300/(k+1000)", "500/(k+1000)"))
    >>> agent = tc.agents.ConstrainedActorCritic(1, 2, price, limit=0.5, temperature=0.5, gamma=0.5, method=steps)
    >>> for _ in range(3000):
    ...     a = agent.act(0)
    ...     agent.observe(0, a, 0, reward=float(a == 0), terminated=True)
    >>> round(agent.multiplier, 1), round(agent.cost().value, 1)
    (1.0, 0.5)

    Reference: Borkar, *An actor-critic algorithm for constrained Markov decision processes*, 2005.
    """

    _NUMBERS = ("states", "actions", "limit", "temperature", "gamma", "seed")
    _ARRAYS = ()
    _PLAIN = ("_spent", "_weight", "_fresh")
    _FORMAT = 2
    _OTHERS = ("price",)
    _FUNCTIONS = ("cost",)
    _STREAM = 0x636163

    def __init__(
        self,
        states: int,
        actions: int,
        cost: Cost,
        limit: float,
        temperature: float,
        gamma: float = 0.99,
        *,
        method: Method | None = None,
        seed: int = 0,
    ) -> None:
        self._set_sizes(states, actions)
        validation.function("cost", cost, "x", "u", "x_next", "reward", "terminated")
        self.price, self.limit = cost, validation.number("limit", limit)
        self.temperature = validation.number("temperature", temperature, 0, above=True)
        self.gamma = validation.number("gamma", gamma, 0, 1, below=True)
        if method is None:
            first = (5e-5, 4e5), (1 - self.gamma, 2e5), (0.25, 2e4)
            multiplier, actor, critics = (Power(size * held, shift=held) for size, held in first)
            method = Standard(multiplier, (actor, critics))
        self.method = run_args.check_method(method)
        self._set_seed(seed)
        self._recent, self._spent, self._weight = RecentMean(), 0.0, 1.0
        self._starts, self._fresh = np.zeros(self.states), True
        soft = SoftOperators(
            np.full(self.states, self.temperature), np.full((1, 1, 1), self.gamma), 1 / (1 - self.gamma)
        )
        self._operators = ConstrainedOperators(soft, self.limit)
        logits, values = np.zeros((self.states, self.actions)), np.zeros(self.states)
        self._learner = Learner(
            self._F, self._G, self.method, np.zeros(()), (logits, (values, values.copy())),
            measure=self._measure, example=self._sample(0, 0, 0, 0.0, 0.0, False),
        )  # fmt: skip

    @property
    def settings(self) -> dict[str, object]:
        """The arguments that make an equal agent."""
        settings = super().settings
        return {"cost": settings.pop("price"), **settings}

    def _F(self, theta: Number, omega: Omega, sample: LimitedSample) -> Number:
        return self._operators.F(theta, omega, sample.start)

    def _G(self, theta: Number, omega: Omega, sample: LimitedSample) -> Omega:
        return self._operators.G(theta, omega, sample.x)

    def _logits(self, state: PyTree, s: int) -> Float[np.ndarray, " actions"]:
        return +state.omega[0][s]

    def _learn(self, x: PyTree, u: PyTree, x_next: PyTree, reward: float | None, ended: bool, cut: bool) -> None:
        s, t = check_index("x", x, self.states), check_index("x_next", x_next, self.states)
        a, earned = check_index("u", u, self.actions), check_reward(reward)
        paid = float(self.price(s, a, t, earned, ended))
        if not np.isfinite(paid):
            raise InputError(f"`cost` must return a finite number, got {paid} for the step from state {s} to state {t}")
        if self._fresh:
            self._starts[s] += 1
        self._fresh = ended or cut
        self._learner.update(self._sample(s, a, t, earned, paid, ended))
        self._spent += self._weight * paid
        self._weight *= self.gamma
        if self._fresh:
            self._recent.add(self._spent)
            self._spent, self._weight = 0.0, 1.0

    def _all_logits(self) -> Array:
        return jnp.asarray(self._learner.omega[0])

    @property
    def multiplier(self) -> float:
        """κ, the gain in value per unit of a larger limit."""
        return float(self._learner.theta)

    def cost(self, level: float = 0.95) -> Estimate:
        """The mean discounted cost of an episode over the later half of them or more, by random scaling.

        NaN while there are fewer than a hundred. An episode that is cut off counts with its cost until then.
        """
        return self._recent.estimate(level)

    def violation(self, level: float = 0.95) -> Estimate:
        """By how much the mean cost exceeds the limit, with its interval; below 0 where it stays within."""
        value, low, high = self.cost(level)
        return Estimate(value - self.limit, low - self.limit, high - self.limit)

    @classmethod
    def load(cls, path: str | Path, cost: Cost, method: Method | None = None) -> Self:  # type: ignore[override]
        """Load a saved agent with its cost; pass its method again if that holds a function.

        Args:
            path: the folder of ``save``.
            cost: the cost of the saved agent.
            method: the method of the saved agent, if it holds a function.
        """
        return cls._load(path, method, lambda _: {"cost": cost})

    def _state(self) -> tuple[Document, dict[str, PyTree]]:
        return super()._state()[0], {"starts": self._starts}

    def _take_up(self, about: Document, record: Record) -> None:
        super()._take_up(about, record)
        self._starts = np.array(record.trees["starts"])

    def __repr__(self) -> str:
        how = "diverged" if self.diverged else f"κ {self.multiplier:.3g}"
        spent = f", cost {self.cost()}" if self._recent.count else ""
        return (
            f"ConstrainedActorCritic({self.states} states, limit {self.limit:g}, {self.steps:,} samples, {how}{spent})"
        )

    def _sample(self, s: int, a: int, t: int, reward: float, paid: float, terminated: bool) -> LimitedSample:
        step = transition(s, a, t, reward, 0.0 if terminated else self.gamma)
        return LimitedSample(CostStep(step, np.asarray(paid)), self._starts / max(self._starts.sum(), 1.0))

    def _measure(self, theta: Number, omega: Omega) -> dict[str, Number]:
        return {"multiplier": jnp.asarray(theta), "entropy": mean_entropy(omega[0])}
