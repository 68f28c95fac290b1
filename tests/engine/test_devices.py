"""Several devices: the same numbers as one, with nothing changed in the call."""

import os
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import sys
import jax, numpy as np
import twoclock as tc
from twoclock.engine import run_batch, engines

run_batch.LARGEST_GROUP = 32  # as many groups as devices, without a long test
used = set()
advance = engines.Group.advance
def watched(self, carry, lo, hi):
    used.update(leaf.device.id for leaf in jax.tree.leaves(carry))
    return advance(self, carry, lo, hi)
engines.Group.advance = watched
if sys.argv[2] == "accelerators":
    engines.jax.default_backend = lambda: "gpu"
methods = tc.grid(tc.Fast(), **{"alpha.c": [1.0, 2.0]})
out = tc.solve(tc.problems.quadratic(dim=2), methods, steps=200, seeds=int(sys.argv[3]), bound=50.0)
parts = {f"{label} {name}": getattr(result, name) for label, result in out.items() for name in ("theta", "omega")}
parts |= {f"{label} error": result.history["error"].to_numpy() for label, result in out.items()}
np.savez(sys.argv[1], devices=len(jax.devices()), used=len(used), **parts)
"""


def numbers(path, devices, kind="cpu", seeds=256):
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-c", SCRIPT, str(path), kind, str(seeds)]
    subprocess.run(command, check=True, env={**os.environ, "XLA_FLAGS": flags})
    with np.load(path) as found:
        return dict(found)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("devices") / "one.npz", 1)


def test_eight_devices_give_the_bits_of_one(one, tmp_path):
    eight = numbers(tmp_path / "eight.npz", 8)
    assert (one["devices"], one["used"]) == (1, 1)
    assert (eight["devices"], eight["used"]) == (8, 8)
    for name in one.keys() - {"devices", "used"}:
        np.testing.assert_array_equal(eight[name], one[name], err_msg=name)


def test_accelerators_share_the_seeds_evenly(one, tmp_path):
    """Ten seeds on four devices: three, three, three and one."""
    four = numbers(tmp_path / "four.npz", 4, "accelerators", 10)
    assert (four["devices"], four["used"]) == (4, 4)
    rows = len(four["alpha.c=1 error"])
    np.testing.assert_allclose(four["alpha.c=1 error"], one["alpha.c=1 error"][:rows], rtol=1e-9)
