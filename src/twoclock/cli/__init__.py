"""The command line: the only part that reads argv or prints. A new file in `commands` is a new command."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from twoclock import inputs
from twoclock.cli.console import ERR, OUT
from twoclock.cli.found import command, command_names, summary
from twoclock.core import InputError
from twoclock.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status 2 for a wrong argument, 130 for Ctrl-C, 1 for trouble with the machine."""
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
        name = inputs.pick({name: name for name in command_names()}, args[0], "twoclock")
        return command(name)(args[1:])
    except InputError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "stopped", 130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" ({error.filename})" if error.filename else ""
        return _fail(f"the disk is full{where}; what was finished is kept, make room and run the same command again", 1)


def program() -> None:
    """The installed command: `main` on argv, then out."""
    status = main()
    sys.stdout.flush()
    if status == 130:
        os._exit(
            status
        )  # stopped inside a compilation, the compiler's threads may crash the interpreter's own farewell
    sys.exit(status)


def _fail(message: str, status: int) -> int:
    ERR.print(f"twoclock: {message}", markup=False, highlight=False, soft_wrap=True)
    return status
