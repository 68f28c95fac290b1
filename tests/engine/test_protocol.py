"""Every problem with every method of the catalogue: after 10,000 steps the engine c is where XLA is, to rounding."""

import functools
import os
from itertools import cycle, islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small import SMALL
from twoclock import prng, registry
from twoclock.codegen import compiler
from twoclock.engine.c_engine import CEngine
from twoclock.engine.protocol import lane_start, lane_step
from twoclock.engine.run_batch import Lanes, make_instances
from twoclock.protocols import InputError

pytestmark = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")

METHODS = registry.methods()
PROBLEMS = registry.problems()
SEEDS, BOUND = (0, 7), 1e3
# Meant for an error times a trace: on operators of another form they wander, and a difference of rounding grows.
TRACES = {"intentional", "obgd"}


@functools.cache
def instance(name):
    with jax.enable_x64(True):
        return make_instances(PROBLEMS[name](**SMALL.get(name, {})), SEEDS)


# Compiled in haste: the arithmetic is the same.
@functools.partial(jax.jit, static_argnums=3, compiler_options={"xla_backend_optimization_level": 0})
def by_xla(problems, method, seeds, steps):
    def lane(problem, seed):
        begin, stream = lane_start(problem, method, seed), prng.step_stream(seed)
        return begin, jax.lax.fori_loop(0, steps, lambda k, c: lane_step(problem, method, stream, c, k, BOUND), begin)

    axis = problems.seed_axis
    return jax.vmap(lane, in_axes=(axis, 0))(problems.batched, seeds)


def pairs():
    """All of them if TWOCLOCK_CONTRACT=all, which takes minutes; else every problem and every method once or more."""
    if os.environ.get("TWOCLOCK_CONTRACT") == "all":
        return [(problem, method) for problem in PROBLEMS for method in METHODS]
    count = max(len(PROBLEMS), len(METHODS))
    problems, methods = (list(islice(cycle(names), count)) for names in (PROBLEMS, METHODS))
    return list(zip(problems, methods, strict=True))


@pytest.mark.parametrize(("problem", "method"), pairs())
def test_c_programs_agree_with_xla_to_rounding(problem, method, monkeypatch):
    """A tenth of the default steps: a run that blows up says nothing of rounding."""
    monkeypatch.setattr(compiler, "TIME_LIMIT", 600.0)  # of a compiler that shares its cores with other tests
    small = jax.tree.map(lambda leaf: jnp.asarray(0.1 * leaf), METHODS[method]())
    steps = 100 if method in TRACES else 10_000
    try:
        begin, want = by_xla(instance(problem), small, jnp.asarray(SEEDS, jnp.uint32), steps)
    except InputError as refusal:
        pytest.skip(str(refusal))
    programs = CEngine(worth=5.0).compile(  # seconds, for which long programs are compiled with little optimisation
        Lanes.of(instance(problem), [small], SEEDS, BOUND)
    )
    if isinstance(programs, str):
        pytest.skip(programs)
    programs[0].build.accepted = True  # skip the engine's self-check
    got = programs[0].advance(programs[0].place(jax.tree.map(lambda leaf: np.asarray(leaf)[None], begin)), 0, steps)
    for a, b in zip(jax.tree.leaves(got), map(np.asarray, jax.tree.leaves(want)), strict=True):
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a[0], b)
        elif b.size:
            np.testing.assert_allclose(a[0], b, rtol=1e-8, atol=1e-9 * max(1.0, float(np.max(np.abs(b)))))
