"""The installed command ``twoclock``: its help, streams that are there, and a quiet Ctrl-C while the library loads.

It stands beside the package because Python runs ``twoclock/__init__.py``, which takes most of the time, before any
module inside the package. The help needs nothing of the library: it is read from the text of the commands.
Programs that import the library, child processes of the command among them, never run this.
"""

from __future__ import annotations

import ast
import gc
import os
import shutil
import signal
import sys
import textwrap
from pathlib import Path
from types import ModuleType

_PURPOSE = "Stochastic approximation on two and more time scales, with confidence intervals."


def command_files() -> list[Path]:
    """The file of each command."""
    return sorted((Path(__file__).parent / "twoclock" / "cli" / "commands").glob("[!_]*.py"))


def describe_commands() -> dict[str, tuple[str, str]]:
    """How each command is called, and what it does, as the docstring of its function says."""
    found = {}
    for path in command_files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == "command":
                usage, _, words = (ast.get_docstring(node) or "").partition(": ")
                found[path.stem] = usage, words
    return found


def overview() -> str:
    """All commands, in lines as wide as the terminal."""
    width = shutil.get_terminal_size().columns
    lines = [_PURPOSE, ""]
    for usage, words in describe_commands().values():
        lines += textwrap.wrap(usage, width, initial_indent="  ", subsequent_indent="      ")
        lines += textwrap.wrap(words, width, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


def _open_streams() -> None:
    while os.open(os.devnull, os.O_RDWR) <= 2:  # else the first files that are opened would stand for closed streams
        pass
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def load(name: str) -> ModuleType:
    """Import the command line of the library; Ctrl-C meanwhile is one line that begins with the program's name."""

    def leave(number: int, frame: object) -> None:
        os.write(2, f"{name}: stopped\n".encode())
        os._exit(128 + number)

    _open_streams()
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # in no columns nothing would be written
    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, leave)
    gc.disable()  # nothing that is loaded is garbage, and looking for some takes a quarter of the time
    try:
        from twoclock import cli
    except Exception as error:  # a variable that JAX does not understand, a broken installation, too few files
        sys.exit(f"{name}: it cannot be loaded, with {type(error).__name__}: {' '.join(str(error).split())}")
    gc.freeze()
    gc.enable()
    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli


def program() -> None:
    """Run the command line on argv; for help alone the library is not loaded."""
    if sys.argv[1:2] in ([], ["-h"], ["--help"]):
        _open_streams()
        try:
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
            sys.stdout.write(f"{overview()}\n")
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of the output has closed it
            os._exit(141)
        except OSError as error:
            os.write(2, f"twoclock: the help cannot be written ({error.strerror})\n".encode())
            os._exit(1)
        return
    load("twoclock").program()


if __name__ == "__main__":
    program()
