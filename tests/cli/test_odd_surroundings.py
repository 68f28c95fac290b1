"""Closed streams, odd variables, names and users' files: a line, and the right exit status."""

import inspect
import os
import subprocess
import sys

import pytest

import twoclock as tc
from twoclock import cli

PROGRAM = "import twoclock_command; twoclock_command.program()"
BOWL = tc.problems.quadratic(dim=2)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("variables", "args", "redirection", "status", "words"),
    [
        ({}, "list", ">&-", 0, ""),
        ({}, "runn", ">&- 2>&- <&-", 2, ""),
        ({}, "list", ">/dev/full", 1, "the disk is full"),
        ({}, "run quadratic fast --help", ">/dev/full", 1, "the disk is full"),
        ({}, "--help", ">/dev/full", 1, "the help cannot be written"),
        ({}, "list", "| head -c 1 >/dev/null", 141, ""),
        ({"COLUMNS": "0"}, "runn", "", 2, "did you mean 'run'?"),
        ({"JAX_PLATFORMS": "cuda"}, "run quadratic fast", "", 2, "JAX_PLATFORMS='cuda' does not work here"),
        ({"MPLBACKEND": "bad"}, "run quadratic fast --steps 9", "", 2, "MPLBACKEND='bad' does not work here"),
        ({"JAX_ENABLE_X64": "maybe"}, "list", "", 1, "it cannot be loaded, with ValueError"),
    ],
)
def test_streams_and_variables(variables, args, redirection, status, words):
    script = f'set -o pipefail; "$@" {args} {redirection}'
    child = subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, check=False, env={**os.environ, **variables},
    )  # fmt: skip
    lines = [line for line in child.stderr.splitlines() if line.startswith("twoclock:")]
    assert child.returncode == status, child.stderr
    assert "Traceback" not in child.stderr
    assert len(lines) == bool(words), child.stderr
    assert words in "".join(lines)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit(3)", "`PROBLEM` own.py fails when it is loaded, with SystemExit: 3"),
        ("class Away(BaseException): pass\nraise Away('x')", "fails when it is loaded, with Away: x"),
        ("import sys\ndef bowl(dim: int = 2): sys.exit(3)", "`PROBLEM` own.py:bowl fails, with SystemExit: 3"),
        ("def bowl(dim: int = 2): return 1 / 0", "`PROBLEM` own.py:bowl fails, with ZeroDivisionError"),
    ],
)
def test_a_users_file_that_fails_or_leaves_is_one_line(code, words, tmp_path, capsys):
    (tmp_path / "own.py").write_text(code)
    before = list(sys.path)
    assert cli.main(["run", "own.py:bowl", "fast"]) == 2
    assert words in capsys.readouterr().err
    assert sys.path == before


SPEC = """
steps = 20
seeds = 2
[problems."a\\u001b[31m"]
name = "quadratic"
dim = 2
[methods."b\\u0007"]
name = "fast"
"""


def test_names_do_not_steer_the_terminal(tmp_path, capsys):
    (tmp_path / "spec.toml").write_text(SPEC)
    assert cli.main(["sweep", "spec.toml"]) == 0
    output = capsys.readouterr().out
    assert "a\\x1b[31m" in output
    assert "b\\x07" in output
    assert not {"\x1b", "\x07"} & set(output)
    tuned = tc.tune(BOWL, {"a\x1b[31m": tc.Fast(), "$\\frac{$": tc.Fast()}, {"alpha.c": (0.1, 1.0)}, 30, rungs=1)
    assert "\x1b" not in repr(tuned)
    tc.plot.render(tuned.plot())


def test_a_label_that_readers_take_for_none_is_refused():
    with pytest.raises(tc.InputError, match="the label of a problem must be another than __HIVE_DEFAULT_PARTITION__"):
        tc.sweep({"__HIVE_DEFAULT_PARTITION__": BOWL}, {"fast": tc.Fast()}, 10, 2)


LABELLED = {
    "solve": lambda a, b: tc.solve(BOWL, {a: tc.Fast(), b: tc.Standard()}, 10, 2),
    "sweep": lambda a, b: tc.sweep({"bowl": BOWL}, {"grid": {a: tc.Fast(), b: tc.Standard()}}, 10, 2),
    "tune": lambda a, b: tc.tune(BOWL, {a: tc.Fast(), b: tc.Standard()}, steps=10, rungs=1),
    "table": lambda a, b: tc.table(dict.fromkeys((a, b), tc.solve(BOWL, tc.Fast(), 10, 2))),
    "compare": lambda a, b: tc.plot.compare(dict.fromkeys((a, b), tc.solve(BOWL, tc.Fast(), 10, 2)), "error"),
}


@pytest.mark.parametrize("labels", [(1, "1"), ("a", "\udcff")])
@pytest.mark.parametrize("call", LABELLED)
def test_labels_that_cannot_be_distinguished_or_written_are_refused(call, labels):
    with pytest.raises(tc.InputError, match=r"must map text labels to \w+, got the label (1|'.udcff')$"):
        inspect.unwrap(LABELLED[call])(*labels)


def test_a_table_does_not_steer_the_terminal():
    results = tc.solve(BOWL, {"a\x1b[31m": tc.Fast(), "b": tc.Standard()}, 10, 3)
    assert "\x1b" not in repr(tc.table(results))
