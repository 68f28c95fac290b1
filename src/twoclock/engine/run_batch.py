"""A batch of runs: methods × seeds on one problem, or on one problem per seed, and its division into groups.

On the CPU the size of a group is fixed, so that the same seeds give the same bits on any number of cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from twoclock import prng
from twoclock.engine.tracing import TracedProgram, trace, with_exact_callbacks
from twoclock.protocols import InputError, Key, Method, Problem, ProblemSource, PyTree, pytree, static
from twoclock.validation import check_process, short_repr

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., PyTree])

LARGEST_GROUP = 256
SMALLEST_SHARE = 32
# The most lanes of several methods that share the noise of their seeds: what a core's own cache holds.
LARGEST_SHARED_GROUP = 1024


@pytree
class Instances:
    """A problem shared by all seeds or, ``per_seed``, a batch with a leading seed axis.

    JAX compiles a program for each ``traced`` lane: functions may have changed since the last was compiled.
    """

    batched: Problem
    per_seed: bool = static()
    traced: TracedProgram | None = static(default=None)

    @property
    def example(self) -> Problem:
        """The problem of the first seed."""
        return _first(self.batched) if self.per_seed else self.batched

    @property
    def seed_axis(self) -> int | None:
        """``in_axes`` of ``batched`` for ``jax.vmap`` over seeds."""
        return 0 if self.per_seed else None

    def exact(self, function: F) -> F:
        """A function of a lane as it is compiled; its callbacks into Python, if any, have the precision of the run."""
        return with_exact_callbacks(function) if self.traced is not None and self.traced.calls_python else function

    def of(self, seeds: slice) -> Instances:
        """The instances of some of the seeds."""
        if not self.per_seed or seeds == slice(None):
            return self
        return replace(self, batched=jax.tree.map(lambda leaf: leaf[seeds], self.batched))


def make_instances(problem: ProblemSource, seeds: Sequence[int]) -> Instances:
    """Cast a problem to the precision of the run, or draw one per seed from the seed's own key."""
    check_process()
    if isinstance(problem, Problem):
        return Instances(_cast_problem(problem), per_seed=False)
    with _making(problem), ExitStack() as stack:
        program = ""
        with suppress(Exception):  # the checks of a lane name what is wrong
            traced, _ = trace_problem(problem)
            stack.enter_context(traced.separate_traces())
            program = traced.digest
        return Instances(_cast(_draw(problem, jnp.asarray(seeds, jnp.uint32), program)), per_seed=True)


def make_placeholder(problem: ProblemSource) -> Instances:
    """Make the instances of one seed with zeros for random draws; only their shapes are used."""
    check_process()
    if isinstance(problem, Problem):
        return make_instances(problem, [])
    with _making(problem):
        shapes = jax.eval_shape(lambda key: problem(key), prng.instance_key(0))
    zeros = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), shapes)
    return Instances(jax.device_put(zeros), per_seed=True)


def trace_problem(problem: ProblemSource) -> tuple[TracedProgram, ClosedJaxpr]:
    """Trace the whole computation of a problem, or of a function of a key that makes one, on unknown iterates."""

    def make(key: Key) -> Problem:
        return problem if isinstance(problem, Problem) else problem(key)

    def everything(key: Key, u: PyTree, theta: PyTree, omega: PyTree, env: PyTree) -> PyTree:
        here = make(key)
        x, after = here.sample(u, theta, omega, env)
        known, of_env = here.measure(theta, omega), here.report(env)
        return here.init(key), here.noise(key), after, here.F(theta, omega, x), here.G(theta, omega, x), known, of_env

    key = prng.key_shape()
    (theta, omega, env), u = jax.eval_shape(lambda key: ((here := make(key)).init(key), here.noise(key)), key)
    return trace(everything, key, u, theta, omega, env)


@jax.jit  # one program, where indexing leaf by leaf would compile two for each shape
def _first(batched: Problem) -> Problem:
    return jax.tree.map(lambda leaf: leaf[0], batched)


@partial(jax.jit, static_argnums=(0, 2))
def _draw(make: Callable[[Key], Problem], seeds: jax.Array, program: str) -> Problem:
    """``program`` distinguishes functions that have changed since they were compiled."""
    return jax.vmap(lambda seed: make(prng.instance_key(seed)))(seeds)


@contextmanager
def _making(problem: Callable[[Key], Problem]) -> Iterator[None]:
    """Explain that a function which cannot be called with a key makes no problem."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        rule = "`problem` must be a problem or a function of a key that makes one"
        raise InputError(f"{rule}; {short_repr(problem)} called with a key fails: {why:.120}") from error


def _cast_problem(problem: Problem) -> Problem:
    """Convert its numbers as ``_cast`` does, but let those on the host stay there."""
    cast: Any = problem
    if problem.on_host:
        cast = replace(cast, **dict.fromkeys(problem.on_host))
    cast, floats = _cast(cast), jnp.result_type(float)
    on_host = {n: jax.tree.map(lambda leaf: np.array(leaf, floats), getattr(problem, n)) for n in problem.on_host}
    made: Problem = replace(cast, **on_host) if on_host else cast
    return made


def _cast(tree: PyTree) -> PyTree:
    """Convert all numbers to arrays, the floats in the precision of the run; what occurs twice is transferred once."""
    known: dict[int, jax.Array] = {}

    def cast(leaf: object) -> jax.Array:
        if id(leaf) not in known:
            known[id(leaf)] = transfer(leaf)
        return known[id(leaf)]

    def transfer(leaf: object) -> jax.Array:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        # Transferred without conversion; ``jnp.asarray`` would compile a program per shape. On a CPU JAX may keep
        # reading the array that it is given, which the user may change.
        copy = jax.default_backend() == "cpu"
        return jax.device_put(array.astype(jnp.result_type(float), copy=copy) if floating else array)

    return jax.tree.map(cast, tree)


@dataclass(frozen=True)
class Lanes:
    """Every method on every seed.

    Attributes:
        methods: methods that differ only in numbers, stacked into one whose leaves have a leading axis (see ``stack``).
        count: how many methods; the leaves do not show it if a method has no numbers.
        bound: a lane whose θ or ω leaves [−bound, bound] in any entry has diverged.
    """

    instances: Instances
    methods: Method
    count: int
    seeds: Sequence[int]
    bound: float | None = None

    @classmethod
    def of(cls, instances: Instances, methods: Sequence[Method], seeds: Sequence[int], bound: float | None) -> Lanes:
        return cls(instances, stack(methods), len(methods), seeds, bound)

    @property
    def shape(self) -> tuple[int, int]:
        """Methods × seeds."""
        return self.count, len(self.seeds)

    def part(self, methods: slice, seeds: slice) -> Lanes:
        """Some of the methods on some of the seeds."""
        all_methods = methods == slice(None)
        some = self.methods if all_methods else jax.tree.map(lambda leaf: leaf[methods], self.methods)
        count = len(range(self.count)[methods])
        return Lanes(self.instances.of(seeds), some, count, self.seeds[seeds], self.bound)


def stack(methods: Sequence[Method]) -> Method:
    """Stack methods that differ only in numbers into one method with a leading axis on every leaf."""
    # Stacked here and transferred together: on a GPU each separate number would take a tenth of a millisecond.
    return jax.device_put(
        jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, float) for leaf in leaves]), *methods)
    )


def group_by_program(methods: Mapping[str, Method]) -> list[list[str]]:
    """Group the labels of methods that differ only in numbers; each group runs as one program."""
    groups: dict[object, list[str]] = {}
    for label, method in methods.items():
        leaves, structure = jax.tree.flatten(method)
        groups.setdefault((structure, *map(np.shape, leaves)), []).append(label)
    return list(groups.values())


def pad_to(items: Sequence[T], size: int) -> list[T]:
    """Pad a list to the size of a program by repeating its last item."""
    return [*items, *[items[-1]] * (size - len(items))]


def partition(methods: int, seeds: int, accelerators: int | None) -> tuple[list[slice], list[slice]]:
    """Divide methods and seeds into groups of one shape; accelerators share the seeds evenly."""
    if accelerators is None:
        # The largest even share of the seeds that leaves two groups or more; too few seeds to share stay together.
        shares = range(min(LARGEST_GROUP, seeds // 2), SMALLEST_SHARE - 1, -1)
        share = next((size for size in shares if seeds % size == 0), seeds)
        # The largest even share of the methods that fits a group, and leaves two groups or more where it can.
        most = methods if seeds > share or methods * share < 2 * SMALLEST_SHARE else max(methods // 2, 1)
        sizes = range(max(min(most, LARGEST_SHARED_GROUP // share), 1), 0, -1)
        together = next(size for size in sizes if methods % size == 0)
    else:
        share, together = -(-seeds // accelerators), methods
    parts = ((methods, together), (seeds, share))
    of_methods, of_seeds = ([slice(i, i + size) for i in range(0, whole, size)] for whole, size in parts)
    return of_methods, of_seeds


def count_threads() -> int:
    """One thread per core, or the number in OMP_NUM_THREADS."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(int(asked) if asked.isdecimal() else os.cpu_count() or 1, 1)
