"""Adapters for environments: a step function, a Gymnasium environment, or a vectorised Gymnasium environment.

An adapter serves one seed or several: ``states`` has a state for each, ``step`` takes an action for each. An adapter of
one seed can return to an earlier point. What an environment returns is checked; a fault is one line.
"""

from __future__ import annotations

import abc
import copy
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from twoclock.protocols import InputError, PyTree
from twoclock.validation import short_repr

# Its random numbers must differ from all others that use the same seed, exploration above all.
_PLANT = 0x706C616E74


class EnvironmentFault(InputError):
    """An environment raised an error, hung, or returned values that no agent can learn from.

    Attributes:
        seed: the seed of the environment; None where several step together.
        step: the number of steps before the fault.

    Args:
        what: the message.
    """

    def __init__(self, what: object = "", seed: int | None = None, step: int = 0) -> None:
        super().__init__(what)
        self.seed, self.step = seed, step

    def at(self, seed: int | None, step: int, how: str = "") -> EnvironmentFault:
        """The same fault, with its seed, its step and what was saved.

        Args:
            seed: the seed; None where several step together.
            step: the number of steps before the fault.
            how: what was saved, for the end of the message.
        """
        where = f"seed {seed}, step {step:,}: " if seed is not None else f"step {step:,}: "
        return EnvironmentFault(f"{where}{self}{how}", seed, step)


class StepResult(NamedTuple):
    """The outcome of an action: the next state, the reward (None where there is none), and whether the episode ended.

    A state is an array, or the number of a state.
    """

    x: PyTree
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False


class NotFinite(EnvironmentFault):
    """A state or reward that is NaN or infinite."""


def check_number(value: SupportsFloat, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise EnvironmentFault(f"{what} must be a number, got {short_repr(value)}") from None
    if not np.isfinite(number):
        raise NotFinite(f"{what} must be finite, got {number}")
    return number


def named_error(error: Exception) -> str:
    """The class of an error, with its message if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def check_bool(value: object, what: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise EnvironmentFault(f"{what} must be True or False, got {short_repr(value)}")
    return bool(value)


def check_state(x: object, what: str, shape: tuple[int, ...] | None) -> PyTree:
    """A copy of a state, floats in float64: some simulators give the same array every time, changed."""
    try:
        array = np.asarray(x)
    except (TypeError, ValueError):  # a ragged list
        array = np.empty((), object)
    if np.ma.is_masked(x):
        raise EnvironmentFault(f"{what} must have no masked entries, got {short_repr(x)}")
    if array.dtype.kind not in "biuf":
        raise EnvironmentFault(
            f"{what} must be a number or an array of numbers, got {short_repr(x)}; "
            "a wrapper such as gymnasium.wrappers.FlattenObservation makes one of it"
        )
    if shape not in (None, array.shape):
        raise EnvironmentFault(f"{what} must have the shape of the first state, {shape}, got {array.shape}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise NotFinite(f"{what} must be finite, got {short_repr(array.tolist())}")
        return array.astype(np.float64) if array.shape else np.float64(array)
    return array.copy() if array.shape else int(array)


StepFunction = Callable[[PyTree, PyTree, np.random.Generator], object]
# The action that was taken (the agent's, perhaps clipped) and its outcome: None where the turn only began an episode,
# an error where the state is not finite.
Turn = tuple[PyTree, StepResult | NotFinite | None]


class EnvAdapter(abc.ABC):
    """An environment of one seed."""

    what = "the environment"
    x: PyTree = None  # the present state; None between two episodes
    _shape: tuple[int, ...] | None = None  # of the first state
    _before: tuple[PyTree, PyTree]  # its state and position at the start of the turn

    def states(self) -> list[PyTree]:
        """The state of each seed, at the start of a turn; an episode that has ended is followed by the next."""
        self._before = self.x, self.place()
        if self.x is None:
            self.x = self.reset()
        return [self.x]

    def step(self, us: Sequence[PyTree]) -> list[Turn]:
        """Take an action for each seed."""
        try:
            u, result = self.take(us[0])
        except NotFinite as error:
            return [(us[0], error)]
        self.x = None if result.terminated or result.truncated else result.x
        return [(u, result)]

    def check_state(self, x: PyTree, what: str) -> PyTree:
        """A copy of a state of the shape of the first."""
        new = check_state(x, what, self._shape)
        self._shape = np.shape(new)
        return new

    @abc.abstractmethod
    def reset(self) -> PyTree:
        """Begin an episode, and return its first state."""

    @abc.abstractmethod
    def take(self, u: PyTree) -> tuple[PyTree, StepResult]:
        """Take one action in the present state."""

    def rewind(self) -> None:
        """Before a snapshot, undo a failed turn: its random draws must not be used up."""
        self.x, place = self._before
        self.put_back(place)

    @abc.abstractmethod
    def place(self) -> PyTree:
        """The position for ``put_back``; it costs nothing."""

    @abc.abstractmethod
    def put_back(self, place: PyTree) -> None:
        """Undo what came after a position in the present turn."""

    @abc.abstractmethod
    def snapshot(self) -> dict[str, PyTree]:
        """The data for a return to this point, as arrays."""

    @abc.abstractmethod
    def restore(self, snapshot: dict[str, PyTree], x: PyTree) -> bool:
        """Return to state x; the outcome says whether that worked, if not a new episode begins.

        If x is None, the episode has ended.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release what the adapter made."""


class Simulated(EnvAdapter):
    """A step function: ``x_next``, ``(x_next, reward)`` or ``(x_next, reward, terminated)`` from (x, u, rng)."""

    def __init__(self, function: StepFunction, x0: object, seed: int) -> None:
        self.function, self.x0 = function, x0
        self._rng = np.random.default_rng([_PLANT, seed])

    def reset(self) -> PyTree:
        x = self.x0(self._rng) if callable(self.x0) else self.x0
        return self.check_state(x, "`x0`")

    def take(self, u: PyTree) -> tuple[PyTree, StepResult]:
        came = self.function(copy.copy(self.x), copy.copy(u), self._rng)  # it may change them in place
        given = came if isinstance(came, tuple) else (came,)
        if not 1 <= len(given) <= 3:
            raise EnvironmentFault(
                "a step function must give x_next, (x_next, reward) or (x_next, reward, terminated), "
                f"got {short_repr(came)}"
            )
        x_next = self.check_state(given[0], "the state")
        reward = check_number(given[1], "the reward") if len(given) > 1 else None
        return u, StepResult(x_next, reward, len(given) > 2 and check_bool(given[2], "`terminated`"))

    def place(self) -> PyTree:
        return self._rng.bit_generator.state

    def put_back(self, place: PyTree) -> None:
        self._rng.bit_generator.state = place

    def snapshot(self) -> dict[str, PyTree]:
        return {"rng": np.asarray(json.dumps(self.place()))}

    def restore(self, snapshot: dict[str, PyTree], x: PyTree) -> bool:
        self.put_back(json.loads(str(snapshot["rng"])))
        if x is not None:
            self.x = self.check_state(x, "the state")
        return True


class Gymnasium(EnvAdapter):
    """A Gymnasium environment, reseeded for each episode, so that replaying an episode's actions restores its state.

    Actions are clipped to the bounds of a box, and the agent learns from the clipped action. They are stored only if
    the environment must be ``replayable``, since an endless episode would fill the memory.
    """

    def __init__(self, env: Any, seed: int, close_it: bool, replayable: bool) -> None:
        self.env, self.seed, self.close_it, self.replayable = env, seed, close_it, replayable
        self.action_space = env.action_space
        self._clip = _clip_to(self.action_space)
        self._episode, self._actions = -1, list[PyTree]()

    def reset(self) -> PyTree:
        self._episode += 1
        return self._begin()

    def _begin(self) -> PyTree:
        self._actions = []
        given = self.env.reset(seed=episode_seed(self.seed, self._episode))
        if not isinstance(given, tuple) or len(given) != 2:
            raise EnvironmentFault(f"`reset` must give (state, info), got {short_repr(given)}")
        return self.check_state(given[0], "the first state")

    def take(self, u: PyTree) -> tuple[PyTree, StepResult]:
        u = self._clip(u)
        given = self.env.step(u)
        if not isinstance(given, tuple) or len(given) != 5:
            raise EnvironmentFault(
                f"`step` must give (state, reward, terminated, truncated, info), got {short_repr(given)}"
            )
        x, reward, terminated, truncated, _ = given
        result = StepResult(
            self.check_state(x, "the state"), check_number(reward, "the reward"),
            check_bool(terminated, "`terminated`"), check_bool(truncated, "`truncated`"),
        )  # fmt: skip
        if self.replayable:
            self._actions.append(u)
        return u, result

    def place(self) -> PyTree:
        return self._episode, len(self._actions)

    def put_back(self, place: PyTree) -> None:
        self._episode, count = place
        del self._actions[count:]

    def snapshot(self) -> dict[str, PyTree]:
        return {"episode": np.asarray(self._episode), "actions": np.asarray(self._actions)}

    def restore(self, snapshot: dict[str, PyTree], x: PyTree) -> bool:
        self._episode = int(snapshot["episode"])
        if x is None:
            return True
        self.x = self._begin()
        for u in snapshot["actions"]:
            self.x = self.take(u)[1].x
        if np.array_equal(self.x, x):
            return True
        self.x = self.reset()
        return False

    def close(self) -> None:
        if self.close_it:
            self.env.close()


class Vectorised:
    """A vectorised Gymnasium environment: its n-th part is that of the n-th seed, each with its own agent.

    One agent for all parts would see samples of many trajectories in turn. An eligibility trace or a guard, which
    remember the last sample, could not learn from these.
    """

    what = "the vectorised environment"

    def __init__(self, env: Any, seeds: Sequence[int]) -> None:
        self.env = env
        self.action_space = env.single_action_space
        self._clip = _clip_to(self.action_space)
        mode = getattr(env, "metadata", {}).get("autoreset_mode", "NextStep")
        self.mode = str(getattr(mode, "value", mode))
        self._ended = np.zeros(len(seeds), bool)
        self._seeds = [episode_seed(seed, 0) for seed in seeds]
        self._xs: list[PyTree] = []

    def states(self) -> list[PyTree]:
        if not self._xs:
            given, _ = self.env.reset(seed=self._seeds)
            self._shape = np.shape(next(iter(given)))
            self._xs = [check_state(x, "the first state", self._shape) for x in given]
        return self._xs

    def step(self, us: Sequence[PyTree]) -> list[Turn]:
        us = [self._clip(u) for u in us]
        xs, rewards, terminated, truncated, info = self.env.step(np.asarray(us))
        ended = np.asarray(terminated) | np.asarray(truncated)
        final = info.get("final_obs") if self.mode == "SameStep" else None
        came: list[Turn] = []
        for i, u in enumerate(us):
            if self._ended[i] and self.mode == "NextStep":
                came.append((u, None))
                continue
            try:
                x = check_state(xs[i] if final is None or not ended[i] else final[i], "the state", self._shape)
                reward = check_number(rewards[i], "the reward")
                came.append((u, StepResult(x, reward, bool(terminated[i]), bool(truncated[i]))))
            except NotFinite as error:
                came.append((u, error))
        if self.mode == "Disabled" and ended.any():
            xs, _ = self.env.reset(options={"reset_mask": ended})
        # A state that is not finite belongs to a lost seed, whose actions do not matter.
        self._ended, self._xs = ended, [check_state(np.nan_to_num(x), "the state", self._shape) for x in xs]
        return came


def _clip_to(space: Any) -> Callable[[PyTree], PyTree]:
    """Clip actions to the bounds of a box; others are left unchanged."""
    if not hasattr(space, "low"):
        return lambda u: u
    return lambda u: np.clip(np.reshape(u, space.low.shape), space.low, space.high).astype(space.dtype)


def episode_seed(seed: int, episode: int) -> int:
    """The seed of an episode: 31 bits, which every environment takes."""
    return int(np.random.SeedSequence([_PLANT, seed, episode]).generate_state(1)[0] >> 1)


def is_env(env: object) -> bool:
    return not isinstance(env, type) and hasattr(env, "reset") and hasattr(env, "step") and hasattr(env, "action_space")


def is_vector(env: object) -> bool:
    return is_env(env) and hasattr(env, "num_envs") and hasattr(env, "single_action_space")


def is_step_function(env: object) -> bool:
    """Whether it is a function of exactly (x, u, rng)."""
    return not is_env(env) and not _takes(env, 0) and _takes(env, 3)


def _takes(function: Any, count: int) -> bool:
    if not callable(function):  # `signature` would put its repr, which may fail, into a message
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def check_env(env: object, x0: object) -> None:
    """Refuse an invalid environment before the run."""
    if is_step_function(env):
        if x0 is None:
            raise InputError("`x0` must be given for a step function: the first state, or a function of rng")
        if not callable(x0):
            check_state(x0, "`x0`", None)
        return
    ready = is_env(env) or isinstance(env, str)
    if not ready and not _takes(env, 0):
        raise InputError(
            "`env` must be a Gymnasium environment, the id of one, a function without arguments that makes one, or "
            f"a step function (x, u, rng) -> x_next; got {short_repr(env)}"
        )
    if x0 is not None:
        what = "a Gymnasium environment" if ready else "what a function makes"
        raise InputError(f"`x0` is for a step function (x, u, rng) -> x_next; {what} begins where its `reset` says")


def make_adapter(env: Any, x0: object, seed: int, replayable: bool) -> EnvAdapter:
    """The environment of one seed; ``replayable``: it will be asked for a ``snapshot``."""
    if is_step_function(env):
        return Simulated(env, x0, seed)
    if is_env(env):
        return Gymnasium(env, seed, close_it=False, replayable=replayable)
    if not isinstance(env, str):
        made = env()
        if not is_env(made):
            raise InputError(f"`env` must make a Gymnasium environment, it made {short_repr(made)}")
        return Gymnasium(made, seed, close_it=True, replayable=replayable)
    try:
        import gymnasium
    except ImportError:
        raise InputError(f'`env={env!r}` needs Gymnasium; install it with `pip install "gymnasium"`') from None
    try:
        return Gymnasium(gymnasium.make(env), seed, close_it=True, replayable=replayable)
    except gymnasium.error.Error as error:
        raise InputError(f"`env` must be the id of a Gymnasium environment: {error}") from None
