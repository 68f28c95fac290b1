"""The arrows of the architecture, read from the source: a part may import only what stands before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "twoclock"

BASE = {"core"}
NUMBERS = BASE | {"trees", "schedules"}
MAY_IMPORT = {
    "core": set(),
    "trees": BASE,
    "schedules": BASE,
    "settings": BASE,
    "tuning": BASE | {"checks", "describe", "keys", "plot", "progress", "run", "settings", "solve", "stats"},
    "keys": set(),
    "native": set(),
    "lanes": set(),
    "methods": NUMBERS,
    "theory": NUMBERS | {"methods", "keys"},
    "models": BASE | {"trees"},
    "samplers": BASE,
    "problems": BASE | {"trees", "models", "samplers"},
    "run": BASE | {"keys", "lanes", "native"},
    "record": BASE,
    "stats": BASE,
    "checks": BASE | {"keys"},
    "fingerprint": {"keys"},
    "describe": set(),
    "interrupt": set(),
    "progress": {"run"},
    "result": BASE | {"record", "stats", "plot"},
    "plot": BASE | {"result", "sweeps"},
    "solve": BASE | {"checks", "describe", "fingerprint", "interrupt", "keys", "progress", "record", "result", "run"},
    "catalogue": BASE | {"schedules"},
    "experiment": BASE | {"describe", "plot", "record", "result", "run", "solve"},
    "report": BASE | {"experiment", "plot", "record", "stats"},
    "sweeps": BASE
    | {"catalogue", "checks", "describe", "fingerprint", "interrupt", "keys", "plot", "progress", "record", "result"}
    | {"run", "settings", "solve", "stats"},
    "certified": BASE | {"plot", "problems", "result", "solve", "theory"},
}
ONLY_IN = {"matplotlib": {"plot"}, "orbax": {"record"}, "pyarrow": {"record"}, "tyro": {"cli"}, "jinja2": {"report"}}


def parts():
    for path in SOURCE.rglob("*.py"):
        yield path.relative_to(SOURCE).parts[0].removesuffix(".py"), path


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "twoclock" else [node.module]
            )


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_arrows(part):
    for name, path in parts():
        if name == part:
            inside = {m.split(".")[1] for m in imported(path) if m.startswith("twoclock.")}
            assert inside <= MAY_IMPORT[part] | {part}, path


def test_every_part_has_its_arrows():
    free = {"__init__", "cli", "experiments"}
    assert {name for name, _ in parts()} <= set(MAY_IMPORT) | free


@pytest.mark.parametrize("package", ONLY_IN)
def test_one_home_for_each_library(package):
    users = {name for name, path in parts() if any(m.split(".")[0] == package for m in imported(path))}
    assert (
        users - {"result", "certified", "experiments", "sweeps", "tuning"} <= ONLY_IN[package]
    )  # these name its types in annotations


def test_nothing_is_pickled():
    for _, path in parts():
        assert not any(m.split(".")[0] in ("pickle", "cloudpickle", "dill", "joblib") for m in imported(path)), path


def test_import_switches_nothing():
    """No global JAX setting, no backend, no heavy library that is not needed yet."""
    code = (
        "import jax, sys; before = {k: v for k, v in jax.config.values.items()}; import twoclock; "
        "assert before == {k: v for k, v in jax.config.values.items()}; "
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized(); "
        "heavy = {'matplotlib', 'orbax', 'pandas', 'scipy.stats', 'tyro', 'rich'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
