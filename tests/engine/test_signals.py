"""Ctrl-C reaches the user's program also where Python ignores what is raised."""

import gc
import os
import signal
import sys
import time

import pytest

import twoclock as tc


@pytest.mark.skipif(sys.platform == "win32", reason="there os.kill ends the process")
def test_ctrl_c_inside_a_function_of_the_garbage_collector_is_raised_after_it(monkeypatch):
    """JAX has such a function, and Python ignores what is raised there."""
    monkeypatch.setattr(sys, "unraisablehook", tc.engine.loop._send_again)  # pytest has a hook of its own

    def strike(phase, info):
        gc.callbacks.remove(strike)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # here it is raised, and ignored

    def collect_and_wait():
        gc.collect()
        time.sleep(20)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        gc.callbacks.append(strike)
        with pytest.raises(KeyboardInterrupt):
            collect_and_wait()
    finally:
        signal.signal(signal.SIGINT, before)
