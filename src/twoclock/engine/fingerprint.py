"""What a problem or a method computes, as a hash: the programs it traces to and the numbers in it.

Names play no part: two spellings of the same computation have one fingerprint, and a closed-over constant that changes
gives another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.engine import keys

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


def of_records(problem: Any) -> str:
    """What a problem, or a function of a key that makes one, computes and records, as one program: nothing is drawn."""

    def everything(key: Any) -> Any:
        made = problem if hasattr(problem, "F") else problem(key)
        theta, omega, env = made.init(key)
        x, env = made.draw(made.noise(key), theta, env)
        known = made.measure(theta, omega) if hasattr(made, "measure") else {}
        of_env = made.report(env) if hasattr(made, "report") else {}
        return theta, omega, env, made.F(theta, omega, x), made.G(theta, omega, x), known, of_env

    return _digest(jax.make_jaxpr(everything)(keys.start_key(0)))


def of_method(method: Any, problem: Any) -> str:
    """Traced on the problem it runs on, since a method may look at the samples too."""
    return of_methods([method], problem)[0]


def of_methods(methods: Sequence[Any], problem: Any) -> list[str]:
    """The same for methods that differ only in numbers: their program is traced once."""
    _, _, theta, omega, _, x = _shapes(problem)

    def two_steps(method: Any, theta: Any, omega: Any, x: Any) -> Any:
        state = method.init(theta, omega)
        for k in range(2):
            state = method.step(problem.F, problem.G, state, x, k)
        return method.estimate(state)

    numbers = [[np.asarray(leaf, float) for leaf in jax.tree.leaves(method)] for method in methods]
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), methods[0])
    program = _digest(jax.make_jaxpr(two_steps)(like, theta, omega, x))
    return [_digest(program, leaves) for leaves in numbers]


def _shapes(problem: Any) -> tuple[Any, ...]:
    key = keys.start_key(0)
    theta, omega, env = jax.eval_shape(problem.init, key)
    u = jax.eval_shape(problem.noise, key)
    x, _ = jax.eval_shape(problem.draw, u, theta, env)
    return key, u, theta, omega, env, x


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        arrays = part if isinstance(part, list) else [np.asarray(const) for const in getattr(part, "consts", ())]
        if not isinstance(part, list):
            digest.update(_ADDRESS.sub("", str(part)).encode())
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
