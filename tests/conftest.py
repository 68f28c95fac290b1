"""A harsh room: run-time type checks, float64, no silent promotion of types or ranks; warnings are errors."""

import atexit
import os
import shutil
import tempfile

import jax
import jaxtyping
import pytest

jaxtyping.install_import_hook("twoclock", "beartype.beartype")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# What tests compile is kept apart from the user's own programs.
os.environ["TWOCLOCK_CACHE"] = tempfile.mkdtemp(prefix="twoclock-tests-")
atexit.register(shutil.rmtree, os.environ["TWOCLOCK_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compilations():
    """Counts what XLA compiles while the test runs: ``compilations()``."""
    counted = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: counted.append(event) if event.endswith("backend_compile_duration") else None
    )
    return lambda: len(counted)
