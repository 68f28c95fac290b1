"""Ctrl-C at a place of our choosing.

Python raises KeyboardInterrupt wherever it stands: in the middle of a compilation, of a checkpoint being written, or in
a callback of the garbage collector, where it is swallowed. A run would rather be asked.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patience() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed. Pressed again, it stops at once, as usual."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield lambda: False  # someone else listens, or will
        return
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, usual)
