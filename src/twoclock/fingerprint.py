"""What a problem or a method computes, as a hash: the programs it traces to and the numbers in it.

Names play no part: two spellings of the same computation have one fingerprint, and a closed-over constant that changes
gives another.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import jax
import numpy as np

from twoclock import keys

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def of_problem(problem: Any) -> str:
    key, u, theta, omega, env, x = _shapes(problem)
    point = (theta, omega, x)
    return _digest(
        jax.make_jaxpr(problem.init)(key),
        jax.make_jaxpr(problem.noise)(key),
        jax.make_jaxpr(problem.draw)(u, theta, env),
        jax.make_jaxpr(problem.F)(*point),
        jax.make_jaxpr(problem.G)(*point),
    )


def of_method(method: Any, problem: Any) -> str:
    """Traced on the problem it runs on, since a method may look at the samples too."""
    _, _, theta, omega, _, x = _shapes(problem)

    def two_steps(theta: Any, omega: Any, x: Any) -> Any:
        state = method.init(theta, omega)
        for k in range(2):
            state = method.step(problem.F, problem.G, state, x, k)
        return method.estimate(state)

    return _digest(jax.make_jaxpr(two_steps)(theta, omega, x), [np.asarray(leaf) for leaf in jax.tree.leaves(method)])


def _shapes(problem: Any) -> tuple[Any, ...]:
    key = keys.start_key(0)
    theta, omega, env = jax.eval_shape(problem.init, key)
    u = jax.eval_shape(problem.noise, key)
    x, _ = jax.eval_shape(problem.draw, u, theta, env)
    return key, u, theta, omega, env, x


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, list):
            arrays = part
        else:
            digest.update(_ADDRESS.sub("", str(part)).encode())
            arrays = [np.asarray(const) for const in part.consts]
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
