"""Strict settings for all tests: run-time type checks, float64, no silent promotion; warnings are errors."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest

import faster_jax
import typechecks

# Most of the time goes into compilation: XLA's optimiser is left out, and a program is compiled in one piece, since
# other tests keep the other cores busy. The arithmetic is the same, in half of the time.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):  # at an unknown flag XLA ends the process, silently under pytest
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))

# Under nohup and in a background job these are ignored, here and in all processes that tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Threads of BLAS that wait for each other keep busy by it. For the workers and for processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Ray starts a worker for each core before there is work for one, whenever it is started.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

# Modules and programs live until the end: looking for garbage among them again and again finds none.
gc.set_threshold(100_000, 20, 100)
gc.disable()  # until all is collected

typechecks.install()
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_traceback_in_locations_limit", 0)  # compiled programs need no Python line numbers

# The cache of compiled programs needs a folder to be on; it stays empty, see ``faster_jax``.
COMPILED = tempfile.mkdtemp(prefix="twoclock-tests-xla-")
atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", COMPILED)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
faster_jax.install()

# Tests have their own cache of compiled C programs, shared by the workers of one run.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["TWOCLOCK_CACHE"] = tempfile.mkdtemp(prefix="twoclock-tests-")
    atexit.register(shutil.rmtree, os.environ["TWOCLOCK_CACHE"], ignore_errors=True)


# A user without a home, as in some containers: matplotlib would look for its fonts again in every process.
if not os.access(Path.home() if "HOME" in os.environ else "/", os.W_OK):
    os.environ.setdefault("MPLCONFIGDIR", os.environ["TWOCLOCK_CACHE"])


# Whenever the precision changes, or a problem's functions, all that JAX has compiled is forgotten: these come first,
# when that is little. At the end of the list they would not be last: a worker that is through takes over from another.
FORGETFUL = ("float32", "precision", "compensated", "data_cleaning", "test_purity", "test_wrong_inputs")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: all(word not in item.nodeid for word in FORGETFUL))


def pytest_collection_finish(session):
    """Exclude all that is loaded by now from garbage collection."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)


def pytest_sessionfinish(session):
    """Pytest looks for garbage five times at the end; the first time finds it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skip tests that need a C compiler on a machine without one."""
    report = yield
    if report.failed and "there is no C compiler" in str(report.longrepr) and not _has_compiler():
        report.outcome, report.longrepr = "skipped", (str(item.path), None, "Skipped: there is no C compiler")
    return report


def _has_compiler():
    from twoclock.codegen import compiler

    return isinstance(compiler.find(), compiler.Compiler)


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def long_walks(monkeypatch):
    """For tests of many steps: with the engine c where it can be, since XLA does not optimise here."""
    if _has_compiler():
        monkeypatch.setenv("TWOCLOCK_ENGINE", "c")


@pytest.fixture
def compilations():
    """Counts what XLA compiles while the test runs: ``compilations()``."""
    counted = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: counted.append(event) if event.endswith("backend_compile_duration") else None
    )
    return lambda: len(counted)


@pytest.fixture(scope="session")
def sampled_law():
    """A function from an alias table to the law that each of its rows samples, exactly: its columns added up."""

    def law_of(table):
        n = table.shape[-1]
        shift = max(1, (n - 1).bit_length())  # bits of the alias
        words = np.asarray(table).astype(np.int64).reshape(-1, n)
        kept = (words >> shift) / 2.0 ** (31 - shift)
        law = kept.copy()
        np.add.at(law, (np.arange(len(law))[:, None], words & (2**shift - 1)), 1 - kept)
        return (law / n).reshape(table.shape)

    return law_of


@pytest.fixture
def kill():
    """``kill(process)`` kills a running process; one that has already ended would show nothing."""

    def killed(process):
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it had ended before it was killed"

    return killed
