"""What the library uses of Linux is optional: without it, as on macOS or Windows, runs are solved and saved."""

import errno
import os
import subprocess
import sys
import time

import twoclock as tc
from twoclock.storage import atomic_file

# Each name is taken away before the library is loaded. JAX and the others come first, since they know their system.
WITHOUT = """
import os, signal, sys
import jax, numpy, pandas, pyarrow.parquet, rich.progress, scipy.special, subprocess, multiprocessing.connection
for module, names in {
    os: ["O_NOFOLLOW", "killpg", "register_at_fork", "geteuid", "sched_getaffinity", "sysconf", "pread"],
    signal: ["SIGHUP"],
}.items():
    for name in names:
        delattr(module, name)
if sys.argv[1] == "windows":
    sys.modules["fcntl"] = sys.modules["resource"] = None
"""
USE = """
import numpy as np, tempfile
import twoclock as tc
from pathlib import Path
from twoclock import cli
folder = Path(tempfile.mkdtemp())
problem = tc.problems.quadratic(dim=2)
result = tc.solve(problem, tc.Fast(), 300, 2, checkpoint=folder / "checkpoint")
assert tc.load(result.save(folder / "saved")) == result
assert tc.solve(problem, tc.Fast(), 300, 2, checkpoint=folder / "checkpoint") == result
assert tc.solve(problem, tc.Fast(), 300, 2, engine="c").theta.shape == (2, 2)
learner = tc.Learner(lambda t, w, x: t - w, lambda t, w, x: w - x, tc.Fast(), 0.0, 0.0)
learner.update_many(np.zeros(9))
learner.save(folder / "learner")
assert cli.main(["run", "quadratic", "fast", "--steps", "50", "--seeds", "2", "--out", str(folder / "run")]) == 0
"""


def run(system):
    return subprocess.run([sys.executable, "-c", WITHOUT + USE, system], capture_output=True, text=True, timeout=300)


def test_without_the_names_that_only_linux_has():
    end = run("macos")
    assert end.returncode == 0, end.stderr


def test_without_file_locks_as_on_windows():
    end = run("windows")
    assert end.returncode == 0, end.stderr


def test_a_file_system_without_locks_saves_and_removes_only_old_leftovers(tmp_path, monkeypatch):
    def no_locks(handle, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(atomic_file.fcntl, "flock", no_locks)
    (tmp_path / "saved").mkdir()
    of_another, abandoned = (atomic_file.new_part(tmp_path / "saved") for _ in range(2))
    of_another.write_text("being written")
    abandoned.write_text("left by a killed writer")
    long_ago = time.time() - 2 * 86_400
    os.utime(abandoned, (long_ago, long_ago))
    result = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 10, 2)
    assert tc.load(result.save(tmp_path / "saved")) == result
    assert of_another.exists()
    assert not abandoned.exists()
