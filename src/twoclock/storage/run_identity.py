"""The identity of a run, for checkpoints, sweeps, experiments, agents and the command line.

Two runs are the same if they compute the same: the traced program of the problem and of the method with all their
numbers, steps, seeds, marks, bound and precision. Versions, machines and names do not matter; they are recorded beside
it as text.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from twoclock.engine import compatibility, program_digest
from twoclock.protocols import Key, Method, Problem, ProblemSource, PyTree, pytree
from twoclock.validation import run_args
from twoclock.version import __version__

# Of identities and of all records.
FORMAT = 3

Precision = Literal["float64", "float32", "bfloat16"]
Json = object  # what json.dumps takes
_OPTIONS = ("steps", "seeds", "marks", "precision", "bound")
_FEW, _LONGEST = 6, 60  # entries and letters that an error message shows
_INLINE = 64  # entries of an array that a description shows


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """The options of a run, without problem and method."""

    steps: int
    seeds: tuple[int, ...]  # the seeds themselves
    marks: tuple[int, ...]  # the steps at which to record; the last is ``steps``
    precision: Precision = "float64"
    bound: float | None = None  # a seed whose θ or ω leaves [−bound, bound] in any entry counts as diverged

    @classmethod
    def checked(
        cls, steps: object, seeds: object, marks: object = None, precision: object = "float64", bound: object = None
    ) -> RunSpec:
        """Check a user's arguments: counts, sequences or nothing."""
        many = run_args.check_steps(steps)
        run_args.check_numbers(precision, bound, get_args(Precision))
        return cls(
            many,
            tuple(run_args.check_seeds(seeds)),
            tuple(run_args.check_marks(marks, many)),
            cast("Precision", precision),
            cast("float | None", bound),
        )

    @property
    def x64(self) -> bool:
        return self.precision == "float64"

    def in_precision(self, problem: ProblemSource) -> ProblemSource:
        """The problem as it is run: with F and G in bfloat16 where that is the precision."""
        return mixed_precision(problem) if self.precision == "bfloat16" else problem

    def as_dict(self) -> dict[str, Json]:
        """Plain names, numbers and lists, for the record."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}


@dataclasses.dataclass(frozen=True)
class Identity:
    """The identity of a record in parts, so that an error message can name the part that differs."""

    parts: Mapping[str, Json]

    def as_json(self) -> dict[str, Json]:
        """The parts as JSON, for the record."""
        return {"format": FORMAT, **json.loads(json.dumps(self.parts))}

    @property
    def digest(self) -> str:
        """A short name for records of this run."""
        return hashlib.sha256(json.dumps(self.as_json()).encode()).hexdigest()[:16]

    def difference(self, saved: Mapping[str, Json]) -> str | None:
        """The part in which a saved identity differs, "format" for one of another version; None if it is the same.

        Parts that are None are ignored on both sides, so that new options do not invalidate records.
        """
        here, there = ({k: v for k, v in part.items() if v is not None} for part in (self.as_json(), saved))
        return next((name for name in (*here, *there) if here.get(name) != there.get(name)), None)


def identify(problem: ProblemSource, methods: Mapping[str, Method], spec: RunSpec) -> dict[str, Identity]:
    """For each method the identity of its run. Options come first, since another precision is also another program."""
    of_problem, of_methods = program_digest.digest_run(problem, methods, x64=spec.x64)
    with jax.enable_x64(spec.x64):
        names = compatibility.metric_names(problem, methods)
    return {
        label: Identity({**spec.as_dict(), "problem": of_problem, "method": digest, "metrics": names[label]})
        for label, digest in of_methods.items()
    }


def shared_identity(identities: Mapping[str, Identity]) -> Identity:
    """The identity of runs that share one checkpoint: a list of their methods, the rest once."""
    parts = [identity.parts for identity in identities.values()]
    return Identity({**parts[0], "method": [part["method"] for part in parts]})


def explain_mismatch(name: str, there: Json, here: Json) -> tuple[str, str]:
    """Describe in which part a saved run differs from this one, and how to change the call so that it fits.

    >>> explain_mismatch("steps", 1000, 2000)
    ('its steps differ: 1,000 there, 2,000 here', 'write `steps=1000`')
    >>> explain_mismatch("method", {"name": "Fast", "alpha": "1/(k+1)"}, {"name": "Fast", "alpha": "2/(k+1)"})[0]
    'its method differs: alpha is 1/(k+1) there and 2/(k+1) here'
    """
    clause = f"its {name} {'differ' if name.endswith('s') else 'differs'}"
    field, then, now = _first_difference("", there, here)
    was, is_now = _short(then), _short(now)
    if was is not None and is_now is not None and was != is_now:
        clause += f": {field} is {was} there and {is_now} here" if field else f": {was} there, {is_now} here"
    elif then != now:
        clause += f", in {field}" if field else ""
    elif name not in _OPTIONS:
        clause += ", in numbers or code that its description leaves out"
    if name not in _OPTIONS or (isinstance(there, (list, tuple)) and len(there) > _FEW) or _short(there) is None:
        return clause, "use the same arguments"
    return clause, f"write `{name}={list(there) if isinstance(there, (list, tuple)) else repr(there)}`"


def _first_difference(field: str, there: Json, here: Json) -> tuple[str, Json, Json]:
    """The first field in which two descriptions differ, and its two values."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in (*there, *here):
            if there.get(name) != here.get(name):
                inside = field if name == "name" else f"{field}.{name}".lstrip(".")
                return _first_difference(inside, there.get(name), here.get(name))
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = [(a, b) for a, b in zip(there, here, strict=True) if a != b and isinstance(a, dict)]
        if pairs:
            return _first_difference(field, *pairs[0])
    return field, there, here


def _short(value: Json) -> str | None:
    """A value in a few words, None if it needs too many."""
    if isinstance(value, (list, tuple)) and len(value) > _FEW:
        return f"{len(value):,} of them"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST else None


def describe(thing: object) -> dict[str, Json]:
    """Describe a problem, method or schedule by class and fields; a function by its name and bound arguments."""
    if isinstance(thing, functools.partial):
        inner = describe(thing.func)
        return {**inner, **{name: _value(value) for name, value in thing.keywords.items()}}
    if not dataclasses.is_dataclass(thing):
        return {"name": _function_name(thing)}
    fields = {field.name: _value(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    return {"name": type(thing).__name__, **fields}


def provenance(wall_seconds: float | None = None) -> dict[str, object]:
    """The origin of a number, recorded beside it; not part of the identity."""
    took = {} if wall_seconds is None else {"wall_seconds": round(wall_seconds, 3)}
    return {"versions": dict(_versions()), "device": jax.devices()[0].device_kind, **took}


@functools.cache
def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"python": platform.python_version(), "twoclock": __version__, **packages}


def environment() -> dict[str, Json]:
    """The versions of all packages that affect the numbers, and the machine."""
    packages = ("jax", "jaxlib", "numpy", "scipy", "pandas", "matplotlib")
    devices = jax.devices()
    return {
        "twoclock": __version__,
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "accelerator": "none" if devices[0].platform == "cpu" else f"{len(devices)} × {devices[0].device_kind}",
    }


def _value(value: object) -> Json:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        return array.tolist() if array.size <= _INLINE else f"{array.dtype}{list(array.shape)}"
    if dataclasses.is_dataclass(value):
        return str(value) if callable(value) else describe(value)
    return _function_name(value)


def _function_name(thing: object) -> str:
    return getattr(thing, "__qualname__", type(thing).__name__)


def _forward(name: str) -> Any:
    return lambda mixed, *args: getattr(mixed.problem, name)(*args)


@pytree
class MixedPrecision(Problem):
    """A problem whose F and G are computed in bfloat16, from float32 and to float32.

    The iterates, their compensated sums, the samples' draw and the metrics stay in float32. XLA adds up products and
    means of bfloat16 numbers in float32.
    """

    problem: Problem
    # Differences of nearby values vanish in eight bits.
    instead_of_roots = 'a method with step sizes, such as tc.Polyak(tc.Standard()), or precision="float32"'
    init, noise, draw, sample, measure, report, h, omega_star = (
        _forward(name) for name in ("init", "noise", "draw", "sample", "measure", "report", "h", "omega_star")
    )

    @property
    def samples_see_omega(self) -> bool:
        return self.problem.samples_see_omega

    @property
    def omega_is_trace(self) -> bool:  # type: ignore[override]
        return self.problem.omega_is_trace

    def knows(self, member: str) -> bool:
        return self.problem.knows(member)

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self._in_bfloat16("F", theta, omega, x)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self._in_bfloat16("G", theta, omega, x)

    def _in_bfloat16(self, name: str, *args: PyTree) -> PyTree:
        operator = getattr(_cast(self.problem, jnp.bfloat16), name)
        return _cast(operator(*_cast(args, jnp.bfloat16)), jnp.float32)


def _cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
    def one(leaf: PyTree) -> PyTree:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(one, tree)


def mixed_precision(source: ProblemSource) -> ProblemSource:
    """The same problem, or function of a key that makes one, with F and G in bfloat16."""
    return MixedPrecision(source) if isinstance(source, Problem) else partial(_make, source)


def _make(source: Any, key: Key) -> MixedPrecision:
    return MixedPrecision(source(key))
