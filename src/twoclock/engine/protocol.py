"""What an engine is: it compiles lanes to programs, one a group, and a program walks its lanes from step to step.

An engine is chosen before a run and changes its speed alone: step k of seed s is ``step.lane_step`` on every engine, up
to the rounding of its arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from twoclock.engine.metrics import Row
from twoclock.engine.run_batch import Lanes
from twoclock.engine.step import LaneState


class EngineError(RuntimeError):
    """A program cannot go on, in one line; from where it stood the walk goes on with XLA."""


@runtime_checkable
class Program(Protocol):
    """Some of the lanes, compiled. The carry passes through, so that a walk can be cut short anywhere.

    Attributes:
        where: which methods and which seeds of all lanes it walks.
        stride: how many steps it likes to be asked for at first.
    """

    where: tuple[slice, slice]
    stride: int

    def place(self, carry: LaneState) -> LaneState:
        """Its own part of the carry of all lanes, put where it computes."""

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        """Steps lo … hi−1, finished on return. Called from a thread of its own."""

    def measure(self, carry: LaneState) -> Row:
        """The metrics of its lanes, each methods × seeds."""


@runtime_checkable
class Engine(Protocol):
    """A way to walk lanes.

    Attributes:
        name: "xla", "c" or "cuda".
    """

    @property
    def name(self) -> str: ...

    def compile(self, lanes: Lanes) -> Sequence[Program] | str:
        """Programs that together walk all lanes, or the reason why this engine cannot take them."""
