"""The suite itself: it runs in a background job or under nohup, where the parent ignores Ctrl-C."""

import signal
import subprocess
import sys

import pytest


def test_ctrl_c_arrives():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no nohup")
def test_ctrl_c_arrives_where_the_parent_ignores_it():
    again = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"{__file__}::{test_ctrl_c_arrives.__name__}",
    ]
    child = subprocess.run(["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *again], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout
