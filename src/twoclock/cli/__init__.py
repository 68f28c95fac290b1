"""The command line: printing, exit codes, and the program itself. A new file in `commands` is a new command."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twoclock import storage, validation
from twoclock.engine.loop import Interrupted, deferred_interrupt, last_signal, progress_bar
from twoclock.engine.protocol import preferred_metric
from twoclock.protocols import InputError, printable
from twoclock.result import Result
from twoclock.version import __version__
from twoclock_command import command_files, overview

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from twoclock.sweeps.sweep_result import Sweep

# Names other than `main` and `program` are for other command lines, such as that of the paper's reproduction.
__all__ = ["OUT", "Interrupted", "deferred_interrupt", "guard", "main", "program", "progress_bar", "resumable"]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # `guard` handles it; rich would leave the program


OUT = _Console()
ERR = _Console(stderr=True)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `twoclock`."""
    return guard("twoclock", _run_command, argv)


def _run_command(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        say(overview())
        return 0
    if args[0] == "--version":
        say(__version__)
        return 0
    name = validation.lookup({path.stem: path.stem for path in command_files()}, args[0], "twoclock")
    return importlib.import_module(f"twoclock.cli.commands.{name}").command(args[1:])


def guard(name: str, command: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run a command. The exit status is 2 for a wrong argument, 128 + n for signal n, 1 for trouble with the machine.

    Every error is one line that begins with the program's name; a traceback means a bug in the library.
    """
    try:
        status = command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the output has closed it
        return 141
    except BaseException as error:
        explanation = explain(error)
        if explanation is None:
            raise
        message, status = explanation
        with suppress(OSError):  # a terminal that was closed
            say(f"{name}: {message}", ERR)
        return status


def program(main: Callable[[], int] = main) -> None:
    """Run a program's `main` on argv and leave the process."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names of files are not all UTF-8
    status = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a closed terminal; the unwritten output would be tried again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if status >= 128:
        # After a stop inside a compilation, the compiler's threads may crash the interpreter's shutdown.
        os._exit(status)
    sys.exit(status)


class ResumableError(RuntimeError):
    """The machine stopped the work. The message says how to resume it."""


def explain(error: BaseException) -> tuple[str, int] | None:
    """Turn an error into one line and an exit status; None for a bug."""
    if isinstance(error, InputError) and getattr(error, "errno", None) not in _DISK_FULL:
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        before = error.__context__  # a second Ctrl-C, while the first was on its way here with how to resume
        words = str(error) or (str(before) if isinstance(before, KeyboardInterrupt) else "")
        return words or "stopped", 128 + last_signal()
    if isinstance(error, ResumableError):
        return str(error), 1
    if isinstance(error, SystemExit):
        return (f"a user's function ended the program, by sys.exit({error.code!r})", 2) if error.code else None
    if isinstance(error, OSError):
        where = f" ({os.fsdecode(error.filename):.200})" if error.filename else ""
        if error.errno in _DISK_FULL:
            return f"the disk is full{where}; finished work is saved; make room and run the same command again", 1
        return f"{error.strerror or error}{where}", 1
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return "there is not enough memory for this; take fewer seeds, fewer marks or a smaller problem", 1
    # Libraries report a bad environment variable in many ways: try what it is for.
    for name, use in {"JAX_PLATFORMS": "jax", "MPLBACKEND": "matplotlib"}.items():
        try:
            if name in os.environ:
                getattr(importlib.import_module(use), "devices", tuple)()
        except Exception:
            return f"{name}={os.environ[name]!r:.60} does not work here; unset it, or choose another", 2
    return None


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Say how to resume, in one line, when a signal, a full disk or a killed process stops the work inside."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(f"{str(stop).split(';')[0] or 'stopped'}; to resume: {command}") from None
    except BrokenProcessPool:
        raise ResumableError(
            "a process of this run was ended from outside, perhaps for lack of memory; finished work is saved; "
            f"to resume: {command}"
        ) from None
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
        raise ResumableError(
            f"the disk is full{where}; finished work is saved; make room, then resume: {command}"
        ) from None


def say(text: str, console: Console = OUT) -> None:
    """Print text as it is: brackets are not markup, and control characters do not reach the terminal."""
    console.print("\n".join(map(printable, text.split("\n"))), markup=False, highlight=False, soft_wrap=True)


def save_figure(fig: Figure, folder: Path, name: str) -> None:
    """Write a figure into a folder, as PNG and as SVG, and print the paths."""
    from twoclock import plot

    for kind, content in plot.render(fig).items():
        say(f"  {storage.put(folder / f'{name}.{kind}', content)}")


def draw_sweep(sweep: Sweep, metric: str, statistic: str, folder: Path) -> None:
    """Write the figures of a sweep: the best settings, and the effect of the others if there are any."""
    save_figure(sweep.plot_best(metric, statistic), folder, f"{metric}-best")
    for draw in (sweep.plot_sensitivity, sweep.plot_map):
        with suppress(InputError):  # no setting varies, or no two settings vary together
            save_figure(draw(metric), folder, f"{metric}-{draw.__name__.removeprefix('plot_')}")


def open_folder(chosen: Path | None, name: str) -> AbstractContextManager[Path]:
    """The chosen folder, or a new one under runs/."""
    return nullcontext(storage.writable(chosen)) if chosen else storage.numbered(Path("runs"), name)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of plain text: brackets in it are no markup."""
    table = Table(*columns, title=Text(printable(title)) if title else None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    OUT.print(table)


def main_metric(result: Result | Sweep) -> str:
    """The recorded metric that measures progress best."""
    metric = preferred_metric(result.metrics)
    if metric is None:
        raise InputError("this run recorded no metrics, so there is nothing to draw; give the problem a `measure`")
    return metric
