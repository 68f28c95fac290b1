"""First and second calls stay short, beside ``import jax`` in the same run; ``bench/first_call.py`` has the seconds."""

import os
import resource
import subprocess
import sys

import pytest

from twoclock.codegen import compiler

SOLVE = "import twoclock as tc; assert tc.solve(tc.problems.quadratic(dim=3), tc.Fast()).spec['engine'] == 'c'"


@pytest.fixture
def seconds(tmp_path):
    """Processor time of a new process and of the compilers that it starts, which other processes hardly change."""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "TWOCLOCK_ENGINE")}

    def run(*arguments):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        surroundings = {**environment, "TWOCLOCK_CACHE": str(tmp_path)}
        subprocess.run([sys.executable, *arguments], check=True, env=surroundings, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run


def test_help_loads_neither_jax_nor_the_library(seconds):
    assert seconds("-m", "twoclock_command", "--help") < 0.6 * seconds("-c", "import jax")


@pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")
def test_a_first_call_is_short_and_a_second_process_takes_half_of_it(seconds):
    jax, library = (min(seconds("-c", f"import {name}") for _ in range(2)) for name in ("jax", "twoclock"))
    first, second = seconds("-c", SOLVE), seconds("-c", SOLVE)
    assert library < 3 * jax
    assert first - library < 5 * jax
    assert second - library < 0.75 * (first - library)  # half on a quiet machine
