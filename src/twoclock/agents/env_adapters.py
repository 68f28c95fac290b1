"""Environments of one seed: Gymnasium's, or a plain step function. Each can be brought back to where it was."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from twoclock.agents.env_checks import EnvironmentFault, Kind, StepResult, number, truth
from twoclock.protocols import InputError, PyTree
from twoclock.validation import short_repr

# Its numbers must not be those of anything else that is seeded with the same seed, exploration above all.
_PLANT = 0x706C616E74

StepFunction = Callable[[Any, Any, np.random.Generator], Any]


class EnvAdapter(Protocol):
    """What an agent acts on."""

    def reset(self) -> Any:
        """The first state of an episode."""

    def step(self, x: object, u: object) -> tuple[Any, StepResult]:
        """The action that was taken, which may be u cut to what is allowed, and what came of it."""

    def kept(self) -> dict[str, PyTree]:
        """What it takes to come back to here, as arrays."""

    def restore(self, kept: dict[str, PyTree], x: object) -> tuple[Any, bool]:
        """The state to go on from, and whether it is x: if it could not come back there, a new episode begins.

        An x of None is the end of an episode, and stays so: the next begins with ``reset``.
        """

    def close(self) -> None: ...


class Simulated:
    """A step function: ``x_next``, ``(x_next, reward)`` or ``(x_next, reward, terminated)`` from (x, u, rng).

    Args:
        function: ``function(x, u, rng)``.
        x0: the first state of every episode, or a function of ``rng`` that draws it.
        seed: of ``rng``.
    """

    def __init__(self, function: StepFunction, x0: object, seed: int) -> None:
        self.function, self.x0 = function, x0
        self._rng = np.random.default_rng([_PLANT, seed])
        self._kind: Kind | None = None

    def reset(self) -> Any:
        x = self.x0(self._rng) if callable(self.x0) else self.x0
        self._kind = self._kind or Kind.of(x, "`x0`")
        return self._kind.check(x, "`x0`")

    def step(self, x: object, u: object) -> tuple[Any, StepResult]:
        assert self._kind is not None
        came = self.function(x, u, self._rng)
        given = came if isinstance(came, tuple) else (came,)
        if not 1 <= len(given) <= 3:
            raise EnvironmentFault(
                "a step function must give x_next, (x_next, reward) or (x_next, reward, terminated), "
                f"got {short_repr(came)}"
            )
        x_next = self._kind.check(given[0], "the state")
        reward = number(given[1], "the reward") if len(given) > 1 else None
        return u, StepResult(x_next, reward, len(given) > 2 and truth(given[2], "`terminated`"))

    def kept(self) -> dict[str, PyTree]:
        return {"rng": np.asarray(json.dumps(self._rng.bit_generator.state))}

    def restore(self, kept: dict[str, PyTree], x: object) -> tuple[Any, bool]:
        self._rng.bit_generator.state = json.loads(str(kept["rng"]))
        if x is None:
            return None, True
        self._kind = Kind.of(x, "the state")
        return self._kind.check(x, "the state"), True

    def close(self) -> None:
        pass


class Gymnasium:
    """A Gymnasium environment, seeded anew for each episode, so that the actions of one bring it back to any place.

    Actions are cut to the bounds of a box, and the agent learns from what was done.

    Args:
        env: the environment.
        seed: from which the seeds of its episodes are made.
        close_it: whether to close it in the end.
        keep: whether to remember the actions, which take memory in an episode without an end.
    """

    def __init__(self, env: Any, seed: int, close_it: bool, keep: bool) -> None:
        self.env, self.seed, self.close_it, self.keep = env, seed, close_it, keep
        space = env.action_space
        self._box = (space.low, space.high, space.dtype) if hasattr(space, "low") else None
        self._kind: Kind | None = None
        self._episode, self._actions = -1, list[Any]()

    def reset(self) -> Any:
        self._episode += 1
        return self._begin()

    def _begin(self) -> Any:
        self._actions = []
        given = self.env.reset(seed=episode_seed(self.seed, self._episode))
        if not isinstance(given, tuple) or len(given) != 2:
            raise EnvironmentFault(f"`reset` must give (state, info), got {short_repr(given)}")
        self._kind = self._kind or Kind.of(given[0], "the first state")
        return self._kind.check(given[0], "the first state")

    def step(self, x: Any, u: Any) -> tuple[Any, StepResult]:
        assert self._kind is not None
        if self._box is not None:
            low, high, kind = self._box
            u = np.clip(np.reshape(u, low.shape), low, high).astype(kind)
        came = self._read(self.env.step(u))
        if self.keep:  # after it went well: an environment that failed is brought back to before
            self._actions.append(u)
        return u, came

    def _read(self, given: object) -> StepResult:
        assert self._kind is not None
        if not isinstance(given, tuple) or len(given) != 5:
            raise EnvironmentFault(
                f"`step` must give (state, reward, terminated, truncated, info), got {short_repr(given)}"
            )
        x, reward, terminated, truncated, _ = given
        return StepResult(
            self._kind.check(x, "the state"), number(reward, "the reward"), truth(terminated, "`terminated`"),
            truth(truncated, "`truncated`"),
        )  # fmt: skip

    def kept(self) -> dict[str, PyTree]:
        return {"episode": np.asarray(self._episode), "actions": np.asarray(self._actions)}

    def restore(self, kept: dict[str, PyTree], x: Any) -> tuple[Any, bool]:
        self._episode = int(kept["episode"])
        if x is None:
            return None, True
        again = self._begin()
        for u in kept["actions"]:
            again = self.step(again, u)[1].x
        if np.array_equal(again, x):
            return again, True
        return self.reset(), False

    def close(self) -> None:
        if self.close_it:
            self.env.close()


def episode_seed(seed: int, episode: int) -> int:
    """31 bits, which every environment takes."""
    return int(np.random.SeedSequence([_PLANT, seed, episode]).generate_state(1)[0] >> 1)


def is_env(env: object) -> bool:
    return not isinstance(env, type) and hasattr(env, "reset") and hasattr(env, "step") and hasattr(env, "action_space")


def is_vector(env: object) -> bool:
    return is_env(env) and hasattr(env, "num_envs") and hasattr(env, "single_action_space")


def is_step_function(env: object) -> bool:
    """Whether it takes (x, u, rng), and cannot do without."""
    return not is_env(env) and not _takes(env, 0) and _takes(env, 3)


def _takes(function: object, count: int) -> bool:
    if not callable(function):  # whose words would be in the error, and need not have any
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def check_env(env: Any, x0: Any) -> None:
    """Complain of what is no environment, before the run."""
    if is_env(env) or isinstance(env, str):
        fits = "a Gymnasium environment begins where its `reset` says"
    elif is_step_function(env):
        if x0 is None:
            raise InputError("`x0` must be given for a step function: the first state, or a function of rng")
        return
    else:
        if not _takes(env, 0):
            raise InputError(
                "`env` must be a Gymnasium environment, the id of one, a function without arguments that makes one, or "
                f"a step function (x, u, rng) -> x_next; got {short_repr(env)}"
            )
        fits = "what a function makes begins where its `reset` says"
    if x0 is not None:
        raise InputError(f"`x0` is for a step function (x, u, rng) -> x_next; {fits}")


def plant(env: Any, x0: Any, seed: int, keep: bool = False) -> EnvAdapter:
    """The environment of one seed; ``keep``: it will be asked what it takes to come back."""
    if is_step_function(env):
        return Simulated(env, x0, seed)
    made = made_of(env)
    return Gymnasium(made, seed, made is not env, keep)


def made_of(env: Any) -> Any:
    """The environment that was given, or made as was said."""
    if is_env(env):
        return env
    if isinstance(env, str):
        try:
            import gymnasium
        except ImportError:
            raise InputError(f'`env={env!r}` needs Gymnasium; install it with `pip install "gymnasium"`') from None
        try:
            return gymnasium.make(env)
        except gymnasium.error.Error as error:
            raise InputError(f"`env` must be the id of a Gymnasium environment: {error}") from None
    made = env()
    if not is_env(made):
        raise InputError(f"`env` must make a Gymnasium environment, it made {short_repr(made)}")
    return made
