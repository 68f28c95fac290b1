"""Going on from where a result stopped, to the bits of one long run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from twoclock.engine.protocol import LaneState, Row
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.result import Result
from twoclock.storage.run_identity import RunSpec, describe, explain_mismatch, identify
from twoclock.validation import short_repr


@dataclass(frozen=True)
class Start:
    """Results that stopped at the same step, by label."""

    step: int
    results: Mapping[str, Result]

    def carry(self, labels: Sequence[str], like: LaneState) -> LaneState:
        """Where the methods of one program stopped, methods × seeds."""
        by_method = [end.carry for label in labels if (end := self.results[label].end) is not None]
        leaves = [np.stack(leaf) for leaf in zip(*by_method, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def rows(self, labels: Sequence[str]) -> list[Row]:
        """What was recorded at the marks before the step; the one at it is measured again."""
        frames = [self.results[label].history for label in labels]
        seeds, marks = (self.results[labels[0]].spec[name] for name in ("seeds", "marks"))
        names = [name for name in frames[0].columns if name not in ("seed", "step")]
        values = {n: np.stack([f[n].to_numpy().reshape(len(seeds), len(marks)) for f in frames]) for n in names}
        return [{n: v[:, :, i] for n, v in values.items()} for i, mark in enumerate(marks) if mark < self.step]

    def engine(self, label: str) -> str:
        """The engine that it ran on: another's bits are others."""
        return str(self.results[label].spec.get("engine", "xla"))

    def seconds(self, label: str) -> float:
        return float(self.results[label].spec.get("wall_seconds") or 0.0)


def begin(
    start: object, problem: ProblemSource, methods: Mapping[str, Method], spec: RunSpec, marks: object
) -> tuple[Start, RunSpec]:
    """What to go on from, and the whole run with the marks of both its parts; refused where it is of another run."""
    if not isinstance(start, Mapping) or set(start) != set(methods):
        labels = ", ".join(map(repr, methods))
        raise InputError(f"`start` must be a mapping with a result for each of {labels:.200}, got {short_repr(start)}")
    results = {label: _result(label, start[label]) for label in methods}
    first = next(iter(results.values())).spec
    for label, result in results.items():
        if (result.spec["steps"], result.spec["marks"]) != (first["steps"], first["marks"]):
            raise InputError(
                f"`start` must hold results with the same steps and marks, {label!r} has others; go on one by one"
            )
    step, known = first["steps"], tuple(first["marks"])
    if spec.steps < step:
        raise InputError(
            f"`steps` must be the new total, at least the {step:,} where `start` stopped, got {spec.steps:,}"
        )
    missing = [] if marks is None else [mark for mark in spec.marks if mark <= step and mark not in known]
    if missing:
        raise InputError(
            f"`marks` up to {step:,} must be those of `start`, which has none at {missing[0]:,}; leave them out"
        )
    before = replace(spec, steps=step, marks=known)
    here = identify(problem, methods, before)
    for label, result in results.items():
        differs = here[label].difference(result.end.identity() if result.end else {})
        if differs is not None:
            of_here = {**before.as_dict(), "problem": describe(problem), "method": describe(methods[label])}
            reason, remedy = explain_mismatch(differs, result.spec.get(differs), of_here.get(differs))
            where = f"start[{label!r}]" if label else "start"
            raise InputError(f"`{where}` is of another run: {reason}; {remedy} to go on from it")
    return Start(step, results), replace(spec, marks=(*known, *(mark for mark in spec.marks if mark > step)))


def _result(label: str, result: object) -> Result:
    where = f"start[{label!r}]" if label else "start"
    if not isinstance(result, Result):
        raise InputError(f"`{where}` must be a result of `solve`, got {short_repr(result)}")
    if result.end is None:
        raise InputError(f"`{where}` has no state to go on from (one of a sweep has none); run it with `solve`")
    seeds, marks = result.spec["seeds"], result.spec["marks"]
    as_written = np.repeat(seeds, len(marks)), np.tile(marks, len(seeds))
    columns = (result.history[name].to_numpy() for name in ("seed", "step"))
    if not all(np.array_equal(*pair) for pair in zip(as_written, columns, strict=True)):
        raise InputError(f"`{where}` must have its history as `solve` wrote it; its rows are others now")
    return result
