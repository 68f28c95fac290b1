"""The API reference: a page per module, an entry for every public name, written before Sphinx reads its sources."""

import importlib
import inspect
import re
from pathlib import Path

# The modules whose names are public, in the order in which a user meets them. `twoclock` itself comes first.
MODULES = {
    "twoclock": "the main functions",
    "twoclock.problems": "problems",
    "twoclock.methods": "methods",
    "twoclock.models": "exact models",
    "twoclock.samplers": "samplers",
    "twoclock.logs": "logged data",
    "twoclock.logs.features": "features of logged data",
    "twoclock.agents": "agents",
    "twoclock.theory": "theory",
    "twoclock.plot": "figures",
    "twoclock.protocols": "protocols",
    "twoclock.intervals.batch_means": "block scores from arrays",
}
# Modules of which only some names are for users.
CHOSEN = {
    "twoclock.protocols": ["Schedule", "pytree", "static"],
    "twoclock.intervals.batch_means": ["sandwich", "in_blocks"],
}
_NOT_OURS = {"Axes", "Figure", "Matrix"}  # types of matplotlib and SciPy, for annotations


def loaded(name):
    """The module that a user calls `name`; `twoclock.samplers` is only its name in `twoclock`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        outer, _, inner = name.rpartition(".")
        return getattr(importlib.import_module(outer), inner)


def public(name):
    """The public names of a module that are documented on its page; each name is on the first page that has it."""
    if name in CHOSEN:
        return CHOSEN[name]
    module = loaded(name)
    listed = module.__all__
    first = set() if name == "twoclock" else set(public("twoclock"))
    return [n for n in listed if n not in first | _NOT_OURS and not inspect.ismodule(getattr(module, n))]


def is_constant(value):
    return not (inspect.isclass(value) or callable(value))


def comment(name, module):
    """What a constant is: the `#:` comments above its definition, wherever in the package that is."""
    pattern = re.compile(rf"((?:^#: .*\n)+){re.escape(name)}(?:: [^=\n]+)? = ", re.MULTILINE)
    for path in sorted(Path(inspect.getfile(module)).parent.rglob("*.py")):
        if found := pattern.search(path.read_text()):
            return " ".join(line.removeprefix("#: ") for line in found[1].splitlines())
    return ""


def promised():
    """Methods whose meaning a contract states once for all that have them."""
    core, logs = loaded("twoclock.protocols"), loaded("twoclock.logs.policies")
    contracts = (core.Problem, core.Method, logs.Policy, loaded("twoclock.logs.features").PairFeatures)
    return {name for contract in contracts for name in vars(contract)} | {"report", "track", "fit"}


def members(kind):
    """The public methods and properties that a class of ours defines, each with its docstring."""
    by_contract = promised()
    for owner in kind.__mro__:
        if owner.__module__.startswith("twoclock"):
            for name, value in vars(owner).items():
                value = getattr(value, "__func__", value)
                own = inspect.isfunction(value) or isinstance(value, property)
                if own and not name.startswith("_") and name not in by_contract:
                    yield name, inspect.getdoc(getattr(kind, name))


def write(folder):
    """Write the pages and an index of them; Sphinx does not read a page again that has not changed."""
    folder.mkdir(exist_ok=True)
    pages = {name.replace(".", "-"): _page(name) for name in MODULES}
    pages["index"] = _index(pages)
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _index(pages):
    """A line for every public name, by module."""
    links = "\n".join(f"   {page}" for page in pages)
    lines = ["API", "===", "", "Every public name in a line.", "", ".. toctree::", "   :hidden:", "", links, ""]
    for name, page in zip(MODULES, pages, strict=True):
        title = f":doc:`{name} <{page}>`: {MODULES[name]}"
        lines += [title, "-" * len(title), "", *_summary(name)]
    return "\n".join(lines)


def _summary(name):
    module = loaded(name)
    entries = [f"   {n}" for n in public(name) if not is_constant(getattr(module, n))]
    return [f".. currentmodule:: {name}", "", ".. autosummary::", "   :nosignatures:", "", *entries, ""]


def _page(name):
    title = f"{name}: {MODULES[name]}"
    module, names = loaded(name), public(name)
    lines = [title, "=" * len(title), "", (inspect.getdoc(module) or "").splitlines()[0], "", *_summary(name)]
    for n in names:
        value = getattr(module, n)
        if is_constant(value):
            text = comment(n, module) if n != "__version__" else "The version of the package."
            lines += [f".. py:data:: {name}.{n}", "", f"   {text}", ""]
        elif inspect.isclass(value):
            fields = ", ".join(getattr(value, "_fields", ()))  # of a named tuple: its docstring says what they are
            lines += (
                [f".. autoclass:: {name}.{n}", "   :members:"]
                + [f"   :exclude-members: {fields}"] * bool(fields)
                + [""]
            )
        else:
            lines += [f".. autofunction:: {name}.{n}", ""]
    return "\n".join(lines)


_LITERAL = re.compile(r"(``.*?``)")
_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes):$")


def as_plain_text(app, what, name, obj, options, lines):
    """Docstrings are prose, formulas and examples: letters that reStructuredText would take for markup are escaped.

    An indented block that belongs to no list of arguments is a formula, and is shown as it stands.
    """
    shown, formula, section = [], False, False
    for i, line in enumerate(lines):
        indented = line.startswith("    ")
        if line and not indented:
            section, formula = bool(_SECTION.match(line)), False
        elif indented and not section and not formula and not (i and lines[i - 1]):
            formula = True
            shown += [".. code-block:: none", ""]
        shown.append(line if formula or line.lstrip().startswith((">>>", "...")) else _escaped(line))
    lines[:] = shown


def _escaped(line):
    """``literals`` stay; `names` become literals; θ*, x_ and |x| mean themselves; *titles* stay emphasised."""
    if not re.search(r":\w+:`", line):
        line = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line)
    pieces = _LITERAL.split(line)
    for i in range(0, len(pieces), 2):
        text = pieces[i].replace("|", r"\|")
        text = re.sub(r"(\w)_(?!\w)", r"\1\\_", text)
        pieces[i] = re.sub(r"(?<![\w*])(\w)\*", r"\1\\*", text)
    return "".join(pieces)
