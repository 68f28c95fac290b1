"""On a Ray cluster: what a sweep, an agent and a log come to here, whatever dies on the way; nothing runs on."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import logged
import twoclock as tc
from an_agent import Averager, Walk, walk

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.slow

PROBLEMS = {"bowl": tc.problems.quadratic(dim=2)}
METHODS = {
    "fast": tc.grid(tc.Fast(), **{"alpha.c": [0.5, 0.7, 1.0, 1.4, 2.0, 2.8], "lam.c": [20.0, 40.0]}),
    "own": tc.Fast(lam=lambda k: 4 / (k + 16)),  # a function of the user's travels too
}
OPTIONS = {"steps": 60_000, "seeds": 8, "lanes": 16}

SCRIPT = """
import sys
import twoclock as tc
grid = tc.grid(tc.Fast(), **{"alpha.c": [0.1 * i for i in range(1, 41)]})
tc.sweep({"bowl": tc.problems.quadratic(dim=2)}, {"fast": grid}, 50_000, 8, lanes=8, out=sys.argv[1], on="ray",
         progress=lambda watch: print(watch.done, flush=True))
"""


def files(out):
    return {p.relative_to(out): hashlib.sha256(p.read_bytes()).hexdigest() for p in out.glob("history/*/*/*")}


@pytest.fixture
def unconnected(monkeypatch):
    """As in a program that knows no cluster, whichever tests came before."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)


@pytest.mark.usefixtures("unconnected")
def test_an_address_that_does_not_answer(tmp_path):
    for address in ("127.0.0.1:9", "nowhere"):
        began = time.monotonic()
        with pytest.raises(tc.InputError, match=f"`address` {address} does not answer as a Ray cluster") as error:
            _sweep_elsewhere(address, tmp_path / "new")
        assert "\n" not in str(error.value)
        assert time.monotonic() - began < 10
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("unconnected")
def test_ray_that_does_not_start_is_tried_again_and_then_reported(monkeypatch):
    tried = []

    def busy(*args, **options):
        tried.append(options["object_store_memory"])
        raise Exception("The current node timed out during startup.\nA page of advice")

    monkeypatch.setattr(ray, "init", busy)
    with pytest.raises(
        tc.InputError, match=r"Ray does not start on this machine \(The current node .* startup\.\)"
    ) as error:
        tc.sweep(PROBLEMS, METHODS, 10, 1, on="ray")
    assert len(tried) == 3
    assert "\n" not in str(error.value)


def test_ray_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tc.InputError, match='on="ray" needs Ray; install it with'):
        _sweep_elsewhere(None, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def _sweep_elsewhere(address, out):
    return tc.sweep(PROBLEMS, METHODS, 50, 2, out=out, on="ray", address=address)


def test_ctrl_c_leaves_a_resumable_folder_and_no_process(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while int(child.stdout.readline()) < 1:
        pass
    family = psutil.Process(child.pid).children(recursive=True)
    assert any("raylet" in process.name() for process in family)
    assert listening([psutil.Process(child.pid), *family]) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    child.send_signal(signal.SIGINT)
    _, output = child.communicate(timeout=60)
    assert "stopped with" in output.strip().splitlines()[-1]
    assert "of 40 shards done; the same call with the same `out` resumes" in output
    done = len(list((tmp_path / "shards").glob("*.json")))
    assert 1 <= done < 40
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert tc.Sweep.load(tmp_path).history["method"].nunique() == done


def listening(processes):
    """The addresses at which the processes can be reached."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert found
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "sweep"
    with jax.enable_x64(True):
        tc.sweep(PROBLEMS, METHODS, **OPTIONS, out=out)
    return files(out)


@pytest.fixture(scope="module")
def cluster():
    """One for all of them: to start Ray, and JAX in its workers, takes longer than what they do."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 << 20}
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # the workers import the agent from this folder
        made = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        node = made.add_node(**small)
        made.connect()
        made.wait_for_nodes()
        yield made, node
        ray.shutdown()
        made.shutdown()


@pytest.mark.filterwarnings("ignore::Warning")  # Ray's own
def test_an_agent_on_ray_equals_one_here(cluster, tmp_path):
    run = {"steps": 200, "marks": [0, 50, 100, 200]}
    here = tc.agents.run(Averager(), walk, seeds=2, processes=1, **run)
    there = tc.agents.run(Averager(), lambda: Walk(), seeds=2, on="ray", checkpoint=tmp_path / "a", **run)
    assert np.array_equal(there.theta, here.theta)
    assert there.history.equals(here.history)
    with pytest.raises(tc.agents.EnvironmentFault, match=r"seed 0, step 59: the environment raised OSError"):
        tc.agents.run(Averager(), lambda: Walk("raises"), on="ray", **run)


@pytest.mark.filterwarnings("ignore::Warning")
def test_a_log_survives_a_killed_worker(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = pd.DataFrame(logged.random_mdp(end=0.1).draw(episodes=200, steps=50))
    log.to_parquet("log.parquet", row_group_size=300, index=False)
    policy = _deadly(str(tmp_path / "killed"), os.getpid())
    local = tc.evaluate(logged.read("log.parquet"), policy, 0.9, bootstrap=20)
    far = tc.evaluate(logged.read("log.parquet"), policy, 0.9, bootstrap=20, on="ray")
    assert (tmp_path / "killed").exists()
    for column in ("value", "se", "low", "high", "bootstrap_low", "bootstrap_high"):
        np.testing.assert_allclose(far.table[column], local.table[column], rtol=1e-10, atol=1e-10)


def _deadly(marker, driver):
    """A policy that ends the first worker that asks it; a closure, which needs no import where it runs."""

    def policy(state):
        import os
        import signal

        import numpy as np

        if os.getpid() != driver and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.where(np.asarray(state)[:, None] % 2 == np.arange(2), 0.75, 0.25)

    return policy


@pytest.mark.filterwarnings("ignore::Warning")
def test_workers_write_to_a_shared_folder(cluster, local, tmp_path):
    tc.sweep(PROBLEMS, METHODS, **OPTIONS, out=tmp_path, on="ray", shared=True)
    assert files(tmp_path) == local


@pytest.mark.filterwarnings("ignore::Warning")
def test_a_failing_shard_is_reported(cluster, tmp_path):
    def broken(key):
        return jax.pure_callback(lambda: 1 / 0, jax.ShapeDtypeStruct((), float))

    problem = tc.problems.custom(F=lambda t, w, x: t + x, G=lambda t, w, x: w - t, noise=broken, theta=0.0, omega=0.0)
    with pytest.raises(RuntimeError, match=r"1 of 1 shards failed, the first with: .*; the same call") as error:
        tc.sweep({"broken": problem}, {"fast": tc.Fast()}, 50, 2, out=tmp_path, on="ray")
    assert "\n" not in str(error.value)
    assert "ZeroDivisionError" in str(error.value) or "division by zero" in str(error.value)
    assert len(json.loads((tmp_path / "progress.json").read_text())["failed"]) == 1


def workers():
    """The processes that compute shards now."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if line.startswith("ray::_run_task"):
            found.append(process)
    return found


@pytest.mark.filterwarnings("ignore::Warning")
def test_a_killed_worker_and_a_lost_node_lose_nothing(cluster, local, tmp_path):
    made, node = cluster
    events = []

    def disturb(watch):
        if watch.done >= 1 and not events and (found := workers()):
            assert found[0].is_running()
            found[0].send_signal(signal.SIGKILL)
            events.append("killed")
        elif watch.done >= 2 and events == ["killed"]:
            events.append("removed")
            made.remove_node(node)

    tc.sweep(PROBLEMS, METHODS, **OPTIONS, out=tmp_path, on="ray", progress=disturb)
    assert events == ["killed", "removed"]
    assert files(tmp_path) == local
