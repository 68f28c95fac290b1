"""The command line: the only part that reads argv or prints. A new file in `commands` is a new command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from twoclock import startup, validation
from twoclock.cli.console import ERR, OUT, say
from twoclock.cli.discovery import command, command_names, summary
from twoclock.cli.exit_codes import explained
from twoclock.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status 2 for a wrong argument, 130 for Ctrl-C, 1 for trouble with the machine.

    What goes wrong is one line; a traceback is a fault of ours.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if not args or args[0] in ("-h", "--help"):
            OUT.print(
                "Two-time-scale stochastic optimisation: two noisy operators in, a solution and its record out.\n"
            )
            for name in command_names():
                usage, words = summary(name)
                OUT.print(f"  {usage}\n      {words}", markup=False, highlight=False)
            return 0
        if args[0] == "--version":
            OUT.print(__version__, highlight=False)
            return 0
        name = validation.pick({name: name for name in command_names()}, args[0], "twoclock")
        return command(name)(args[1:])
    except BrokenPipeError:  # whoever read the output has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 141
    except (Exception, KeyboardInterrupt) as error:
        explanation = explained(error)
        if explanation is None:
            raise
        return _fail(*explanation)


def program() -> None:
    """The installed command: `main` on argv, then out."""
    startup.end()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names of files are not all UTF-8
    status = main()
    with suppress(OSError):  # a terminal that was closed
        sys.stdout.flush()
    if status >= 128:
        # Stopped inside a compilation, the compiler's threads may crash the interpreter's own farewell.
        os._exit(status)
    sys.exit(status)


def _fail(message: str, status: int) -> int:
    with suppress(OSError):  # a terminal that was closed
        say(f"twoclock: {message}", ERR)
    return status
