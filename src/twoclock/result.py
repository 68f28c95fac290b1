"""The result of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import numpy as np

from twoclock import prng, storage, validation
from twoclock.engine.loop import from_arrays
from twoclock.engine.protocol import Row, flatten_row, history_columns, preferred_metric
from twoclock.intervals import bootstrap
from twoclock.intervals import interval_table as inference
from twoclock.intervals.bootstrap import TRACKED
from twoclock.methods.auto import Auto, objections, zap_intervals
from twoclock.methods.zap import Zap
from twoclock.protocols import InputError, Method, Problem, PyTree, html_table, list_names
from twoclock.storage.atomic_file import Document
from twoclock.storage.record import shaped_like
from twoclock.storage.run_identity import Json, Precision

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The entries of a specification that do not identify the run: where and how it was made.
_OWN_INTERVALS = ("Auto", "Zap")
_PROVENANCE = ("versions", "device", "wall_seconds", "command", "identity", "engine", "engine_reason", "until")


class _NotChosen(InputError, AttributeError):
    """An AttributeError, so that ``hasattr(result, "chosen")`` is False."""


class FinalState:
    """The end of a run: the leaves of its lanes, and its identity or a function that computes it on demand."""

    def __init__(
        self, carry: tuple[np.ndarray, ...], identity: Mapping[str, Json] | Callable[[], Mapping[str, Json]]
    ) -> None:
        self.carry = carry
        self._identity = identity

    def identity(self) -> Mapping[str, Json]:
        return self._identity if isinstance(self._identity, Mapping) else self._identity()

    def __reduce__(self) -> tuple[type[FinalState], tuple[Any, ...]]:
        return FinalState, (self.carry, self.identity())


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """What a run of one method has recorded, of which the table is made when it is read: it needs pandas."""

    rows: Sequence[Row]
    method: int
    seeds: Sequence[int]
    marks: Sequence[int]

    def __call__(self) -> pd.DataFrame:
        import pandas as pd

        columns = history_columns(self.rows, self.method, self.seeds, self.marks[: len(self.rows)])
        return pd.DataFrame(columns, copy=False)

    def at_end(self) -> dict[str, np.ndarray]:
        """The numbers of each seed at the last mark."""
        return {name: np.asarray(row[self.method, : len(self.seeds)], float) for name, row in self.rows[-1].items()}


class _Deferred:
    """An attribute that may be given as a function, which is called when it is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: object, owner: type | None = None) -> object:
        if result is None:
            raise AttributeError(self.name)  # so that the field has no default
        value = vars(result)[self.name]
        if callable(value):
            value = vars(result)[self.name] = value()
        return value

    def __set__(self, result: object, value: object) -> None:
        vars(result)[self.name] = value


@dataclass(frozen=True, eq=False)
class Result:
    """The solution of every seed, with the metrics along the way.

    Two results are equal if their descriptions and all numbers are equal; time and machine do not matter.

    Attributes:
        theta: the final estimates of θ, NumPy arrays with a leading seed axis.
        omega: the final estimates of ω, likewise.
        history: one row per seed and mark: seed, step and a column for each metric.
        diverged: for each seed, whether it exceeded the finite numbers or the bound.
        last_step: for each seed, the step of its last finite state; the last step if it did not diverge.
        spec: what was run: problem, method, steps, seeds, marks, precision, versions, wall time.
        end: the final state, for ``solve(…, start=result)``; None if it was not stored.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), steps=100, seeds=3)
    >>> result.theta.shape, result.diverged.tolist()
    ((3, 2), [False, False, False])
    """

    theta: PyTree
    omega: PyTree
    history: pd.DataFrame
    diverged: np.ndarray
    last_step: np.ndarray
    spec: Document
    if not TYPE_CHECKING:
        # Of many seeds the table takes longer than the run, and more memory than all else.
        history = _Deferred()
    end: FinalState | None = field(default=None, repr=False)

    @property
    def chosen(self) -> str:
        """For a run without a method: which one ``Auto`` chose, why, its cost, and whether it arrived."""
        auto, (theta, omega) = self._auto()
        return auto.explain(theta, omega, self.spec["steps"], self._objections(), self._reported())

    @property
    def arrived(self) -> np.ndarray:
        """For a run without a method, or of ``tc.Zap``: for each seed, whether it has arrived, by a test.

        A seed has arrived if five things hold. The means of F and G at its estimate are zero up to their noise, on
        fresh samples. That noise is small compared with the means at the start. The samples determine every direction
        of θ. Steps from there do not lead away, as from a maximum. And the seed agrees with the others.
        """
        return np.asarray([reason == "" for reason in self._objections()])

    def _objections(self) -> list[str]:
        """The objection to the arrival of each seed."""
        if self.spec["method"].get("name") not in ("Auto", "Zap", "Candidates") or self.theta is None:
            raise _NotChosen("`arrived` is for runs without a method that have ended; ask `tc.residual`")
        one_problem = len(self.spec["problem"]) > 1  # a function that makes one per seed has only a name
        against = objections(self._reported(), self.theta, one_problem=one_problem)
        return ["it diverged" if lost else why for lost, why in zip(self.diverged, against, strict=True)]

    def _reported(self) -> dict[str, np.ndarray]:
        """The metrics of each seed at the end."""
        recorded = vars(self)["history"]
        if isinstance(recorded, RecordedRows):
            found = recorded.at_end()
            return {name: found[name] for name in self.metrics}
        last = self.history.groupby("seed").tail(1)
        return {name: last[name].to_numpy(float) for name in self.metrics}

    @property
    def method(self) -> Method:
        """For a run without a method: the chosen one; ``solve`` with it repeats the run bit for bit."""
        auto, variables = self._auto()
        return auto.chosen(*variables)

    def _auto(self) -> tuple[Auto, tuple[PyTree, PyTree]]:
        """The ``Auto`` of a run without a method, and θ and ω of its first seed."""
        described = self.spec["method"]
        if described.get("name") != "Auto":
            raise _NotChosen(
                f"`method` and `chosen` are for runs without a method; this one was given {described.get('name')}"
            )
        if self.theta is None:
            raise _NotChosen("`method`: the run has not ended, and its iterates are not stored yet")
        return Auto(described["max_dim"]), jax.tree.map(lambda leaf: leaf[0], (self.theta, self.omega))

    @property
    def metrics(self) -> list[str]:
        """The names of the recorded metrics."""
        recorded = vars(self)["history"]
        return bootstrap.metric_names(recorded.at_end() if isinstance(recorded, RecordedRows) else recorded.columns)

    def summary(self, metric: str, confidence: float = 0.95) -> pd.DataFrame:
        """Per step: mean, median, interquartile mean, bootstrap interval of the mean, seeds, diverged seeds.

        Args:
            metric: the metric, a column of ``history``.
            confidence: the level of the interval.
        """
        ended = dict(zip(self.spec["seeds"], self.last_step.tolist(), strict=True))
        return bootstrap.summarise(self.history, metric, ended, confidence)

    def plot(
        self,
        metric: str | None = None,
        statistic: str = "mean",
        *,
        intervals: bool | float = False,
        seed: int | None = None,
        ax: Axes | None = None,
        scale: Literal["log", "linear"] = "log",
        size: tuple[float, float] = (6.4, 4.6),
    ) -> Figure:
        """The metric against steps, with its band and the number of diverged seeds; options as for ``plot.compare``.

        Without a metric it draws the error, or another measure of progress, or the first that was recorded. With
        ``intervals`` it draws the estimates of one run over its steps, with their confidence band and notes.

        Args:
            metric: the metric; with ``intervals`` the output, by default the first few.
            statistic: the statistic over seeds, "mean", "median" or "iqm".
            intervals: True, or the level of the intervals if it is not 0.95.
            seed: the seed of the intervals; the first by default.
            ax, scale, size: the axes to draw into, the scale of the metric, and the size of a new figure in inches.
        """
        from twoclock import plot

        if intervals is not False:
            level = 0.95 if intervals is True else intervals
            path = inference.by_step(self.history, self._lost(), level, seed)
            return plot.intervals(path, self._named(), level, metric, ax=ax, scale=scale, size=size)
        if seed is not None:
            raise InputError("`seed` is for `plot(intervals=True)`; a metric is drawn over all seeds")
        shown = preferred_metric(self.metrics) if metric is None else metric
        if shown is None:
            raise InputError("`metric`: this run recorded none, so there is nothing to draw; give it a `measure`")
        return plot.compare({self.spec["method"]["name"]: self}, shown, statistic, ax=ax, scale=scale, size=size)

    def interval(
        self,
        level: float = 0.95,
        how: Literal["random-scaling", "blocks"] | None = None,
        *,
        step: int | None = None,
        anytime: bool | int = False,
    ) -> pd.DataFrame:
        """Confidence intervals from each single run: seed, output, estimate, low, high, note.

        Each covers the true output (not the spread over seeds) with probability ``level`` in the long run, and uses the
        samples of one seed alone. ``note`` is a reason to doubt it; it is "" if there is none. Runs without a method
        have them for each entry of θ at their end. Other methods must collect the data for them: ``tc.Polyak(method,
        intervals=True)`` or ``tc.RichardsonRomberg(method, intervals=True)``.

        Args:
            level: the coverage, between 0 and 1.
            how: "random-scaling"; or "blocks", which are shorter, for linear problems with
                ``tc.methods.BatchMeans(method)``. None is "random-scaling", or "blocks" with ``anytime``.
            step: the mark; the last by default.
            anytime: False for an interval at one step that was chosen beforehand. True for one of a confidence
                sequence: with probability ``level`` an output lies in its intervals at *all* marks from the first look
                on, so that one may look at each and stop at any. The first look is at the first mark with 1,000 samples
                or more, where the sequence is shortest. A number sets the samples at the first look instead; it must be
                the same at each look. Needs ``tc.methods.BatchMeans``.

        >>> import twoclock as tc
        >>> method = tc.methods.BatchMeans(tc.methods.Lstd())
        >>> result = tc.solve(tc.problems.boyan("td", "markov"), method, steps=10_000, seeds=1)
        >>> at_one_step, at_all = result.interval(how="blocks"), result.interval(anytime=True)
        >>> ((at_all.high - at_all.low) / (at_one_step.high - at_one_step.low)).round(2).unique().tolist()
        [1.65]
        """
        if self.spec["method"].get("name") in _OWN_INTERVALS and not self.history.columns.str.startswith(TRACKED).any():
            return self._zap_interval(level, how, step, anytime)
        return inference.interval(self.history, self._lost(), level, how, step, anytime)

    def _zap_interval(self, level: float, how: str | None, step: int | None, anytime: bool | int) -> pd.DataFrame:
        """The intervals of a run without a method, or of ``tc.Zap``, from the state that it ended in."""
        if how not in (None, "blocks") or anytime is not False or step not in (None, self.spec["steps"]):
            raise InputError(
                "`interval` of a run without a method is at its last step and for one look; for others run "
                "`tc.Polyak(method, intervals=True)`, or on linear problems `tc.methods.BatchMeans(method)`"
            )
        if self.end is None or self.theta is None:
            raise InputError("`interval` needs the state in which the run ended, and this result has none; run `solve`")
        theta, omega = jax.tree.map(lambda leaf: leaf[0], (self.theta, self.omega))
        if self.spec["method"]["name"] == "Auto" and not isinstance(self.method, Zap):
            raise InputError(
                "`interval` of a run without a method is for few entries, where there are matrices; for more run "
                "`tc.Polyak(method, intervals=True)`"
            )
        with jax.enable_x64(self.spec["precision"] == "float64"):
            like, structure = jax.tree.flatten(jax.eval_shape(Zap().init, theta, omega))
        many = len(self.diverged)
        leaves = [np.atleast_1d(leaf)[:many] for leaf in self.end.carry[: len(like)]]
        if [leaf.shape for leaf in leaves] != [(many, *leaf.shape) for leaf in like]:
            raise InputError("`interval`: the state in which the run ended is damaged; run `solve` again")
        # The leaves are those of the state and the environment, then two more. Samples without one have no memory.
        chain = len(self.end.carry) > len(like) + 2
        found = zap_intervals(jax.tree.unflatten(structure, leaves), level, ordered=chain)
        names = [name.removeprefix("of:") for name in flatten_row({"of": {"theta": theta}})]
        against = self._objections()
        notes = [
            "; ".join(filter(None, [f"not arrived: {why}" if why else "", note]))
            for why, note in zip(np.repeat(against, len(names)), found.note, strict=True)
        ]
        lost = self.diverged[:, None]
        low, high = np.where(lost, np.nan, found.low), np.where(lost, np.nan, found.high)
        return inference.make_table(self.spec["seeds"], names, found.estimate, low, high, notes)

    def _lost(self) -> dict[int, int]:
        """The last finite step of each seed that diverged."""
        ended = zip(self.spec["seeds"], self.last_step.tolist(), self.diverged.tolist(), strict=True)
        return {seed: last for seed, last, lost in ended if lost}

    def to_xarray(self) -> xr.Dataset:
        """Convert to a dataset of xarray: metrics over seed and step, θ, ω and ``diverged`` over seed.

        Each leaf of a pytree is a variable, such as ``theta.w`` with dimensions ``theta.w_0``, …; ``attrs`` has the
        specification as JSON.

        >>> import twoclock as tc
        >>> result = tc.solve(tc.problems.quadratic(dim=3), tc.Fast(), steps=100, seeds=2)
        >>> dict(result.to_xarray()["theta"].sizes)
        {'seed': 2, 'theta_0': 3}
        """
        try:
            import xarray as xr
        except ImportError:
            raise InputError("`to_xarray` needs xarray, which is not installed; `pip install xarray`") from None
        seeds, marks = self.spec["seeds"], self.spec["marks"]
        shape = len(seeds), len(marks)
        variables: dict[str, tuple[list[str], np.ndarray]] = {
            name: (["seed", "step"], self.history[name].to_numpy().reshape(shape)) for name in self.metrics
        }
        for name, tree in (("theta", self.theta), ("omega", self.omega)):
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                entry = ".".join([name, *(str(jax.tree_util.keystr((key,), simple=True)) for key in path)])
                variables[entry] = ["seed", *(f"{entry}_{i}" for i in range(np.ndim(leaf) - 1))], np.asarray(leaf)
        variables["diverged"] = ["seed"], self.diverged
        attrs = {"spec": json.dumps(self.spec)}
        return xr.Dataset(variables, {"seed": list(seeds), "step": list(marks)}, attrs)

    def save(self, path: str | Path) -> Path:
        """Write ``spec.json``, ``history.parquet`` and ``arrays.npz`` to a folder."""
        validation.check_path("path", path)
        trees = {"theta": self.theta, "omega": self.omega, "diverged": self.diverged, "last_step": self.last_step}
        spec = self.spec
        if self.end is not None:
            trees["carry"] = self.end.carry
            spec = {**spec, "ended": None if "identity" in spec else self.end.identity()}
        return storage.save(path, spec, {"history": self.history}, trees)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        mine, theirs = (jax.tree.flatten((r.theta, r.omega, r.diverged, r.last_step)) for r in (self, other))
        return (
            _spec_text(self.spec) == _spec_text(other.spec)
            and mine[1] == theirs[1]  # type: ignore[operator]
            and self.history.equals(other.history)
            and all(
                np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b)
                for a, b in zip(mine[0], theirs[0], strict=True)
            )
        )

    def __hash__(self) -> int:
        return hash(_spec_text(self.spec))

    def __repr__(self) -> str:
        kept = inference.summary(self.history, self._lost())
        return f"Result({self._words()}; metrics: {list_names(self.metrics)}{'; ' * bool(kept)}{kept})"

    def _named(self) -> str:
        return f"{self.spec['problem']['name']}, {self.spec['method']['name']}"

    def _words(self) -> str:
        run, rule = self.spec, ""
        if until := run.get("until"):
            of = f"stopped of {until['steps']:,}, known" if until["reached"] else "not known"
            rule = f" ({of} to ± {until['width']:g})"
        diverged = int(self.diverged.sum())
        return f"{self._named()}, {run['steps']:,} steps{rule}, {len(run['seeds'])} seeds, {diverged} diverged"

    def _repr_html_(self) -> str:
        last = {metric: self.summary(metric).iloc[-1] for metric in self.metrics}
        cells = [
            (metric, f"{row['mean']:.4g}", f"{row['low']:.3g} … {row['high']:.3g}", f"{row['median']:.4g}")
            for metric, row in last.items()
        ]
        columns = ("metric at the last step", "mean over seeds", "95 % interval", "median")
        return html_table(f"Result: {self._words()}", columns, cells, inference.summary(self.history, self._lost()))


def load(path: str | Path, like: object = None) -> Result:
    """Load the result that ``result.save(path)`` wrote.

    Dicts, lists and tuples are restored; other nodes of a pytree, such as a network's modules, become dicts of their
    fields, or are restored with ``like``.

    Args:
        path: the folder.
        like: an example of θ (such as an Equinox module, which provides the functions), or the problem, for both θ and
            ω.

    >>> import tempfile, twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), steps=100, seeds=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tc.load(result.save(folder + "/a")) == result
    True
    """
    spec, tables, trees = storage.load(path)
    with storage.reading(path):
        ended = spec.pop("ended", None)
        end = FinalState(tuple(trees["carry"]), dict(ended or spec["identity"])) if "carry" in trees else None
        theta, omega, history = trees["theta"], trees["omega"], tables["history"]
        if len({len(part) for part in (spec["seeds"], trees["diverged"], trees["last_step"])}) > 1:
            raise ValueError("the number of its seeds is not that of its results")
        if [*history["seed"].unique()] != [*spec["seeds"]]:
            raise ValueError("its table has other seeds")
        if not isinstance(spec.get("engine"), str | None):  # a learner has none before its first sample
            raise ValueError("its engine has no name")
        if not isinstance(spec["method"]["name"], str):
            raise ValueError("the name of its method is no text")
        if spec["precision"] not in get_args(Precision):
            raise ValueError("its precision is unknown")
        if [*history["step"]] != [*spec["marks"]] * len(spec["seeds"]):
            raise ValueError("its marks are not those of its history")
        repr(Result(theta, omega, history, trees["diverged"], trees["last_step"], spec))
    if isinstance(like, Problem):
        of_theta, of_omega, _ = jax.eval_shape(like.init, prng.start_key(0))
        omega = shaped_like("omega", omega, of_omega, len(spec["seeds"]))
        like = of_theta
    if like is not None:
        theta = shaped_like("theta", theta, like, len(spec["seeds"]))
    return Result(theta, omega, history, trees["diverged"], trees["last_step"], spec, end)


def so_far(path: str | Path) -> dict[str, Result]:
    """The records of an interrupted run up to its checkpoint in a folder, by label, without iterates; empty if none."""
    import pandas as pd

    found: dict[str, Result] = {}
    with storage.reading(path):
        for kept in storage.interrupted(path):
            leaves, seen = from_arrays(kept.tree)
            known: Document = dict(kept.identity)
            marks, seen = known["marks"][: len(seen)], seen or [{}]
            for i, (label, method) in enumerate(dict(kept.what["method"]).items()):  # type: ignore[call-overload]
                alive, last = (leaf[i] for leaf in leaves[-2:])
                history = pd.DataFrame(history_columns(seen, i, known["seeds"], marks))
                spec = {
                    "problem": kept.what["problem"], "method": method, "steps": kept.step, "of": known["steps"],
                    "seeds": known["seeds"], "marks": marks, "precision": known["precision"], "bound": known["bound"],
                }  # fmt: skip
                found[label] = Result(None, None, history, ~alive, np.asarray(last, int), spec)
    return found


def _spec_text(spec: Document) -> str:
    """The specification as JSON, which is the same for a result and for its copy from disk."""
    return json.dumps({name: value for name, value in spec.items() if name not in _PROVENANCE}, sort_keys=True)
