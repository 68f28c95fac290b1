"""Comparison of results: means with intervals, ranks, and paired tests on shared seeds with Holm's correction."""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from twoclock.intervals.bootstrap import bootstrap_mean, ratio_of_means
from twoclock.protocols import InputError, printable
from twoclock.result import Result
from twoclock.storage.atomic_file import Document
from twoclock.validation import check_labels, flag, short_repr, whole

Differing = Literal["seeds", "steps", "problems"]

_DIFFERING: dict[str, Callable[[Document], object]] = {  # entries of a run's spec that must be equal
    "seeds": lambda spec: sorted(spec["seeds"]),
    "steps": lambda spec: spec["steps"],
    "problems": lambda spec: json.dumps(spec["problem"], sort_keys=True),
}
_LEVEL = 0.05
_HUGE = 1e150  # stands for a diverged seed, whose logarithm must be finite


def table(
    results: Mapping[str, Result] | object,
    metric: str | object = "error",
    step: int | object = None,
    *,
    largest: bool = False,
    allow: Differing | Iterable[Differing] | object = (),
) -> Table:
    """Compare results on the seeds that they share.

    The table is a data frame with a row for each result, the best first. Its columns are ``rank``; the ``mean`` over
    seeds with its 95 % bootstrap interval ``low`` to ``high``; the ``ratio`` to the best mean with ``ratio_low`` and
    ``ratio_high`` over the shared seeds; the p-value ``p`` of the difference from the best; ``seeds`` and how many of
    them ``diverged``. A result with fewer diverged seeds ranks first, whatever its mean. The mean uses the last finite
    values of diverged seeds, and a note says so.

    Every pair is tested on its shared seeds by Wilcoxon's signed-rank test of the log-ratios (of the differences where
    a value is not positive); a diverged seed is worse than any other. All p are Holm's, corrected for the number of
    pairs. ``table.tests`` has a row for each pair, ``to_latex()`` the text for a paper.

    Args:
        results: label → result, as ``solve`` returns them for several methods.
        metric: the metric to compare.
        step: the mark at which to compare; by default the end.
        largest: whether the largest value is the best.
        allow: what may differ between the results, one or several of "seeds" (each pair is compared on its shared
            seeds), "steps" (each result is taken at its own end) and "problems".

    >>> import twoclock as tc
    >>> methods = {"fast": tc.Fast(), "slow": tc.Fast(alpha="0.1/(k+20)")}
    >>> results = tc.solve(tc.problems.quadratic(dim=2), methods, steps=500, seeds=12)
    >>> tc.table(results, "error").index.tolist()
    ['fast', 'slow']

    Reference: Demšar, *Statistical comparisons of classifiers over multiple data sets*, 2006.
    """
    found, name = _check_comparable(results, metric, allow)
    ends = {int(result.spec["steps"]) for result in found.values()}
    when = f"after {ends.pop():,} steps" if len(ends) == 1 else "at the end"
    if step is not None:
        when = f"at step {whole('step', step, 0, 2**31 - 1):,}"
    columns = {label: _read_values(label, result, name, step) for label, result in found.items()}
    sign = -1.0 if flag("largest", largest) else 1.0
    mean = {label: float(values.mean()) for label, (_, values, _) in columns.items()}  # NaN is worse than any other

    def quality(label: str) -> tuple[float, bool, float]:
        return float(columns[label][2].mean()), math.isnan(mean[label]), sign * mean[label]

    ranked, rows = sorted(columns, key=quality), []
    # For the tests smaller is better, and a diverged seed is the worst.
    seen = {label: np.where(gone | np.isnan(x), np.inf, sign * x) for label, (_, x, gone) in columns.items()}
    tests = _test_pairs({label: (columns[label][0], seen[label]) for label in ranked})
    for rank, label in enumerate(ranked, 1):
        seeds, values, gone = columns[label]
        low, high = (np.nan, np.nan) if math.isnan(mean[label]) else bootstrap_mean(values)
        shared, base = _shared(columns[label][:2], columns[ranked[0]][:2])
        comparable = base.size > 1 and np.all(base > 0) and np.isfinite(shared).all()
        ratios = ratio_of_means(shared, base) if comparable else (np.nan, np.nan, np.nan)
        against = tests[(tests["first"] == ranked[0]) & (tests["second"] == label)]["p"]
        rows.append(
            {"rank": rank, "mean": mean[label], "low": float(low), "high": float(high)}
            | dict(zip(("ratio", "ratio_low", "ratio_high"), ratios, strict=True))
            | {
                "p": float(against.iloc[0]) if len(against) else np.nan,
                "seeds": len(seeds),
                "diverged": int(gone.sum()),
            }
        )
    frame = pd.DataFrame(rows, index=pd.Index(ranked, name="method"))
    return Table(frame, tests, f"{name} {when}", _notes(tests, frame))


def _check_comparable(results: object, metric: object, allow: object) -> tuple[Mapping[str, Result], str]:
    """Refuse results that were not measured alike."""
    if not isinstance(results, Mapping) or not results or not all(isinstance(r, Result) for r in results.values()):
        raise InputError("`results` must map labels to results, one or more; try `{'Fast': result, …}`")
    check_labels("results", results)
    allowed = [allow] if isinstance(allow, str) else list(allow) if isinstance(allow, (list, tuple, set)) else [allow]
    if any(not isinstance(what, str) or what not in _DIFFERING for what in allowed):
        raise InputError(f"`allow` may name seeds, steps and problems, got {short_repr(allow)}")
    first = next(iter(results))
    for label, result in results.items():
        for what in _DIFFERING:
            mine, theirs = (_DIFFERING[what](r.spec) for r in (result, results[first]))
            if mine != theirs and what not in allowed:
                raise InputError(
                    f"`results` must have the same {what}, and those of {label!r} differ from those of {first!r}; "
                    f"run them alike, or pass allow={what!r}"
                )
    known = [name for name in results[first].metrics if all(name in r.metrics for r in results.values())]
    if not isinstance(metric, str) or metric not in known:
        have = ", ".join(known) or "there is none"
        raise InputError(f"`metric` must be one that all results have ({have}), got {short_repr(metric)}")
    return results, metric


Column = tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"]]  # the seeds, and the metric of each


def _read_values(label: str, result: Result, metric: str, step: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The seeds in order, the metric of each, and whether it had diverged by then."""
    at = result.spec["steps"] if step is None else step
    rows = result.history[result.history["step"] == at].sort_values("seed")
    if rows.empty:
        marks = result.history["step"].unique()
        near = int(marks[np.argmin(np.abs(marks - at))]) if isinstance(at, (int, np.integer)) else int(marks[-1])
        raise InputError(
            f"`step` must be a mark of every result, and {label!r} has none at {at!r}; the nearest is {near:,}"
        )
    lost = dict(zip(result.spec["seeds"], result.diverged & (result.last_step < at), strict=True))
    seeds = rows["seed"].to_numpy()
    return seeds, rows[metric].to_numpy(float), np.array([lost[seed] for seed in seeds.tolist()])


def _test_pairs(columns: Mapping[str, Column]) -> pd.DataFrame:
    """A row for each pair, the better ranked one first."""
    rows = []
    for first, second in itertools.combinations(columns, 2):
        pair = compare(*_shared(columns[first], columns[second]))
        rows.append({"first": first, "second": second, **pair._asdict()})
    frame = pd.DataFrame(rows, columns=["first", "second", "seeds", "ratio", "wins", "p"])
    raw = frame["p"].to_numpy(float)
    return frame.assign(p_alone=raw, p=holm(raw))


def _shared(one: Column, other: Column) -> tuple[Float[np.ndarray, " shared"], Float[np.ndarray, " shared"]]:
    """The values of both results on their shared seeds."""
    _, here, there = np.intersect1d(one[0], other[0], return_indices=True)
    return one[1][here], other[1][there]


def _notes(tests: pd.DataFrame, frame: pd.DataFrame) -> tuple[str, ...]:
    """Reservations about the p-values."""
    notes = []
    if len(tests):
        fewest = int(tests["seeds"].min())
        least = 2.0 ** (1 - fewest) * len(tests)  # all seeds on one side
        if fewest < 2:
            notes.append("some pairs share fewer than two seeds and are not tested")
        elif least > _LEVEL:
            notes.append(
                f"{fewest} shared seeds are too few for {len(tests)} comparisons: no p can be below {min(least, 1):.2g}"
            )
        for row in tests[(tests["p"] < _LEVEL) & (tests["wins"] < 0.5)].to_dict("records"):
            notes.append(f"{row['second']} is better than {row['first']} on most seeds, and worse in the mean")
    for label, row in zip(frame.index, frame.to_dict("records"), strict=True):
        if row["diverged"]:
            notes.append(f"{label}: {row['diverged']} of {row['seeds']} seeds diverged; its mean has their last values")
        if math.isnan(row["mean"]):
            notes.append(f"{label}: some seeds have no value (NaN), so there is no mean")
    if (frame["seeds"] < 2).any():
        notes.append("one seed has no interval")
    return tuple(notes)


class Pair(NamedTuple):
    """One result against another on their shared seeds: columns of ``Table.tests``."""

    seeds: int
    ratio: float
    wins: float
    p: float


def compare(first: Float[np.ndarray, " seeds"], second: Float[np.ndarray, " seeds"]) -> Pair:
    """Compare values of the same seeds; infinite ones belong to diverged seeds.

    Wilcoxon's test and not the t-test, since errors have long tails, and a failed seed counts as one rank. On
    well-behaved errors it needs about 5 % more seeds than the t-test. p is NaN for fewer than two seeds; the ratio is
    NaN where a value is not positive.
    """
    from scipy.stats import wilcoxon

    first, second = np.clip(first, -_HUGE, _HUGE), np.clip(second, -_HUGE, _HUGE)
    positive = bool(np.all(first > 0) and np.all(second > 0))
    off = np.log(first) - np.log(second) if positive else first - second
    p = float("nan")
    if off.size >= 2:
        p = 1.0 if not off.any() else float(wilcoxon(off[off != 0]).pvalue)
    ratio = float(np.exp(np.median(off))) if positive and off.size else float("nan")
    wins = float(np.mean((off < 0) + 0.5 * (off == 0))) if off.size else float("nan")
    return Pair(off.size, ratio, wins, p)


def holm(p: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """Holm's correction: the chance of one false alarm among all tests stays below the level. NaN stays NaN.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    out, known = np.full(p.shape, np.nan), np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    out[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return out


_LEVEL = 0.05
_SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$",
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "λ": r"$\lambda$", "θ": r"$\theta$", "ω": r"$\omega$",
    "τ": r"$\tau$", "σ": r"$\sigma$", "≤": r"$\le$", "≥": r"$\ge$", "²": r"$^2$", "½": r"$\frac12$", "⅔": r"$\frac23$",
    "−": "$-$", "×": r"$\times$", "·": r"$\cdot$", "∞": r"$\infty$", "…": r"\ldots{}",
})  # fmt: skip


class Table(pd.DataFrame):
    """What ``tc.table`` returns: a data frame, and the tests behind it.

    Attributes:
        tests: a row for each pair: ``first``, ``second``, the ``seeds`` they share, the median ``ratio`` over seeds,
            the share of seeds on which the first ``wins`` (half of the ties), ``p`` with Holm's correction and
            ``p_alone`` without.
        metric: the metric that was compared, and its step.
        notes: reservations about the table.
    """

    tests: pd.DataFrame
    metric: str
    notes: tuple[str, ...]
    _metadata = ["tests", "metric", "notes"]  # noqa: RUF012

    def __init__(self, frame: pd.DataFrame, tests: pd.DataFrame, metric: str, notes: tuple[str, ...]) -> None:
        super().__init__(frame)  # type: ignore[call-arg]
        for name, value in (("tests", tests), ("metric", metric), ("notes", notes)):
            object.__setattr__(self, name, value)

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame  # a slice of a table is a plain data frame

    def to_latex(self) -> str:  # type: ignore[override]
        """A ``tabular`` for a paper, with the package booktabs; the best, and all not clearly worse, are bold.

        Where seeds diverged there is a column that counts them, and no method with one is bold: its mean has their last
        finite values.
        """
        diverged = bool(self["diverged"].any())
        lines = [
            rf"\begin{{tabular}}{{rlrlrr{'r' if diverged else ''}}}",
            r"\toprule",
            rf" & method & {self.metric.translate(_SPECIAL)} & 95\,\% interval & ratio & $p$"
            rf"{' & diverged' if diverged else ''} \\",
            r"\midrule",
        ]
        for label, row in zip(self.index, self.to_dict("records"), strict=True):
            name = str(label).translate(_SPECIAL)
            if not row["diverged"] and (row["rank"] == 1 or row["p"] >= _LEVEL):
                name = rf"\textbf{{{name}}}"
            interval = f"[{_tex(row['low'])}, {_tex(row['high'])}]"
            numbers = f"{_tex(row['mean'])} & {interval} & {_tex(row['ratio'])} & {_tex(row['p'], 2)}"
            lost = f" & {row['diverged']} of {row['seeds']}" if diverged else ""
            lines.append(rf"{row['rank']} & {name} & {numbers}{lost} \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def shown(self) -> pd.DataFrame:
        """The table in a few columns of text."""
        rows = {}
        for label, row in zip(self.index, self.to_dict("records"), strict=True):
            plain = row["rank"] == 1 or math.isnan(row["ratio"])
            ratio = "" if plain else f"{row['ratio']:.3g} [{row['ratio_low']:.3g}, {row['ratio_high']:.3g}]"
            p = "" if math.isnan(row["p"]) else f"{row['p']:.2g}"
            mean = f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"
            rows[label] = {
                "rank": row["rank"], self.metric: mean, "ratio to the best": ratio, "p": p, "seeds": row["seeds"],
                "diverged": row["diverged"],
            }  # fmt: skip
        return pd.DataFrame.from_dict(rows, orient="index")

    def __repr__(self) -> str:
        return "\n".join([self.shown().rename(index=printable).to_string(), *self._notes()])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p><small>{html.escape(note, quote=False)}</small></p>" for note in self._notes())
        return self.shown().to_html(escape=True) + notes

    def _notes(self) -> list[str]:
        pairs = len(self.tests)
        how = f"p: Wilcoxon's test on shared seeds, Holm's correction for {pairs} comparison{'s' if pairs > 1 else ''}"
        return ["mean [95 % bootstrap interval]" + (f"; {how}" if pairs else ""), *self.notes]


def _tex(value: float, digits: int = 3) -> str:
    """A number as LaTeX, with a power of ten where Python would write an exponent."""
    if math.isnan(value):
        return "--"
    if math.isinf(value):
        return r"$\infty$" if value > 0 else r"$-\infty$"
    digits_only, _, power = f"{value:.{digits}g}".partition("e")
    return rf"${digits_only}\times10^{{{int(power)}}}$" if power else f"${digits_only}$"
