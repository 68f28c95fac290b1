"""The comparison table: a data frame with short displays for the terminal, a notebook and a paper."""

from __future__ import annotations

import html
import math

import pandas as pd

from twoclock.protocols import printable

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
