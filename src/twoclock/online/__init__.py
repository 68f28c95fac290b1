"""Online learning from single samples: from a simulator, a robot, a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar, cast

import jax
import numpy as np

from twoclock import storage, validation
from twoclock.engine import engines
from twoclock.engine.protocol import LaneState, history_columns
from twoclock.intervals.bootstrap import metric_names
from twoclock.methods import serialize
from twoclock.online.update_loop import MARKS, Intervals, UpdateLoop
from twoclock.problems.custom import Measure
from twoclock.protocols import InputError, Method, Operator, Problem, PyTree
from twoclock.result import FinalState, Result
from twoclock.storage.atomic_file import Document
from twoclock.storage.record import Record
from twoclock.storage.run_identity import Precision, describe, provenance
from twoclock.validation import run_args

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Predict = Callable[[PyTree, PyTree], object]

# The entries of a learner's record beyond a result's.
_KEPT = ("learner", "state")


class Learner:
    """A method that learns from a stream of samples, from any source.

        for x in stream:            # a number or an array, of NumPy or JAX, or a dict, list or tuple of such
            learner.update(x)

    The first sample determines the structure of all others. The step is compiled for it, which takes a second or two;
    an ``example`` compiles it earlier. From then on a sample takes some microseconds. A sample that does not fit, or
    that would bring NaN into the state, is refused in one line and changes nothing. Any thread may read, save and
    measure while another one updates.

    Args:
        F: ``F(theta, omega, x)``; or a problem, whose F, G, start and measure are used. Samples x then have the form
            that its ``draw`` returns.
        G: ``G(theta, omega, x)``; after a problem, the method.
        method: any method of the library.
        theta: the start of the slow variable, any pytree of floats.
        omega: the start of the fast variable.
        intervals: True, or a function (θ, ω) → outputs, for confidence intervals: the method is then
            ``Polyak(method, intervals=…)``, and ``theta`` the mean of its iterates.
        measure: ``measure(theta, omega) -> {name: scalar}``, recorded at the marks.
        precision: "float64", or "float32" with compensated sums.
        bound: the learner has diverged when an entry of θ or ω leaves [−bound, bound].
        engine: "c" compiles the step with the machine's C compiler; "xla" always works, and takes ten times as long for
            a single sample. "auto" is C where possible.
        example: a sample of the structure of those to come.
        predict: ``predict(theta, x)``, in NumPy or JAX, for `predict_one`.

    >>> import numpy as np, twoclock as tc
    >>> step = tc.Power(0.5, p=0.7)
    >>> learner = tc.Learner(
    ...     F=lambda theta, omega, x: omega - 1, G=lambda theta, omega, x: omega - theta + x,
    ...     method=tc.Standard(step, step), theta=0.0, omega=0.0, intervals=True,
    ... )
    >>> for x in np.random.default_rng(0).normal(size=2000):
    ...     learner.update(x)
    >>> learner.interval().columns.tolist()
    ['output', 'estimate', 'low', 'high', 'note']
    """

    def __init__(
        self,
        F: Operator | Problem,
        G: Operator | Method,
        method: Method | None = None,
        theta: PyTree = None,
        omega: PyTree = None,
        *,
        intervals: Intervals = False,
        measure: Measure | None = None,
        precision: Precision = "float64",
        bound: float | None = None,
        engine: str = "auto",
        example: PyTree = None,
        predict: Predict | None = None,
    ) -> None:
        run_args.check_numbers(precision, bound)
        asked = engines.resolve(engine)
        if asked == engine == "cuda":
            raise InputError("`engine` of a learner must be 'auto', 'c' or 'xla': single samples are no work for a GPU")
        asked = "auto" if asked == "cuda" else asked  # the environment variable is meant for runs
        validation.check_process()
        if predict is not None:
            validation.function("predict", predict, "theta", "x")
        self._predict = predict
        self._loop = UpdateLoop(F, G, method, theta, omega, intervals, measure, precision, bound, asked)
        if example is not None:
            self._loop.begin(example)

    def update(self, x: PyTree) -> None:
        """Learn from one sample. After a divergence the state does not change any more."""
        self._loop.update(x)

    def update_many(self, xs: PyTree) -> None:
        """Learn from a batch of samples in order, bit-for-bit identical to one update per sample.

        Args:
            xs: a sample whose arrays have a leading axis with one entry per sample, or a list of samples.
        """
        self._loop.update_many(xs)

    def learn_one(self, x: PyTree, y: PyTree = None) -> None:
        """Learn from the sample x or, with a target y, from the sample (x, y); the name is that of River's learners.

        Args:
            x: the sample, or its input.
            y: its target, if the operators use one.

        >>> import twoclock as tc
        >>> learner = tc.Learner(
        ...     F=lambda theta, omega, x: (theta * x[0] - x[1]) * x[0] / omega,
        ...     G=lambda theta, omega, x: omega - x[0] ** 2,
        ...     method=tc.Standard(0.1, 0.1), theta=0.0, omega=1.0, predict=lambda theta, x: theta * x,
        ... )
        >>> for k in range(200):
        ...     learner.learn_one(k % 3 - 1.0, 2 * (k % 3 - 1.0))
        >>> round(float(learner.predict_one(3.0)), 2)
        6.0
        """
        self.update(x if y is None else (x, y))

    def predict_one(self, x: PyTree) -> object:
        """The prediction ``predict(theta, x)`` by the present estimate."""
        if self._predict is None:
            raise InputError("`predict_one` needs to know how to predict; pass `predict=lambda theta, x: …`")
        return self._predict(self.theta, x)

    @property
    def steps(self) -> int:
        """The number of samples that it has learnt from."""
        return int(self._loop.carry.last)

    @property
    def diverged(self) -> bool:
        """Whether it exceeded the finite numbers or its bound; it then stays at its last finite state."""
        return not self._loop.carry.alive

    @property
    def state(self) -> PyTree:
        """A copy of the method's state; ``state.theta`` and ``state.omega`` are the iterates."""
        return self._loop.now().state

    @property
    def theta(self) -> PyTree:
        """The estimate of θ, in NumPy arrays; that of an averaging method is its mean."""
        return self._estimate(self._loop.now())[0]

    @property
    def omega(self) -> PyTree:
        """The estimate of ω."""
        return self._estimate(self._loop.now())[1]

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of problem and method at the present state."""
        row = self._loop.measure(self._loop.now())
        return {name: float(row[name][0, 0]) for name in metric_names(row)}

    @property
    def history(self) -> pd.DataFrame:
        """``step`` and the metrics, at the start, at ten marks per decade, and now."""
        frame = self._history(self._loop.now())
        return frame[["step", *metric_names(frame.columns)]]

    @property
    def engine(self) -> str:
        """Which engine runs, "c" or "xla", and why it is not the other; "" before the first sample."""
        live = self._loop.live
        return "" if live is None else live.engine if live.reason is None else f"{live.engine}, because {live.reason}"

    def interval(
        self,
        level: float = 0.95,
        how: Literal["random-scaling", "blocks"] | None = None,
        *,
        step: int | None = None,
        anytime: bool | int = False,
    ) -> pd.DataFrame:
        """Confidence intervals of the outputs: output, estimate, low, high, note.

        Each covers its true value with probability ``level`` in the long run; ``note`` is a reason to doubt it; it
        is "" if there is none.

        Args:
            level: the coverage, between 0 and 1.
            how: "random-scaling", or "blocks" for a method ``tc.methods.BatchMeans(…)``, as for ``result.interval``.
            step: one of the marks in ``history``; now by default.
            anytime: True for intervals that hold at all looks from 1,000 samples on, or a number for from that many
                on; False for one look only. As for ``result.interval``.
        """
        carry = self._loop.now()
        end = FinalState(tuple(leaf[None] for leaf in jax.tree.leaves(carry)), {})
        result = replace(self._result(carry), end=end)
        return result.interval(level, how, step=step, anytime=anytime).drop(columns="seed")

    def result(self) -> Result:
        """The present state as a ``Result`` of one seed, to plot, tabulate and save."""
        return self._result(self._loop.now())

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies and pickles: they would lack the compiled program, or share the state."""
        raise InputError(
            "a learner has no copies, since its program is compiled; use `learner.save` and `Learner.load`"
        )

    def save(self, path: str | Path, also: Document | None = None, **trees: PyTree) -> Path:
        """Save the learner to a folder; an earlier save there is replaced atomically.

        ``Learner.load`` resumes from it; ``tc.load`` reads the same folder as a ``Result``.

        Args:
            path: the folder.
            also: further entries of its specification.
            trees: further pytrees of arrays to save.
        """
        validation.check_path("path", path)
        loop, now = self._loop, self._loop.now()
        result = self._result(now)
        about = {
            "method": serialize.to_json(loop.method), "identity": loop.identity, "measure": loop.measure_identity,
            "engine": loop.live.engine if loop.live else loop.asked,
        }  # fmt: skip
        trees |= {
            "theta": result.theta, "omega": result.omega, "diverged": result.diverged, "last_step": result.last_step,
            "state": tuple(jax.tree.leaves(now)),
        }  # fmt: skip
        spec = {**result.spec, "learner": about, **(also or {})}
        return storage.save(path, spec, {"history": result.history}, trees)

    @classmethod
    def load(
        cls,
        path: str | Path,
        F: Operator | Problem,
        G: Operator | Method | None = None,
        method: Method | None = None,
        theta: PyTree = None,
        omega: PyTree = None,
        *,
        intervals: Intervals = False,
        measure: Measure | None = None,
        engine: str = "auto",
        predict: Predict | None = None,
    ) -> Learner:
        """Load a saved learner. It continues bit-for-bit identical to one that never stopped.

        Args:
            path: the folder.
            F, G: the operators, or the problem alone. They must compute the same as when it was saved, since a record
                holds no functions.
            method: as it was given; needed only if it holds a function of yours, since other methods are in the record.
            theta, omega: examples of the variables; needed only if they are not dicts, lists and tuples of arrays.
            intervals: as it was given, with ``method``.
            measure: as it was given.
            engine: as for a new learner; by default the one that it ran on.
            predict: as for a new learner.
        """
        validation.check_path("path", path)
        record = storage.load(path)
        spec, _, trees = record
        if not set(_KEPT) <= {*spec, *trees}:
            raise InputError(f"`path` must be a folder that `learner.save` wrote; {path} holds a result, see `tc.load`")
        with storage.reading(path):
            about = spec["learner"]
            if method is None:
                method, intervals = serialize.from_json(about["method"]), False
            options: Document = {"precision": spec["precision"], "bound": spec["bound"], "intervals": intervals}
            options["predict"] = predict
            options["engine"] = about["engine"] if engines.resolve(engine) == "auto" else engine
            if isinstance(F, Problem):
                learner = cls(F, method, **options)
            else:
                like = [jax.tree.map(lambda leaf: leaf[0], trees[name]) for name in ("theta", "omega")]
                pairs = zip((theta, omega), like, strict=True)
                start = [given if given is not None else saved for given, saved in pairs]
                learner = cls(F, cast("Operator", G), method, *start, measure=measure, **options)
            learner.restore(record)
        return learner

    def __repr__(self) -> str:
        state = "diverged" if self.diverged else self.engine or "not begun"
        return f"Learner({self._loop.method}, {self.steps:,} samples, {state})"

    def _estimate(self, carry: LaneState) -> tuple[PyTree, PyTree]:
        with self._loop.exact():
            theta, omega = self._loop.estimate(carry.state)
        return jax.tree.map(np.asarray, theta), jax.tree.map(np.asarray, omega)

    def _history(self, carry: LaneState) -> pd.DataFrame:
        """The rows of the marks and of the present; a sample at which it diverged counts as a step, so that it
        shows."""
        import pandas as pd

        last = int(carry.last)
        known = {step: row for step, row in list(self._loop.rows.items()) if step <= last}
        known[last if carry.alive else last + 1] = self._loop.measure(carry)
        marks = sorted(known)
        return pd.DataFrame(history_columns([known[mark] for mark in marks], 0, [0], marks))

    def _result(self, carry: LaneState) -> Result:
        theta, omega = jax.tree.map(lambda leaf: leaf[None], self._estimate(carry))
        loop, history = self._loop, self._history(carry)
        spec = {
            "problem": describe(loop.source), "method": describe(loop.method),
            "steps": int(history["step"].iloc[-1]), "seeds": [0], "marks": history["step"].tolist(),
            "precision": loop.precision, "bound": loop.bound, "engine": loop.live.engine if loop.live else None,
            **provenance(),
        }  # fmt: skip
        return Result(theta, omega, history, np.asarray([not carry.alive]), np.asarray([int(carry.last)]), spec)

    def peek(self, read: Callable[[PyTree], T]) -> T:
        """Read from the method's state between two updates, by a quick function that copies what it needs."""
        return self._loop.peek(read)

    def restore(self, record: Record) -> None:
        """Restore the saved state of a learner with the same operators and method, as read by ``storage.load``."""
        leaves, history = record.trees["state"], record.tables["history"]
        fresh, structure = jax.tree.flatten(self._loop.carry)
        if [(leaf.shape, leaf.dtype) for leaf in fresh] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            raise InputError(
                "`path` is of a learner with other variables or another method; pass theta, omega and method as they "
                "were given to it"
            )
        if self._loop.measure_identity != record.spec["learner"]["measure"]:
            raise InputError("`measure` must compute what it did when the learner was saved; pass it as it was given")
        self._loop.carry = jax.tree.unflatten(structure, leaves)
        self._loop.identity = record.spec["learner"]["identity"]
        self._loop.live = None  # a compiled learner holds the state that it began with
        names = history.columns[2:]
        for i, step in enumerate(history["step"].tolist()):
            if step in MARKS:
                self._loop.rows[step] = {name: history[name].to_numpy()[i : i + 1, None] for name in names}
