"""A harsh room: run-time type checks, float64, no silent promotion of types or ranks; warnings are errors."""

import signal

import jax
import jaxtyping
import pytest

jaxtyping.install_import_hook("twoclock", "beartype.beartype")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


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


@pytest.fixture
def kill():
    """``kill(process)`` kills a process that is at work; one that has ended by itself before would show nothing."""

    def killed(process):
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it had ended before it was killed"

    return killed
