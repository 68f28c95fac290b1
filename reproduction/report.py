"""The report: one HTML file that needs nothing else, the same in Markdown, the tables as CSV, and a summary."""

import datetime
import json
import math
import os
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from reproduction import FULL_RUN
from reproduction.comparisons import join_words, number
from reproduction.experiment import Claim, Records
from reproduction.runner import ExperimentOutcome, Picture
from reproduction.verdicts import SIGNS, Kind, kind
from twoclock import plot, storage
from twoclock.intervals import bootstrap_mean

SUMMARY = "One claim a panel, with what was found in its title."
# The panels of the summary, six at most, by experiment: what a title calls them.
_LABELS = {"auto": "No step size to choose", "coverage": "Error bars cover", "bilevel": "Bilevel"}
_HERE = Path(__file__).parent
_TONES = {"✓": "#00664b", "◐": "#7a4b00", "✗": "#a3320b"}
_LINE, _COLUMNS, _MOST_PANELS = 36, 3, 6  # characters above a panel; panels in a row and in all
# What a count of verdicts is called, in their order.
_WORDS = {
    "yes": "reproduced", "partly": "only where …", "no": "not reproduced", "vacuous": "vacuous",
    "undecided": "not decided", "open": "not decidable", "left": "left to the full run",
}  # fmt: skip
_ADVICE = 3  # sentences on the first screen
# The most methods of one case that the page lists; a longer list is in the CSV file alone.
_LISTED = 16
_ENDS = ["case", "method", "metric", "mean", "low", "high", "steps", "seeds", "diverged", "folder"]
# What a table shows of a run: the first of these metrics that it has.
_METRICS = ("error", "gap", "gradient")
Draw = Callable[[plot.Axes, Records], None]
# What an experiment gives the summary: label → the drawing, and the name of the claim that it is about.
Panels = Mapping[str, tuple[Draw, str]]
Outcomes = Sequence[ExperimentOutcome]


def write(
    outcomes: Outcomes, panels: Mapping[str, Panels], out: Path, provenance: Mapping[str, object], *, quick: bool
) -> dict[str, Path]:
    """Write report.html, report.md, the summary picture and the tables; returns their paths by name.

    Args:
        panels: for each experiment that has some, what it gives the summary.
        provenance: what made the numbers, for the end of the report.
        quick: mark every page as a quick run.
    """
    outcomes = sorted(outcomes, key=lambda o: all(claim.ours for claim in o.claims))  # the paper's come first
    report = gather(outcomes, _summary(outcomes, panels, out, quick=quick), out, provenance, quick=quick)
    written = {}
    for name, finalize in (("report.html", None), ("report.md", markdown)):
        page = plot.render_page(
            _HERE / "templates", f"{name}.j2", filters={"prose": prose}, finalize=finalize, report=report
        )
        written[name] = storage.put(out / name, page)
    tables = {"claims": claims_table(outcomes), **{o.name: final_numbers(o, out) for o in outcomes}}
    for name, table in tables.items():
        written[f"{name}.csv"] = storage.put(out / "tables" / f"{name}.csv", table.to_csv(index=False))
    return written


def panels_of(name: str, module: object) -> Panels:
    """What a module gives the summary: its ``PANELS``, or its ``panel`` about its first claim."""
    if hasattr(module, "PANELS"):
        panels: Panels = module.PANELS
        return panels
    return {_LABELS.get(name, name): (module.panel, "")} if hasattr(module, "panel") else {}


def _summary(outcomes: Outcomes, panels: Mapping[str, Panels], out: Path, *, quick: bool) -> Picture:
    """Draw a claim a panel, six at most, with the finding in its title; none that these records cannot decide."""
    shown = []
    for outcome in sorted(outcomes, key=lambda o: (o.name != "paper", o.name not in _LABELS)):
        for label, (draw, about) in panels.get(outcome.name, {}).items():
            claim = next((c for c in outcome.claims if c.name == about), outcome.claims[0] if outcome.claims else None)
            if claim is not None and not (quick and kind(claim.verdict) == "left" and len(outcomes) > 1):
                shown.append((label, draw, outcome.records, claim))
    shown = shown[:_MOST_PANELS]
    columns = min(_COLUMNS, max(1, len(shown)))
    fig, axes = plot.figure(max(1, math.ceil(len(shown) / columns)), columns, width=3.5, height=2.7)
    for ax in axes.flat[len(shown) :]:
        ax.set_visible(False)
    for ax, (label, draw, records, claim) in zip(axes.flat, shown, strict=False):
        draw(ax, records)
        sign = SIGNS[kind(claim.verdict)]
        title = textwrap.shorten(f"{sign} {label}: {summarised(claim)}", _LINE, placeholder=" …")
        ax.set_title(title, fontsize="medium", loc="left", fontweight="bold", color=_TONES.get(sign, "0.3"))
        if ax.get_legend() is not None:
            ax.legend(frameon=False, fontsize="small")
    if quick:
        plot.stamp(fig, "quick run: fewer seeds and steps")
    drawn = plot.render(fig)
    files = {form: storage.put(out / f"summary.{form}", content) for form, content in drawn.items()}
    return Picture(SUMMARY, files, drawn["svg"])


def in_short(verdict: str) -> str:
    """A verdict in a word, with its condition.

    >>> in_short("reproduced"), in_short("not reproduced"), in_short("reproduced only where k ≥ 500")
    ('yes', 'no', 'only where k ≥ 500')
    """
    words = {"reproduced": "yes", "not reproduced": "no"}
    return words.get(verdict, verdict.removeprefix("reproduced ").replace("is about ", "≈ "))


def against_full_run(claims: Iterable[Claim], kept: Path = FULL_RUN) -> str:
    """What the full run says of the paper's rows, and how many of them these claims confirm; empty without one."""
    note = storage.note(kept, "run")
    if "ended" not in note:
        return ""
    table = pd.read_csv(kept / "claims.csv", keep_default_na=False).query("not ours and not detail")
    full = {(str(row.claim), str(row.statement)): kind(str(row.verdict)) for row in table.itertuples()}
    decided = {key: found for key, found in full.items() if found not in ("undecided", "left")}
    here = {(claim.name, claim.statement): kind(claim.verdict) for claim in claims}
    same = sum(here.get(key) == found for key, found in decided.items())
    unsaid = sum(here.get(key, "left") in ("undecided", "left") for key in decided)
    day = datetime.date.fromisoformat(note["ended"])
    return (
        f"The full run of {day.day} {day:%B %Y} decided {len(decided)} of the paper's {len(full)} claims; this run "
        f"confirms {same}, leaves {unsaid} open and contradicts {len(decided) - same - unsaid or 'none'}."
    )


def gather(
    outcomes: Outcomes, summary: Picture, root: Path, provenance: Mapping[str, object], *, quick: bool
) -> dict[str, Any]:
    """Everything that the pages show, by the names that the templates have for it, with links relative to ``root``."""
    sections = [_section(outcome, root) for outcome in outcomes]
    rows = [row for section in sections for row in section["rows"] if not row["claim"].detail]
    rows_claims = [row["claim"] for row in rows]
    papers, ours = ([row for row in rows if row["claim"].ours is own] for own in (False, True))
    return {
        "quick": quick,
        "headline": headline([claim for outcome in outcomes for claim in outcome.claims], quick=quick),
        "findings": findings(outcomes),
        "against": against_full_run(rows_claims) if quick else "",
        "kinds": _WORDS,
        "instead": [first_clause(advice[0]) for outcome in outcomes if (advice := outcome.advice)][:_ADVICE],
        "summary": _image("summary", summary),
        "sections": sections,
        "papers": papers,
        "ours": ours,
        "counts": Counter(row["kind"] for row in papers),
        "relative_errors": [
            (task, method, f"{ratio:.3g}")
            for outcome in outcomes
            for task, methods in outcome.relative_errors.items()
            for method, ratio in methods.items()
        ],
        "provenance": [(name, number(value)) for name, value in provenance.items()],
        "rules_changed": tomllib.loads((_HERE / "rule_changes.toml").read_text(encoding="utf-8"))["change"],
    }


def first_clause(advice: str) -> str:
    """What an advice asks for; its reasons and numbers stand with the experiment.

    >>> first_clause("Average the iterates. It ends at 1.1."), first_clause("Take LSTD; it needs no steps.")
    ('Average the iterates.', 'Take LSTD.')
    """
    return re.split(r"[.;] ", advice.rstrip("."))[0] + "."


def findings(outcomes: Outcomes) -> list[str]:
    """What was found, in three to five plain sentences, from the claims alone."""
    claims = {claim.name: claim for outcome in outcomes for claim in outcome.claims if not claim.ours}
    groups = (
        {"Theorems as printed": [claim for name, claim in claims.items() if name.startswith("theorem-")]},
        {
            "Rates, up to logarithms": [c for name, c in claims.items() if name.endswith(("rate", "cold", "markov"))],
            "Table 1, faster than two time scales where the coupling has a kink": [
                claim for name, claim in claims.items() if name.startswith("table1-") and claim.cases
            ],
        },
    )
    said = ([f"{words}: {_of_all(some)}" for words, some in group.items() if some] for group in groups)
    found = [f"{'; '.join(parts)}." for parts in said if parts]
    for name, words in (("fig1-tdc", "Figure 1, against TDC"), ("fig2", "Figure 2")):
        if name in claims:
            end = next(value for of, value in claims[name].numbers.items() if of.endswith("at the end"))
            found.append(f"{words}: {summarised(claims[name])}, and ends at {end:.3g} times its rival's error.")
    return found


def summarised(claim: Claim) -> str:
    """What was found of a claim in a few words."""
    return claim.short or in_short(claim.verdict)


def _of_all(claims: Sequence[Claim]) -> str:
    """How many of some claims are reproduced, and what becomes of the others.

    >>> _of_all([Claim("name", "statement", "Section 1", "rule", {}, verdict) for verdict in ("reproduced",) * 2])
    '2 of 2 are reproduced'
    """
    others = [claim for claim in claims if kind(claim.verdict) != "yes"]
    reproduced = f"{len(claims) - len(others)} of {len(claims)} are reproduced"
    return f"{reproduced}, {join_words(_not_reproduced(others))}" if others else reproduced


def headline(claims: Iterable[Claim], *, quick: bool = False) -> str:
    """What was found, in one sentence.

    >>> verdicts = ("reproduced", "not reproduced")
    >>> headline([Claim("name", "statement", "Section 1", "rule", {}, verdict) for verdict in verdicts])
    "Of the paper's 2 claims, 1 is reproduced and 1 fails."
    """
    papers = [claim for claim in claims if not claim.ours and not claim.detail]
    speed = [claim for claim in papers if claim.speed]
    if not papers:
        return "No claim of the paper was tested."
    claimed = f"{len(papers)} claim{'s' if len(papers) > 1 else ''}"
    found = f"{'In this quick run, of' if quick else 'Of'} the paper's {claimed}, {_shares(papers)}"
    if speed:
        found += f"; of the {len(speed)} that say Fast is faster, {_shares(speed)}"
    return f"{found}."


def _shares(claims: Sequence[Claim]) -> str:
    yes = sum(kind(claim.verdict) == "yes" for claim in claims)
    reproduced = f"{yes} {'is' if yes == 1 else 'are'} reproduced" if yes else "none is reproduced"
    return join_words([reproduced, *_not_reproduced(claims)])


def _not_reproduced(claims: Sequence[Claim]) -> list[str]:
    """How many hold only in part, fail, and so on: a part of a sentence for each kind that there is."""
    words: dict[Kind, tuple[str, str]] = {
        "partly": ("holds only in part", "hold only in part"), "no": ("fails", "fail"),
        "vacuous": ("is vacuous", "are vacuous"), "undecided": ("is not decided", "are not decided"),
        "open": ("cannot be decided",) * 2, "left": ("is left to the full run", "are left to the full run"),
    }  # fmt: skip
    counts = Counter(kind(claim.verdict) for claim in claims)
    return [
        f"{counts[each]} {one if counts[each] == 1 else many}" for each, (one, many) in words.items() if counts[each]
    ]


def _section(outcome: ExperimentOutcome, root: Path) -> dict[str, Any]:
    """One experiment: its figures, its claims with links to the runs behind them, its advice, its final numbers."""
    table = final_numbers(outcome, root)
    sizes = table.groupby("case")["method"].transform("size")
    table = table[table["case"].isin(list(outcome.compared)) & (sizes <= _LISTED)]
    table = table.assign(case=table["case"].map(dict(outcome.titles)), metric=table["metric"].replace(plot.LABELS))
    rows = [
        {
            "anchor": f"{outcome.name}-{i}",
            "claim": claim,
            "kind": kind(claim.verdict),
            "sign": SIGNS[kind(claim.verdict)],
            "numbers": [(name, number(value)) for name, value in claim.numbers.items()],
            "runs": [(outcome.titles[c], _link(outcome.home(c), root)) for c in claim.cases or outcome.compared],
        }
        for i, claim in enumerate(outcome.claims, 1)
    ]
    return {
        "name": outcome.name,
        "title": outcome.title,
        "folder": _link(outcome.folder, root),
        "images": [_image(name, picture) for name, picture in outcome.pictures.items()],
        "rows": rows,
        "advice": outcome.advice,
        "columns": [str(column) for column in table.columns[:-1]],
        "table": [[number(value) for value in row[:-1]] for row in table.itertuples(index=False)],
        "links": [str(link) for link in table["folder"]],
    }


def _image(name: str, picture: Picture) -> dict[str, Any]:
    data, width = plot.embed_svg(picture.svg)
    return {"name": name, "words": picture.alt, "data": data, "width": width}


def _link(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix() + "/"


def final_numbers(outcome: ExperimentOutcome, root: Path) -> pd.DataFrame:
    """Each method's progress at the last step of each case: mean, its 95 % bootstrap interval, and the run's folder."""
    rows: list[dict[str, Any]] = []
    for case, results in outcome.records.items():
        for method, result in results.items():
            last = result.history[result.history["step"] == result.history["step"].max()]
            metric = next((name for name in _METRICS if name in last.columns), None)
            values = last[metric].to_numpy(float) if metric else np.array([np.nan])
            low, high = bootstrap_mean(values[None, :])
            rows.append(
                {
                    "case": case,
                    "method": method,
                    "metric": metric or "",
                    "mean": float(values.mean()),
                    "low": float(low[0]),
                    "high": float(high[0]),
                    "steps": int(result.spec["steps"]),
                    "seeds": len(result.spec["seeds"]),
                    "diverged": int(result.diverged.sum()),
                    "folder": _link(outcome.home(case, method), root),
                }
            )
    return pd.DataFrame(rows, columns=_ENDS)


def claims_table(outcomes: Outcomes) -> pd.DataFrame:
    """One row a claim, its numbers as JSON; a number with its interval is a list [value, low, high]."""
    columns = ["experiment", "claim", "statement", "place", "rule", "numbers", "verdict", "cases", "ours"]
    columns += ["quote", "finding", "detail"]
    rows = [
        (
            outcome.name, claim.name, claim.statement, claim.place, claim.rule,
            json.dumps(dict(claim.numbers), ensure_ascii=False), claim.verdict,
            " ".join(claim.cases or outcome.records), claim.ours, claim.quote, claim.finding, claim.detail,
        )
        for outcome in outcomes
        for claim in outcome.claims
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def markdown(value: object) -> object:
    """A label or a sentence inside Markdown: it stays on its line and in its cell, and makes no link and no tag.

    >>> markdown("a|b\\n# [x](y) <b> `k<2`")
    'a\\\\|b # \\\\[x\\\\](y) \\\\<b> `k<2`'
    """
    if not isinstance(value, str):
        return value
    parts = " ".join(value.split()).split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is only itself
        parts[-2:] = [f"{parts[-2]}&#96;{parts[-1]}"]
    escaped = [
        part.replace("|", r"\|") if i % 2 else re.sub(r"([\\\[\]<|])", r"\\\1", part) for i, part in enumerate(parts)
    ]
    return re.sub("^([#>])", r"\\\1", "`".join(escaped))  # at the start of a line it would be a heading, or a quotation


def prose(text: str) -> Markup:
    """A sentence as HTML: what stands in backticks is code; elsewhere c_α has a subscript and k^-2/3 an exponent.

    >>> str(prose("use `a<b>`, c_α and k^-2/3."))
    'use <code>a&lt;b&gt;</code>, c<sub>α</sub> and k<sup>-2/3</sup>.'
    """
    parts = str(escape(text)).split("`")
    for i, part in enumerate(parts):
        plain = re.sub(r"\^([-−]?[\d/½⅔⅖]+)", r"<sup>\1</sup>", part)
        plain = re.sub(r"(?<=\b\w)_(\w)\b", r"<sub>\1</sub>", plain)
        parts[i] = f"<code>{part}</code>" if i % 2 else plain
    return Markup("".join(parts))
