"""The arrows of the architecture, read from the source: a part may import only what stands before it."""

import ast
import functools
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "twoclock"

# A part may import only what stands before it.
ORDER = [
    "startup",
    "version",
    "core",
    "finite",
    "display",
    "inputs",
    "trees",
    "schedules",
    "paths",
    "stats",
    "inference",
    "methods",
    "models",
    "sampling",
    "problems",
    "engine",
    "theory",
    "record",
    "cluster",
    "progress",
    "plot",
    "result",
    "solve",
    "logs",
    "learner",
    "agents",
    "table",
    "catalogue",
    "sweeps",
    "tuning",
    "study",
    "cli",
    "__main__",
    "__init__",
]
# They meet at the front door: a method that knew of a problem, or an engine of either, could peek at answers.
STRANGERS = {"methods", "problems", "engine"}
ONLY_IN = {"matplotlib": {"plot"}, "pyarrow": {"record"}, "tyro": {"cli"}, "jinja2": {"study", "logs"}}


def parts():
    for path in SOURCE.rglob("*.py"):
        yield path.relative_to(SOURCE).parts[0].removesuffix(".py"), path


def _nodes(tree, loaded):
    for node in ast.iter_child_nodes(tree):
        if not (loaded and isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            yield node
            yield from _nodes(node, loaded)


@functools.cache
def imported(path, loaded=False):
    """What a file imports; ``loaded``: at run time, so without what it names in annotations alone."""
    found = []
    for node in _nodes(ast.parse(path.read_text()), loaded):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found += inner if node.module == "twoclock" else [node.module]
    return found


@pytest.mark.parametrize("part", ORDER)
def test_arrows(part):
    before = set(ORDER[: ORDER.index(part)]) - (STRANGERS if part in STRANGERS else set())
    for name, path in parts():
        if name == part:
            inside = {m.split(".")[1] for m in imported(path) if m.startswith("twoclock.")}
            assert inside <= before | {part}, path


def test_every_part_has_its_place():
    assert {name for name, _ in parts()} <= set(ORDER)


@pytest.mark.parametrize("package", ONLY_IN)
def test_one_home_for_each_library(package):
    users = {name for name, path in parts() if any(m.split(".")[0] == package for m in imported(path, loaded=True))}
    assert users <= ONLY_IN[package]


def test_nothing_is_pickled():
    for _, path in parts():
        assert not any(m.split(".")[0] in ("pickle", "cloudpickle", "dill", "joblib") for m in imported(path)), path


def test_import_switches_nothing():
    """No global JAX setting, no backend, no heavy library that is not needed yet."""
    code = (
        "import jax, sys; before = {k: v for k, v in jax.config.values.items()}; import twoclock; "
        "assert before == {k: v for k, v in jax.config.values.items()}; "
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized(); "
        "heavy = {'matplotlib', 'pandas', 'scipy.stats', 'tyro', 'rich'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "bench").glob("*.py")), ids=lambda path: path.stem)
def test_what_a_bench_asks_for_is_there(path):
    """Benches are run by hand, and would tell of a name that is gone long after."""
    tree, modules = ast.parse(path.read_text()), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname: importlib.import_module(a.name) for a in node.names if a.name == "twoclock"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "twoclock":
            home = importlib.import_module(node.module)
            for alias in node.names:
                found = getattr(home, alias.name, None) or importlib.import_module(f"{node.module}.{alias.name}")
                if isinstance(found, ModuleType):
                    modules[alias.asname or alias.name] = found
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert hasattr(modules[node.value.id], node.attr), f"{node.value.id}.{node.attr}, line {node.lineno}"
