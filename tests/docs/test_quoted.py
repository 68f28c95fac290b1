"""What README and docs quote of the full run is what its tables say."""

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def quoted(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import quoted

    yield quoted
    del sys.modules["quoted"]


def test_pages_quote_the_full_run(quoted):
    assert quoted.main(None) == 0
    marked = [page.name for page in quoted.PAGES if "<!-- quoted: " in page.read_text()]
    assert {"README.md", "claims.md"} <= set(marked)


def test_the_tables_of_claims_are_short_and_decided(quoted):
    papers, ours = quoted._papers(), quoted._claims().query("ours and not detail")
    assert len(ours) < 35
    assert (papers["verdict"].map(quoted.kind) == "undecided").mean() <= 0.1
    assert papers["quote"].str.len().min() > 0
    assert papers["place"].str.contains(r"L\d+").all()


def test_a_number_that_differs_is_found(quoted, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    text = (DOCS / "claims.md").read_text()
    page.write_text(text.replace("reproduced |", "doubted |", 1))
    assert page.read_text() != text
    monkeypatch.setattr(quoted, "HERE", tmp_path / "docs")
    monkeypatch.setattr(quoted, "PAGES", (page,))
    assert quoted.main(None) == 1
    assert "page.md differs from docs/full_run" in capsys.readouterr().out
