"""The agent protocol, which `run` and `tune` need, and the base class of the library's agents."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol, Self, TypeGuard, TypeVar, runtime_checkable

import jax
import numpy as np

from twoclock import storage, validation
from twoclock.engine.code_identity import Unidentified, code_identity
from twoclock.methods import serialize
from twoclock.online import Learner
from twoclock.protocols import InputError, Method, PyTree
from twoclock.result import Result
from twoclock.storage.atomic_file import Document
from twoclock.storage.record import Record
from twoclock.validation import short_repr

if TYPE_CHECKING:
    import pandas as pd

_PARTS = ("settings", "act", "observe", "steps", "diverged", "history", "result", "save", "restore")


@runtime_checkable
class Agent(Protocol):
    """An agent: it acts, learns from the outcome, and can be saved and restored.

    Its exploration depends on its seed alone and shares no random numbers with a simulator of the same seed:
    ``np.random.default_rng([a constant of the class, seed])``.

    An agent that knows the cost of a step may also have ``stage_cost(x, u) -> float``; `run` then records the mean cost
    with its interval, whether or not the environment gives rewards.
    """

    @property
    def settings(self) -> Mapping[str, object]:
        """The keyword arguments that make an equal agent, ``seed`` among them: ``type(agent)(**settings)``."""

    def act(self, x: PyTree) -> PyTree:
        """Choose an action in state x that the environment accepts."""

    def observe(
        self,
        x: PyTree,
        u: object,
        x_next: PyTree,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        """Learn from the outcome of action u in state x.

        Args:
            x, u, x_next: the state, the action and the next state; at the end of an episode, its last state.
            reward: of this step; None where the environment gives none.
            terminated: x_next is an end, whose value is 0.
            truncated: the episode was cut here; x_next has a value like any other state.
        """

    @property
    def steps(self) -> int:
        """How many samples it has learnt from."""

    @property
    def diverged(self) -> bool:
        """Whether its numbers overflowed; it then stays at its last finite state."""

    @property
    def history(self) -> pd.DataFrame:
        """``step`` and its metrics, at marks and now."""

    def result(self) -> Result:
        """Its present state as a `Result` of one seed, also before the first sample.

        Its history has the same columns at all times.
        """

    def save(self, path: str | Path, **also: PyTree) -> Path:
        """Write its state, and further pytrees of arrays by name, to a folder atomically.

        Args:
            path: the folder.
            also: further pytrees, by name.
        """

    def restore(self, path: str | Path) -> None:
        """Restore the saved state of an agent with the same settings, exploration included. It continues bit-for-bit
        identical."""


A = TypeVar("A", bound=Agent)


def fresh(agent: A, seed: int, **changes: object) -> A:
    """A new agent with the same settings, or with some of them changed.

    Args:
        agent: the agent to take the settings from.
        seed: of the new agent's exploration.
        changes: the settings to change.

    >>> import twoclock as tc
    >>> agent = tc.agents.Regulator(Q=[[1.0]], R=[[1.0]])
    >>> tc.agents.fresh(agent, seed=3, sigma=0.5).sigma
    0.5
    """
    check_kind(agent)
    return type(agent)(**{**agent.settings, **changes, "seed": seed})


def is_agent(thing: object) -> TypeGuard[Agent]:
    """Whether it has all members of an agent. Properties are not called, since they may have nothing to return."""
    return not isinstance(thing, type) and all(name in dir(type(thing)) for name in _PARTS)


def check_kind(agent: object) -> None:
    """Refuse an object that is no agent."""
    if is_agent(agent):
        return
    if isinstance(agent, type):
        got = f"the class {agent.__name__}; call it"
    else:
        got = f"{short_repr(agent)}, which has no `{next(name for name in _PARTS if name not in dir(type(agent)))}`"
    raise InputError(f"`agent` must be an agent such as tc.agents.Regulator(Q, R), got {got}")


class LearnerAgent:
    """Base of the library's agents, each of which has one learner.

    A class lists its settings, which are attributes too: plain values for JSON, values that may be arrays, and others.
    """

    _NUMBERS: ClassVar[tuple[str, ...]]
    _ARRAYS: ClassVar[tuple[str, ...]]
    _OTHERS: ClassVar[tuple[str, ...]] = ()
    _PLAIN: ClassVar[tuple[str, ...]] = ()  # attributes beside the learner's state that a record stores as JSON
    _FUNCTIONS: ClassVar[tuple[str, ...]] = ()  # settings that may be functions, of which a record stores the identity
    _FORMAT: ClassVar[int] = 1  # the version of what it saves; changed when older records lack something
    _STREAM: ClassVar[int]  # of the random numbers: a simulator that has the same seed must not draw the same ones
    action_space: ClassVar[str] = "any"  # what a Gymnasium environment must take: "continuous" for a Box
    quiet: bool = False  # set by `run`, which reports the agent's warnings itself
    method: Method
    _learner: Learner

    def _set_seed(self, seed: object) -> None:
        self.seed = validation.seed_number("seed", seed)
        self._rng = np.random.default_rng([self._STREAM, self.seed])

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies and pickles: they would lack the compiled program, or share the state."""
        raise InputError(
            "an agent has no copies, since its program is compiled; make one with its settings, "
            "`type(agent)(**agent.settings)`, or use `save` and `restore`"
        )

    @property
    def settings(self) -> dict[str, object]:
        """The arguments that make an equal agent."""
        return {name: getattr(self, name) for name in (*self._NUMBERS, *self._ARRAYS, *self._OTHERS, "method")}

    @property
    def steps(self) -> int:
        """How many samples it has learnt from."""
        return self._learner.steps

    @property
    def diverged(self) -> bool:
        """Whether its numbers overflowed; it then stays at its last finite state."""
        return self._learner.diverged

    @property
    def history(self) -> pd.DataFrame:
        """``step`` and its metrics, at ten marks per decade and now."""
        return self._learner.history

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt what it has learnt, one per line; none by default."""
        return []

    def result(self) -> Result:
        """The outcome so far as a `Result` of one seed, with intervals where it has them."""
        return self._learner.result()

    def observe(
        self,
        x: PyTree,
        u: PyTree,
        x_next: PyTree,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        """Learn from the outcome of action u in state x; the arguments are those of `Agent.observe`."""
        ended, cut = validation.flag("terminated", terminated), validation.flag("truncated", truncated)
        self._learn(x, u, x_next, reward, ended, cut)

    def _learn(self, x: PyTree, u: PyTree, x_next: PyTree, reward: float | None, ended: bool, cut: bool) -> None:
        raise NotImplementedError

    def save(self, path: str | Path, **also: PyTree) -> Path:
        """Save everything but functions to a folder; the last save is replaced atomically.

        Args:
            path: the folder.
            also: further pytrees of arrays, by name.
        """
        own, trees = self._state()
        about = {name: getattr(self, name) for name in self._NUMBERS} | own
        about |= {"method": serialize.to_json(self.method), "rng": self._rng.bit_generator.state}
        about |= {"functions": self._function_identities(), "format": self._FORMAT}
        arrays = {name: array for name in self._ARRAYS if isinstance(array := getattr(self, name), np.ndarray)}
        return self._learner.save(path, {type(self).__name__: about}, **arrays, **trees, **also)

    def _state(self) -> tuple[Document, dict[str, PyTree]]:
        """Further state of the agent to save: as JSON, and as pytrees of arrays."""
        return {name: getattr(self, name) for name in self._PLAIN}, {}

    def restore(self, path: str | Path) -> None:
        """Restore the saved state of an agent with the same settings, its exploration included."""
        with storage.reading(path):
            self._take_up(*self._read(path))

    def _take_up(self, about: Document, record: Record) -> None:
        for name, here in self._function_identities().items():
            there = about["functions"].get(name)
            if None in (here, there):
                warnings.warn(f"nothing says whether `{name}` is what it was: it cannot be identified", stacklevel=4)
            elif here != there:
                raise InputError(f"`{name}` must be what it was when the agent was saved: its code or values differ")
        self._learner.restore(record)
        self._rng.bit_generator.state = about["rng"]
        for name in self._PLAIN:
            setattr(self, name, about[name])

    def _function_identities(self) -> dict[str, str | None]:
        """The identity of each setting that may be a function and must not change; None where it cannot be
        identified."""
        found: dict[str, str | None] = {}
        for name in self._FUNCTIONS:
            try:
                found[name] = code_identity(self.settings[name])
            except Unidentified:
                found[name] = None
        return found

    @classmethod
    def load(cls, path: str | Path, method: Method | None = None) -> Self:
        """Load a saved agent; pass its method again if that holds a function.

        Args:
            path: the folder of ``save``.
            method: the method of the saved agent, if it holds a function.
        """
        return cls._load(path, method)

    @classmethod
    def _load(
        cls, path: str | Path, method: Method | None, others: Callable[[Document], dict[str, object]] = lambda _: {}
    ) -> Self:
        """Load a saved agent, with the settings that a record cannot hold."""
        about, record = cls._read(path)
        with storage.reading(path):
            method = method or serialize.from_json(about["method"])
            numbers = {name: about[name] for name in cls._NUMBERS}
            arrays = {name: record.trees[name] for name in cls._ARRAYS if name in record.trees}
            agent = cls(**{**others(about), **numbers, **arrays, "method": method})
            agent._take_up(about, record)
        return agent

    @classmethod
    def _read(cls, path: str | Path) -> tuple[Document, Record]:
        """Read what ``save`` wrote: the settings of the agent, and the record."""
        validation.check_path("path", path)
        record = storage.load(path)
        if cls.__name__ not in record.spec:
            raise InputError(f"`path` must be a folder that `{cls.__name__}.save` wrote, {path} is none")
        about = record.spec[cls.__name__]
        with storage.reading(path):
            version = about.get("format", 1)
        if version != cls._FORMAT:
            raise InputError(
                f"`path` {path} was saved by a version whose `{cls.__name__}` had other state, and cannot be "
                "resumed; what it has learnt is in `tc.load(path).theta`, and a new one may start from there"
            )
        return about, record


class Restorable:
    """An object whose state is in the attributes that its class names: numbers, arrays, pytrees of arrays, or None."""

    _STATE: ClassVar[tuple[str, ...]]

    def snapshot(self) -> dict[str, PyTree]:
        """Its state as arrays."""
        return {name: jax.tree.map(np.array, getattr(self, name)) for name in self._STATE}

    def restore(self, snapshot: dict[str, PyTree]) -> None:
        """Restore a snapshot. Arrays keep their shape and kind, so that a damaged one is refused here."""
        for name in self._STATE:
            saved, here = snapshot[name], getattr(self, name)
            if here is not None and _form(saved) != _form(here):
                raise ValueError(f"`{name}` has another form")
            number = isinstance(saved, np.ndarray) and saved.ndim == 0
            setattr(self, name, saved.item() if number else jax.tree.map(np.array, saved))


def _form(state: PyTree) -> PyTree:
    """The structure of a state with the shape and the kind of each array."""
    leaves, structure = jax.tree.flatten(state)
    return structure, [(np.shape(leaf), np.asarray(leaf).dtype.kind) for leaf in leaves]


def check_index(name: str, value: int, size: int) -> int:
    """The number of a state or an action."""
    try:
        i = operator.index(value)
    except TypeError:
        raise InputError(f"`{name}` must be a whole number, got {short_repr(value)}") from None
    if not 0 <= i < size:
        raise InputError(f"`{name}` must lie between 0 and {size - 1}, got {short_repr(i)}")
    return i


def check_reward(value: float | None) -> float:
    """The reward as a finite number."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"`reward` must be a number, got {short_repr(value)}; pass what the environment gave"
        ) from None
    if not math.isfinite(number):
        raise InputError(f"`reward` must be finite, got {number}")
    return number
