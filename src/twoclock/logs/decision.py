"""The decision that an evaluation supports, in one sentence, and the page that shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from twoclock import storage
from twoclock.logs.diagnostics import harmless_starts
from twoclock.protocols import list_names
from twoclock.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from twoclock.logs.ope_result import Value

Grade = Literal["yes", "partly", "open", "no"]
_SIGNS = {"yes": "✓", "partly": "◐", "open": "?", "no": "✗"}
_TODAY = re.compile(r"behaviou?r|logg(ed|ing)|today|current|baseline|status quo", re.IGNORECASE)
_CHECKS = "Each number with the thresholds from which it warns, or from which no estimate is given."
_TITLES = {
    "table": ("Estimates", "The first row of a policy is the one that counts; the others speak for or against it."),
    "differences": ("Differences", "Policies against each other on the same episodes, for all pairs at once."),
    "diagnostics": ("Checks", _CHECKS),
    "ranking": ("Ranking", "The largest value first, with intervals that hold for all policies at once."),
}
_PICTURE = (
    "Left: every estimator with its interval. Middle: the weights that turn the log's transitions into the policy's. "
    "Right, for tables: how often the log is in each state and how often the policy would be."
)


class Decision(NamedTuple):
    """The recommended decision in one sentence, and how sure it is."""

    sentence: str
    grade: Grade


class Gain(NamedTuple):
    """How much more a policy is worth than another, with its interval."""

    value: float
    low: float
    high: float


def decide(v: Value) -> Decision:
    """Decide which policy to take: the best one that is shown to be better, or why there is none."""
    firsts = v.table.drop_duplicates("policy").set_index("policy")
    known = firsts[firsts["supported"]]
    if known.empty:
        why = v.diagnostics[v.diagnostics["grade"] == "fatal"]["sentence"]
        whose = "the policy is" if len(firsts) == 1 else "any of the policies is"
        reason = f": {why.iloc[0]}" if len(why) else ""
        return Decision(f"Do not decide by this log. It cannot say what {whose} worth{reason}.", "no")
    best = str(known["value"].idxmax())
    today = next((str(name) for name in known.index if name != best and _is_today(v, str(name))), None)
    if len(known) == 1:
        sentence, grade = _against_log(v, best, _amounts(v, known.loc[best]))
        if len(firsts) > 1:
            others = list_names([str(name) for name in firsts.index if name != best])
            sentence += f" Of {others} it can say nothing."
            grade = "partly" if grade == "yes" else grade
    else:
        sentence, grade = _between_policies(v, best, today)
    warned = v.diagnostics[(v.diagnostics["grade"] == "warning") & v.diagnostics["policy"].isin(known.index)]
    if len(warned):
        many = "one check warns" if len(warned) == 1 else f"{len(warned)} checks warn"
        sentence += f" {'Also,' if grade == 'open' else 'But'} {many}: read the warnings first."
        grade = "partly" if grade == "yes" else grade
    return Decision(sentence, grade)


def condition_on_starts(v: Value) -> str:
    """What must hold of starts that the log lacks, so that the numbers hold; empty where ``start`` is given."""
    rare, bounds, noted = 1.0, list[str](), v.diagnostics[v.diagnostics["name"] == "starts"]
    starts = dict(zip(noted["policy"], noted["value"], strict=True))
    for row in v.table.drop_duplicates("policy").to_dict("records"):
        if name := row["policy"] if row["policy"] in starts else "":
            rare, least, most = harmless_starts(row["value"], row["low"], row["high"], int(starts[name]))
            whose = f" with {name}" if len(v.policies) > 1 else ""
            bounds.append(f"less than {least:.4g} or more than {most:.4g}{whose}")
    return f"if no kind of start rarer than {rare:.2g} is worth {', '.join(bounds)}" if bounds else ""


def _is_today(v: Value, name: str) -> bool:
    """Whether the policy is the one that wrote the log, by its probabilities or by its name."""
    mine = v.diagnostics[(v.diagnostics["policy"] == name) & (v.diagnostics["name"] == "behaviour")]
    return bool((mine["grade"] == "fine").any()) or bool(_TODAY.search(name))


def _gain(v: Value, one: str, other: str) -> Gain | None:
    """The difference of two policies' values; None where it was not estimated."""
    for row in v.differences.to_dict("records"):
        if row["supported"] and (row["policy"], row["minus"]) == (one, other):
            return Gain(row["difference"], row["low"], row["high"])
        if row["supported"] and (row["policy"], row["minus"]) == (other, one):
            return Gain(*(0.0 - row[name] for name in ("difference", "high", "low")))  # no −0
    return None


def _amounts(v: Value, row: Any) -> str:
    """A number with its unit and its interval."""
    unit = v.settings.get("unit") or ""
    value, low, high = row if isinstance(row, Gain) else (row["value"], row["low"], row["high"])
    return f"{value:.3g}{f' {unit}' if unit else ''} [{low:.3g}, {high:.3g}]"


def _against_log(v: Value, name: str, amount: str) -> tuple[str, Grade]:
    called = "the policy" if name == "policy" else name
    found = v.settings.get("gains", {}).get(name)
    if found is None or _is_today(v, name):
        start = f"{called[0].upper()}{called[1:]} is worth {amount}."
        return f"{start} Evaluate another policy beside it for a comparison.", "open"
    gain = Gain(*found)
    if gain.low > 0:
        return f"Take {called}: it beats what the log did by {_amounts(v, gain)}.", "yes"
    if gain.high < 0:
        less = Gain(-gain.value, -gain.high, -gain.low)
        return f"Do not take {called}: it is worse than what the log did by {_amounts(v, less)}.", "no"
    start = f"This log does not show whether {called} is better than what it did"
    return f"{start}: the difference is {_amounts(v, gain)}.", "open"


def _between_policies(v: Value, best: str, today: str | None) -> tuple[str, Grade]:
    firsts = v.table.drop_duplicates("policy").set_index("policy")
    ranked = firsts[firsts["supported"]].sort_values("value", ascending=False).index.astype(str).tolist()
    second = next(name for name in ranked if name != best)
    against = today or second
    gain = _gain(v, best, against)
    if gain is None:
        return f"{best} has the highest value, and no interval says by how much.", "open"
    if gain.low <= 0:
        keep = f"keep {today}" if today else f"{best} and {against} may be equally good"
        return f"No policy is shown to be the best, so {keep}: {best} − {against} is {_amounts(v, gain)}.", "open"
    sentence = f"{'Keep' if _is_today(v, best) else 'Take'} {best}: it beats {against} by {_amounts(v, gain)}."
    open_ones = []
    for name in ranked:
        rest = _gain(v, best, name) if name not in (best, against) else None
        if rest is not None and rest.low <= 0:
            open_ones.append(name)
    if open_ones:
        sentence += f" Whether {list_names(open_ones)} would be as good is open."
    return sentence, "yes"


def write_report(v: Value, folder: str | Path) -> Path:
    """Write ``report.html``, a single file, and the tables as CSV; return its path."""
    from twoclock.plot import render
    from twoclock.plot.report_page import embed_svg, render_page

    out, settings, tables = storage.writable(folder), v.settings, v.tables()
    for name, frame in tables.items():
        storage.put(out / f"{name}.csv", frame.to_csv(index=False))
    pictures = render(v.plot())
    for kind, content in pictures.items():
        storage.put(out / f"value.{kind}", content)
    data, width = embed_svg(pictures["svg"])
    checks = tables["diagnostics"]
    failed = checks.index.isin(graded_checks(v, "warning", "fatal", "note").index)
    shown = {**tables, "diagnostics": checks.assign(remedy=checks["remedy"].where(failed, ""))}
    decision, unit = decide(v), settings.get("unit") or f"units of {settings.get('reward', 'reward')}"
    page = render_page(
        Path(__file__).parent / "templates",
        "value.html.j2",
        filters={"cell": cell},
        condition=condition_on_starts(v),
        decision=decision.sentence,
        kind=decision.grade,
        sign=_SIGNS[decision.grade],
        bars=_bars(v),
        level=f"{settings['level']:.0%}",
        meaning=f"The value of a policy is what it earns in an episode on average, in {unit}"
        + (f", later rewards discounted by {settings['gamma']:g} a step." if settings["gamma"] < 1 else "."),
        lead=f"From {settings['rows']:,} steps in {settings['episodes']:,} episodes that another policy made.",
        against=_graded(v, "warning", "fatal"),
        notes=_graded(v, "note"),
        dropped=settings["dropped"],
        actions=list_names([repr(action) for action in settings.get("actions") or ()], 30),
        picture={"width": width, "data": data, "words": _PICTURE},
        tables=[(*_TITLES[name], f"{name}.csv", frame) for name, frame in shown.items()],
        settings={**settings, "twoclock": __version__},
    )
    return storage.put(out / "report.html", page)


def _bars(v: Value) -> list[dict[str, object]]:
    """Each policy with its value, its interval, and their positions on a common scale in percent."""
    firsts = v.table.drop_duplicates("policy")
    known = firsts[firsts["supported"]]
    low, high = (
        (known[["low", "high"]].to_numpy().min(), known[["low", "high"]].to_numpy().max()) if len(known) else (0, 1)
    )
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return round(float(100 * (0.04 + 0.92 * (value - low) / span)), 2)

    bars: list[dict[str, object]] = []
    for row in firsts.to_dict("records"):
        name = "the policy" if row["policy"] == "policy" else row["policy"]
        if not row["supported"]:
            bars.append({"name": name, "text": "cannot be estimated from this log", "supported": False})
            continue
        left, middle, right = place(row["low"]), place(row["value"]), place(row["high"])
        amount = _amounts(v, row)
        bars.append(
            {"name": name, "text": amount, "supported": True, "left": left, "middle": middle, "width": right - left}
        )
    return bars


def graded_checks(v: Value, *grades: str) -> pd.DataFrame:
    """The checks of these grades; among notes not that of importance sampling, an estimator that was not chosen."""
    grade, name = v.diagnostics["grade"], v.diagnostics["name"]
    return v.diagnostics[grade.isin(grades) & ~((grade == "note") & (name == "ratios"))]


def _graded(v: Value, *grades: str) -> list[tuple[str, str, str]]:
    """The checks of these grades: the policy, the sentence and the remedy; what policies share is listed once."""
    failed = graded_checks(v, *grades)
    whose: dict[tuple[str, str], list[str]] = {}
    for row in failed.to_dict("records"):
        whose.setdefault((row["sentence"], row["remedy"]), []).append(str(row["policy"]))
    several = len(v.policies) > 1
    return [
        (list_names(names) if several else "", _capitalise(sentence), _capitalise(remedy))
        for (sentence, remedy), names in whose.items()
    ]


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def cell(entry: object) -> str:
    """The text of a table entry or a setting in the report."""
    if isinstance(entry, dict):
        return "; ".join(f"{key}: {cell(item)}" for key, item in entry.items()) or "none"
    if isinstance(entry, list):
        return ", ".join(map(cell, entry))
    if isinstance(entry, float):
        return "" if entry != entry else f"{entry:.5g}"
    return str(entry)
