"""The API reference has every public name, and each says what it is. Builds nothing."""

import dataclasses
import importlib.util
import inspect
import pkgutil
import re
import typing
from pathlib import Path

import pytest

import twoclock

DOCS = Path(__file__).parents[2] / "docs"


def _load():
    spec = importlib.util.spec_from_file_location("api", DOCS / "api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


api = _load()


def test_every_public_module_has_a_page():
    modules = {f"twoclock.{name}" for name in twoclock.__all__ if inspect.ismodule(getattr(twoclock, name))}
    assert modules <= set(api.MODULES)
    for name in modules:
        inner = {f"{name}.{n}" for n in api.loaded(name).__all__ if inspect.ismodule(getattr(api.loaded(name), n))}
        assert inner <= set(api.MODULES)


@pytest.mark.parametrize("name", api.MODULES)
def test_nothing_is_undocumented(name):
    module = api.loaded(name)
    assert module.__doc__
    silent = []
    for public in api.public(name):
        value = getattr(module, public)
        if api.is_constant(value):
            silent += [public] if public != "__version__" and not api.comment(public, module) else []
            continue
        own = value.__doc__
        silent += [] if own and not own.startswith(f"{public}(") else [public]
        if inspect.isclass(value):
            silent += [f"{public}.{member}" for member, summary in api.members(value) if not summary]
    assert not silent, f"{name} leaves undocumented: {silent}"


def explained(doc):
    """The names that a docstring's lists of arguments and attributes explain."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?: .*\n?|\n)*)", doc, re.M)
    entries = re.findall(r"^    ([\w, *]+): ", "".join(sections), re.M)
    return {argument.strip("* ") for entry in entries for argument in entry.split(",")}


@pytest.mark.parametrize("name", api.MODULES)
def test_every_function_explains_its_arguments_and_has_an_example(name):
    found = []
    for public in api.public(name):
        value = getattr(api.loaded(name), public)
        if inspect.isclass(value) or api.is_constant(value):
            continue
        doc = inspect.getdoc(value)
        missing = [argument for argument in inspect.signature(value).parameters if argument not in explained(doc)]
        found += [f"{public}: {missing}"] if missing and public not in ("static", "pytree") else []
        found += [] if ">>>" in doc else [f"{public}: no example"]
    assert not found, f"{name}: {found}"


def constructor_arguments(kind):
    """Those of the class itself; a warning has only a message, and a protocol is never called."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    if typing.is_typeddict(kind):
        return list(kind.__annotations__)
    built = not getattr(kind, "_is_protocol", False) and not issubclass(kind, Warning)
    return list(inspect.signature(kind).parameters) if built else []


@pytest.mark.parametrize("name", api.MODULES)
def test_every_class_explains_its_arguments_and_shows_how_to_get_one(name):
    """By an example or, where a function of the library makes it, by the name of that function."""
    found = []
    for public in api.public(name):
        value = getattr(api.loaded(name), public)
        if not inspect.isclass(value):
            continue
        doc = inspect.getdoc(value)
        missing = [argument for argument in constructor_arguments(value) if argument not in explained(doc)]
        found += [f"{public}: {missing}"] if missing else []
        abstract = inspect.isabstract(value) or getattr(value, "_is_protocol", False)
        shown = ">>>" in doc or re.search(r"`[\w.]+`+ (makes|returns|passes) (it|one|them)\b", doc)
        found += [] if shown or abstract or issubclass(value, Exception) else [f"{public}: no example"]
    assert not found, f"{name}: {found}"


@pytest.mark.parametrize("name", api.MODULES)
def test_every_method_of_several_arguments_explains_them(name):
    """A method of one argument says in its sentence what it is; one of a contract may point there."""
    found = []
    for public in filter(lambda n: inspect.isclass(getattr(api.loaded(name), n)), api.public(name)):
        kind = getattr(api.loaded(name), public)
        for method, doc in api.members(kind):
            if not callable(getattr(kind, method)) or "the arguments are those of" in doc:
                continue
            arguments = [a for a in inspect.signature(getattr(kind, method)).parameters if a != "self"]
            missing = [argument for argument in arguments if argument not in explained(doc)]
            found += [f"{public}.{method}: {missing}"] if missing and len(arguments) > 1 else []
    assert not found, f"{name}: {found}"


def test_every_name_is_on_exactly_one_page():
    """What is exported from two modules is the same object, and is shown where one meets it first."""
    seen = {}
    for name in api.MODULES:
        for public in api.public(name):
            seen.setdefault(id(getattr(api.loaded(name), public)), []).append(f"{name}.{public}")
    twice = [names for names in seen.values() if len({n.rpartition(".")[2] for n in names}) < len(names)]
    assert not twice


def test_a_name_without_a_word_is_noticed():
    """The checks above can fail: they notice a constant without a comment and a class without a docstring."""
    assert api.comment("COLOURS", api.loaded("twoclock.plot"))
    assert not api.comment("NOWHERE", api.loaded("twoclock.plot"))
    silent = type("Silent", (), {"__module__": "twoclock.made_up", "act": lambda self: None})
    assert dict(api.members(silent)) == {"act": None}


def test_docstrings_are_escaped_for_the_page():
    lines = ["The root ω*(θ), |h − h*| and x_ of `solve` and ``a|b``.", "", "    F = θ*", "", "Args:", "    theta: θ*."]
    api.as_plain_text(None, "", "", None, None, lines)
    assert lines[0] == r"The root ω\*(θ), \|h − h\*\| and x\_ of ``solve`` and ``a|b``."
    assert lines[2:5] == [".. code-block:: none", "", "    F = θ*"]
    assert lines[-1] == r"    theta: θ\*."


def test_the_package_has_no_room_that_the_list_forgets():
    """A new module is either public, and listed in `twoclock`, or inside."""
    inside = {
        "cli",
        "codegen",
        "comparison",
        "engine",
        "executor",
        "intervals",
        "online",
        "sampling",
        "storage",
        "sweeps",
    }
    inside |= {"tuning", "validation"}
    found = {m.name for m in pkgutil.iter_modules(twoclock.__path__) if m.ispkg}
    assert found - inside <= {name.removeprefix("twoclock.") for name in api.MODULES}
