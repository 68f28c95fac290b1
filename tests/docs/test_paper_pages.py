"""The errata and the map of the paper name files, functions and tests that exist; other pages name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"`((?:src|tests|reproduction)/[\w/.]+)(::?)(\w+)`")


def missing(page: str) -> list[str]:
    """What a page names and the tree does not have."""
    found = []
    for path, colons, name in NAME.findall(page):
        kinds = "def" if colons == "::" else "def|class"
        defined = rf"^ *(?:{kinds}) {name}\b" if colons == "::" else rf"^ *(?:(?:{kinds}) {name}\b|{name}\b.* = )"
        file = ROOT / path
        if not file.is_file() or not re.search(defined, file.read_text(), re.MULTILINE):
            found.append(f"{path}{colons}{name}")
    return found


@pytest.mark.parametrize("name", ["errata", "paper_map"])
def test_every_name_on_the_page_exists(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert len(NAME.findall(page)) > 15
    assert len(re.findall(r"`(?:src|tests|reproduction)/", page)) == len(NAME.findall(page))
    assert missing(page) == []


def test_a_name_that_is_gone_is_found():
    page = "`src/twoclock/methods/fast.py:Slow` `tests/docs/test_gone.py::test_x` `src/twoclock/methods/fast.py:Fast`"
    assert missing(page) == ["src/twoclock/methods/fast.py:Slow", "tests/docs/test_gone.py::test_x"]


def test_every_row_has_lines_of_the_source_and_evidence():
    """A line beyond the source, or a row without evidence, is a slip of ours."""
    page = (ROOT / "docs" / "errata.md").read_text()
    assert all(100 <= int(line) <= 2216 for line in re.findall(r"\bL(\d{2,})\b", page))
    for row in re.findall(r"^\| .*\|$", page.split("## Slips")[0], re.MULTILINE):
        assert row.count("|") == 5
        assert row.rstrip("| ").rsplit("|", 1)[-1].strip()


def test_every_file_that_a_page_names_exists():
    named = re.compile(r"`((?:tests|examples|bench|docs|src|reproduction|faults)/[\w/.-]+\.(?:py|toml|md|csv))")
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        if page.name not in {"extending.md", "own_method.md"}  # their files are for the reader to write
        for name in named.findall(page.read_text())
        if not (ROOT / name).exists()
    ]
    assert not missing
