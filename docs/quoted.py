"""The numbers that README and docs quote from the full run.

``python docs/quoted.py RUN`` takes over the tables of a full run (RUN is its folder, reproduction/full) into
docs/full_run and its pictures into docs/images, and writes every passage between ``<!-- quoted: … -->`` and
``<!-- end -->`` anew. Without RUN it only checks the passages against docs/full_run, and fails where one differs; a
test does so.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from twoclock.study.report.content import SIGNS
from twoclock.study.verdicts import kind
from twoclock.study.words import number as in_words
from twoclock.study.words import span

HERE = Path(__file__).parent
KEPT = HERE / "full_run"
PAGES = (HERE.parent / "README.md", *sorted(HERE.glob("**/*.md")))
_PASSAGE = re.compile(r"(<!-- quoted: (?P<what>.+?) -->)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
DECADES = range(3, 8)
METRICS = {"fig2": "gap", "mdp": "gap"}  # where another than the one of the report's table is quoted on the way
_RAISED = str.maketrans("3456789", "³⁴⁵⁶⁷⁸⁹")
_TRIALS = ("tuning-", "warm-", "around", "near-", "map")
_MOST = 8  # numbers of one claim that a page shows; the report has all of them


def main(run: str | None) -> int:
    if run is not None:
        take_over(Path(run))
    stale = {page: text for page in PAGES if (text := quoted(page.read_text())) != page.read_text()}
    for page, text in stale.items():
        if run is not None:
            page.write_text(text)
        else:
            print(f"{page.relative_to(HERE.parent)} differs from docs/full_run; run: python docs/quoted.py RUN")
    return 1 if stale and run is None else 0


def take_over(run: Path) -> None:
    """The tables of a run, with each method's mean at powers of ten, and without the trials of its tuning."""
    KEPT.mkdir(exist_ok=True)
    for old in KEPT.glob("*.csv"):
        old.unlink()
    for table in sorted((run / "tables").glob("*.csv")):
        frame = pd.read_csv(table)
        if "folder" in frame:
            frame = frame[~frame["case"].str.startswith(_TRIALS)]
            on_the_way = [_decades(run / row.folder, METRICS.get(table.stem, row.metric)) for row in frame.itertuples()]
            kept = frame.drop(columns="folder").reset_index(drop=True).join(pd.DataFrame(on_the_way))
            kept.to_csv(KEPT / table.name, index=False, float_format="%.6g")
        else:
            shutil.copy(table, KEPT / table.name)
    for picture in (HERE / "images").glob("*.png"):
        for drawn in (*run.glob(picture.name), *run.glob(f"*/{picture.name}")):
            shutil.copy(drawn, picture)


def _decades(folder: Path, metric: str) -> dict[str, float]:
    """The mean over seeds at the marks that lie within 2 % of a power of ten."""
    history = pd.read_parquet(folder / "history.parquet", columns=["step", metric])
    means = history[history["step"] > 0].groupby("step")[metric].mean()
    found = {}
    for power in DECADES:
        nearest = min(means.index, key=lambda step: abs(step / 10**power - 1))
        if abs(nearest / 10**power - 1) < 0.02:
            found[f"1e{power}"] = float(means[nearest])
    return found


def quoted(text: str) -> str:
    """The page with all its passages made anew."""

    def passage(match: re.Match[str]) -> str:
        name, *words = match["what"].split(" ", 1)
        made = PASSAGES[name](*words)
        start, *_, end = match.groups()
        return f"{start}\n{made}\n{end}" if "\n" in match["text"] else f"{start}{made}{end}"

    return _PASSAGE.sub(passage, text)


def claims(which: str) -> str:
    """A table of claims: the paper's, ours, or of one experiment, those whose name begins so if one is given."""
    table = _claims()
    which, _, start = which.partition(": ")
    if which in ("paper", "ours"):
        table = table[table["ours"] == (which == "ours")]
    else:
        table = table[(table["experiment"] == which) & table["claim"].str.startswith(start)]
    lines = ["| | claim | place | verdict | measured |", "|---|---|---|---|---|"]
    for claim in table.itertuples():
        cells = (SIGNS[kind(claim.verdict)], claim.statement, claim.place, claim.verdict, _measured(claim.numbers))
        lines.append(f"| {' | '.join(str(cell).replace('|', '∣') for cell in cells)} |")
    return "\n".join(lines)


def ends(which: str) -> str:
    """Where each method of an experiment ends: one row a case and method."""
    experiment, _, start = which.partition(" ")
    table = pd.read_csv(KEPT / f"{experiment}.csv")
    table = table[table["case"].str.startswith(start)]
    lines = ["| case | method | mean at the end, 95 % interval | steps | seeds |", "|---|---|---|---|---|"]
    for row in table.itertuples():
        lost = f", {row.diverged} diverged" if row.diverged else ""
        mean = f"{row.mean:.3g} [{row.low:.3g}, {row.high:.3g}]"
        lines.append(f"| {row.case} | {row.method} | {mean} | {row.steps:,} | {row.seeds}{lost} |")
    return "\n".join(lines)


def decades(which: str) -> str:
    """The means at powers of ten: ``decades EXPERIMENT CASE [CASE …]: POWER POWER …``, one row a method."""
    names, _, powers = which.partition(": ")
    experiment, *cases = names.split(", ")
    table = pd.read_csv(KEPT / f"{experiment}.csv")
    columns = [f"1e{power}" for power in powers.split()]
    heads = [f"10{power.translate(_RAISED)}" for power in powers.split()]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for case in cases:
        rows = table[table["case"] == case]
        if rows.empty:
            raise SystemExit(f"{experiment} has no case {case!r}")
        for _, row in rows.iterrows():
            twice = ((table["method"] == row["method"]) & table["case"].isin(cases)).sum() > 1
            label = f"{row['method']} ({case})" if twice else row["method"]
            lines.append(f"| {label} | {' | '.join(f'{row[column]:.2g}' for column in columns)} |")
    return "\n".join(lines)


def across(which: str) -> str:
    """The means at a power of ten, a row a method and a column a case: ``across EXPERIMENT, CASE, CASE, …: POWER``."""
    names, _, power = which.partition(": ")
    experiment, *cases = names.split(", ")
    table = pd.read_csv(KEPT / f"{experiment}.csv")
    wide = table[table["case"].isin(cases)].pivot(index="method", columns="case", values=f"1e{power}")
    order = [method for method in dict.fromkeys(table["method"]) if method in wide.index]
    lines = [f"| | {' | '.join(cases)} |", "|---" * (1 + len(cases)) + "|"]
    lines += [f"| {method} | {' | '.join(f'{wide.loc[method, case]:.3g}' for case in cases)} |" for method in order]
    return "\n".join(lines)


def number(which: str) -> str:
    """One number of a claim: ``number EXPERIMENT: CLAIM: NUMBER``."""
    value = _of_claim(*which.split(": "))
    return _words(value) if isinstance(value, list) else f"{value:.2g}"


def percent(which: str) -> str:
    """The same, a share as a percentage."""
    return f"{_of_claim(*which.split(': ')):.0%}".replace("%", " %")


def between(which: str) -> str:
    """The smallest and the largest number of a claim: ``range EXPERIMENT: CLAIM``."""
    return span([_value(value) for value in _numbers(*which.split(": ")).values()], ".2f")


def _of_claim(experiment: str, claim: str, name: str) -> Any:
    found = _numbers(experiment, claim)
    if name not in found:
        raise SystemExit(f"{claim!r} of {experiment} has no number {name!r}; there are {', '.join(found)}")
    return found[name]


def _numbers(experiment: str, claim: str) -> dict[str, Any]:
    table = _claims().query("experiment == @experiment and claim == @claim")
    if table.empty:
        raise SystemExit(f"{experiment} has no claim {claim!r}")
    found: dict[str, Any] = json.loads(table["numbers"].iloc[0])
    return found


def run(which: str = "") -> str:
    """What the full run was: how many claims of each kind."""
    counts = {word: sum(kind(v) == key for v in _papers()["verdict"]) for key, word in _KINDS.items()}
    return ", ".join(f"{many} {word}" for word, many in counts.items() if many)


PASSAGES: dict[str, Callable[..., str]] = {
    "claims": claims, "ends": ends, "decades": decades, "across": across, "number": number, "percent": percent,
    "range": between, "run": run,
}  # fmt: skip
_KINDS = {
    "yes": "reproduced", "partly": "reproduced only in part", "no": "not reproduced", "vacuous": "vacuous",
    "undecided": "not decided", "open": "not decidable",
}  # fmt: skip


def _claims() -> pd.DataFrame:
    return pd.read_csv(KEPT / "claims.csv")


def _papers() -> pd.DataFrame:
    table = _claims()
    return table[~table["ours"]]


def _measured(text: str) -> str:
    numbers = json.loads(text)
    shown = [f"{name}: {_words(value)}" for name, value in list(numbers.items())[:_MOST]]
    return "; ".join([*shown, *(["…"] if len(numbers) > _MOST else [])])


def _words(value: object) -> str:
    if isinstance(value, list) and len(value) == 3:
        return f"{_figures(value[0])} [{_figures(value[1])}, {_figures(value[2])}]"
    return _figures(value)


def _figures(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else in_words(value)


def _value(value: object) -> float:
    return float(value[0] if isinstance(value, list) else value)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
