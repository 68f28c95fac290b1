"""Look at the built site in a browser, offline: every page, on a phone and a screen, light and dark; links; search.

python docs/check_site.py [docs/_build/html]
"""

import functools
import http.server
import re
import shutil
import sys
import threading
from pathlib import Path
from urllib.parse import quote, unquote, urldefrag

from playwright.sync_api import sync_playwright

WIDTHS, SCHEMES = (390, 1400), ("light", "dark")
PATIENCE = 120_000  # ms for a page, on a machine that is busy otherwise
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
# Text against what lies behind it, by the formula of the Web Content Accessibility Guidelines.
CONTRAST = """() => {
  const rgb = c => (c.match(/[\\d.]+/g) || [0, 0, 0]).map(Number);
  const light = c => rgb(c).slice(0, 3).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const p = document.querySelector('article p, article li') || document.body;
  let behind = p;
  while (behind && (rgb(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
  const [a, b] = [light(getComputedStyle(p).color), light(getComputedStyle(behind || document.body).backgroundColor)];
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
}"""
# The narrowest cell of a table that holds more than a word: a column must not shrink to a few letters.
COLUMN = """() => Math.min(999, ...[...document.querySelectorAll('article td, article th')]
  .filter(cell => cell.innerText.length > 12).map(cell => cell.clientWidth))"""
# How far the widest block of code reaches beyond its column.
CODE = "() => Math.max(0, ...[...document.querySelectorAll('article pre')].map(p => p.scrollWidth - p.clientWidth))"
# What people search for, and the page that must come first.
SEARCHED = {
    "learning rate": "which",
    "confidence interval": "intervals",
    "off-policy": "logs",
    "average reward": "average_reward",
    "disturbance": "lqr",
}


def pages(site):
    """The pages of the site, without the theme's templates in _static."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def broken_links(site):
    """Links of one page to another, and to a place in it, that lead nowhere."""
    texts = {path: path.read_text() for path in pages(site)}
    places = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    for path, text in texts.items():
        for link in set(re.findall(r'(?:href|src)="([^"]+)"', text)):
            if re.match(r"[a-z]+:|//", link):
                continue
            name, place = urldefrag(unquote(link.replace("&amp;", "&")))
            target = (path.parent / name.partition("?")[0]).resolve() if name else path.resolve()
            if not target.exists() and path.name not in {"search.html", "genindex.html"}:
                yield f"{path.relative_to(site)}: {link} leads nowhere"
            elif place and target in places and place not in places[target]:
                yield f"{path.relative_to(site)}: {link} has no such place"


def look(site, address, browser):
    for scheme in SCHEMES:
        for width in WIDTHS:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            context.set_default_timeout(PATIENCE)
            yield from (
                f"{trouble}, {width} pixels, {scheme}" for trouble in _walk(site, address, context.new_page(), width)
            )
            context.close()
    page = browser.new_page()
    for words, answer in SEARCHED.items():
        page.goto(f"{address}/search.html?q={quote(words)}", timeout=PATIENCE)
        first = page.wait_for_selector("#search-results li a", timeout=PATIENCE).get_attribute("href")
        if first.partition("#")[0].partition("?")[0] != f"{answer}.html":
            yield f"a search for {words!r} leads to {first} first, not to {answer}.html"


def _walk(site, address, page, width):
    problems = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    ours = (address, "data:", "blob:")
    page.on("request", lambda asked: None if asked.url.startswith(ours) else problems.append(f"asks for {asked.url}"))
    for path in pages(site):
        where = str(path.relative_to(site))
        page.goto(f"{address}/{where}", wait_until="load")
        wide, contrast = page.evaluate("document.documentElement.scrollWidth"), page.evaluate(CONTRAST)
        problems += [f"{wide} pixels wide"] if wide > width else []
        problems += [f"contrast {contrast:.1f}"] if contrast < 4.5 else []
        column = page.evaluate(COLUMN)
        problems += [f"a column of {column} pixels"] if column < 60 else []
        code = page.evaluate(CODE)
        problems += [f"code {code} pixels wider than its column"] if code else []
        yield from (f"{where}: {trouble}" for trouble in problems)
        problems.clear()


def main(site):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    troubles = list(broken_links(site))
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser, args=list(FLAGS))
        troubles += look(site, f"http://127.0.0.1:{server.server_port}", opened)
        opened.close()
    server.shutdown()
    print(
        "\n".join(troubles)
        or f"{len(pages(site))} pages are as they should be at {WIDTHS} pixels, {' and '.join(SCHEMES)}; search finds."
    )
    return bool(troubles)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/_build/html").resolve()))
