"""One identity of a function of the host: the same for the same computation, another for any other."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from twoclock.engine.code_identity import Unidentified, code_identity

GAIN = [2.0]


def with_closure(c: object) -> Callable[..., object]:
    return lambda x: c * x


def with_default(c: object) -> Callable[..., object]:
    def f(x: object, gain: object = c, *, other: object = c) -> object:
        return gain, other, x

    return f


class Plant:
    def __init__(self, c: object) -> None:
        self.c = c

    def __call__(self, x: object) -> object:
        return self.c, x

    def step(self, x: object) -> object:
        return self.c, x


def compiled(body: str, **values: object) -> Callable[..., object]:
    """A function of a module of the user's own, as if it had been edited."""
    space: dict[str, object] = {"np": np, **values}
    exec(f"def f(x):\n    {body}\n", space)
    return space["f"]  # type: ignore[return-value]


def inner_constant(c: float) -> Callable[..., object]:
    return compiled(f"return [(lambda y: y + {c})(x)]")


@pytest.mark.parametrize(
    "make",
    [
        with_closure,
        with_default,
        Plant,
        inner_constant,
        lambda c: Plant(c).step,
        lambda c: functools.partial(with_closure(1), c),
        lambda c: functools.partial(with_closure(1), x=c),
        lambda c: jax.jit(with_closure(c)),
        lambda c: jax.vmap(with_closure(c)),
        lambda c: functools.lru_cache(with_closure(c)),
        lambda c: np.vectorize(with_closure(c)),
        lambda c: with_closure(np.full(1000, c)),
        lambda c: with_closure({"a": [c, {1, 2}]}),
        lambda c: with_closure(with_closure(c)),
        lambda c: with_closure(jax.numpy.full(3, c)),
        lambda c: with_closure(np.random.default_rng(c)),
        lambda c: type("Own", (), {"gain": c, "__module__": __name__}),
        lambda c: compiled("return a * x", a=c),
        lambda c: compiled("return g(x)", g=compiled("return a * x", a=c)),
        lambda c: compiled("return m.a * x", m=types.SimpleNamespace(a=c)),
        lambda c: compiled("return m.a * x", m=_module(c)),
        lambda c: compiled(f"return x {'+' if c == 1 else '-'} x"),
        lambda c: compiled(f"return np.{'sin' if c == 1 else 'cos'}(x)"),
        lambda c: with_closure(math_function(c)),
        lambda c: with_closure(_module(c)),
        lambda c: with_entry_of(_module(c, file=True)),
        lambda c: executed_class(f"class f:\n    @staticmethod\n    def g(x):\n        return {c} * x"),
        lambda c: executed_class(f"class f:\n    @property\n    def g(self):\n        return {c}"),
        lambda c: executed_class(f"class g:\n    gain = {c}\nclass f(g):\n    pass"),
        lambda c: dataclasses.make_dataclass("Own", [("gain", float, float(c))]),
    ],
)
def test_the_same_function_is_the_same_and_a_changed_number_is_seen(make: Callable[[int], object]) -> None:
    assert code_identity(make(1)) == code_identity(make(1)) != code_identity(make(2))


def _module(c: object, file: bool = False) -> types.ModuleType:
    module = types.ModuleType("settings_of_the_user")
    module.a = c  # type: ignore[attr-defined]
    module.__file__ = __file__ if file else None
    return module


def with_entry_of(module: Any) -> Callable[..., object]:
    return lambda x: module.a * x


def executed_class(text: str) -> object:
    """A class of a notebook or a plug-in, whose namespace has no name: it says that it is of the built-ins."""
    space: dict[str, Any] = {}
    exec(text, space)
    return space["f"]()


def test_a_folder_that_is_named_like_a_library_is_the_users_own(tmp_path: Path) -> None:
    library = Path(code_identity.__code__.co_filename).parents[1]
    for folder in (tmp_path / "ros-packages", Path(f"{library}_of_mine")):
        own = [compile(f"def f(x):\n    return {c} * x", str(folder / "plant.py"), "exec") for c in (1, 2)]
        spaces: list[dict[str, Any]] = [{}, {}]
        for code, space in zip(own, spaces, strict=True):
            exec(code, space)
        assert code_identity(spaces[0]["f"]) != code_identity(spaces[1]["f"])


def math_function(c: int) -> object:
    return np.add if c == 1 else np.subtract


def test_an_array_and_a_list_changed_in_place_are_seen() -> None:
    table = np.zeros(2)
    f = with_closure(table)
    before = code_identity(f), code_identity(lambda: GAIN)
    table[0] = 1.0
    GAIN[0] = 3.0
    assert code_identity(f) != before[0]
    assert code_identity(lambda: GAIN) != before[1]
    GAIN[0] = 2.0


def test_comments_docstrings_and_local_names_play_no_part() -> None:
    plain = compiled("y = x + 1; return y")
    other = compiled('"""What it does."""\n    z = x + 1  # add one\n    return z')
    assert code_identity(plain) == code_identity(other)


def test_functions_that_call_each_other_have_an_identity() -> None:
    def pair(c: float) -> Callable[..., object]:
        space: dict[str, object] = {}
        exec(f"def f(x):\n    return g(x) + {c}\n\ndef g(x):\n    return f(x) if x else 0\n", space)
        return space["f"]  # type: ignore[return-value]

    assert code_identity(pair(1.0)) == code_identity(pair(1.0)) != code_identity(pair(2.0))


@pytest.mark.parametrize("thing", [threading.Lock(), (x for x in ()), memoryview(b""), np.frompyfunc(abs, 1, 1)])
def test_what_cannot_be_identified_is_said(thing: object) -> None:
    with pytest.raises(Unidentified, match="cannot be identified"):
        code_identity(with_closure(thing))


def test_an_identity_is_the_same_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import numpy as np\nfrom twoclock.engine.code_identity import code_identity\n"
        "names = {'a', 'b', 'c'}\ndef f(x):\n    return x in names and x in {'d', 'e', 'g'} and np.sin(x)\n"
        "print(code_identity(f))\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, str(script)], env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(seen) == 1


def test_a_module_that_a_function_imports_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "imported_when_called.py"
    source.write_text("gain = 1\n")
    f = compiled("import imported_when_called; return imported_when_called.gain")
    before = code_identity(f)
    assert f(0) == 1
    assert code_identity(f) == before
    source.write_text("gain = 2\n")
    assert code_identity(f) != before
