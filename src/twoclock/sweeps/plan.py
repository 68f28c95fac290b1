"""Cutting a sweep into shards: what each computes, what it is called, and how large it may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from twoclock.engine import compatibility, program_digest
from twoclock.engine.compatibility import footprint
from twoclock.engine.run_batch import group_by_program, make_placeholder
from twoclock.param_paths import paths
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.run_identity import Identity, Provenance, RunSpec, describe

# Fewer seeds than this are not shared out among threads; many come in multiples of it, so that they can be.
_EVEN_SEEDS = 64
_MANY_SEEDS = 1024


@dataclass(frozen=True)
class Job:
    """What a sweep is of: all that is needed to compute any of its shards. The engine is no part of what that is."""

    problems: Mapping[str, ProblemSource]
    methods: Mapping[str, Method]
    run: RunSpec
    engine: str = "auto"

    @property
    def lanes(self) -> int:
        return len(self.problems) * len(self.methods) * len(self.run.seeds)


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
    """The shards of a sweep, what it is, and its description for the record."""

    job: Job
    shards: list[Shard]
    identity: Identity
    spec: dict[str, Any]


def plan(job: Job, families: Mapping[str, str], lanes: int, memory: float | int) -> Plan:
    """Cut the work; the same work is cut the same way on any machine.

    Args:
        families: the name under which each method's best setting is compared with others.
        lanes: how many runs (a method on a seed) a shard may hold.
        memory: how many bytes a shard may take while it is computed.
    """
    run, cuts = job.run, []
    of_problems: dict[str, str] = {}
    of_methods: dict[str, dict[str, str]] = {name: {} for name in job.methods}
    metrics: dict[str, None] = {}
    with jax.enable_x64(run.x64):
        for label, problem in job.problems.items():
            compatibility.check_source(problem)
            example = make_placeholder(problem)
            groups = group_by_program(job.methods)
            for labels in groups:
                method = job.methods[labels[0]]
                compatibility.check_fit(example.example, method)
                size = footprint(example, method)
                metrics.update(dict.fromkeys(size.metrics))
                lane = 2 * size.lane + size.rows(len(run.marks))
                shape = _shape(len(labels), len(run.seeds), lanes, memory, lane, size.instance)
                cuts.append(_Cut(label, labels, shape))
            of_problems[label], found = program_digest.digest_run(problem, job.methods, x64=run.x64)
            for name, digest in found.items():
                of_methods[name][label] = digest
    programs: dict[str, Any] = {"problems": of_problems, "methods": of_methods}
    shards = [shard for cut in cuts for shard in _shards(run, cut, programs, tuple(metrics))]
    spec = {
        "problems": {label: describe(problem) for label, problem in job.problems.items()},
        "methods": {
            label: {"family": families[label], "numbers": _numbers(method), **describe(method)}
            for label, method in job.methods.items()
        },
        "metrics": list(metrics),
        "shards": {shard.name: shard.lanes for shard in shards},
        **Provenance.here().as_dict(),
    }
    return Plan(job, shards, Identity({**run.as_dict(), **programs, "lanes": lanes, "memory": memory}), spec)


@dataclass(frozen=True)
class _Cut:
    """Methods that run as one program on a problem, and the shape, methods × seeds, of the shards they are cut into."""

    problem: str
    methods: list[str]
    shape: tuple[int, int]


def _shards(run: RunSpec, cut: _Cut, programs: dict[str, Any], metrics: tuple[str, ...]) -> Iterator[Shard]:
    """Seeds outside, methods inside: neighbours share the instances of the problem."""
    problem, (count, width) = cut.problem, cut.shape
    for j in range(0, len(run.seeds), width):
        for i in range(0, len(cut.methods), count):
            methods, seeds = tuple(cut.methods[i : i + count]), run.seeds[j : j + width]
            identity = Identity(
                {
                    "problem": (problem, programs["problems"][problem]),
                    "methods": [(name, programs["methods"][name][problem]) for name in methods],
                    **replace(run, seeds=seeds).as_dict(),
                    "shape": cut.shape,
                }
            )
            yield Shard(identity.digest, problem, methods, seeds, cut.shape, metrics)


def _shape(methods: int, seeds: int, lanes: int, memory: float | int, lane: int, instance: int) -> tuple[int, int]:
    """Methods × seeds of a shard: even shares of both within the bounds, preferring to keep the seeds together."""
    if memory < lane + instance:
        raise InputError(f"`memory` must hold one run, which takes {lane + instance:,} bytes, got {memory:,.0f}")
    most = min(lanes, int(memory // (lane + instance)))
    width = _even_share(seeds, most, _EVEN_SEEDS if min(seeds, most) > _MANY_SEEDS else 1)
    fitting = min(lanes, int((memory - width * instance) // lane))
    return _even_share(methods, max(fitting // width, 1), 2 if methods > 2 and width < _EVEN_SEEDS else 1), width


def _even_share(whole: int, most: int, even: int = 1) -> int:
    """What each of as few as possible gets, none more than ``most``; where it fits a multiple of ``even``."""
    share = -(-whole // -(-whole // most))
    rounded = -(-share // even) * even
    return rounded if rounded <= most else share


def _numbers(method: Method) -> dict[str, float]:
    """The numbers in a method by path, for whoever draws a record against them."""
    return {path: float(v) for path, v in paths(method).items() if isinstance(v, (int, float, np.number))}
