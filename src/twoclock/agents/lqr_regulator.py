"""A linear-quadratic regulator that learns its gain on the plant while it acts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from twoclock import validation
from twoclock.agents.protocol import LearnerAgent
from twoclock.intervals.batch_means import BlockMean, intervals
from twoclock.intervals.bootstrap import Estimate
from twoclock.intervals.confidence_sequence import FIRST_LOOK, first_look, stretch
from twoclock.intervals.random_scaling import RecentMean
from twoclock.methods import Polyak, Standard, running_means
from twoclock.online import Learner
from twoclock.problems.lqr.model_based import ModelCritic
from twoclock.problems.lqr.operators import ActorCritic, Bounds, Guard, Guarded
from twoclock.protocols import InputError, Method, PyTree
from twoclock.schedules import Power
from twoclock.storage.atomic_file import Document
from twoclock.storage.record import Record
from twoclock.validation import run_args
from twoclock.validation.arrays import as_array, definite, matrix

if TYPE_CHECKING:
    import pandas as pd

# Steps of the actor-critic in units in which states, actions and costs are near 1, as a guard makes them.
_ACTOR, _CRITIC = (Power(first * 2000**0.6, p=0.6, shift=2000.0) for first in (5e-4, 1e-3))
_supervise, _judge = jax.jit(Bounds.supervise), jax.jit(Bounds.judge)


class Regulator(LearnerAgent):
    """Learns to regulate x' = Ax + Bu + w at the cost xᵀQx + uᵀRu, with A and B unknown, while it acts.

        u = agent.act(x)                    # u ~ N(−Kx, σ²I), with the K that it has learnt so far
        agent.observe(x, u, x_next)

    The cost of a step is by Q and R; rewards and ends are ignored. An episode that ends is none for a regulator: the
    last step of it led to x_next like any other.

    ``critic="model"``: least squares for [A B] and one step of the Riccati recursion per sample
    (`problems.ModelCritic`); it is as good as solving the Riccati equation anew at each sample, and what to take where
    the plant is nearly linear. ``critic="q"``: the paper's actor-critic, the next action integrated out
    (`problems.ActorCritic`); it has no model of the plant, needs seven times as many samples on the paper's, and steps
    that suit the units.

    Args:
        Q: the cost of states, positive semidefinite, n×n.
        R: the cost of actions, positive definite, m×m.
        K0: the first gain, m×n, which should stabilise; zero by default.
        sigma: the exploration σ. Without any nothing can be learnt of B.
        critic: "model" or "q".
        guard: a `problems.Guard`, or True for one with a log of 1,000 samples: the plant is first driven by K0 for so
            long, and from then on K0 takes over wherever a state leaves what it saw there.
        method: other steps than the critic's own.
        forgetting: of the model critic, for a plant that drifts: 0.01 forgets all but the last hundred samples or so.
        kappa: of the q critic, the weight of its J row.
        seed: of the exploration.

    >>> import numpy as np, twoclock as tc
    >>> agent, rng = tc.agents.Regulator(Q=[[1.0]], R=[[1.0]]), np.random.default_rng(0)
    >>> x = np.zeros(1)
    >>> for _ in range(1000):
    ...     u = agent.act(x)
    ...     x_next = 0.9 * x + 0.5 * u + rng.normal(size=1)
    ...     agent.observe(x, u, x_next)
    ...     x = x_next
    >>> bool(abs(agent.gain - tc.models.Lqr([[0.9]], [[0.5]], [[1.0]], [[1.0]]).gain) < 0.1)
    True
    """

    _NUMBERS = ("sigma", "critic", "kappa", "seed")
    _ARRAYS = ("Q", "R", "K0")
    _OTHERS = ("guard",)
    _STREAM = 0x74776F  # exploration that is the plant's own noise would silently make a wrong model

    def __init__(
        self,
        Q: ArrayLike,
        R: ArrayLike,
        K0: ArrayLike | None = None,
        sigma: float = 1.0,
        critic: Literal["model", "q"] = "model",
        *,
        guard: Guard | bool = False,
        method: Method | None = None,
        forgetting: float = 0.0,
        kappa: float = 2.0,
        seed: int = 0,
    ) -> None:
        validation.refuse_fork()
        self.Q, self.R = matrix("Q", Q), matrix("R", R)
        for name, value, floor in (("Q", self.Q, -1e-12), ("R", self.R, 0.0)):
            if value.shape[0] != value.shape[1]:
                raise InputError(f"`{name}` must be square, got shape {value.shape}")
            definite(name, value, floor)
        n, m = len(self.Q), len(self.R)
        self.K0 = np.zeros((m, n)) if K0 is None else as_array("K0", K0, "a matrix of numbers")
        if self.K0.shape != (m, n):
            raise InputError(
                f"`K0` must have a row for each action and a column for each state, {(m, n)}, got {self.K0.shape}; "
                "write one row as [[a, b]]"
            )
        self.sigma = validation.number(
            "sigma", sigma, 0, above=True, remedy="without exploration nothing is learnt of B"
        )
        self.critic = validation.choice("critic", critic, ("model", "q"))
        if method is None:
            method = running_means(forgetting) if critic == "model" else Polyak(Standard(_ACTOR, _CRITIC), power=0.5)
        elif validation.number("forgetting", forgetting, 0):
            raise InputError("`forgetting` is for the model critic's own method; with `method` put it into that one")
        self.method = run_args.check_method(method)
        self.kappa = validation.number("kappa", kappa, 0, above=True)
        self.guard = Guard(log=1000) if guard is True else None if guard is False or guard is None else guard
        if self.guard is not None and not isinstance(self.guard, Guard):
            raise InputError(f"`guard` must be a Guard, True or False, got {type(guard).__name__}; try `guard=True`")
        self._set_seed(seed)
        self._log: list[np.ndarray] = []
        self._costs, self._all_costs = RecentMean(), BlockMean()
        self._watch: PyTree = None
        self._bounds: Bounds | None = None
        self._learning = self.guard is None  # else once the guard has its log
        self._learner = self._make_learner(None)

    def act(self, x: ArrayLike) -> np.ndarray:
        """The action in state x."""
        state = self._vector("x", x, len(self.Q))
        K = self._iterate()
        if self._bounds is not None:
            with jax.enable_x64(True):
                held, self._watch = _supervise(self._bounds, K, state, self._watch)
            K = np.asarray(held)
        return self.sigma * self._rng.standard_normal(len(self.R)) - K @ state

    def _learn(self, x: PyTree, u: PyTree, x_next: PyTree, reward: float | None, ended: bool, cut: bool) -> None:
        n, m = len(self.Q), len(self.R)
        here, action, after = self._vector("x", x, n), self._vector("u", u, m), self._vector("x_next", x_next, n)
        cost = self.stage_cost(here, action)
        z = np.concatenate([here, action])
        if self.guard is not None and not self._learning:
            self._log.append(np.append(z, cost))
            self._costs.add(cost)
            self._all_costs.add(cost)
            if len(self._log) >= self.guard.log:
                self._end_log(self.guard)
            return
        K = self._iterate()
        if self._bounds is not None and bool(self._watch["held"]):
            K = self.K0
        sample: PyTree = {"z": z, "next": np.concatenate([after, -K @ after]), "c": cost}
        watch = self._watch
        if self._bounds is not None:
            with jax.enable_x64(True):
                sample, watch = jax.tree.map(np.asarray, _judge(self._bounds, sample, watch))
        self._learner.update(sample)
        self._watch = watch
        self._costs.add(cost)
        self._all_costs.add(cost)

    def stage_cost(self, x: np.ndarray, u: np.ndarray) -> float:
        """xᵀQx + uᵀRu."""
        return float(x @ self.Q @ x + u @ self.R @ u)

    @property
    def gain(self) -> np.ndarray:
        """The K of u = −Kx that it has learnt; K0 while a guard still takes its log."""
        theta = self._learner.theta
        return np.asarray(theta["K"] if self.critic == "model" else theta)

    def cost(self, level: float = 0.95, *, anytime: bool | int = False) -> Estimate:
        """The mean cost per step over the later half of the samples or more, exploration included, with its interval.

        The interval is by random scaling, which holds for samples that depend on each other; NaN while they are few.

        Args:
            level: the coverage, between 0 and 1.
            anytime: True for the mean over *all* samples, since one that begins anew has no interval for all looks:
                with block scores, to be looked at at any time from 1,000 samples on, or from the number given; NaN
                before.
        """
        if anytime is False:
            return self._costs.estimate(level)
        blocks = self._all_costs
        first = first_look(anytime, [FIRST_LOOK])
        found = intervals(np.full(1, blocks.estimate), blocks.statistics(), level)
        longer = float(stretch(blocks.count, first, level)) if blocks.count >= first else np.nan
        half = float(found.high[0] - blocks.estimate) * longer
        return Estimate(blocks.estimate, blocks.estimate - half, blocks.estimate + half)

    @property
    def interventions(self) -> dict[str, int]:
        """What the guard has done: how often K0 took over, for how many steps, and samples learnt from in part."""
        if self._bounds is None:
            return {}
        return {name: int(count) for name, count in self._bounds.report(self._watch).items()}

    @property
    def history(self) -> pd.DataFrame:
        """``step`` and ``cost``, the mean cost as the critic has it, at ten marks a decade and now."""
        if self.guard is not None and not self._learning:
            raise InputError(
                f"there is no history yet: the guard's log has {len(self._log)} of {self.guard.log:.0f} samples"
            )
        return self._learner.history

    @classmethod
    def load(cls, path: str | Path, method: Method | None = None) -> Regulator:
        """The regulator that was saved, to go on from there; a method is needed where it held a function."""
        return cls._load(path, method, lambda about: {"guard": about["guard"] and Guard(**about["guard"])})

    def _state(self) -> tuple[Document, dict[str, PyTree]]:
        guard = None if self.guard is None else vars(self.guard)
        log = np.asarray(self._log).reshape(len(self._log), len(self.Q) + len(self.R) + 1)
        about = {
            "guard": guard,
            "costs": self._costs.numbers,
            "all_costs": self._all_costs.numbers,
            "learning": self._learning,
        }
        return about, {"log": log, "watch": jax.tree.map(np.asarray, self._watch)}

    def _take_up(self, about: Document, record: Record) -> None:
        self._costs, self._all_costs = RecentMean(about["costs"]), BlockMean(about["all_costs"])
        self._log = list(record.trees["log"])
        if self.guard is not None and about["learning"]:
            self._end_log(self.guard)
        self._watch = record.trees["watch"]
        super()._take_up(about, record)

    def __repr__(self) -> str:
        how = "diverged" if self.diverged else f"cost {self.cost()}" if self._costs.count else "not begun"
        return f"Regulator({self.critic}, {self.steps:,} samples, {how})"

    def _end_log(self, guard: Guard) -> None:
        """Measure the guard's bounds from its log, and learn under them from now on."""
        log, n, m = np.asarray(self._log), len(self.Q), len(self.R)
        self._learner = self._make_learner(guard.measure(self.K0, log[:, :n], log[:, n : n + m], log[:, -1]))
        self._learning = True

    def _make_learner(self, bounds: Bounds | None) -> Learner:
        """A learner at the first gain, under a guard's bounds if there are any."""
        self._bounds = bounds
        with jax.enable_x64(True):
            self._watch = None if bounds is None else jax.tree.map(np.asarray, bounds.start())
            if self.critic == "q":
                actor = ActorCritic(np.float64(self.kappa), np.float64(self.sigma), expected_action=True)
                theta, omega = jax.tree.map(np.asarray, actor.start(self.K0))
                guarded = Guarded(actor, bounds)
                return Learner(
                    guarded.F, guarded.G, self.method, theta, omega, measure=lambda theta, omega: {"cost": omega["J"]}
                )
            model = ModelCritic(self.Q, self.R)
            theta, omega = jax.tree.map(np.asarray, model.start(self.K0))

        def measure(theta: PyTree, omega: PyTree) -> dict[str, jax.Array]:
            """The mean cost of the gain on the plant as it is estimated."""
            ab = model.plant(omega)
            d, B = ab.shape[1], ab[:, len(self.Q) :]
            noise = omega["M"][d:, d:] - ab @ omega["M"][:d, d:]
            explored = jnp.asarray(self.sigma**2, ab.dtype)
            cost = jnp.sum(theta["P"] * (noise + explored * B @ B.T)) + explored * jnp.trace(jnp.asarray(self.R))
            return {"cost": cost}

        operators = Guarded(model, bounds)
        return Learner(operators.F, operators.G, self.method, theta, omega, measure=measure)

    def _iterate(self) -> np.ndarray:
        """The gain that acts, before any averaging."""
        theta = self._learner.state.theta
        return np.asarray(theta["K"] if self.critic == "model" else theta)

    def _vector(self, name: str, value: ArrayLike, size: int) -> np.ndarray:
        try:
            new = np.asarray(value, np.float64)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"`{name}` must be a vector of {size} numbers, got {validation.short_repr(value)}"
            ) from None
        if new.shape != (size,):
            raise InputError(f"`{name}` must have shape {(size,)}, got {new.shape}")
        if not np.isfinite(new).all():
            raise InputError(
                f"`{name}` must be finite, got {validation.short_repr(new.tolist())}; the plant has left all bounds"
            )
        return new
