"""The page on the command line, from the options that the commands themselves declare."""

import ast
from pathlib import Path

import twoclock


def page():
    lines = [
        "# The command line",
        "",
        "`twoclock COMMAND --help` says the same. Exit status: 0 done, 1 trouble with the machine or damage found,",
    ]
    lines += ["2 a wrong argument, 130 Ctrl-C. What goes wrong is one line.", ""]
    for path in sorted((Path(twoclock.__file__).parent / "cli" / "commands").glob("*.py")):
        tree = ast.parse(path.read_text())
        kinds = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        if "command" not in kinds:
            continue
        usage, _, words = ast.get_docstring(kinds["command"]).partition(": ")
        lines += [f"## {path.stem}", "", f"`{usage}`", "", f"{words[:1].upper()}{words[1:]}", ""]
        rows = [row for name, kind in kinds.items() if name.endswith("Options") for row in options(kind)]
        lines += ["| | | default |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def options(kind):
    for field, after in zip(kind.body, [*kind.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            positional = "Positional" in ast.unparse(field.annotation)
            name = field.target.id.upper() if positional else f"--{field.target.id.replace('_', '-')}"
            default = f"`{ast.unparse(field.value)}`" if field.value else ""
            yield f"| `{name}` | {text.replace('|', chr(92) + '|')} | {default} |"


def write(path):
    if not path.exists() or path.read_text() != page():
        path.write_text(page())
