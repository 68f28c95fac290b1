"""The only loop: seeds and step sizes side by side, steps in compiled blocks, records at marks.

Lanes are laid out methods × seeds. Noise is drawn a block of steps at a time at fixed multiples of the block size, and
one compiled program with a dynamic trip count walks from any step to any other inside a block. So marks, pauses and
resuming only cut the walk at other places, and cannot change a bit of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from twoclock.core import PyTree, pytree
from twoclock.engine import keys, lanes
from twoclock.engine.native import jit_loop

# Numbers in the noise of one block and group: enough to hide the dispatch, on the CPU few enough to stay in cache.
CPU_BLOCK_NUMBERS = 1 << 18
ACCELERATOR_BLOCK_NUMBERS = 1 << 24
LONGEST_BLOCK = 4096


@pytree
class Carry:
    """All that a run carries from step to step, each leaf with leading axes methods × seeds."""

    state: PyTree
    env: PyTree
    alive: Any
    last: Any


@dataclass(frozen=True)
class Tick:
    """A place where the run may be looked at: a mark has a row of metrics, each methods × seeds; a pause has none."""

    step: int
    row: dict[str, np.ndarray] | None
    diverged: int
    carry: Callable[[], Carry]


def start(problem: Any, methods: Any, seeds: Sequence[int], *, own: bool = False) -> Carry:
    """The carry before the first step."""
    return _start(problem, methods, jnp.asarray(np.asarray(seeds, np.uint32)), own=own)


def run(
    problem: Any,
    methods: Any,
    seeds: Sequence[int],
    marks: Sequence[int],
    carry: Carry,
    step: int = 0,
    *,
    own: bool = False,
    block: int | None = None,
    bound: float | None = None,
    pause: float = 0.25,
) -> Iterator[Tick]:
    """Walk all lanes through the marks, yielding a tick at each mark and about every ``pause`` seconds between.

    Args:
        problem: the problem; where ``own`` is true its leaves have a leading seed axis, one instance a seed.
        methods: a method whose leaves have a leading axis, one entry a setting (see ``stack``).
        seeds: integers; step k of seed s draws from the key of (s, k).
        marks: increasing step numbers at which to record; the last one ends the run.
        carry: where to go on from (see ``start``).
        step: the step that the carry is at; earlier marks are passed over.
        block: draw the noise of at most so many steps at once; chosen from its size if None.
        bound: a seed whose θ or ω leaves [−bound, bound] in any entry counts as diverged.
    """
    groups = _groups(problem, methods, np.asarray(seeds), carry.alive.shape[0], own, block, bound)
    carries = [group.own_part(carry) for group in groups]
    stride = groups[0].size
    with ThreadPoolExecutor(min(len(groups), lanes.threads())) as pool:
        for mark in (m for m in marks if m >= step):
            while step < mark:
                stop = min(step + stride, mark)
                began = time.perf_counter()
                carries = _everywhere(pool, partial(_Group.advance, k=step, stop=stop), groups, carries)
                took, step = time.perf_counter() - began, stop
                if took > 2 * pause:
                    stride = max(stride // 2, 1)
                elif took < pause / 2 and stop < mark:
                    stride *= 2
                if step < mark:
                    yield Tick(step, None, _diverged(carries), partial(_join, groups, carries))
            # One group after the other: JAX may hand the factorisations of two programs to the pool they both wait on.
            rows = [group.measure(carry) for group, carry in zip(groups, carries, strict=True)]
            row = {name: _whole(groups, [r[name] for r in rows]) for name in rows[0]}
            yield Tick(step, row, _diverged(carries), partial(_join, groups, carries))


def stack(methods: Sequence[Any]) -> Any:
    """Methods that differ only in numbers, as one method with a leading axis on every leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]), *methods)


class _Group:
    """Some of the lanes and the programs that walk them. The carry passes through, so that a walk can be cut short.

    Args:
        problem: the problem; where each seed has its own, those of this group's seeds.
        lanes: which methods and which seeds.
        device: where they live; None for the only one there is.
    """

    def __init__(
        self,
        problem: Any,
        methods: Any,
        seeds: np.ndarray,
        lanes: tuple[slice, slice],
        device: Sharding | None,
        own: bool,
        block: int | None,
        bound: float | None,
    ) -> None:
        self.lanes, self.device, self.own = lanes, device, own
        self.problem = self._here(problem)
        self.methods = self._here(jax.tree.map(lambda leaf: leaf[lanes[0]], methods))
        self.bound = None if bound is None else np.float64(bound)
        self.streams = self._here(_streams(jnp.asarray(seeds[lanes[1]].astype(np.uint32))))
        noise = jax.eval_shape(partial(_noise, own=own, size=1, room=1), self.problem, self.streams, np.int32(0))
        count = sum(leaf.size for leaf in jax.tree.leaves(noise))
        # The program that walks sees the same room for noise whatever part of it is filled at once.
        numbers = CPU_BLOCK_NUMBERS if jax.default_backend() == "cpu" else ACCELERATOR_BLOCK_NUMBERS
        self.room = _power_of_two(min(LONGEST_BLOCK, numbers // max(count, 1)))
        self.size = min(block or self.room, self.room)
        self.drawn: tuple[int, PyTree] = (-1, None)

    def _here(self, tree: PyTree) -> PyTree:
        return tree if self.device is None else jax.device_put(tree, self.device)

    def own_part(self, carry: Carry) -> Carry:
        return self._here(jax.tree.map(lambda leaf: jnp.asarray(leaf[self.lanes]), carry))

    def advance(self, carry: Carry, k: int, stop: int) -> Carry:
        while k < stop:
            first = k - k % self.size
            if self.drawn[0] != first:
                sizes = {"size": self.size, "room": self.room}
                self.drawn = first, _noise(self.problem, self.streams, np.int32(first), own=self.own, **sizes)
            span = np.asarray([first, k - first, min(stop - first, self.size)], np.int32)
            carry = _advance(self.problem, self.methods, carry, self.drawn[1], *span, self.bound, own=self.own)
            k = first + int(span[2])
        return jax.block_until_ready(carry)

    def measure(self, carry: Carry) -> dict[str, np.ndarray]:
        row = _measure(self.problem, self.methods, carry, own=self.own)
        return {name: np.asarray(value) for name, value in row.items()}


def _groups(problem: Any, methods: Any, seeds: np.ndarray, count: int, own: bool, *rest: Any) -> list[_Group]:
    """The lanes, methods × seeds, in groups of one shape that take turns on the devices."""
    devices = jax.devices()
    rows, parts = lanes.cut(count, len(seeds), None if jax.default_backend() == "cpu" else len(devices))
    homes: list[Sharding | None] = [None] if len(devices) == 1 else [SingleDeviceSharding(d) for d in devices]
    cut = own and len(parts) > 1  # groups of the same seeds share one copy of their problems
    problems = [jax.tree.map(lambda leaf, p=part: leaf[p], problem) if cut else problem for part in parts]
    every = [(row, part, of_seeds) for row in rows for part, of_seeds in zip(parts, problems, strict=True)]
    return [
        _Group(of_seeds, methods, seeds, (row, part), homes[i % len(homes)], own, *rest)
        for i, (row, part, of_seeds) in enumerate(every)
    ]


def _everywhere(
    pool: ThreadPoolExecutor, work: Callable[..., Any], groups: list[_Group], carries: list[Carry]
) -> list[Any]:
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]

    def here(group: _Group, carry: Carry) -> Any:
        with jax.enable_x64(x64):  # a thread would start from the global setting
            return work(group, carry)

    if len(groups) == 1:
        return [here(groups[0], carries[0])]
    return list(pool.map(here, groups, carries))


def _join(groups: list[_Group], carries: list[Carry]) -> Carry:
    return jax.tree.map(lambda *parts: _whole(groups, parts), *carries)


def _whole(groups: list[_Group], parts: Sequence[Any]) -> np.ndarray:
    """The parts of all groups, put together again to methods × seeds."""
    by_row: dict[int, list[np.ndarray]] = {}
    for group, part in zip(groups, parts, strict=True):
        by_row.setdefault(group.lanes[0].start, []).append(np.asarray(part))
    return np.concatenate([np.concatenate(row, axis=1) for row in by_row.values()])


def _diverged(carries: list[Carry]) -> int:
    return sum(int(np.count_nonzero(~np.asarray(carry.alive))) for carry in carries)


def _power_of_two(at_most: int) -> int:
    return 1 << max(at_most, 1).bit_length() - 1


_streams = jax.jit(jax.vmap(keys.step_stream))


@partial(jax.jit, static_argnames="own")
def _start(problem: Any, methods: Any, seeds: Any, *, own: bool) -> Carry:
    def lane(problem: Any, method: Any, seed: Any) -> Carry:
        theta, omega, env = problem.init(keys.start_key(seed))
        return Carry(method.init(theta, omega), env, jnp.asarray(True), jnp.zeros((), jnp.int32))

    count = max((leaf.shape[0] for leaf in jax.tree.leaves(methods)), default=1)
    by_seed = jax.vmap(lane, in_axes=(0 if own else None, None, 0))
    return jax.vmap(by_seed, in_axes=(None, 0, None), axis_size=count)(problem, methods, seeds)


@partial(jax.jit, static_argnames=("own", "size", "room"))
def _noise(problem: Any, streams: Any, first: Any, *, own: bool, size: int, room: int) -> PyTree:
    """The noise of ``size`` steps from step ``first`` on, steps × seeds, in an array with room for more."""
    by_seed = jax.vmap(
        lambda p, stream, k: p.noise(jax.random.fold_in(stream, k)), in_axes=(0 if own else None, 0, None)
    )
    by_step = jax.vmap(by_seed, in_axes=(None, None, 0))
    noise = by_step(problem, streams, first + jnp.arange(size, dtype=jnp.int32))
    return jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, room - size)] + [(0, 0)] * (leaf.ndim - 1)), noise)


@partial(jit_loop, static_argnames="own")
def _advance(
    problem: Any, methods: Any, carry: Carry, noise: PyTree, first: Any, lo: Any, hi: Any, bound: Any, *, own: bool
) -> Carry:
    """Steps first+lo … first+hi−1. A lane whose next state is not finite, or out of bounds, stays where it is."""

    def lane(problem: Any, method: Any, carry: Carry, u: PyTree, k: Any) -> Carry:
        old = carry.state
        x, env = problem.draw(u, old.theta, carry.env)
        new = method.step(problem.F, problem.G, old, x, k)
        alive = carry.alive & _within(new, jnp.inf)
        if bound is not None:
            alive = alive & _within((new.theta, new.omega), bound)
        state = jax.tree.map(lambda n, o: jnp.where(alive, n.astype(o.dtype), o), new, old)
        return Carry(state, env, alive, jnp.where(alive, k + 1, carry.last))

    # Inside the loop the seeds are the last axis of the state, so that its arithmetic runs along them.
    axes = Carry(-1, 0, 0, 0)
    by_seed = jax.vmap(lane, in_axes=(0 if own else None, None, axes, 0, None), out_axes=axes)
    by_method = jax.vmap(by_seed, in_axes=(None, 0, 0, None, None))

    def body(i: Any, carry: Carry) -> Carry:
        u = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), noise)
        return by_method(problem, methods, carry, u, first + i)

    out = jax.lax.fori_loop(lo, hi, body, _seeds_to(-1, carry))
    return _seeds_to(1, out)


def _seeds_to(axis: int, carry: Carry) -> Carry:
    """Move the seed axis of the state from where it is, second or last, to the other place."""
    state = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1 if axis == -1 else -1, axis), carry.state)
    return Carry(state, carry.env, carry.alive, carry.last)


def metrics_of(problem: Any, method: Any, state: Any, env: Any) -> dict[str, Any]:
    """A row of the record: what the problem knows of the estimate, and what both report of themselves."""
    known = problem.measure(*method.estimate(state)) if hasattr(problem, "measure") else {}
    of_method = method.report(state) if hasattr(method, "report") else {}
    return {**known, **of_method, **(problem.report(env) if hasattr(problem, "report") else {})}


@partial(jax.jit, static_argnames="own")
def _measure(problem: Any, methods: Any, carry: Carry, *, own: bool) -> dict[str, Any]:
    def lane(problem: Any, method: Any, carry: Carry) -> dict[str, Any]:
        return metrics_of(problem, method, carry.state, carry.env)

    by_seed = jax.vmap(lane, in_axes=(0 if own else None, None, 0))
    return jax.vmap(by_seed, in_axes=(None, 0, 0))(problem, methods, carry)


def _within(tree: PyTree, bound: Any) -> Any:
    """Whether every float in the tree is finite and no larger than the bound."""
    ok = jnp.asarray(True)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            largest = jnp.minimum(jnp.asarray(bound, leaf.dtype), jnp.finfo(leaf.dtype).max)
            ok = ok & jnp.all(jnp.abs(leaf) <= largest)
    return ok
