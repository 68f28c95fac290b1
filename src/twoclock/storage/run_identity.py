"""Is this the same run? The one answer, for checkpoints, sweeps, experiments and the command line alike.

Two runs are the same if they compute the same: the traced program of the problem and of the method with all their
numbers, steps, seeds, marks, bound and precision. Versions, machines and the names of things play no part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from twoclock import validation
from twoclock.engine import program_digest
from twoclock.protocols import Method, ProblemSource

# Of identities, and with them of all records that have one. Those of twoclock 0.1.0 had none.
FORMAT = 2

Precision = Literal["float64", "float32"]
Json = object  # what json.dumps takes


@dataclass(frozen=True)
class RunSpec:
    """How long, on what and how exactly a run goes; what it is of comes beside it.

    Args:
        steps: how many; one step takes one sample.
        seeds: the seeds themselves.
        marks: the steps at which to record; the last is ``steps``.
        precision: of all floating-point numbers.
        bound: a seed whose θ or ω leaves [−bound, bound] in any entry counts as diverged.
    """

    steps: int
    seeds: tuple[int, ...]
    marks: tuple[int, ...]
    precision: Precision = "float64"
    bound: float | None = None

    @classmethod
    def checked(
        cls, steps: object, seeds: object, marks: object = None, precision: object = "float64", bound: object = None
    ) -> RunSpec:
        """From what a user gave: counts, sequences or nothing; each wrong one is refused in one line."""
        many = validation.check_steps(steps)
        validation.check_numbers(precision, bound)
        return cls(
            many,
            tuple(validation.check_seeds(seeds)),
            tuple(validation.check_marks(marks, many)),
            cast("Precision", precision),
            cast("float | None", bound),
        )

    @property
    def x64(self) -> bool:
        return self.precision == "float64"

    def as_dict(self) -> dict[str, Json]:
        """For the record: plain names, numbers and lists."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}


@dataclass(frozen=True)
class Identity:
    """What a record is of, by parts, so that whoever refuses one can name what differs."""

    parts: Mapping[str, Json]

    def kept(self) -> dict[str, Json]:
        """As JSON, to lie beside the record."""
        return {"format": FORMAT, **_plain(self.parts)}

    @property
    def digest(self) -> str:
        """A name for what is kept under it."""
        return hashlib.sha256(json.dumps(self.kept()).encode()).hexdigest()[:16]

    def difference(self, kept: Mapping[str, Json]) -> str | None:
        """The part in which a kept identity differs, "format" for one of another version; None if it is the same.

        What is None is left out on both sides: new options must not invalidate records.
        """
        here, there = ({k: v for k, v in part.items() if v is not None} for part in (self.kept(), kept))
        return next((name for name in (*here, *there) if here.get(name) != there.get(name)), None)


def identify(problem: ProblemSource, methods: Mapping[str, Method], spec: RunSpec) -> dict[str, Identity]:
    """For each method the identity of its run. Its options come first: another precision is another program too."""
    of_problem, of_methods = program_digest.of_run(problem, methods, x64=spec.x64)
    return {label: Identity({**spec.as_dict(), "problem": of_problem, "method": m}) for label, m in of_methods.items()}


def together(identities: Mapping[str, Identity]) -> Identity:
    """Runs that share one checkpoint: their methods side by side, the rest once."""
    parts = [identity.parts for identity in identities.values()]
    return Identity({**parts[0], "method": [part["method"] for part in parts]})


def _plain(parts: Mapping[str, Json]) -> dict[str, Json]:
    return json.loads(json.dumps(parts))
