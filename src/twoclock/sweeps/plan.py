"""Cutting a sweep into shards: what each computes, what it is called, and how large it may be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.core import InputError
from twoclock.engine import fingerprint, fit, keys
from twoclock.engine.run import metrics_of
from twoclock.paths import paths
from twoclock.record.describe import describe, versions
from twoclock.solve import alike, instances

# Fewer seeds than this are not shared out among threads; many come in multiples of it, so that they can be.
_EVEN_SEEDS = 64
_MANY_SEEDS = 1024


@dataclass(frozen=True)
class Job:
    """What a sweep is of: all that is needed to compute any of its shards."""

    problems: Mapping[str, Any]
    methods: Mapping[str, Any]
    steps: int
    seeds: list[int]
    marks: list[int]
    precision: str
    bound: float | None

    @property
    def lanes(self) -> int:
        return len(self.problems) * len(self.methods) * len(self.seeds)


@dataclass(frozen=True)
class Shard:
    """Some methods and some seeds on one problem, run as one program.

    Args:
        name: the hash of what it computes.
        problem, methods: labels.
        seeds: the seeds themselves.
        shape: methods × seeds of the program. Shards share it; one with fewer lanes repeats its last.
        metrics: every metric of the sweep, so that all its files have the same columns.
    """

    name: str
    problem: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    shape: tuple[int, int]
    metrics: tuple[str, ...]

    @property
    def lanes(self) -> int:
        return len(self.methods) * len(self.seeds)


@dataclass(frozen=True)
class Plan:
    """The shards of a sweep, and its description for the record."""

    job: Job
    shards: list[Shard]
    spec: dict[str, Any]


def plan(job: Job, families: Mapping[str, str], lanes: int, memory: float | int) -> Plan:
    """Cut the work; the same work is cut the same way on any machine.

    Args:
        families: the name under which each method's best setting is compared with others.
        lanes: how many runs (a method on a seed) a shard may hold.
        memory: how many bytes a shard may take while it is computed.
    """
    cuts: list[tuple[str, list[str], tuple[int, int]]] = []
    prints: dict[str, dict[str, Any]] = {"problems": {}, "methods": {}}
    metrics: dict[str, None] = {}
    with jax.enable_x64(job.precision == "float64"):
        for label, problem in job.problems.items():
            made, own = _stand_in(problem)
            prints["problems"][label] = fingerprint.of_records(problem if own else made)
            for labels in alike(job.methods):
                methods = [job.methods[name] for name in labels]
                fit.check_fit(made, methods[0])
                for name, mark in zip(labels, fingerprint.of_methods(methods, made), strict=True):
                    prints["methods"].setdefault(name, {})[label] = mark
                row, lane, instance = _sizes(made, methods[0], own=own)
                metrics.update(dict.fromkeys(row))
                rows = 2 * len(job.marks) * len(row) * 8
                shape = _shape(len(labels), len(job.seeds), lanes, memory, 2 * lane + rows, instance)
                cuts.append((label, labels, shape))
    identity = {
        **prints, "steps": job.steps, "seeds": job.seeds, "marks": job.marks, "precision": job.precision,
        "bound": job.bound, "lanes": lanes, "memory": memory,
    }  # fmt: skip
    shards = [shard for cut in cuts for shard in _shards(job, cut, identity, tuple(metrics))]
    spec = {
        "identity": identity,
        "problems": {label: describe(problem) for label, problem in job.problems.items()},
        "methods": {
            label: {"family": families[label], "numbers": _numbers(method), **describe(method)}
            for label, method in job.methods.items()
        },
        "metrics": list(metrics),
        "shards": {shard.name: shard.lanes for shard in shards},
        **versions(),
    }
    return Plan(job, shards, spec)


def _shards(job: Job, cut: tuple[str, list[str], tuple[int, int]], identity: Any, metrics: tuple[str, ...]) -> Any:
    """Seeds outside, methods inside: neighbours share the instances of the problem."""
    problem, labels, (count, width) = cut
    for j in range(0, len(job.seeds), width):
        for i in range(0, len(labels), count):
            methods, seeds = tuple(labels[i : i + count]), tuple(job.seeds[j : j + width])
            what = {
                "problem": (problem, identity["problems"][problem]),
                "methods": [(name, identity["methods"][name][problem]) for name in methods],
                "seeds": seeds,
                "shape": (count, width),
                **{name: identity[name] for name in ("steps", "marks", "precision", "bound")},
            }
            name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
            yield Shard(name, problem, methods, seeds, (count, width), metrics)


def _shape(methods: int, seeds: int, lanes: int, memory: float | int, lane: int, instance: int) -> tuple[int, int]:
    """Methods × seeds of a shard: even shares of both within the bounds, preferring to keep the seeds together."""
    if memory < lane + instance:
        raise InputError(f"`memory` must hold one run, which takes {lane + instance:,} bytes, got {memory:,.0f}")
    most = min(lanes, int(memory // (lane + instance)))
    width = _even_share(seeds, most, _EVEN_SEEDS if min(seeds, most) > _MANY_SEEDS else 1)
    room = min(lanes, int((memory - width * instance) // lane))
    return _even_share(methods, max(room // width, 1), 2 if methods > 2 and width < _EVEN_SEEDS else 1), width


def _even_share(whole: int, most: int, even: int = 1) -> int:
    """What each of as few as possible gets, none more than ``most``; where there is room a multiple of ``even``."""
    share = -(-whole // -(-whole // most))
    rounded = -(-share // even) * even
    return rounded if rounded <= most else share


def _sizes(problem: Any, method: Any, *, own: bool) -> tuple[list[str], int, int]:
    """The metrics of a run, the bytes that one lane carries, and those of its own instance of the problem."""
    key = keys.start_key(0)

    def first(problem: Any, method: Any) -> Any:
        theta, omega, env = problem.init(key)
        return method.init(theta, omega), env

    numbers = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), method)
    state, env = jax.eval_shape(first, problem, numbers)
    names = list(jax.eval_shape(metrics_of, problem, numbers, state, env))
    return names, _bytes((state, env)), 2 * _bytes(problem) if own else 0  # all of them, and those of each group


def _stand_in(problem: Any) -> tuple[Any, bool]:
    """The problem, or one of nothing but zeros where each seed would draw its own, and whether it would."""
    if hasattr(problem, "F") or not callable(problem):
        return instances(problem, [])[0], False
    shapes = jax.eval_shape(problem, keys.instance_key(0))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), True


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def _numbers(method: Any) -> dict[str, float]:
    """The numbers in a method by path, for whoever draws a record against them."""
    return {path: float(v) for path, v in paths(method).items() if isinstance(v, (int, float, np.number))}
