"""The report of an evaluation: one HTML file in the style of the reproduction's, and its tables as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from twoclock import plot, storage
from twoclock.plot.report_page import embed_svg, render_page
from twoclock.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from twoclock.logs.ope_result import Value

_WORDS = {
    "table": ("Estimates", "The first row of a policy is the one that counts; the others speak for or against it."),
    "differences": ("Differences", "Policies against each other on the same episodes."),
    "diagnostics": (
        "Checks",
        "Each number with the thresholds from which it warns, or from which nothing can be told.",
    ),
}
_PICTURE = (
    "Left: every estimator with its interval. Middle: the weights that turn the log's transitions into the policy's. "
    "Right, for tables: how often the log is in each state and how often the policy would be."
)
_SIGNS = {"fine": ("yes", "✓"), "warning": ("partly", "◐"), "fatal": ("no", "✗")}


def write(value: Value, folder: Path) -> Path:
    """Write the report; returns the path of its page."""
    tables = {"table": value.table, "differences": value.differences, "diagnostics": value.diagnostics}
    for name, frame in tables.items():
        storage.put(folder / f"{name}.csv", frame.to_csv(index=False))
    drawn = plot.render(value.plot())
    for kind, content in drawn.items():
        storage.put(folder / f"value.{kind}", content)
    asked = value.settings
    data, width = embed_svg(drawn["svg"])
    page = render_page(
        Path(__file__).parent / "templates",
        "value.html.j2",
        policies=[_headline(value[name]) for name in value.policies],
        lead=f"{asked['rows']:,} transitions in {asked['episodes']:,} episodes, discount {asked['gamma']:g}, "
        f"{asked['size']:,} features ({asked['features']}).",
        warnings=value.warnings,
        picture={"width": width, "data": data, "words": _PICTURE},
        tables=[_table(name, frame) for name, frame in tables.items()],
        settings=[*((name, _cell(entry)) for name, entry in asked.items()), ("twoclock", __version__)],
    )
    return storage.put(folder / "report.html", page)


def _headline(one: Value) -> dict[str, str]:
    grades = set(one.diagnostics["grade"])
    worst = next((grade for grade in ("fatal", "warning") if grade in grades), "fine")
    kind, sign = _SIGNS[worst]
    return {"verdict": one.verdict, "kind": kind, "sign": sign}


def _table(name: str, frame: pd.DataFrame) -> dict[str, object]:
    title, words = _WORDS[name]
    return {
        "title": title, "words": words, "file": f"{name}.csv", "columns": [str(column) for column in frame.columns],
        "rows": [[_cell(entry) for entry in row] for row in frame.itertuples(index=False)],
    }  # fmt: skip


def _cell(entry: object) -> str:
    if isinstance(entry, dict):
        return "; ".join(f"{key}: {_cell(item)}" for key, item in entry.items()) or "none"
    if isinstance(entry, float):
        return "" if entry != entry else f"{entry:.5g}"
    return str(entry)
