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
    assert len(ours) < 30
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


def test_figures_of_a_claim_in_a_sentence(quoted, monkeypatch):
    """A range leaves out that the halves differ; small shares keep two figures; what is missing is named."""
    found = {"a": 0.0006, "b": [1.0, 0.9, 1.2], "c": 1.0, "not confirmed": "all seeds: reproduced"}
    monkeypatch.setattr(quoted, "_numbers", lambda experiment, claim: found)
    assert quoted.between("auto: auto, random") == "0.00 to 1.00"
    assert [quoted.percent(f"auto: auto, random: {name}") for name in "ac"] == ["0.06 %", "100 %"]
    with pytest.raises(SystemExit, match="has no number 'd'"):
        quoted.number("auto: auto, random: d")
    with pytest.raises(SystemExit, match="fig1 has no case nowhere"):
        quoted.seeds("fig1, nowhere")
