"""Thread-safe update loop of a learner: one step per sample, in order."""

from __future__ import annotations

import threading
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import jax
import numpy as np

from twoclock.engine.online_engine import Arrays, Layout, Live
from twoclock.engine.protocol import LaneState, Row, flatten_row
from twoclock.online.learner_spec import LearnerSpec
from twoclock.protocols import InputError, PyTree
from twoclock.validation import run_args

T = TypeVar("T")

_HORIZON = 2**31 - 1
MARKS = run_args.log_marks(_HORIZON)
# Samples of a batch between two chances for other threads to read.
_AT_ONCE = 4096


class DivergedWarning(UserWarning):
    """A learner left the finite numbers (or its bound) and stays at its last finite state."""


class UpdateLoop:
    """The steps of a learner.

    Args:
        spec: the operators, the method and where they start.
        precision, bound: as for ``solve``.
        asked: the engine, "auto", "c" or "xla".

    Attributes:
        carry: the present state; its arrays change in place, so ``now`` copies it.
        rows: what was measured at the marks so far.
        live: the compiled step; None before the first sample.
        identity: a digest of what a step computes; None before the first sample, unless it continues from a record.
    """

    def __init__(self, spec: LearnerSpec, precision: str, bound: float | None, asked: str) -> None:
        self.spec, self.precision, self.bound, self.asked = spec, precision, bound, asked
        self.carry, self.rows = spec.start, dict[int, Row]()
        self.live: Live | None = None
        self.identity: str | None = None
        self._warned = False
        self._writing, self._reading, self._wanted = threading.RLock(), threading.Lock(), False

    def update(self, x: PyTree) -> None:
        """Learn from one sample. One that has diverged stays where it is."""
        with self._writing:
            live = self.live or self.begin(x)
            live.layout.put(x, live.places)
            k = self._next(live)
            if k is None:
                return
            with self._reading:
                live.steps.one(k)
            self._look(live, live.buffers, k, k + 1)

    def update_many(self, xs: PyTree) -> None:
        """Learn from a batch of samples in order; see ``Learner.update_many``."""
        with self._writing:
            if self.live is None and (first := _first(xs)) is not None:
                self.begin(first)
            if (live := self.live) is None:
                return
            count, samples = live.layout.many(xs)
            done = 0
            while done < count and (k := self._next(live)) is not None:
                stop = min(k + min(count - done, _AT_ONCE), MARKS[bisect_right(MARKS, k)])
                some = [sample[done : done + stop - k] for sample in samples]
                with self._reading:
                    live.steps.many(some, k, stop)
                self._look(live, some, k, stop, done)
                done += stop - k
                if self._wanted:
                    self._wanted = False
                    time.sleep(1e-4)  # yield to waiting readers: releasing the lock for an instant wakes none of them

    def begin(self, x: PyTree) -> Live:
        """Compile for samples like this one."""
        with self._writing, self.exact():
            layout = Layout.of(x)
            self.spec.check(layout)
            spec, first = self.spec, layout.batch(x)
            live = Live(spec.operators, spec.numbers, self.carry, layout, self.bound, self.asked, first)
            if self.identity not in (None, live.identity):
                raise InputError(
                    "`F`, `G`, `method` and the samples must compute what they did when the learner was saved; "
                    "load it with those, or start a new one from its theta and omega"
                )
            self.live, self.identity = live, live.identity
            self.carry = jax.tree.unflatten(live.structure, live.leaves)
            if not self.rows:
                self.rows[0] = self.measure(self.now())
        return live

    def _next(self, live: Live) -> int | None:
        """The number of the next step; None where there is none any more."""
        if not live.alive:
            if not self._warned:
                self._warn()
            return None
        k = int(live.last)
        if k == _HORIZON:
            raise InputError(f"a learner takes at most {_HORIZON:,} samples; start a new one from its theta and omega")
        return k

    def _look(self, live: Live, samples: Arrays, k: int, stop: int, done: int | None = None) -> None:
        """After steps k … stop−1 of a batch of which so many were done: is it still finite, and is this a mark?"""
        if not live.alive:
            failed = int(live.last) - k
            wrong = live.layout.not_finite([sample[failed] for sample in samples])
            if wrong is None:
                self._warn()
                return
            live.alive[()] = True  # it never left the state before
            where = "" if done is None else f"in sample {done + failed} of the batch "
            before = "" if done is None else ", and those before it were learnt from"
            raise InputError(f"`x` must be finite, got {where}{wrong}; the sample was left out{before}")
        if stop == MARKS[bisect_right(MARKS, k)]:
            self.rows[stop] = self.measure(self.now())

    def _warn(self) -> None:
        self._warned = True
        warnings.warn(
            f"the learner diverged at sample {int(self.carry.last) + 1:,} and stays at its last finite state; "
            "take smaller steps",
            DivergedWarning,
            stacklevel=5,  # where the user's loop is
        )

    def now(self) -> LaneState:
        """A copy of the carry, between two steps."""
        self._wanted = True
        with self._reading:
            return jax.tree.map(np.copy, self.carry)

    def peek(self, read: Callable[[PyTree], T]) -> T:
        """What a quick function reads, and copies, of the method's state between two steps."""
        with self._reading:
            return read(self.carry.state)

    def measure(self, carry: LaneState) -> Row:
        with self.exact():
            found = self.spec.measure(carry.state)
        return flatten_row(jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], found), lanes=2)

    def exact(self) -> AbstractContextManager[object]:
        """In the precision of the run."""
        return jax.enable_x64(self.precision == "float64")


def _first(xs: PyTree) -> PyTree:
    """The first sample of a batch; None where it has none."""
    if isinstance(xs, list):
        return xs[0] if xs else None
    arrays = jax.tree.map(np.asarray, xs)
    for leaf in jax.tree.leaves(arrays):
        if leaf.ndim == 0:
            raise InputError("`xs` must have a leading axis, one entry a sample, got a single number; use `update`")
        if len(leaf) == 0:
            return None
    return jax.tree.map(lambda leaf: leaf[0], arrays)
