"""One problem for all seeds, or one a seed: told once, carried along as one object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.engine.fork_guard import refuse_fork
from twoclock.protocols import InputError, Key, Problem, ProblemSource, PyTree, pytree, static
from twoclock.validation import shown


@pytree
class Instances:
    """The problem that the lanes run on.

    Attributes:
        batched: the problem; where each seed has its own, its leaves have a leading seed axis.
        per_seed: whether each seed has its own.
    """

    batched: Problem
    per_seed: bool = static()

    @property
    def example(self) -> Problem:
        """One of them, to look at."""
        return _first(self.batched) if self.per_seed else self.batched

    @property
    def seed_axis(self) -> int | None:
        """What ``jax.vmap`` over seeds wants to know of ``batched``."""
        return 0 if self.per_seed else None

    def of(self, seeds: slice) -> Instances:
        """Those of some of the seeds."""
        if not self.per_seed or seeds == slice(None):
            return self
        return Instances(jax.tree.map(lambda leaf: leaf[seeds], self.batched), per_seed=True)


def instances(problem: ProblemSource, seeds: Sequence[int]) -> Instances:
    """The problem in the precision of the run, or one drawn for each seed from the seed's own key."""
    refuse_fork()
    if isinstance(problem, Problem):
        return Instances(_cast(problem), per_seed=False)
    with _making(problem):
        return Instances(_cast(_draw(problem, jnp.asarray(seeds, jnp.uint32))), per_seed=True)


def stand_in(problem: ProblemSource) -> Instances:
    """The same for one seed, with zeros in place of what would be drawn: for whoever needs shapes alone."""
    refuse_fork()
    if isinstance(problem, Problem):
        return instances(problem, [])
    with _making(problem):
        shapes = jax.eval_shape(problem, prng.instance_key(0))
    zeros = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), shapes)
    return Instances(jax.device_put(zeros), per_seed=True)


@jax.jit  # one program, where indexing leaf by leaf would compile two for each shape
def _first(batched: Problem) -> Problem:
    return jax.tree.map(lambda leaf: leaf[0], batched)


@partial(jax.jit, static_argnums=0)
def _draw(make: Callable[[Key], Problem], seeds: jax.Array) -> Problem:
    return jax.vmap(lambda seed: make(prng.instance_key(seed)))(seeds)


@contextmanager
def _making(problem: Callable[[Key], Problem]) -> Iterator[None]:
    """A function that cannot be called with a key was not meant to make problems."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"`problem` must be a problem or a function of a key that makes one; {shown(problem)} called with a key "
            f"fails: {why:.120}"
        ) from error


def _cast(tree: PyTree) -> PyTree:
    """All numbers as arrays, the floats in the precision of the run."""

    def cast(leaf: object) -> jax.Array:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        # Put there as it is; ``jnp.asarray`` would compile a program for each shape.
        return jax.device_put(array.astype(jnp.result_type(float)) if floating else array)

    return jax.tree.map(cast, tree)
