"""A linear-quadratic regulator that learns its gain on the plant while it acts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import jax
import numpy as np
from numpy.typing import ArrayLike

from twoclock import validation
from twoclock.agents.gain_supervisor import GainSupervisor
from twoclock.agents.plant_statistics import OutputHistory, PlantStatistics, PlantWarning, PlantWarnings
from twoclock.agents.protocol import LearnerAgent, Restorable
from twoclock.intervals.bootstrap import Estimate
from twoclock.intervals.confidence_sequence import RunningCost
from twoclock.methods import Polyak, Standard, running_means
from twoclock.online import Learner
from twoclock.problems.lqr.model_based import ModelCritic
from twoclock.problems.lqr.operators import ActorCritic, Bounds, Guard, Guarded
from twoclock.protocols import InputError, Method, PyTree
from twoclock.result import Result
from twoclock.schedules import Power
from twoclock.storage.atomic_file import Document
from twoclock.storage.record import Record
from twoclock.validation import run_args
from twoclock.validation.arrays import Number, as_array, check_costs, check_vector, first_gain

if TYPE_CHECKING:
    import pandas as pd

# Steps of the actor-critic in units in which states, actions and costs are near 1, as a guard makes them.
_ACTOR, _CRITIC = (Power(first * 2000**0.6, p=0.6, shift=2000.0) for first in (5e-4, 1e-3))
_RIDGE = 1e-12  # small in any sensible unit
_LOOKS = 64  # the control law is computed again whenever the number of samples has grown by this share
# The weight of actions in the choice of the steady state, where that must be the set point at any cost.
_ANY_EFFORT = 1e-6


class Regulator(LearnerAgent):
    """Learns to regulate x' = Ax + Bu + d + w at the cost xᵀQx + uᵀRu, with A, B and d unknown, while it acts.

        u = agent.act(x)                    # u ~ N(ū − K(x − x̄), σ²I), K, x̄ and ū as learnt so far
        agent.observe(x, u, x_next)         # u as it was applied: cut to the actuator's limits, if it has any

    The cost of a step is by Q and R; rewards and ends are ignored. The end of an episode means nothing to a regulator:
    its last step led to x_next like any other.

    ``critic="model"``: least squares for [A B d] and one step of the Riccati recursion per sample
    (`problems.ModelCritic`); it is as good as solving the Riccati equation at each sample, and the right choice where
    the plant is nearly linear. ``critic="q"``: the paper's actor-critic, the next action integrated out
    (`problems.ActorCritic`); it has no model of the plant, needs seven times as many samples on the paper's, steps that
    suit the units, and a plant without a constant disturbance.

    ``warnings`` lists reasons to doubt its answer: an incomplete state, actions that were not applied as asked, a
    goal that no state came near, a guard that had to act.

    Args:
        Q: the cost of states, positive semidefinite, n×n. With ``lags`` the cost of the output, or of several of the
            last outputs, newest first.
        R: the cost of actions, positive definite, m×m.
        K0: the first gain, m×n, which should stabilise the plant; zero by default. With ``lags`` it may apply to
            outputs alone.
        sigma: the exploration σ. Without any nothing can be learnt of B.
        critic: "model" or "q".
        guard: a `problems.Guard`, or True for one with a log of 1,000 samples: K0 drives the plant for the length of
            the log. From then on a gain acts only if the samples say that it stabilises (``certified`` where they prove
            it), and K0 takes over wherever a state leaves the range of the log.
        reference: a set point for x. The cost of a state is then (x − r)ᵀQ(x − r), and the cheapest law with mean state
            r is learnt. Without it, the law with the least cost is learnt, even if its mean state is not 0.
        lags: if x is an output and not the state: the number of past outputs that, with the actions between them, make
            a state.
        outputs: the number of outputs, if Q weighs several of the last ones; by default the number of rows of Q.
        intercept: whether the model has the constant d.
        method: step sizes that replace the critic's own.
        forgetting: for a plant that drifts, with the model critic: 0.01 forgets all but about the last hundred samples.
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

    action_space = "continuous"
    _NUMBERS = ("sigma", "critic", "kappa", "seed", "lags", "outputs", "intercept")
    _ARRAYS = ("Q", "R", "K0", "reference")
    _OTHERS = ("guard",)
    _FORMAT = 3
    _STREAM = 0x74776F  # exploration equal to the plant's own noise would silently bias the model

    def __init__(
        self,
        Q: ArrayLike,
        R: ArrayLike,
        K0: ArrayLike | None = None,
        sigma: float = 1.0,
        critic: Literal["model", "q"] = "model",
        *,
        guard: Guard | bool = False,
        reference: ArrayLike | None = None,
        lags: int = 1,
        outputs: int | None = None,
        intercept: bool = True,
        method: Method | None = None,
        forgetting: float = 0.0,
        kappa: float = 2.0,
        seed: int = 0,
    ) -> None:
        validation.check_process()
        self.Q, self.R = check_costs(Q, R)
        m = len(self.R)
        self.lags = validation.whole("lags", lags, 1, 100)
        self.intercept = validation.flag("intercept", intercept)
        self.critic = validation.choice("critic", critic, ("model", "q"))
        if critic == "q" and (reference is not None or lags > 1):
            name = "reference" if reference is not None else "lags"
            why = "learns no constant" if name == "reference" else "needs too many samples for so large a state"
            raise InputError(f'`{name}` is for the model critic: the q critic {why}; use `critic="model"`')
        self.reference = None if reference is None else np.atleast_1d(as_array("reference", reference))
        p = self.outputs = len(self.Q) if outputs is None else validation.whole("outputs", outputs, 1)
        if len(self.Q) % p or len(self.Q) > p * self.lags:
            raise InputError(
                f"`Q` must be of the outputs, or of up to `lags` of the last ones: {p}×{p} times 1 to {self.lags}, "
                f"got {len(self.Q)}×{len(self.Q)}"
            )
        self._history = OutputHistory(p, m, self.lags)
        n = self._history.size
        self.K0 = np.zeros((m, n)) if K0 is None else first_gain(as_array("K0", K0, "a matrix of numbers"), m, p, n)
        if self.reference is not None and self.reference.shape != (p,):
            raise InputError(f"`reference` must have an entry for each state, ({p},), got {self.reference.shape}")
        self._zero = np.zeros(p) if self.reference is None else self.reference
        self._Q = np.zeros((n, n))
        self._Q[: len(self.Q), : len(self.Q)] = self.Q
        self.sigma = validation.number(
            "sigma", sigma, 0, above=True, remedy="without exploration nothing is learnt of B"
        )
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
        self._costs = RunningCost()
        self._statistics = PlantStatistics(n, m, self._history.known)
        self._notes = PlantWarnings(self.Q[:p, :p])
        self._supervisor: GainSupervisor | None = None
        if self.guard is not None:
            self._supervisor = GainSupervisor(
                self.guard, self.K0, self._Q, self.R, self.sigma, self._statistics, leads_back=critic == "q"
            )
        self._model = ModelCritic(self._Q, self.R, _RIDGE, self.intercept, self._history.known if lags > 1 else None)
        self._learner = self._make_learner(self.K0, None)
        self._rest, self._rest_at = (np.zeros(n), np.zeros(m)), -1
        self._asked: np.ndarray | None = None  # the last action
        self._said: set[str] = set()

    def act(self, x: ArrayLike) -> np.ndarray:
        """The action at the state or output x."""
        state, _ = self._history.state(check_vector("x", x, self.outputs) - self._zero)
        K, (rest, action) = self._law(state)
        self._asked = action - K @ (state - rest) + self.sigma * self._rng.standard_normal(len(self.R))
        return self._asked.copy()

    def _law(self, state: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """The gain that acts in a state, with its steady state and steady action."""
        guarded, nothing = self._supervisor, (np.zeros(self._history.size), np.zeros(len(self.R)))
        if guarded is None:
            return (self.K0, nothing) if self.diverged else (self._iterate(), self._rest)
        if guarded.bounds is None or self.diverged:
            return guarded.safe, nothing
        K, taken = guarded.supervise(self._iterate(), state)
        if taken or guarded.lost:
            self._announce()
        return K, nothing if guarded.held else self._rest

    def _learn(self, x: PyTree, u: PyTree, x_next: PyTree, reward: float | None, ended: bool, cut: bool) -> None:
        p, m, guarded = self.outputs, len(self.R), self._supervisor
        here, action, after = check_vector("x", x, p), check_vector("u", u, m), check_vector("x_next", x_next, p)
        here, after = here - self._zero, after - self._zero
        state, whole = self._history.state(here)
        z, older, cost = np.concatenate([state, action]), self._history.older(here), self._cost(state, action)
        self._history.push(here, action, after)
        if older is not None:
            self._statistics.add(z, older, after)
        asked = self._asked
        self._notes.add(after, asked is not None and bool(np.any(np.abs(action - asked) > 1e-5 * (1 + np.abs(asked)))))
        if self._notes.count >= 128 and self._notes.count & (self._notes.count - 1) == 0:
            self._announce()
        if not whole:
            return
        if guarded is not None and guarded.bounds is None:
            self._costs.add(cost)
            if guarded.record(z, cost):
                self._learner = self._make_learner(guarded.safe, guarded.end_log())
                self._costs = RunningCost()
                self._announce()
            return
        K = self._iterate() if guarded is None else guarded.safe if guarded.held else guarded.acting
        following, _ = self._history.state(after)
        sample: PyTree = {"z": z, "next": np.concatenate([following, -K @ following]), "c": cost}
        self._learner.update(sample if guarded is None else guarded.judge(sample))
        if guarded is not None and guarded.held:
            self._costs = RunningCost()  # those so far were of another gain
        else:
            self._costs.add(cost)
        if guarded is not None:
            guarded.consider(self._iterate())
        if self.steps - self._rest_at >= max(1, self.steps // _LOOKS):
            self._rest, self._rest_at = self._find_rest(), self.steps

    def stage_cost(self, x: np.ndarray, u: np.ndarray) -> float:
        """(x − r)ᵀQ(x − r) + uᵀRu, where r is the reference or 0; of the last outputs where Q weighs several.

        Args:
            x: the state or output.
            u: the action.
        """
        return self._cost(self._history.state(x - self._zero)[0], u)

    def _cost(self, state: np.ndarray, u: np.ndarray) -> float:
        return float(state @ self._Q @ state + u @ self.R @ u)

    @property
    def gain(self) -> np.ndarray:
        """The learnt K of u = ū − K(x − x̄); with lags, for the whole state.

        With a guard it is the last gain that the samples show to stabilise; before there is one, and after a
        divergence, it is K0.
        """
        guarded = self._supervisor
        if guarded is None:
            return self.K0 if self.diverged else self._estimate()
        if guarded.bounds is None or self.diverged:
            return guarded.safe
        newest = self._estimate()
        good = not guarded.held and (self._statistics.proves(newest) or self._statistics.passes(newest))
        return newest if good else guarded.acting

    @property
    def steady_state(self) -> tuple[np.ndarray, np.ndarray]:
        """The steady state x̄ and steady action ū, as learnt so far."""
        rest, action = self._find_rest()
        return rest[: self.outputs] + self._zero, action

    @property
    def certified(self) -> bool:
        """Whether the samples prove that ``gain`` stabilises, on a linear plant, with probability 0.999 or more."""
        guarded = self._supervisor
        proved = guarded is not None and guarded.proved and np.array_equal(self.gain, guarded.acting)
        return not self.diverged and (proved or self._statistics.proves(self.gain))

    @property
    def diverged(self) -> bool:
        """Whether the learner left the finite numbers, or a guard has lost the plant; K0 acts from then on."""
        return self._learner.diverged or (self._supervisor is not None and self._supervisor.lost)

    def cost(self, level: float = 0.95, *, anytime: bool | int = False) -> Estimate:
        """The mean cost per step over the later half of the samples or more, exploration included, with its interval.

        The interval is by random scaling, which holds for samples that depend on each other; NaN while they are few.
        Where a guard has taken the plant back, or has ended its log, costs count from there on.

        Args:
            level: the coverage, between 0 and 1.
            anytime: True for the mean over *all* samples, since one that restarts has no interval for all looks:
                with block scores, valid at any stopping time from 1,000 samples on, or from the number given; NaN
                before.
        """
        return self._costs.estimate(level, anytime)

    @property
    def interventions(self) -> dict[str, int]:
        """What the guard has done: how often K0 took over, for how many steps, and how many samples had a reduced
        weight."""
        return {} if self._supervisor is None else self._supervisor.interventions

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt its answer, one per line."""
        return list(self._lines().values())

    def _lines(self) -> dict[str, str]:
        found = self._notes.lines(self._statistics, self._zero, self.lags)
        if self._learner.diverged:
            found["diverged"] = "the learner diverged, and K0 acts since; take smaller steps, or the model critic"
        return found | ({} if self._supervisor is None else self._supervisor.lines())

    def _announce(self) -> None:
        """Issue the warnings that are new."""
        for topic, line in self._lines().items():
            if topic not in self._said:
                self._said.add(topic)
                if not self.quiet:
                    warnings.warn(line, PlantWarning, stacklevel=4)

    @property
    def history(self) -> pd.DataFrame:
        """``step`` and ``cost``, the critic's mean cost, at ten marks per decade and now."""
        if self._supervisor is not None and self._supervisor.bounds is None:
            raise InputError(
                f"there is no history yet: the guard's log has {len(self._supervisor.log)} of "
                f"{self._supervisor.guard.log:.0f} samples"
            )
        return self._learner.history

    def result(self) -> Result:
        """The outcome so far as a `Result` of one seed; its gain is ``gain``."""
        learnt = super().result()
        gain = self.gain[None]
        theta = learnt.theta | {"K": gain} if self.critic == "model" else gain
        return Result(theta, learnt.omega, learnt.history, np.asarray([self.diverged]), learnt.last_step, learnt.spec)

    @classmethod
    def load(cls, path: str | Path, method: Method | None = None) -> Self:
        return cls._load(path, method, lambda about: {"guard": about["guard"] and Guard(**about["guard"])})

    def _state(self) -> tuple[Document, dict[str, PyTree]]:
        about = {
            "guard": None if self.guard is None else vars(self.guard),
            "costs": self._costs.numbers,
            "said": sorted(self._said),
        }
        own = {"asked": self._asked, "rest": (*self._rest, np.asarray(self._rest_at))}
        return about, own | {name: part.snapshot() for name, part in self._parts().items()}

    def _take_up(self, about: Document, record: Record) -> None:
        trees = record.trees
        self._costs = RunningCost(about["costs"])
        self._said, self._asked = set(about["said"]), trees["asked"]
        *rest, at = trees["rest"]
        if [np.shape(part) for part in rest] != [np.shape(part) for part in self._rest]:
            raise ValueError("`rest` has another shape")
        self._rest, self._rest_at = (rest[0], rest[1]), int(at)
        for name, part in self._parts().items():
            part.restore(trees[name])
        if self._supervisor is not None and self._supervisor.bounds is not None:
            self._learner = self._make_learner(self._supervisor.safe, self._supervisor.bounds)
        super()._take_up(about, record)

    def _parts(self) -> dict[str, Restorable]:
        parts: dict[str, Restorable] = {
            "past": self._history, "statistics": self._statistics, "notes": self._notes,
        }  # fmt: skip
        return parts if self._supervisor is None else parts | {"supervisor": self._supervisor}

    def __repr__(self) -> str:
        how = "diverged" if self.diverged else f"cost {self.cost()}" if self._costs.recent.count else "not begun"
        return f"Regulator({self.critic}, {self.steps:,} samples, {how})"

    def _make_learner(self, K: np.ndarray, bounds: Bounds | None) -> Learner:
        """A learner at the gain K, under a guard's bounds if there are any."""
        model, sigma, effort = self._model, self.sigma, self._effort
        with jax.enable_x64(True):
            actor = ActorCritic(np.float64(self.kappa), np.float64(sigma), expected_action=True)
            theta, omega = jax.tree.map(np.asarray, (actor if self.critic == "q" else model).start(K))

        def measure(theta: PyTree, omega: PyTree) -> dict[str, Number]:
            return {"cost": omega["J"] if self.critic == "q" else model.mean_cost(theta, omega, sigma, effort)}

        guarded = Guarded(actor if self.critic == "q" else model, bounds)
        return Learner(guarded.F, guarded.G, self.method, theta, omega, measure=measure)

    @property
    def _effort(self) -> float:
        return 1.0 if self.reference is None else _ANY_EFFORT

    def _find_rest(self) -> tuple[np.ndarray, np.ndarray]:
        """The steady state and the steady action; zero while there is no model."""
        found = None
        if self.critic == "model" and self.intercept and not self.diverged:
            found = self._model.resting_point(self._learner.state.omega, self._effort)
        return (np.zeros(self._history.size), np.zeros(len(self.R))) if found is None else found

    def _estimate(self) -> np.ndarray:
        """The reported gain, which some methods average."""
        theta = self._learner.theta
        return np.asarray(theta["K"] if self.critic == "model" else theta)

    def _iterate(self) -> np.ndarray:
        """The learner's present gain, before any averaging."""
        theta = self._learner.state.theta
        return np.asarray(theta["K"] if self.critic == "model" else theta)
