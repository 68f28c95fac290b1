"""The report of ``tc.evaluate`` in a browser: first screen, phone, dark, print."""

import shutil

import numpy as np
import pytest

import twoclock as tc

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two policies on a log of machines, one of them worse."""
    rng = np.random.default_rng(0)
    service, wear = rng.integers(2, size=(80, 25)), np.zeros((80, 26), int)
    for day in range(25):
        wear[:, day + 1] = np.where(service[:, day], 0, np.minimum(wear[:, day] + (rng.random(80) < 0.5), 4))
    columns = {
        "state": wear[:, :-1].ravel(),
        "action": service.ravel(),
        "reward": (1 - 0.3 * wear[:, :-1] - 0.5 * service).ravel(),
        "terminated": np.zeros(2_000, bool),
        "machine": np.repeat(np.arange(80), 25),
    }
    policies = {"careful": np.eye(2)[[0, 0, 1, 1, 1]], "never": np.eye(2)[[0, 0, 0, 0, 0]]}
    value = tc.evaluate(tc.logs.read(columns, episode="machine"), policies, gamma=0.9)
    return value, value.report(tmp_path_factory.mktemp("value"))


@pytest.mark.skipif(BROWSER is None, reason="no browser found; `apt-get install chromium` brings one")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_verdict_the_number_and_what_speaks_against_it_come_first(report, width, scheme):
    from playwright.sync_api import sync_playwright

    value, path = report
    trouble = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda line: trouble.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto(path.as_uri())
        assert value.decision in page.locator("h1").inner_text()
        assert "`" not in page.locator("header").inner_text()
        tops = [page.locator(part).first.bounding_box()["y"] for part in ("h1", ".values", "figure")]
        assert tops == sorted(tops)
        assert tops[1] < 700
        assert page.locator(".values .row").count() == len(value.policies)
        assert page.locator("img").evaluate("img => img.complete && img.naturalWidth > 0")
        for media in ("screen", "print"):
            page.emulate_media(media=media)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    assert trouble == []
