"""Every Python block of README and docs runs as it stands, pasted in order; steps, seeds and long loops are cut here.

Blocks that need what is not at hand (a cluster, a GPU) are marked `<!-- not run: why -->`. The files of
docs/extending.md are run by test_extending, the tutorials' cells in full when the site is built.
"""

import functools
import inspect
import os
import re
from pathlib import Path

import jax
import pytest

import twoclock as tc

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?P<note><!-- not run: .+? -->\n+)?^```(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S
)
ELSEWHERE = {"extending.md": "test_extending"}
LOOP = re.compile(r"\brange\((\d+_000)\)")
STEPS, SEEDS, LOOPS = 60, 2, 300
# A page takes some seconds to compile what it shows: here the first screen and the how-tos, all of them in `make docs`.
EVERYWHERE = bool(os.environ.get("TWOCLOCK_ALL_SNIPPETS"))
FULL_LENGTH = {"docs/intervals.md"}  # it looks at marks far into the run


def pages():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        inner = path.relative_to(ROOT)
        if not EVERYWHERE and inner.name != "README.md" and "howto" not in inner.parts:
            continue
        if inner.parts[:2] not in {("docs", "tutorials"), ("docs", "_build")} and path.name not in ELSEWHERE:
            yield str(inner)


def blocks(text):
    """The Python blocks that are to run, each with the line on which it begins."""
    for found in BLOCK.finditer(text):
        if found["language"] == "python" and not found["note"]:
            yield text[: found.start("code")].count("\n"), LOOP.sub(f"range({LOOPS})", found["code"])


def cut(function):
    """The same function on few steps and seeds: what is asked is whether it runs."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def small(*args, **options):
        given = inspect.signature(function).bind(*args, **options)
        asked = given.arguments
        asked["steps"] = min(asked.get("steps", STEPS), STEPS)
        if "seeds" in known:
            asked["seeds"] = min(asked.get("seeds", SEEDS), SEEDS)
        asked |= {"rungs": 1} if "rungs" in known else {"processes": 1} if "processes" in known else {}
        return function(*given.args, **given.kwargs)

    return small


@pytest.fixture
def pasted(monkeypatch, tmp_path):
    """Runs code outside the strict settings of the other tests, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield lambda code, page, names: exec(compile(code, page, "exec"), names)


@pytest.mark.parametrize("page", [page for page in pages() if any(blocks((ROOT / page).read_text()))])
def test_snippets_run(page, pasted, monkeypatch):
    places = [(tc, "solve"), (tc, "sweep"), (tc, "tune"), (tc.agents, "run")]
    for module, name in places if page not in FULL_LENGTH else ():
        monkeypatch.setattr(module, name, cut(getattr(module, name)))
    names = {"__name__": "__main__"}
    for line, code in blocks((ROOT / page).read_text()):
        pasted("\n" * line + code, page, names)


def test_every_block_says_what_it_is():
    """A block without a language would silently never run."""
    bare = [
        f"{page}:{text[: found.start()].count(chr(10)) + 1}"
        for page in pages()
        for text in [(ROOT / page).read_text()]
        for found in BLOCK.finditer(text)
        if not found["language"] and not found[0].startswith("```{")
    ]
    assert not bare, f"say ```python, ```sh or ```text: {bare}"


def test_a_broken_snippet_is_noticed(pasted):
    text = "intro\n\n```python\nimport twoclock as tc\ntc.no_such_thing\n```\n\n"
    text += "<!-- not run: a cluster -->\n```python\n1/0\n```\n"
    ((line, code),) = blocks(text)
    assert line == 3
    with pytest.raises(AttributeError):
        pasted(code, "page", {})
