"""A second call shows the screen of the first, and never that of other code, records, pictures or options."""

import io
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import twoclock as tc
from reproduction import __main__, experiments
from reproduction.__main__ import main
from reproduction.experiment import Case, Claim
from twoclock import plot

ROOT = Path(__file__).parents[2]


def found(records):
    error = float(records["one"]["Fast"].history["error"].iloc[-1])
    return [Claim("ends", "It ends well", "Section 1", "error < 1000", {}, ("not " * (error > 1000)) + "reproduced")]


@pytest.fixture
def tiny(monkeypatch):
    module = ModuleType("tiny")
    module.TITLE = "A tiny experiment"
    module.cases = lambda quick: {"one": Case(tc.problems.quadratic(dim=2), {"Fast": tc.Fast()}, 100, 4)}
    module.draw = lambda records: {"tiny": plot.compare(records["one"], "error")}
    module.claims = found
    asked = []

    def discover():
        asked.append(module)
        return {"tiny": module}

    monkeypatch.setattr(experiments, "discover", discover)
    return asked  # once for each call that goes beyond the screen that was kept


def change_record(folder, code, monkeypatch):
    fast = tc.load(folder / "tiny" / "one" / "Fast")
    replace(fast, history=fast.history.assign(error=1e6)).save(folder / "tiny" / "one" / "Fast")


def change_code(folder, code, monkeypatch):
    code.write_text("STEPS = 2\n")


def remove_picture(folder, code, monkeypatch):
    (folder / "tiny" / "tiny.png").unlink()


def choose_an_engine(folder, code, monkeypatch):
    monkeypatch.setenv("TWOCLOCK_ENGINE", "xla")


CHANGES = (change_record, change_code, remove_picture, choose_an_engine)


@pytest.mark.parametrize("change", CHANGES)
def test_the_screen_is_shown_again_until_something_changes(change, tiny, tmp_path, monkeypatch, capsys):
    code = tmp_path / "code" / "experiment.py"
    code.parent.mkdir()
    code.write_text("STEPS = 1\n")
    monkeypatch.setattr(__main__, "code_folders", lambda: (code.parent,))
    monkeypatch.setenv("TWOCLOCK_ENGINE", "c")
    folder, words = tmp_path / "quick", ["tiny", "--quick", "--out", str(tmp_path)]

    def call(*more):
        tiny.clear()
        capsys.readouterr()
        assert main([*words, *more]) == 0
        return bool(tiny), capsys.readouterr().out

    made_again, first = call()
    assert made_again
    again, second = call()
    assert not again
    note, _, rest = second.partition("\n")
    assert note.startswith("Nothing has changed since")
    assert rest == first
    change(folder, code, monkeypatch)
    made_again, third = call()
    assert made_again
    assert ("1 fails" in third) is (change is change_record)
    assert (folder / "tiny" / "tiny.png").exists()
    assert not call()[0]
    assert call("--engine", "xla")[0]
    assert not call("--engine", "xla")[0]


def test_a_failure_and_changed_code_are_not_kept(tiny, tmp_path, monkeypatch):
    sources = iter(["before", "after"])
    monkeypatch.setattr(__main__, "source_digest", lambda args, folder: next(sources))
    assert main(["tiny", "--quick", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "quick" / "screen.json").exists()
    monkeypatch.undo()
    monkeypatch.setattr("reproduction.__main__._reproduce", lambda chosen, folder, args: (1, []))
    assert main(["exact", "--quick", "--out", str(tmp_path)]) == 1
    assert not (tmp_path / "quick" / "screen.json").exists()


class Closed(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_a_reader_that_leaves_ends_the_screen(monkeypatch):
    """As `| head` does; rich alone would leave the program with an error."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed())
        with pytest.raises(BrokenPipeError):
            __main__.show([("a line", {})])


def test_every_file_of_the_code_counts(tmp_path):
    for part in ("reproduction", "docs/full_run"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    changed = ["reproduction/experiments/paper.py", "docs/full_run/claims.csv", "src/twoclock/x.c"]
    program = f"""
from pathlib import Path
from reproduction.__main__ import source_digest
print(source_digest([], Path("results")))
for changed in {changed}:
    with Path(changed).open("a") as file:
        file.write("\\n")
    print(source_digest([], Path("results")))
"""

    def digests():
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path / "src"), str(tmp_path)))}
        return subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        ).stdout.split()

    one, two = digests(), digests()
    assert len({*one, *two}) == len(one) + len(changed)
    assert one[-1] == two[0], "another process reads the same code"
