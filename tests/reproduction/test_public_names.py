"""The reproduction is a client of the library: it uses public names only."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "reproduction"
# Public packages that `import twoclock` does not name; each says in its `__all__` what users may have.
PACKAGES = {"cli", "intervals", "plot", "registry", "storage", "tuning"}
# Public without an `__all__`: docs/extending.md builds problems and methods from what stands there.
PROTOCOLS = "twoclock.protocols"


def public(module, name):
    """Whether a module of twoclock offers a name to users."""
    if module == "twoclock" and name in (*PACKAGES, "protocols"):
        return True
    if module == PROTOCOLS:
        return not name.startswith("_") and hasattr(importlib.import_module(module), name)
    parent, _, inner = module.rpartition(".")
    if parent and not public(parent, inner):
        return False
    return name in getattr(importlib.import_module(module), "__all__", ())


def reached(tree, path):
    """Every (module, name) of twoclock that a file imports, or reaches as an attribute of something imported."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "twoclock":
                    assert alias.name == "twoclock", f"{path}: import {alias.name}"
                    modules[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module.split(".")[0] == "twoclock":
                for alias in node.names:
                    yield node.module, alias.name
                    thing = getattr(importlib.import_module(node.module), alias.name, None)
                    if inspect.ismodule(thing):
                        modules[alias.asname or alias.name] = thing.__name__
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = [node.attr]
            inner = node.value
            while isinstance(inner, ast.Attribute):
                names.insert(0, inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in modules:
                module = modules[inner.id]
                for name in names:
                    yield module, name
                    thing = getattr(importlib.import_module(module), name, None)
                    if not inspect.ismodule(thing):
                        break
                    module = thing.__name__


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_uses_public_names_only(path):
    found = set(reached(ast.parse(path.read_text()), path))
    assert not sorted(f"{module}.{name}" for module, name in found if not public(module, name))


@pytest.mark.parametrize(
    "line",
    [
        "from twoclock.engine.loop import drive",
        "from twoclock.storage import run_identity",
        "from twoclock import engine",
        "import twoclock as tc\ntc.engine.loop.drive",
        "import twoclock as tc\ntc.methods.zap.AutoState",
        "from twoclock import plot\nplot.style.render",
    ],
)
def test_internal_names_are_noticed(line):
    assert [name for name in reached(ast.parse(line), "line") if not public(*name)]


def test_the_library_knows_nothing_of_the_reproduction():
    source = Path(__file__).parents[2] / "src"
    assert not [
        path
        for path in source.rglob("*.py")
        if "import reproduction" in (text := path.read_text()) or "from reproduction" in text
    ]
