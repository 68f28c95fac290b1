"""The numbers that README and docs quote from the full run and from ``make bench``.

``python -m docs.quoted RUN`` takes over the tables of a full run (RUN is its folder, results/full) into
docs/full_run and its pictures into docs/images, and writes every passage between ``<!-- quoted: … -->`` and
``<!-- end -->`` again. Tables of experiments that RUN does not have stay, and are named. ``--bench`` instead of RUN
writes the passages again after ``make bench``. Without either it only checks the passages against docs/full_run and
docs/bench, and fails where one differs; a test does so.
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction.comparisons import number as in_words
from reproduction.comparisons import span
from reproduction.experiment import is_detail
from reproduction.verdicts import SIGNS, kind

HERE = Path(__file__).parent
KEPT = HERE / "full_run"
PAGES = (HERE.parent / "README.md", *sorted(HERE.glob("**/*.md")))
_PASSAGE = re.compile(r"(<!-- quoted: (?P<what>.+?) -->)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
DECADES = range(3, 8)
METRICS = ("error", "gap")  # stored at powers of ten
_RAISED = str.maketrans("3456789", "³⁴⁵⁶⁷⁸⁹")
_TRIALS = ("tuning-", "warm-", "around", "near-", "map")
_MOST = 8  # numbers of one claim that a page shows; the report has all of them


def main(run: str | None = None, quick: str | None = None) -> int:
    if run == "--against" and quick is not None:
        print(side_by_side(Path(quick)))
        return 0
    if run not in (None, "--bench"):
        take_over(Path(run))
    stale = {page: text for page in PAGES if (text := quoted(page.read_text())) != page.read_text()}
    for page, text in stale.items():
        if run is not None:
            page.write_text(text)
        else:
            print(f"{page.relative_to(HERE.parent)} differs from docs/full_run; run: python -m docs.quoted RUN")
    return 1 if stale and run is None else 0


def take_over(run: Path) -> None:
    """The tables of a run, with each method's mean at powers of ten, and without the trials of its tuning."""
    KEPT.mkdir(exist_ok=True)
    new = pd.read_csv(run / "tables" / "claims.csv", keep_default_na=False)
    old = _claims() if (KEPT / "claims.csv").exists() else new.iloc[:0]
    stay = old[~old["experiment"].isin(new["experiment"])]
    if len(stay):
        print(f"unchanged, since {run} has none: {', '.join(stay['experiment'].unique())}")
    pd.concat([new, stay]).to_csv(KEPT / "claims.csv", index=False)
    for table in sorted(set((run / "tables").glob("*.csv")) - {run / "tables" / "claims.csv"}):
        frame = pd.read_csv(table)
        frame = frame[~frame["case"].astype(str).str.startswith(_TRIALS)]
        on_the_way = [_decades(run / row.folder) for row in frame.itertuples()]
        kept = frame.drop(columns="folder").reset_index(drop=True).join(pd.DataFrame(on_the_way))
        kept.to_csv(KEPT / table.name, index=False, float_format="%.6g")
    for picture in (HERE / "images").glob("*.png"):
        of_all = () if len(stay) else run.glob(picture.name)  # a summary is of all experiments
        for drawn in (*of_all, *run.glob(f"*/{picture.name}")):
            shutil.copy(drawn, picture)
    note = json.loads((run / "reproduction.json").read_text())
    earlier = _note()
    days = earlier.get("experiments", {}) | dict.fromkeys(sorted(new["experiment"].unique()), note["ended"])
    # A run of some experiments is not the full run, whose day and time stay.
    note |= {"experiments": days} | ({key: earlier[key] for key in ("ended", "minutes", "cores")} if len(stay) else {})
    (KEPT / "run.json").write_text(json.dumps(note) + "\n")


def _note() -> dict[str, Any]:
    """When the full run ended, how long it took, and the day of each experiment."""
    found: dict[str, Any] = json.loads((KEPT / "run.json").read_text()) if (KEPT / "run.json").exists() else {}
    return found


def _decades(folder: Path) -> dict[str, float]:
    """The mean over seeds at the marks that lie within 2 % of a power of ten, of each metric that there is."""
    history = pd.read_parquet(folder / "history.parquet")
    means = history[history["step"] > 0].groupby("step").mean(numeric_only=True)
    found = {}
    for power in DECADES:
        nearest = min(means.index, key=lambda step: abs(step / 10**power - 1))
        if abs(nearest / 10**power - 1) < 0.02:
            found |= {f"{name} 1e{power}": float(means.loc[nearest, name]) for name in METRICS if name in means}
    return found


def quoted(text: str) -> str:
    """The page with all its passages written again."""

    def passage(match: re.Match[str]) -> str:
        name, *words = match["what"].split(" ", 1)
        made = PASSAGES[name](*words)
        start, *_, end = match.groups()
        return f"{start}\n{made}\n{end}" if "\n" in match["text"] else f"{start}{made}{end}"

    return _PASSAGE.sub(passage, text)


def side_by_side(quick: Path) -> str:
    """Of each of the paper's rows the verdict of the full run and that of a quick one."""
    full, other = (
        table[~table["ours"] & ~table["detail"]].set_index("claim")["verdict"]
        for table in (_claims(), pd.read_csv(quick / "tables" / "claims.csv", keep_default_na=False))
    )
    rows = []
    for name, verdict in full.items():
        short = other.get(name, "left to the full run")
        same = "" if kind(short) == kind(verdict) else "open" if kind(short) in ("left", "undecided") else "differs"
        rows.append((name, verdict, short, same))
    counts = {word: sum(row[3] == word for row in rows) for word in ("", "open", "differs")}
    said = f"{len(rows)} rows: {counts['']} the same kind, {counts['open']} open here, {counts['differs']} differ"
    return f"{_lines(('claim', 'full run', 'quick run', ''), rows)}\n\n{said}"


def bench(which: str) -> str:
    """The table that a bench wrote to docs/bench."""
    table = pd.read_csv(HERE / "bench" / f"{which}.csv")

    def cell(value: object) -> str:
        return (
            f"{float(f'{value:.2g}'):,g}"
            if isinstance(value, float)
            else f"{value:,}"
            if isinstance(value, int)
            else str(value)
        )

    return _lines(list(table), [[cell(value) for value in row] for row in table.itertuples(index=False)])


def bench_cell(which: str) -> str:
    """One number of a bench's table: ``bench-cell NAME: ROW: COLUMN``."""
    name, row, column = which.split(": ")
    return f"{pd.read_csv(HERE / 'bench' / f'{name}.csv', index_col=0).loc[row, column]:.2g}"


def claims(which: str) -> str:
    """A table of claims: the paper's, ours, or of one experiment, those whose name begins so if one is given."""
    table = _claims()
    which, _, start = which.partition(": ")
    if which == "paper":
        rows = [
            (
                SIGNS[kind(claim.verdict)],
                f"“{claim.quote}” ({claim.place})<br>*Read as:* {claim.statement}.<br>*Rule:* {claim.rule}.",
                claim.finding,
                claim.verdict,
            )
            for claim in _papers().itertuples()
        ]
        return _lines(("", "claim", "found", "verdict"), rows)
    if which == "ours":
        table = table[table["ours"] & ~table["detail"]]
    else:
        table = table[(table["experiment"] == which) & table["claim"].str.startswith(start)]
    rows = [
        (SIGNS[kind(claim.verdict)], claim.statement, claim.place, claim.verdict, _measured(claim.numbers))
        for claim in table.itertuples()
    ]
    return _lines(("", "claim", "place", "verdict", "measured"), rows)


def ends(which: str) -> str:
    """Where each method of an experiment ends: one row per case and method."""
    experiment, _, start = which.partition(" ")
    table = pd.read_csv(KEPT / f"{experiment}.csv")
    rows = []
    for row in table[table["case"].str.startswith(start)].itertuples():
        lost = f", {row.diverged} diverged" if row.diverged else ""
        mean = f"{row.mean:.3g} [{row.low:.3g}, {row.high:.3g}]"
        rows.append((row.case, row.method, mean, f"{row.steps:,}", f"{row.seeds}{lost}"))
    return _lines(("case", "method", "mean at the end, 95 % interval", "steps", "seeds"), rows)


def decades(which: str) -> str:
    """Means at powers of ten, one row per method: ``decades EXPERIMENT, CASE, …: METRIC POWER POWER …``."""
    table, _, metric, powers = _asked(which)
    rows = []
    for _, row in table.iterrows():
        twice = (table["method"] == row["method"]).sum() > 1
        label = f"{row['method']} ({row['case']})" if twice else row["method"]
        rows.append((label, *(f"{row[f'{metric} 1e{power}']:.2g}" for power in powers)))
    return _lines(("", *(f"10{power.translate(_RAISED)}" for power in powers)), rows)


def across(which: str) -> str:
    """Means at a power of ten, a row per method and a column per case: ``across EXPERIMENT, CASE, …: METRIC POWER``."""
    table, cases, metric, (power,) = _asked(which)
    wide = table.pivot(index="method", columns="case", values=f"{metric} 1e{power}")
    methods = dict.fromkeys(table["method"])
    return _lines(("", *cases), [(name, *(f"{wide.loc[name, case]:.3g}" for case in cases)) for name in methods])


def seeds(which: str) -> str:
    """How many seeds a case had: ``seeds EXPERIMENT, CASE``."""
    experiment, case = which.split(", ")
    found = pd.read_csv(KEPT / f"{experiment}.csv").query("case == @case")
    if found.empty:
        raise SystemExit(f"{experiment} has no case {case}")
    return str(found["seeds"].iloc[0])


def _asked(which: str) -> tuple[pd.DataFrame, list[str], str, list[str]]:
    """The rows of the cases that are named, in their order, the cases, the metric and the powers of ten."""
    names, _, what = which.partition(": ")
    experiment, *cases = names.split(", ")
    table = pd.read_csv(KEPT / f"{experiment}.csv")
    if lacking := set(cases) - set(table["case"]):
        raise SystemExit(f"{experiment} has no case {', '.join(sorted(lacking))}")
    metric, *powers = what.split()
    return pd.concat([table[table["case"] == case] for case in cases]), cases, metric, powers


def _lines(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    cells = [[str(cell).replace("|", "∣") for cell in row] for row in (heads, *rows)]
    first, *others = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in cells]
    return "\n".join([first, "|---" * len(heads) + "|", *others])


def number(which: str) -> str:
    """One number of a claim: ``number EXPERIMENT: CLAIM: NUMBER``."""
    value = _of_claim(*which.split(": "))
    if isinstance(value, int):
        return f"{value:,}"
    return _words(value) if isinstance(value, list) else f"{value:.2g}"


def percent(which: str) -> str:
    """The same, a share as a percentage."""
    share = f"{100 * _of_claim(*which.split(': ')):.2g}"
    return f"{float(share):g} %"


def between(which: str) -> str:
    """The smallest and the largest number of a claim: ``range EXPERIMENT: CLAIM``."""
    found = {name: value for name, value in _numbers(*which.split(": ")).items() if name != "not confirmed"}
    return span([_value(value) for value in found.values()], ".2f")


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


def when(which: str = "") -> str:
    """Which run the paper's rows are of, or the numbers of the default method."""
    days, of = _note().get("experiments", {}), "auto" if which == "default" else "paper"
    if which == "default" and of not in days:
        return "the last full run, of the version before this one, whose default had no test for arrival"
    if of not in days:
        return "a quick run, until the next full one"
    day = datetime.date.fromisoformat(days[of])
    return f"the full run of {day.day} {day:%B %Y}"


PASSAGES: dict[str, Callable[..., str]] = {
    "when": when,
    "claims": claims, "ends": ends, "decades": decades, "across": across, "number": number, "percent": percent,
    "seeds": seeds, "range": between, "run": run, "bench": bench, "bench-cell": bench_cell,
}  # fmt: skip
_KINDS = {
    "yes": "reproduced", "partly": "reproduced only in part", "no": "not reproduced", "vacuous": "vacuous",
    "undecided": "not decided", "open": "not decidable", "left": "left to the next full run",
}  # fmt: skip


def _claims() -> pd.DataFrame:
    table = pd.read_csv(KEPT / "claims.csv", keep_default_na=False)
    names = zip(table["experiment"], table["claim"], strict=True)
    return table.assign(detail=[is_detail(*name) for name in names])  # as claims.toml has it now


def _papers() -> pd.DataFrame:
    table = _claims()
    return table[~table["ours"]]


def _measured(text: str) -> str:
    """The first numbers of a claim, one per line; of the verdicts of the halves only that they differ."""
    numbers = json.loads(text)
    if "not confirmed" in numbers:
        numbers["not confirmed"] = "the halves of the seeds lead to other verdicts"
    shown = [f"{name}: {_words(value)}" for name, value in list(numbers.items())[:_MOST]]
    return "<br>".join([*shown, *(["…"] if len(numbers) > _MOST else [])])


def _words(value: object) -> str:
    if isinstance(value, list) and len(value) == 3:
        return f"{_figures(value[0])} [{_figures(value[1])}, {_figures(value[2])}]"
    return _figures(value)


def _figures(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else in_words(value)


def _value(value: object) -> float:
    return float(value[0] if isinstance(value, list) else value)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
