"""The report: verdicts follow the data, and the page opens in a real browser with nothing missing."""

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pandas as pd
import psutil
import pytest

import twoclock as tc
from reproduction import experiments
from reproduction.__main__ import main
from reproduction.experiment import Case, Claim
from twoclock import plot
from twoclock.storage import sealed_folder

ROOT = Path(__file__).parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


def experiment():
    """Two methods on a small problem, one figure, one claim with an awkward text."""
    module = ModuleType("tiny")
    module.TITLE = "A tiny experiment"
    module.ALT = {"tiny": "Error of two methods against steps."}
    steps = tc.Power(2.0, shift=20.0)
    methods = {"Fast": tc.Fast(steps, steps, "40/(k+160)"), "Standard": tc.Standard(steps, steps)}

    def claims(records):
        ratio = (
            records["one"]["Standard"].summary("error")["mean"].iloc[-1]
            / records["one"]["Fast"].summary("error")["mean"].iloc[-1]
        )
        verdict = "reproduced" if ratio > 1e-3 else "not reproduced"
        numbers = {"ratio": float(ratio), "an interval": [0.1, 0.25], "count": 12345}
        return [
            Claim("tiny-id", "Fast <b>beats</b> & standard", "Section 1", "ratio > 0.001", numbers, verdict, ("one",)),
            Claim("tiny-ours", "It <i>runs</i>", "ours", "it ends", {"steps": 300}, "reproduced", ("one",)),
        ]

    module.cases = lambda quick: {"one": Case(tc.problems.quadratic(dim=2), methods, 300, 5, title="two dimensions")}
    module.draw = lambda records: {"tiny": plot.compare(records["one"], "error")}
    module.panel = lambda ax, records: plot.curves(ax, records["one"], "error")
    module.claims = claims
    module.advice = lambda records: ["Use something better.", "Use `tc.Polyak(…)`."]
    module.relative_errors = lambda records: {"quadratic": {"Fast": 1.5}}
    return module


@pytest.fixture
def tiny(monkeypatch):
    module = experiment()
    monkeypatch.setattr(experiments, "discover", lambda: {"tiny": module})
    return module


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A reproduction, made once. A test that changes it works on a copy."""
    out = tmp_path_factory.mktemp("reproduction")
    module = experiment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "discover", lambda: {"tiny": module})
        assert main(["tiny", "--quick", "--out", str(out)]) == 0
    return out / "quick"


@pytest.fixture
def reproduced(written, tmp_path):
    return shutil.copytree(written, tmp_path / "quick")


def test_everything_is_written(reproduced):
    names = {str(path.relative_to(reproduced)) for path in reproduced.rglob("*") if path.is_file()}
    assert {"report.html", "report.md", "summary.png", "summary.svg", "tables/claims.csv", "tables/tiny.csv"} <= names
    assert {"tiny/tiny.png", "tiny/tiny.svg", "tiny/one/Fast/spec.json", "tiny/one/Standard/history.parquet"} <= names
    claims = pd.read_csv(reproduced / "tables" / "claims.csv")
    assert json.loads(claims["numbers"][0])["count"] == 12345
    table = pd.read_csv(reproduced / "tables" / "tiny.csv")
    assert (table["low"] <= table["mean"]).all()
    assert (table["mean"] <= table["high"]).all()
    assert all((reproduced / folder / "spec.json").is_file() for folder in table["folder"])


def test_the_page_needs_nothing_else_and_escapes_what_it_prints(reproduced):
    page = (reproduced / "report.html").read_text()
    assert "Fast &lt;b&gt;beats&lt;/b&gt; &amp; standard" in page
    assert not re.search(r'(?:src|href)="https?:', page)
    assert page.count("<img") == page.count('alt="') == 2
    for link in re.findall(r'href="([^"#]+)"', page):
        assert link == "data:," or (reproduced / link).exists(), link
    for word in ("Quick run", "jax", "cores", "python -m reproduction tiny --quick", "Use something better."):
        assert word in page
        assert word in (reproduced / "report.md").read_text() or word == "Quick run"


def test_the_page_says_first_what_was_found_then_what_to_use_then_the_details(reproduced):
    page = (reproduced / "report.html").read_text()
    order = [
        '<nav aria-label="Contents">', "of the paper's 1 claim, 1 is reproduced.", "<figure", 'id="instead"',
        "Use something better.", 'id="claims"', 'id="ours"', 'id="tiny"', "<b>Rule.</b>", 'id="provenance"',
    ]  # fmt: skip
    page = page.replace("&#39;", "'")
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(re.findall(r'id="([^"]+)"', page))
    papers, ours = page[places[5] : places[6]], page[places[6] : places[7]]
    assert "beats" in papers and "runs" not in papers  # noqa: PT018
    assert "runs" in ours and "beats" not in ours  # noqa: PT018
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>|<[^>]+>", "", page, flags=re.DOTALL)
    assert "two dimensions" in text
    assert not re.search(r"`|tiny-id|tiny-ours", text)
    assert ">one<" not in page
    assert "<code>tc.Polyak(…)</code>" in page


def test_a_second_run_computes_nothing_and_writes_the_same(written, reproduced, tiny, monkeypatch):
    before = {path: path.read_bytes() for path in written.rglob("*.*") if path.is_file() and path.name != "screen.json"}
    (written / "screen.json").unlink()  # else it is all that is read
    monkeypatch.setattr("reproduction.experiment.tc.solve", None)
    assert main(["tiny", "--quick", "--out", str(written.parent)]) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert main(["--report", str(reproduced)]) == 0


def test_records_of_another_patch_version_are_taken(reproduced, tiny, monkeypatch):
    note = json.loads((reproduced / "reproduction.json").read_text())
    (reproduced / "reproduction.json").write_text(json.dumps({**note, "twoclock": "0.2.99"}))
    for path in reproduced.glob("tiny/one/*/spec.json"):
        spec = sealed_folder.unseal(path.read_bytes())
        spec["versions"]["twoclock"] = "0.2.99"
        path.write_text(sealed_folder.seal(spec))
    monkeypatch.setattr("reproduction.experiment.tc.solve", None)
    assert main(["tiny", "--quick", "--out", str(reproduced.parent)]) == 0
    assert "twoclock 0.2.99" in (reproduced / "report.md").read_text()


def test_other_data_another_verdict(reproduced, tiny):
    fast = tc.load(reproduced / "tiny" / "one" / "Fast")
    worse = fast.history.assign(error=fast.history["error"] * 1e6)
    replace(fast, history=worse).save(reproduced / "tiny" / "one" / "Fast")
    assert "not reproduced" not in (reproduced / "tables" / "claims.csv").read_text()
    assert main(["--report", str(reproduced)]) == 0
    assert "not reproduced" in (reproduced / "tables" / "claims.csv").read_text()


def test_trouble_is_one_line(reproduced, tiny, capsys, tmp_path):
    capsys.readouterr()

    def line(*args):
        assert main(list(args)) == 2
        output = capsys.readouterr().err.strip()
        assert "\n" not in output
        return output

    assert "did you mean 'tiny'?" in line("tinny")
    assert "has none; leave --resume out" in line("--resume", "--out", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert "must be a reproduction's" in line("--report", str(tmp_path))
    (reproduced / "reproduction.json").write_text('{"twoclock": "0.0.1"}')
    output = line("tiny", "--quick", "--out", str(tmp_path))
    assert "was made by twoclock 0.0.1" in output
    assert "remove it to redo, or choose another" in output
    (reproduced / "reproduction.json").write_text(json.dumps({"twoclock": tc.__version__}))
    shutil.rmtree(reproduced / "tiny" / "one" / "Fast")
    assert "lacks records of tiny, one" in line("--report", str(reproduced))


def test_ctrl_c_stops_every_process_and_says_how_to_go_on(tmp_path):
    """The signal goes to the parent alone, as from a supervisor; at a terminal all of them get it."""
    command = [sys.executable, "-m", "reproduction", "quadratic", "table1", "--out", str(tmp_path)]
    parent = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    begun = set()
    while len(begun) < 2:
        line = parent.stdout.readline()
        assert line, "it ended by itself"
        begun.add(line.split(":")[0])
    assert begun == {"quadratic", "table1"}
    workers = psutil.Process(parent.pid).children(recursive=True)
    assert parent.poll() is None
    assert len(workers) >= 3  # two experiments and the messenger
    parent.send_signal(signal.SIGINT)
    output, _ = parent.communicate(timeout=120)
    assert parent.returncode == 130, output
    assert list(tmp_path.glob("full/*/*/checkpoint"))  # they were at work
    assert output.strip().endswith(f"to resume: python -m reproduction quadratic table1 --out {tmp_path} --resume")
    assert "Traceback" not in output
    assert not psutil.wait_procs(workers, timeout=20)[1]


def test_a_checkpoint_of_other_settings_is_not_in_the_way(tiny, tmp_path):
    stale = tmp_path / "quick" / "tiny" / "one" / "checkpoint" / "0"
    tc.solve(tc.problems.quadratic(dim=3), tc.Fast(), 50, 2, checkpoint=stale)
    assert main(["tiny", "--quick", "--out", str(tmp_path)]) == 0


@pytest.mark.skipif(BROWSER is None, reason="no browser found; `apt-get install chromium` brings one")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser(reproduced, width, scheme):
    from playwright.sync_api import sync_playwright

    trouble = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda line: trouble.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("requestfailed", lambda request: trouble.append(request.url))
        page.goto((reproduced / "report.html").as_uri())
        figures = page.locator("img")
        assert figures.count() == 2
        for i in range(2):
            figures.nth(i).scroll_into_view_if_needed()
            assert figures.nth(i).is_visible()
            assert figures.nth(i).evaluate("img => img.complete && img.naturalWidth > 0")
            assert figures.nth(i).get_attribute("alt")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width > 1000:  # what was found, the picture and what to use instead are on the first screen
            last = page.locator(".instead li").last.bounding_box()
            assert last["y"] + last["height"] < 800
        cells = "Math.max(...[...document.querySelectorAll('.claims tbody td')].map(cell => cell.clientHeight))"
        assert page.evaluate(cells) <= 60  # two lines
        grey = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--open')")
        assert grey not in ("", page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--no')"))
        page.locator("summary", has_text="Every method").click()
        head = page.locator("details th", has_text="mean")
        column = page.locator("details td:nth-child(4)")
        orders = []
        for _ in range(2):
            head.click()
            orders.append([float(text) for text in column.all_inner_texts()])
        assert orders[0] == sorted(orders[0])
        assert orders[1] == orders[0][::-1]
        page.emulate_media(media="print")
        assert not page.locator("nav").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    assert trouble == []
