"""Labels that are markup: in tables on the terminal, in pictures, and in the pages of a report."""

from __future__ import annotations

import html.parser
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import twoclock as tc
from faults.campaign import Trial
from reproduction import runner
from reproduction.experiment import Case, Claim
from reproduction.report import write
from twoclock import plot

NAME = "labels"

PIECES = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</title>",
    '" onmouseover="x',
    "'",
    "&lt;",
    "{{ 7*7 }}",
    "{% for %}",
    "javascript:alert(1)",
    "[a](javascript:alert(1))",
    "![x](http://x)",
    "`",
    "| a | b |",
    "\n# title",
    "*b*",
    "[bold]",
    "[/]",
    "$\\frac{$",
    "$x$",
    "_hidden",
    "%s",
    "{0}",
    "\\",
    "..",
    "a/b",
    "\x1b[31m",
    "é",
    "漢",
    "\u202e",
)


class Tags(html.parser.HTMLParser):
    """What a browser would obey, but for the type of words that a page sets in code, below and above."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = ("href", "src", "action")
        active = [n for n, v in attrs if n.startswith("on") or (n in link and str(v).startswith("javascript:"))]
        self.found += [tag, *active] if tag not in ("code", "sub", "sup") else active


def obeyed(folder: Path) -> list[str]:
    """The tags of the page, and of the Markdown its headings, its rows with their cells, its links and its tags."""
    tags = Tags()
    tags.feed((folder / "report.html").read_text())
    for line in re.sub(r"`[^`\n]*`", "", (folder / "report.md").read_text()).splitlines():
        if re.match(r"#+ ", line):
            tags.found.append("heading")
        if line.startswith("|"):
            cells = re.findall(r"(?<!\\)[|]", line)
            tags.found.append(f"row of {len(cells)}")
        tags.found += re.findall(r"(?<!\\)</?[a-zA-Z]", line)
        tags.found += ["a link elsewhere"] * len(re.findall(r"(?<!\\)\]\((?:javascript|http):", line))
    return sorted(tags.found)


def trials(scale: float, seed: int) -> Iterator[Trial]:
    rng = random.Random(seed)
    problem = tc.problems.quadratic(dim=2)
    results = tc.solve(problem, {"a": tc.Fast(), "b": tc.Standard()}, 20, 2)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        plain = _page(Path(name) / "plain", "one", "two", results)
        for i in range(max(int(60 * scale), 5)):
            one, two = ("".join(rng.sample(PIECES, rng.randint(1, 3))) + str(j) for j in range(2))
            yield Trial("a picture", _picture(one, two, results))
            try:
                page = _page(Path(name) / str(i), one, two, results)
                other = sorted((Counter(page) - Counter(plain)) + (Counter(plain) - Counter(page)))
                fault = f"{one!r}, {two!r}: {other}" if other else None
            except tc.InputError as error:
                fault = "more than one line" if "\n" in str(error) else None
            except Exception as error:
                fault = f"{one!r}: {type(error).__name__}: {error!s:.100}"
            yield Trial("the pages of a report", fault)


def _picture(one: str, two: str, results: dict[str, tc.Result]) -> str | None:
    try:
        fig = plot.compare({one: results["a"], two: results["b"]}, "error", title=one)
        plot.render(fig)
    except Exception as error:
        return f"{one!r}: {type(error).__name__}: {error!s:.100}"
    shown = len(fig.axes[0].get_legend().get_texts())
    return None if shown == 2 else f"{one!r}: {shown} of 2 lines in the legend"


def _page(out: Path, one: str, two: str, results: dict[str, tc.Result]) -> list[str]:
    """The tags of a report whose case, method and claim bear the labels."""
    module = ModuleType("made_up")
    module.TITLE = one  # type: ignore[attr-defined]
    case = Case(tc.problems.quadratic(dim=2), {one: tc.Fast(), two: tc.Standard()}, 20, 2)
    module.cases = lambda quick: {one: case}  # type: ignore[attr-defined]
    module.draw = lambda records: {"picture": plot.compare(records[one], "error")}  # type: ignore[attr-defined]
    claim = Claim(one, one, two, one, {two: 1.0}, "reproduced")
    module.claims = lambda records: [claim]  # type: ignore[attr-defined]
    outcome = runner.run_experiment("made_up", module, out)
    write([outcome], {}, out, {one: two}, quick=False)
    return obeyed(out)
