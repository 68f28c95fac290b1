"""The set-up by make: one that was stopped is never taken for a complete one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
# Stands for Python: its "-m venv" makes a folder, its "-m pip" installs a file, and is stopped half way if asked to.
PYTHON = """#!/bin/sh
case "$*" in
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *"-m pip"*) echo half >> .venv/package && [ "$STOPPED" != yes ] && echo whole >> .venv/package ;;
esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_set_up_that_was_stopped_begins_again(tmp_path):
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def make(target, stopped=False):
        env = {**os.environ, "STOPPED": "yes" if stopped else "no"}
        command = ["make", "-s", f"PYTHON={python}", f".venv/{target}"]
        status = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True).returncode
        return status == 0, (tmp_path / ".venv" / "package").read_text().split()

    assert make("usable", stopped=True) == (False, ["half"])
    assert not (tmp_path / ".venv" / "usable").exists()
    assert make("usable") == (True, ["half", "whole"])
    assert make("usable", stopped=True) == (True, ["half", "whole"])  # there is nothing to do
    assert make("ready", stopped=True) == (False, ["half", "whole", "half"])
    assert make("usable") == (True, ["half", "whole"])  # from nothing
    made, package = make("ready")
    assert made
    assert set(package[::2]) == {"half"}
    assert set(package[1::2]) == {"whole"}
    assert make("ready", stopped=True) == (True, package)
