"""Thread-safe update loop of a learner: one step of its method per sample, in order."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.engine import compatibility, program_digest
from twoclock.engine.loop import next_stop
from twoclock.engine.online_engine import Arrays, Layout, Live
from twoclock.engine.protocol import LaneState, Operators, Row, flatten_row, state_metrics
from twoclock.engine.run_batch import make_instances
from twoclock.engine.stored_programs import StoredFunction
from twoclock.engine.tracing import TracedProgram, trace
from twoclock.methods import Polyak
from twoclock.problems.custom import Custom, Measure, custom
from twoclock.protocols import InputError, Method, Operator, Problem, PyTree, Scalar, pytree, static
from twoclock.validation import run_args

T = TypeVar("T")
Intervals = bool | Callable[[PyTree, PyTree], PyTree]

_HORIZON = 2**31 - 1
MARKS = run_args.log_marks(_HORIZON)
# Samples of a batch between two chances for other threads to read.
_AT_ONCE = 4096


class DivergedWarning(UserWarning):
    """A learner diverged, and stays at its last finite state."""


@pytree
class Functions:
    """A user's own operators."""

    F: Operator = static()
    G: Operator = static()
    metrics: Callable[[PyTree, PyTree], Mapping[str, Scalar]] | None = static(default=None)

    def measure(self, theta: PyTree, omega: PyTree) -> Mapping[str, Scalar]:
        return {} if self.metrics is None else self.metrics(theta, omega)


class UpdateLoop:
    """The steps of a learner, from mark to mark as in ``engine.loop``, on samples from the caller.

    Attributes:
        source: the problem, or one made of the user's functions, which cannot draw samples.
        carry: the present state; its arrays change in place, so ``now`` copies it.
        rows: the metrics at the marks so far.
        live: the compiled step; None before the first sample.
        identity: a digest of the step's computation; None before the first sample, unless it continues from a record.
    """

    def __init__(
        self,
        F: Operator | Problem,
        G: Operator | Method,
        method: Method | None,
        theta: PyTree,
        omega: PyTree,
        intervals: Intervals,
        measure: Measure | None,
        precision: str,
        bound: float | None,
        asked: str,
    ) -> None:
        self.precision, self.bound, self.asked = precision, bound, asked
        if isinstance(F, Problem) and not (method is theta is omega is measure is None):
            raise InputError("`Learner(problem, method)` takes F, G and the start from the problem; leave out the rest")
        with self.exact():
            if isinstance(F, Problem):
                self.source: Problem = make_instances(run_args.check_problem(F), []).batched
                self.operators: Operators = self.source
            else:
                own = custom(F, cast("Operator", G), lambda key: None, theta, omega, measure=measure)
                self.source, self.operators = make_instances(own, []).batched, Functions(own.F, own.G, own.metrics)
            self.method = run_args.check_method(G if isinstance(F, Problem) else method)
            if intervals is not False:
                name = type(self.method).__name__
                if self.method.knows("track"):
                    raise InputError(
                        f"`intervals` is for a plain method; of {name} itself ask them, `{name}(…, intervals=True)`"
                    )
                self.method = Polyak(self.method, intervals=intervals)
            program_digest.start_in_precision()
            theta, omega, _ = self.source.init(prng.start_key(0))
            compatibility.check_start(theta, omega)
            if isinstance(F, Problem):
                compatibility.check_fit(self.source, self.method)
            self.numbers = jax.tree.map(lambda leaf: np.asarray(leaf, jnp.result_type(float)), self.method)
            begin = LaneState(self.numbers.init(theta, omega), None, jnp.asarray(True), jnp.zeros((), jnp.int32))
            self.carry: LaneState = jax.tree.map(np.asarray, begin)
        self.rows: dict[int, Row] = {}
        self.live: Live | None = None
        self.identity: str | None = None
        self._warned = False
        self._writing, self._reading, self._wanted = threading.RLock(), threading.Lock(), False

    def update(self, x: PyTree) -> None:
        """Learn from one sample. After a divergence the state does not change any more."""
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
                stop = next_stop(MARKS, k, min(count - done, _AT_ONCE))
                some = [sample[done : done + stop - k] for sample in samples]
                with self._reading:
                    live.steps.many(some, k, stop)
                self._look(live, some, k, stop, done)
                done += stop - k
                if self._wanted:
                    self._wanted = False
                    time.sleep(1e-4)  # yield to waiting readers: a brief release of the lock would wake none of them

    def begin(self, x: PyTree) -> Live:
        """Compile for samples like this one."""
        with self._writing, self.exact():
            layout = Layout.of(x)
            self._check_fit(layout)
            first = layout.batch(x)
            live = Live(self.operators, self.numbers, self.carry, layout, self.bound, self.asked, first)
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

    def _check_fit(self, layout: Layout) -> None:
        """Refuse samples that do not fit F and G."""
        if isinstance(self.operators, Problem):
            _, _, env = jax.eval_shape(self.source.init, prng.start_key(0))
            at, noise = self.carry.state, partial(self.source.noise, prng.start_key(0))
            x, _ = jax.eval_shape(lambda t, o, e: self.source.sample(noise(), t, o, e), at.theta, at.omega, env)
            want = Layout.of(x)
            if want.words != layout.words:
                raise InputError(f"`x` must be as the problem draws it, {want.words}; got {layout.words}")
            return
        assert isinstance(self.source, Custom)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), layout.example)
        compatibility.check_fit(replace(self.source, source=lambda key: jax.tree.map(jnp.asarray, zeros)), self.method)

    def _next(self, live: Live) -> int | None:
        """The number of the next step; None after a divergence."""
        if not live.alive:
            if not self._warned:
                self._warn()
            return None
        k = int(live.last)
        if k == _HORIZON:
            raise InputError(f"a learner takes at most {_HORIZON:,} samples; start a new one from its theta and omega")
        return k

    def _look(self, live: Live, samples: Arrays, k: int, stop: int, done: int | None = None) -> None:
        """Check after steps k … stop−1 of a batch, ``done`` of it finished, for divergence and for a mark."""
        if not live.alive:
            failed = int(live.last) - k
            wrong = live.layout.not_finite([sample[failed] for sample in samples])
            if wrong is None:
                self._warn()
                return
            live.alive[()] = True  # it stays at the state before
            where = "" if done is None else f"in sample {done + failed} of the batch "
            before = "" if done is None else ", and those before it were learnt from"
            raise InputError(f"`x` must be finite, got {where}{wrong}; the sample was left out{before}")
        if stop == next_stop(MARKS, k, _HORIZON):
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
        """Read from the method's state between two steps, by a quick function that copies what it needs."""
        with self._reading:
            return read(self.carry.state)

    @cached_property
    def estimate(self) -> Callable[[PyTree], tuple[PyTree, PyTree]]:
        """The estimate of the method's state; most methods just read it, which JAX need not compile."""
        made: Callable[[PyTree], tuple[PyTree, PyTree]] = self.numbers.estimate
        return jax.jit(made) if jax.make_jaxpr(made)(self.carry.state).eqns else made

    def measure(self, carry: LaneState) -> Row:
        with self.exact(), self._measured.separate_traces():
            found = _measure(self.operators, self.numbers, carry.state, program=self._measured.digest)
        return flatten_row(jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], found), lanes=2)

    @cached_property
    def _measured(self) -> TracedProgram:
        with self.exact():
            return trace(state_metrics, self.operators, self.numbers, self.carry.state)[0]

    @property
    def measure_identity(self) -> str:
        """A digest of the metrics and their names."""
        return f"{self._measured.digest} {sorted(self.measure(self.carry))}"

    def exact(self) -> AbstractContextManager[object]:
        """Convert numbers to the precision of the run."""
        return jax.enable_x64(self.precision == "float64")


def _first(xs: PyTree) -> PyTree:
    """The first sample of a batch; None where it has none."""
    if isinstance(xs, list):
        return xs[0] if xs else None
    arrays = jax.tree.map(np.asarray, xs)
    for leaf in jax.tree.leaves(arrays):
        if leaf.ndim == 0:
            raise InputError("`xs` must have a leading axis, one entry per sample, got a single number; use `update`")
        if len(leaf) == 0:
            return None
    return jax.tree.map(lambda leaf: leaf[0], arrays)


def _measure_once(operators: Operators, method: Method, state: PyTree, *, program: str) -> dict[str, PyTree]:
    """``program`` distinguishes functions that have changed since they were compiled."""
    return state_metrics(operators, method, state)


_measure = StoredFunction(_measure_once, static_argnames="program")
