"""The result of an evaluation: values with intervals, diagnostics, and a verdict."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twoclock import storage
from twoclock.intervals import Estimate
from twoclock.intervals.confidence_sequence import stretch
from twoclock.logs.decision import condition_on_starts, decide, graded_checks, write_report
from twoclock.logs.diagnostics import Diagnostic
from twoclock.logs.estimators import ValueEstimate
from twoclock.logs.ranking import PolicyComparison, cvar, quantile
from twoclock.logs.standard_error import Interval, interval_of
from twoclock.protocols import InputError, html_table, list_names
from twoclock.validation import check_path, lookup, number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_TABLE = [
    "policy", "estimator", "value", "se", "low", "high", "bootstrap_low", "bootstrap_high", "clusters", "supported",
    "note",
]  # fmt: skip
_SHOWN = ["policy", "estimator", "value", "low", "high", "supported"]
_DIFFERENCES = ["policy", "minus", "difference", "se", "low", "high", "supported"]
_DIAGNOSTICS = ["policy", *Diagnostic._fields]
Row = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class PolicyEstimate:
    """The estimates of one policy, the reasons why other estimators do not apply, and the diagnostics."""

    estimates: dict[str, ValueEstimate]
    refused: dict[str, str]
    diagnostics: list[Diagnostic]
    stream: bool
    weights: np.ndarray
    support: pd.DataFrame | None
    returns: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))  # of whole episodes, and their ratios

    @property
    def main(self) -> str:
        """The main estimator."""
        return next(iter(self.estimates))

    @property
    def fatal(self) -> bool:
        return any(one.grade == "fatal" for one in self.diagnostics)


@dataclass(frozen=True, eq=False)
class Value:
    """The value of one policy or several on a log.

    ``evaluate`` returns it.

    Attributes:
        table: one row per policy and estimator: value, standard error, interval, the bootstrap's interval, the clusters
            (episodes or blocks) behind them, whether the log supports it, and notes. The first row of a policy is the
            main one.
        differences: for several policies, the paired intervals of their differences, for all of them at once.
        diagnostics: one row per policy and number: its thresholds, grade, sentence and remedy.
        settings: the arguments of the evaluation.
        weights: for each policy a sample of the weights w·N; their mean is about the episodes' discounted length.
        support: for tables, by policy: the log's visits of each state and the policy's.
        ranking: for several policies, the largest value first: intervals that hold for all of them at once, whether
            the policy may be the best at the level, and the probability that it is; None for one policy.
        returns: for each policy the returns of whole episodes and their ratios, where these are known.
    """

    table: pd.DataFrame
    differences: pd.DataFrame
    diagnostics: pd.DataFrame
    settings: dict[str, Any]
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    support: dict[str, pd.DataFrame] = field(default_factory=dict)
    ranking: pd.DataFrame | None = None
    returns: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, singles: Mapping[str, PolicyEstimate], settings: dict[str, Any]) -> Value:
        """Put the estimates of all policies into one object.

        Args:
            singles: the estimates of each policy, by name.
            settings: the arguments of the evaluation.
        """
        import pandas as pd

        level, nan, first = settings["level"], float("nan"), settings["anytime"]
        longer = float(stretch(settings["rows"], first, level)) if first else 1.0
        rows, differences, checks = ([], [], [])  # type: tuple[list[Row], list[Row], list[Row]]
        for name, single in singles.items():
            for estimator, one in single.estimates.items():
                se, clusters, low, high = nan, 0, nan, nan
                if one.influence is not None:
                    se, clusters, low, high = interval_of(one, level, stream=single.stream, stretch=longer)
                ends = [nan, nan]
                if one.resampled is not None:
                    ends = np.quantile(one.resampled, ((1 - level) / 2, (1 + level) / 2)).tolist()
                supported = not single.fatal or estimator == "naive"
                rows.append(
                    (name, estimator, one.value, se, low, high, *ends, clusters, supported, "; ".join(one.notes))
                )
            rows += [(name, estimator, *[nan] * 6, 0, False, why) for estimator, why in single.refused.items()]
            checks += [(name, *check) for check in single.diagnostics]
        known = {name: single.estimates[single.main] for name, single in singles.items() if not single.fatal}
        known = {name: one for name, one in known.items() if one.influence is not None}
        bands, ranking = dict[tuple[str, str], Interval](), None
        if len(known) > 1:
            stream = next(iter(singles.values())).stream
            compared = PolicyComparison.of(known, level, stream=stream, stretch=longer)
            bands = compared.differences()
            ranking = compared.ranking(bands)
        for name, other in itertools.combinations(singles, 2):
            a, b = (singles[policy].estimates[singles[policy].main] for policy in (name, other))
            band = bands.get((name, other), Interval(nan, 0, nan, nan))
            differences.append((other, name, b.value - a.value, band.se, band.low, band.high, (name, other) in bands))
        return cls(
            pd.DataFrame(rows, columns=_TABLE),
            pd.DataFrame(differences, columns=_DIFFERENCES),
            pd.DataFrame(checks, columns=_DIAGNOSTICS),
            settings,
            {name: single.weights for name, single in singles.items()},
            {name: single.support for name, single in singles.items() if single.support is not None},
            ranking,
            {name: single.returns for name, single in singles.items() if single.returns.size},
        )

    @property
    def policies(self) -> list[str]:
        """The names of the policies."""
        return list(dict.fromkeys(self.table["policy"]))

    def __getitem__(self, name: str) -> Value:
        """The results of one policy alone."""
        lookup(dict.fromkeys(self.policies), name, "v")
        table, diagnostics = (frame[frame["policy"] == name] for frame in (self.table, self.diagnostics))
        weights, returns = ({name: of[name]} if name in of else {} for of in (self.weights, self.returns))
        support = {name: self.support[name]} if name in self.support else {}
        empty = self.differences.iloc[:0]
        return Value(table, empty, diagnostics, self.settings, weights, support, None, returns)

    @property
    def best(self) -> str:
        """The policy of the largest value; ``ranking`` says which others may be the best."""
        if self.ranking is not None:
            return str(self.ranking["policy"][0])
        supported = self.table[self.table["supported"]].groupby("policy", sort=False).first().reset_index()
        if not len(supported):
            raise InputError("`v.best` needs a policy whose value the log supports; see v.verdict")
        return str(supported["policy"].iloc[0])

    def quantile(self, p: float, level: float | None = None) -> Estimate:
        """The p-quantile of the policy's return with its interval, from whole episodes and their ratios.

        Args:
            p: the share of returns below it, between 0 and 1.
            level: the coverage; that of the evaluation by default.
        """
        return quantile(self._returns("quantile"), *self._tail(p, level))

    def cvar(self, p: float, level: float | None = None) -> Estimate:
        """The mean of the worst share p of the policy's returns with its interval, from whole episodes.

        Args:
            p: the share of the worst returns, between 0 and 1.
            level: the coverage; that of the evaluation by default.
        """
        return cvar(self._returns("cvar"), *self._tail(p, level))

    def _tail(self, p: float, level: float | None) -> tuple[float, float]:
        level = self.settings["level"] if level is None else level
        return number("p", p, 0, 1, above=True, below=True), number("level", level, 0, 1, above=True, below=True)

    def _returns(self, asked: str) -> np.ndarray:
        if len(self.policies) > 1:
            raise InputError(f"`v` has several policies; write v[name].{asked}(…)")
        if not self.returns:
            raise InputError(
                f"`v.{asked}` needs whole episodes, none cut off, with propensities; read the log with "
                "propensity=…, or estimate them with estimator=['lstdq', 'wis'], and leave out `start`"
            )
        return next(iter(self.returns.values()))

    @property
    def value(self) -> float:
        """The estimate; NaN where the log does not support one."""
        return self._main("value", np.nan)

    @property
    def low(self) -> float:
        """The lower end of the interval; −inf where the log supports no estimate."""
        return self._main("low", -np.inf)

    @property
    def high(self) -> float:
        """The upper end of the interval; inf where the log supports no estimate."""
        return self._main("high", np.inf)

    @property
    def se(self) -> float:
        """The standard error, clustered by episode; inf where the log supports no estimate."""
        return self._main("se", np.inf)

    def _main(self, column: str, unsupported: float) -> float:
        if len(self.policies) > 1:
            names = ", ".join(map(repr, self.policies))
            raise InputError(f"`v` has several policies; write v[name] for one of {names}, or see v.table")
        return float(self.table[column].iloc[0]) if self.table["supported"].iloc[0] else unsupported

    @property
    def warnings(self) -> list[str]:
        """The objections to the estimate, each with a remedy."""
        return self._sentences("warning", "fatal") + [
            f"{n:,} row{' was' if n == 1 else 's were'} left out: {why}" for why, n in self.settings["dropped"].items()
        ]

    @property
    def notes(self) -> list[str]:
        """What the interval holds although it was in question, and what no data can show; each with a remedy."""
        return self._sentences("note")

    def _sentences(self, *grades: str) -> list[str]:
        graded = graded_checks(self, *grades)
        several = len(self.policies) > 1
        return [
            f"{f'{row.policy}: ' if several else ''}{row.sentence}; {row.remedy}"
            for row in graded.itertuples(index=False)
        ]

    @property
    def verdict(self) -> str:
        """One sentence per policy, and the actions in the order of a policy's columns."""
        actions = self.settings.get("actions")
        shown = [f"Actions: {list_names([repr(action) for action in actions])}."] if actions else []
        return " ".join([*(self._verdict(name) for name in self.policies), *shown])

    def _verdict(self, policy: str) -> str:
        one = self[policy]
        main, grades = one.table.iloc[0], one.diagnostics["grade"]
        name = "" if policy == "policy" else f" {policy!r}"
        if (grades == "fatal").any():
            whose = f"The value of the policy{name}" if name else "The policy's value"
            why = one.diagnostics[grades == "fatal"].iloc[0]["sentence"]
            return f"{whose} cannot be estimated from this log: {why}."
        warned = int((grades == "warning").sum())
        against = f"{warned} of {len(grades)} checks warn" if warned else "no check warns"
        band = f"{self.settings['level']:.0%} interval [{main['low']:.5g}, {main['high']:.5g}]"
        checked = against if len(grades) else "nothing was checked"
        condition = condition_on_starts(one)
        start = f"{condition}, the" if condition else "the"
        sentence = f"{start} policy{name} is worth {main['value']:.5g}, {band}; {checked}."
        return sentence[0].upper() + sentence[1:]

    def __repr__(self) -> str:
        lines = [
            *([self.decision] if len(self.policies) > 1 else []),
            self.verdict,
            *(f"  – {warning}" for warning in self.warnings),
            *(f"  note: {note}" for note in self.notes if len(self.policies) == 1),
        ]
        row: Any
        for row in self.differences.itertuples(index=False):
            span = f"{row.difference:.5g} [{row.low:.5g}, {row.high:.5g}]"
            lines.append(
                f"  {row.policy} − {row.minus}: {span if row.supported else 'cannot be estimated from this log'}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (str(p), str(e), f"{value:.5g}", f"[{low:.5g}, {high:.5g}]", "" if supported else "not supported")
            for p, e, value, low, high, supported in self.table[_SHOWN].itertuples(index=False)
        ]
        names = ("policy", "estimator", "value", f"{self.settings['level']:.0%} interval", "")
        return html_table(self.verdict, names, rows, " · ".join(self.warnings))

    def plot(self) -> Figure:
        """Estimators with their intervals, the weights, and for tables the support of each state."""
        from twoclock import plot

        return plot.values(self.table, self.weights, self.support, self.settings["level"])

    @property
    def decision(self) -> str:
        """The decision in one sentence: which policy to take, by how much, and whether checks warn."""
        return decide(self).sentence

    def report(self, folder: str | Path) -> Path:
        """Write ``report.html``, a single file with the decision and its evidence, and the tables as CSV."""
        return write_report(self, folder)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name."""
        tables = {"table": self.table, "differences": self.differences, "diagnostics": self.diagnostics}
        return tables if self.ranking is None else {**tables, "ranking": self.ranking}

    def save(self, folder: str | Path) -> Path:
        """Write a folder that ``tc.logs.load`` reads; it is written atomically."""
        check_path("folder", folder)
        tables = self.tables() | {f"support-{i}": frame for i, frame in enumerate(self.support.values())}
        arrays = {f"weights-{i}": array for i, array in enumerate(self.weights.values())}
        arrays |= {f"returns-{i}": array for i, array in enumerate(self.returns.values())}
        content = {
            "settings": self.settings, "weights": list(self.weights), "support": list(self.support),
            "returns": list(self.returns),
        }  # fmt: skip
        return storage.save(folder, content, tables, arrays, storage.VALUE)


def load(folder: str | Path) -> Value:
    """Read what ``v.save(folder)`` wrote; a folder with any changed byte is refused."""
    check_path("folder", folder)
    content, tables, arrays = storage.load(folder, storage.VALUE)
    with storage.reading(folder, "folder", "evaluate again"):
        value = Value(
            tables["table"], tables["differences"], tables["diagnostics"], content["settings"],
            {name: arrays[f"weights-{i}"] for i, name in enumerate(content["weights"])},
            {name: tables[f"support-{i}"] for i, name in enumerate(content["support"])},
            tables.get("ranking"),
            {name: arrays[f"returns-{i}"] for i, name in enumerate(content["returns"])},
        )  # fmt: skip
        repr(value)
    return value
