"""The contract of an agent: what `run` and `tune` ask of one, whatever it learns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from twoclock.protocols import InputError, PyTree
from twoclock.result import Result
from twoclock.validation import short_repr

if TYPE_CHECKING:
    import pandas as pd


_PARTS = ("settings", "act", "observe", "steps", "diverged", "history", "result", "save", "restore")


@runtime_checkable
class Agent(Protocol):
    """Acts, learns from what comes of it, and can be kept and taken up again.

    It explores with random numbers of its own, which depend on its seed alone and are never those that a simulator
    seeded with the same number would draw: ``np.random.default_rng([a number of the class's own, seed])``.

    An agent that knows the cost of a step by itself may also have ``stage_cost(x, u) -> float``; `run` then records the
    mean cost with its interval, whether or not the environment gives rewards.
    """

    @property
    def settings(self) -> Mapping[str, Any]:
        """The keyword arguments that make another one like it, ``seed`` among them: ``type(agent)(**settings)``."""

    def act(self, x: PyTree) -> Any:
        """The action in state x, of the kind that the environment takes."""

    def observe(
        self,
        x: PyTree,
        u: object,
        x_next: PyTree,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        """Learn from what an action u in state x led to.

        Args:
            x, u, x_next: state, action, and the state after it, at the end of an episode its last one.
            reward: of this step; None where the environment gives none.
            terminated: x_next is an end, whose value is 0.
            truncated: the episode was cut here; x_next has a value like any other state.
        """

    @property
    def steps(self) -> int:
        """How many samples it has learnt from."""

    @property
    def diverged(self) -> bool:
        """Whether it left the finite numbers; it then stays at its last finite state."""

    @property
    def history(self) -> pd.DataFrame:
        """``step`` and its metrics, at marks and now."""

    def result(self) -> Result:
        """What it has learnt, as a `Result` of one seed whose last row is of now; also before the first sample.

        Its history has the same columns at all times.
        """

    def save(self, path: str | Path, **also: PyTree) -> Path:
        """Write all of it to a folder, and more trees of arrays by name, all in one instant."""

    def restore(self, path: str | Path) -> None:
        """Take up what an agent with the same settings saved, its exploration too, to go on to the same bits."""


A = TypeVar("A", bound=Agent)


def fresh(agent: A, seed: int, **changes: Any) -> A:
    """Another agent with the same settings, or some of them changed, that has learnt nothing yet.

    >>> import twoclock as tc
    >>> agent = tc.agents.Regulator(Q=[[1.0]], R=[[1.0]])
    >>> tc.agents.fresh(agent, seed=3, sigma=0.5).sigma
    0.5
    """
    check_kind(agent)
    return type(agent)(**{**agent.settings, **changes, "seed": seed})


def is_agent(thing: object) -> TypeGuard[Agent]:
    """Whether it has all that is asked of an agent; its properties are not looked at, which may have nothing to say."""
    return not isinstance(thing, type) and not missing(thing)


def missing(thing: object) -> list[str]:
    """What it lacks to be an agent."""
    return [name for name in _PARTS if not hasattr(type(thing), name)]


def check_kind(agent: object) -> None:
    """Complain of what is no agent."""
    lacking = missing(agent)
    if isinstance(agent, type) or lacking:
        what = f"the class {agent.__name__}; call it" if isinstance(agent, type) else short_repr(agent)
        lacks = f", which has no `{lacking[0]}`" if lacking and not isinstance(agent, type) else ""
        raise InputError(f"`agent` must be an agent such as tc.agents.Regulator(Q, R), got {what}{lacks}")
