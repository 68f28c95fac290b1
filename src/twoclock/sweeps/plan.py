"""The plan of a sweep: checked arguments, and shards, each named by the hash of its computation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import numpy as np

from twoclock.engine import compatibility, engines, program_digest
from twoclock.engine.compatibility import footprint
from twoclock.engine.run_batch import group_by_program, make_placeholder
from twoclock.param_paths import paths
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.atomic_file import Document
from twoclock.storage.run_identity import Identity, RunSpec, describe, provenance
from twoclock.storage.sweep_store import partition_name
from twoclock.validation import check_labels, run_args, short_repr, whole

# Fewer seeds than this are not divided among threads; larger numbers are multiples of it, so that they can be.
_EVEN_SEEDS = 64
_MANY_SEEDS = 1024


@dataclass(frozen=True)
class SweepJob:
    """The data to compute any shard of a sweep. The engine is not part of the sweep's identity."""

    problems: Mapping[str, ProblemSource]
    methods: Mapping[str, Method]
    run: RunSpec
    engine: str


@dataclass(frozen=True)
class Shard:
    """Some methods and some seeds on one problem, run as one program."""

    name: str  # the hash of its computation
    problem: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    shape: tuple[int, int]  # methods × seeds of the shared program; a shard with fewer lanes repeats its last
    metrics: tuple[str, ...]  # of the whole sweep, so that all its files have the same columns

    @property
    def lanes(self) -> int:
        return len(self.methods) * len(self.seeds)


@dataclass(frozen=True)
class SweepPlan:
    """The shards of a sweep, its identity, and its description for the record."""

    job: SweepJob
    shards: list[Shard]
    identity: Identity
    spec: Document


def make_plan(
    problems: Mapping[str, ProblemSource],
    methods: Mapping[str, Method | Mapping[str, Method]],
    run: RunSpec,
    engine: object,
    lanes: object,
    memory: object,
) -> SweepPlan:
    """Check the arguments of ``sweep``, and cut its work into shards, the same way on any machine."""
    flat, families = _lay_out_grids(problems, methods)
    checked = {label: run_args.check_problem(problem) for label, problem in problems.items()}
    job = SweepJob(checked, flat, run, engines.resolve(engine))
    lanes = whole("lanes", lanes)
    if isinstance(memory, bool) or not isinstance(memory, (int, float, np.number)) or not memory > 0:
        raise InputError(f"`memory` must be a number of bytes, got {short_repr(memory)}; leave it out for 1 GiB")
    memory = int(min(memory, 2**62))
    cuts: list[tuple[str, list[str], tuple[int, int]]] = []
    of_problems: dict[str, str] = {}
    of_methods: dict[str, dict[str, str]] = {name: {} for name in job.methods}
    metrics: dict[str, None] = {}
    with jax.enable_x64(run.x64):
        for label, problem in job.problems.items():
            compatibility.check_source(problem)
            example = make_placeholder(problem)
            for labels in group_by_program(job.methods):
                method = job.methods[labels[0]]
                compatibility.check_fit(example.example, method)
                size = footprint(example, method)
                metrics.update(dict.fromkeys(size.metrics))
                lane = 2 * size.lane + size.rows(len(run.marks))
                shape = _shape(len(labels), len(run.seeds), lanes, memory, lane, size.instance)
                cuts.append((label, labels, shape))
            of_problems[label], digests = program_digest.digest_run(problem, job.methods, x64=run.x64)
            for name, digest in digests.items():
                of_methods[name][label] = digest
    shards = []
    for label, labels, shape in cuts:
        for j in range(0, len(run.seeds), shape[1]):  # seeds outside: neighbours share the instances of the problem
            for i in range(0, len(labels), shape[0]):
                some, seeds = tuple(labels[i : i + shape[0]]), run.seeds[j : j + shape[1]]
                what = {"problem": (label, of_problems[label]), "shape": shape, **replace(run, seeds=seeds).as_dict()}
                what["methods"] = [(name, of_methods[name][label]) for name in some]
                shards.append(Shard(Identity(what).digest, label, some, seeds, shape, tuple(metrics)))
    of_record = {}
    for label, method in job.methods.items():
        # The numbers in a method by path, to plot against.
        numbers = {path: float(v) for path, v in paths(method).items() if isinstance(v, (int, float, np.number))}
        of_record[label] = {"family": families[label], "numbers": numbers, **describe(method)}
    spec = {
        "problems": {label: describe(problem) for label, problem in job.problems.items()},
        "methods": of_record,
        "metrics": list(metrics),
        "shards": {shard.name: shard.lanes for shard in shards},
        **provenance(),
    }
    programs = {"problems": of_problems, "methods": of_methods}
    return SweepPlan(job, shards, Identity({**run.as_dict(), **programs, "lanes": lanes, "memory": memory}), spec)


def _lay_out_grids(
    problems: Mapping[str, ProblemSource], methods: Mapping[str, Method | Mapping[str, Method]]
) -> tuple[dict[str, Method], dict[str, str]]:
    """Check the labels and the methods; each setting of a grid is a method of the grid's family.

    A family is the name under which the best of its settings is compared with others.
    """
    for name, given in {"problems": problems, "methods": methods}.items():
        if not isinstance(given, Mapping) or not given:
            raise InputError(f"`{name}` must be a mapping of labels with at least one entry, got {short_repr(given)}")
    flat: dict[str, Method] = {}
    families: dict[str, str] = {}
    for label, entry in methods.items():
        if isinstance(entry, Mapping):
            check_labels("methods", entry)
            if not entry:
                raise InputError(f"`methods` has an empty grid under {label!r}; give it at least one setting")
        settings = {f"{label} {s}": m for s, m in entry.items()} if isinstance(entry, Mapping) else {label: entry}
        for twice in flat.keys() & settings.keys():
            raise InputError(f"`methods` has {twice!r} twice, alone and in a grid; give one of them another label")
        flat.update(settings)
        families.update(dict.fromkeys(settings, label))
    kinds = {label: _kind(flat[label]) for label in methods if label in flat}
    several = [kind for kind, count in Counter(kinds.values()).items() if count > 1]
    families.update({label: kind for label, kind in kinds.items() if kind in several})
    for label, method in flat.items():
        partition_name("method", label)
        if not isinstance(method, Method) or isinstance(method, type):
            raise InputError(
                f"`methods` has {label!r}, which is no method but a {type(method).__name__}; try tc.Fast()"
            )
    for label in problems:
        partition_name("problem", label)
    return flat, families


def _kind(method: object) -> str:
    """The family of a single method: it is compared with others of its class, as settings of one family."""
    inner = getattr(method, "method", None)
    return type(method).__name__ + (f"({_kind(inner)})" if isinstance(inner, Method) else "")


def _shape(methods: int, seeds: int, lanes: int, memory: int, lane: int, instance: int) -> tuple[int, int]:
    """Methods × seeds of a shard: even shares of both within the bounds, keeping the seeds together if possible."""
    if memory < lane + instance:
        raise InputError(f"`memory` must hold one run, which takes {lane + instance:,} bytes, got {memory:,.0f}")
    most = min(lanes, int(memory // (lane + instance)))
    width = _even_share(seeds, most, _EVEN_SEEDS if min(seeds, most) > _MANY_SEEDS else 1)
    fitting = min(lanes, int((memory - width * instance) // lane))
    return _even_share(methods, max(fitting // width, 1), 2 if methods > 2 and width < _EVEN_SEEDS else 1), width


def _even_share(whole: int, most: int, even: int = 1) -> int:
    """Split ``whole`` into as few even shares of at most ``most`` as possible; a multiple of ``even`` if that fits."""
    share = -(-whole // -(-whole // most))
    rounded = -(-share // even) * even
    return rounded if rounded <= most else share
