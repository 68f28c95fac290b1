"""Signals and forks: Ctrl-C, SIGTERM and SIGHUP take effect between blocks, and a forked child is refused.

Python raises KeyboardInterrupt wherever it stands: in the middle of a compilation, of a checkpoint being written, or in
a callback of the garbage collector, where it is swallowed. A run notes it instead, and stops at the next tick. The
signals that a scheduler sends before it kills, and a terminal when it is closed, are taken in the same way.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from twoclock.protocols import InputError

_USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if hasattr(signal, "SIGHUP"):  # Windows has none
    _USUAL[signal.SIGHUP] = signal.SIG_DFL

_last: int = signal.SIGINT


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the message says where it stopped and how to go on."""


def last_signal() -> int:
    """The number of the signal that stopped the last run, for an exit status."""
    return _last


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether a signal came. One that comes again stops at once, as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # this thread gets no signals
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        global _last
        came, _last = True, number
        put_back()

    def put_back() -> None:
        for number in ours:
            signal.signal(number, _USUAL[number])

    # Where another handler is in charge, or a signal is ignored as under nohup, it stays so.
    ours = [number for number, usual in _USUAL.items() if signal.getsignal(number) is usual]
    for number in ours:
        signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        put_back()


_jax_in_use = False  # by a run or a learner of this process
_forked = False


def refuse_fork() -> None:
    """Refuse a run in a child that was forked after one: JAX's threads are not in it, and it would wait for ever.

    What else started JAX in the parent is not seen here; JAX itself warns of such a fork.
    """
    global _jax_in_use
    if _forked:
        raise InputError(
            "this process was forked after JAX had started, whose threads a fork does not copy; "
            'make it with multiprocessing.get_context("spawn")'
        )
    _jax_in_use = True


def _note_fork() -> None:
    global _forked
    _forked = _jax_in_use


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=_note_fork)
