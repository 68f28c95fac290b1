"""Each wrong input is answered by one line that names the argument, before anything runs."""

import re
import shlex

import jaxtyping
import pytest

import twoclock as tc
import wrong_problems
from twoclock import cli
from twoclock.validation import short_repr
from wrong_inputs import BOWL, CALLS, COMMANDS, FILES, OTHERS, of_result

OWN = """
import numpy as np, jax, twoclock as tc
three = lambda: 3
def needs(size): return tc.problems.quadratic(dim=size)
frozen = tc.problems.custom(lambda t, w, x: t + x, lambda t, w, x: w, lambda key: np.random.normal(), 0.0, 0.0)
"""
SPEC = """
steps = 9
seeds = 2
[problems.p]
name = "quadratic"
dim = 2
[methods.m]
name = "fast"
alpha = 0.1
"""


@pytest.fixture(autouse=True)
def _as_users_run_it(tmp_path, monkeypatch):
    """In an empty folder, without the run-time type checks of the tests."""
    monkeypatch.chdir(tmp_path)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def complaint(call, words):
    """What is wrong with how a call is refused; None if it is as it should be."""
    try:
        call()
    except tc.InputError as error:
        message = str(error)
        if "\n" in message or len(message) > 400:
            return f"not one short line: {message}"
        return None if re.search(words, message) else f"does not say {words!r}: {message}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "was accepted"


def wrong_calls():
    result = tc.solve(BOWL, tc.Standard(0.1, 0.1), steps=4, seeds=2)
    for function, right, arguments in (*CALLS, *of_result(result), *wrong_problems.CALLS):
        name = getattr(function, "__qualname__", type(function).__name__)
        for argument, (words, values) in arguments.items():
            for i, value in enumerate(values):
                where = f"{name}({argument}={short_repr(value)}) [{i}]"
                yield where, lambda f=function, r=right, a=argument, v=value: f(**{**r, a: v}), words
    for i, (call, words) in enumerate(OTHERS):
        yield f"others [{i}]", call, words


def test_calls():
    rows = list(wrong_calls())
    assert len(rows) >= 400
    found = {where: said for where, call, words in rows if (said := complaint(call, words))}
    assert not found, "\n".join(f"{where}: {said}" for where, said in found.items())


@pytest.fixture
def answer(capfd):
    """A function from a command line to what is wrong with how it is refused."""

    def ask(line, words):
        capfd.readouterr()
        try:
            status = cli.main(shlex.split(line))
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        output = capfd.readouterr().err.strip()
        if status != 2 or "\n" in output or len(output) > 500:
            return f"status {status}, not one short line: {output[:300]}"
        return None if re.search(words, output) else f"does not say {words!r}: {output}"

    return ask


def test_commands(answer, tmp_path):
    files = {"own.py": OWN, "broken.py": "undefined", "syntax.py": "def", "own.toml": SPEC, "empty.toml": "steps = 1"}
    for name, text in {**files, "broken.toml": "steps = "}.items():
        (tmp_path / name).write_text(text)
    found = {line: said for line, words in COMMANDS if (said := answer(line, words))}
    assert not found, "\n".join(f"{line}: {said}" for line, said in found.items())
    assert {path.name for path in tmp_path.iterdir()} <= {*files, "broken.toml", "__pycache__"}


def test_files_of_sweeps(answer, tmp_path):
    found = {}
    for right, wrong, words in FILES:
        assert right in SPEC
        (tmp_path / "spec.toml").write_text(SPEC.replace(right, wrong))
        if said := answer("sweep spec.toml", words):
            found[wrong] = said
    assert not found, "\n".join(f"{wrong}: {said}" for wrong, said in found.items())
    assert not (tmp_path / "runs").exists()
