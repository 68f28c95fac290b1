"""The layers of docs/architecture.md, held against the imports of every file."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "twoclock"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LAYERS = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| \d \w+ \| (.+?) \|", PAGE, re.M)]
ORDER = [part for layer in LAYERS for part in layer]
ONLY_IN = {"matplotlib": {"plot"}, "tyro": {"cli"}, "jinja2": {"plot"}}
MODULE = re.compile(r"twoclock(\.\w+)+\.?")


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
    """What a file imports, also by name in a string: a module to load, a package whose files are read.

    Args:
        loaded: leave out what is imported for annotations alone.
    """
    found = []
    for node in _nodes(ast.parse(path.read_text()), loaded):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found += inner if node.module == "twoclock" else [node.module]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            found.append(node.value)
    return found


def test_the_page_lists_every_part_once():
    assert len(LAYERS) == 5
    assert sorted(ORDER) == sorted({name for name, _ in parts()})


@pytest.mark.parametrize("part", ORDER)
def test_a_part_imports_only_parts_before_it(part):
    before = set(ORDER[: ORDER.index(part)])
    if part == "problems":
        before -= {"methods"}
    if part == "codegen":
        before = set()
    for name, path in parts():
        if name == part:
            inside = {m.split(".")[1] for m in imported(path) if m.startswith("twoclock.")}
            assert inside <= before | {part}, path


def test_a_module_named_in_a_string_is_seen(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        'import importlib\nimportlib.import_module("twoclock.cli")\nf"twoclock.plot.{file}"\n"not twoclock.a"\n'
    )
    assert imported(file) == ["importlib", "twoclock.cli", "twoclock.plot."]


@pytest.mark.parametrize("package", ONLY_IN)
def test_one_home_for_each_library(package):
    users = {name for name, path in parts() if any(m.split(".")[0] == package for m in imported(path, loaded=True))}
    assert users <= ONLY_IN[package]


@pytest.mark.parametrize("package", ["pickle", "cloudpickle", "dill", "joblib", "jax._src"])
def test_nothing_is_pickled_and_no_private_api_is_used(package):
    for _, path in parts():
        assert not any(m == package or m.startswith(f"{package}.") for m in imported(path)), path


def test_import_changes_no_setting_and_loads_nothing_heavy():
    code = (
        "import gc, jax, signal, sys; state = lambda: (dict(jax.config.values), gc.isenabled(), gc.get_threshold(), "
        "signal.getsignal(signal.SIGINT)); before = state(); sys.argv = ['twoclock']; import twoclock; "
        "assert before == state(); "
        "heavy = {'matplotlib', 'pandas', 'scipy.linalg', 'scipy.stats', 'tyro', 'rich'} & set(sys.modules); "
        "assert not heavy, heavy; "
        "later = [m for m in sys.modules if m.split('.')[1:2] and m.split('.')[:2] in "
        "[['twoclock', part] for part in ('agents', 'logs', 'theory', 'sweeps', 'tuning', 'comparison', 'plot')]]; "
        "assert not later, later; "
        "assert all(getattr(twoclock, name) is not None for name in twoclock.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_first_run_compiles_five_programs():
    """The start, the streams of the seeds, their noise, the metrics and the loop: nothing is computed one by one."""
    code = (
        "import jax, twoclock as tc; compiled = []; "
        "jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **about: "
        "compiled.append(about.get('fun_name')) if event.endswith('backend_compile_duration') else None); "
        "tc.solve(tc.problems.quadratic(dim=3), tc.Fast(), 200, 3); assert len(compiled) <= 5, compiled"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted((ROOT / "bench").glob("*.py")), ids=lambda path: path.stem)
def test_the_names_that_a_bench_uses_exist(path):
    """Benches are run by hand, so a name that is gone would be noticed late."""
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
