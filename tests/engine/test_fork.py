"""Processes in which JAX would hang or end everything are refused in one line: forked, or with too few addresses."""

import os
import signal
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest

import logged
import twoclock as tc

MDP = logged.random_mdp(end=0.1)
LOG = logged.read(MDP.draw(episodes=20, steps=10))
KEY = jax.random.key(0)
AGENT = tc.agents.Regulator([[1.0]], [[1.0]])


def solve():
    return tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 5, 2)


DOORS = {
    "solve": solve,
    "evaluate, all": lambda: tc.evaluate(LOG, MDP.pi, MDP.gamma, estimator="all"),
    "evaluate, dice": lambda: tc.evaluate(LOG, MDP.pi, MDP.gamma, estimator="dice"),
    "evaluate, networks": lambda: tc.evaluate(LOG, MDP.pi, MDP.gamma, estimator="fqe_network"),
    "Regulator": lambda: tc.agents.Regulator([[1.0]], [[1.0]]),
    "agents.run": lambda: tc.agents.run(AGENT, lambda x, u, rng: 0.5 * x + u, 5, x0=np.zeros(1)),
    "Learner": lambda: tc.Learner(tc.problems.quadratic(dim=2), tc.Fast()),
    "random problem": lambda: tc.problems.random_policy_evaluation(KEY),
    "random mdp": lambda: tc.problems.random_entropy_mdp(KEY),
    "exact answers": lambda: tc.problems.forest(),
    "constants": lambda: tc.theory.constants(tc.problems.quadratic(dim=2)),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_forked_child_is_refused_in_one_line(door):
    solve()  # JAX has started
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            DOORS[door]()
        except tc.InputError as error:
            os._exit(7 if "forked after JAX had started" in str(error) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_what_needs_no_jax_works_in_a_forked_child():
    solve()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            tc.evaluate(LOG, MDP.pi, MDP.gamma, estimator="lstdq", bootstrap=20)
            os._exit(0)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


USERS_OWN = """
import os, signal, warnings
import jax.numpy as jnp, twoclock as tc
warnings.simplefilter("ignore")
problem = tc.problems.custom(lambda t, w, x: w - 1, lambda t, w, x: w - t + x, lambda key: 0.0, 0.0, 0.0)
if not os.fork():  # before JAX has started a fork is harmless
    signal.alarm(60)
    tc.solve(problem, tc.Fast(), 5, 2)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
jnp.zeros(3) + 1
if not os.fork():
    signal.alarm(60)
    try:
        tc.solve(problem, tc.Fast(), 5, 2)
    except tc.InputError as error:
        os._exit(7 if "forked after JAX had started" in str(error) else 8)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are seen by their names on Linux alone")
def test_a_child_forked_after_the_user_started_jax_is_refused():
    end = subprocess.run([sys.executable, "-c", USERS_OWN], capture_output=True, text=True, timeout=200)
    assert end.returncode == 0, end.stderr


FEW = """
import resource, sys
import twoclock as tc
resource.setrlimit(resource.RLIMIT_AS, (1_600_000 << 10,) * 2)
for call in (lambda: tc.problems.forest(), lambda: tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 5, 2)):
    try:
        call()
    except tc.InputError as error:
        assert "ulimit -v" in str(error) and "\\n" not in str(error), error
        continue
    sys.exit("it was not refused")
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="only Linux says how many addresses are taken")
def test_a_limit_on_addresses_at_which_xla_would_abort_is_refused():
    end = subprocess.run([sys.executable, "-c", FEW], capture_output=True, text=True, timeout=200)
    assert end.returncode == 0, end.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="only Linux says how many addresses are taken")
def test_the_library_refuses_to_load_in_one_line_where_it_gets_too_few_addresses():
    code = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_AS, (500 << 20,) * 2)
runpy.run_module("twoclock_command", run_name="__main__")
"""
    end = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, text=True, timeout=200)
    assert end.returncode == 1, end.stderr
    assert end.stderr.startswith("twoclock: it cannot be loaded")
    assert "ulimit -v" in end.stderr
    assert end.stderr.count("\n") == 1


ONE_THREAD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1300 << 20,) * 2)
import twoclock as tc
import scipy.linalg
from threadpoolctl import threadpool_info
counts = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
sys.exit(0 if counts and max(counts) == 1 else str(counts))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="only Linux says how many addresses are taken")
def test_few_addresses_are_enough_for_the_threads_of_openblas():
    """On 16 cores they took 1.2 GiB, and OpenBLAS ended the process silently where it got less."""
    usual = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    end = subprocess.run([sys.executable, "-c", ONE_THREAD], capture_output=True, text=True, timeout=200, env=usual)
    assert end.returncode == 0, end.stderr


LITTLE = """
import resource
import twoclock as tc
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, resource.RLIM_INFINITY))
price = lambda x, u, x_next, reward, terminated: 0.0
for make in (
    lambda: tc.agents.ConstrainedActorCritic(20_000_000, 2, price, 1.0, 0.1),
    lambda: tc.agents.EntropyActorCritic(20_000_000, 2, 0.1),
    lambda: tc.agents.AverageRewardActorCritic(20_000_000, 2, 0.1),
):
    try:
        make()
    except tc.InputError as error:
        assert "GiB of memory and there are" in str(error), error
        continue
    raise SystemExit("it was not refused")
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="what a process uses is seen on Linux alone")
def test_what_does_not_fit_under_a_limit_of_the_process_is_refused():
    end = subprocess.run([sys.executable, "-c", LITTLE], capture_output=True, text=True, timeout=200)
    assert end.returncode == 0, end.stderr
