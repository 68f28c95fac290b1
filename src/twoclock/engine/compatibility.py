"""Checks before a run: whether a problem fits a method, by tracing alone, and whether the memory holds the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng, validation
from twoclock.engine import program_digest
from twoclock.engine.program_digest import ShapeRecorder, check_pure, numbers_as_shapes, shape_of
from twoclock.engine.protocol import RESERVED, flatten_row, lane_metrics, lane_start
from twoclock.engine.run_batch import Instances, group_by_program, make_placeholder
from twoclock.engine.tracing import TracedProgram
from twoclock.intervals.bootstrap import TRACKED
from twoclock.protocols import InputError, Method, Problem, ProblemSource, PyTree
from twoclock.schedules import Levels
from twoclock.validation import function, is_text, short_repr
from twoclock.validation.run_args import check_factory

# What each function of a problem takes.
_ARGUMENTS = {
    "init": ("key",), "noise": ("key",), "draw": ("u", "theta", "env"),
    "F": ("theta", "omega", "x"), "G": ("theta", "omega", "x"), "measure": ("theta", "omega"), "report": ("env",),
}  # fmt: skip
# A run below this size fits any machine, and its shapes need not be traced.
_LITTLE = 256 << 20
# A generous guess of the bytes of a small lane and of a row, to recognise a small run.
_SMALL_LANE, _SMALL_ROW = 4096, 256


def check_source(problem: ProblemSource) -> None:
    """Check that a function of a key makes a problem, and draws it from the key alone."""
    program_digest.start_in_precision()
    if isinstance(problem, Problem):
        return
    key = prng.instance_key(0)
    check_factory(problem, key, shape_of)
    check_pure("problem", problem, key)


def check_fit(problem: Problem, method: Method) -> TracedProgram:
    """Check that operators fit the variables, that metrics are numbers, that all is pure; return what a lane does."""
    asked = {**_ARGUMENTS, "draw": ("u", "theta", "omega", "env")} if problem.samples_see_omega else _ARGUMENTS
    for name, arguments in asked.items():
        function(name, getattr(problem, name), *arguments)
    if problem.omega_is_trace and method.finds_roots:
        raise InputError(
            f"`method` {type(method).__name__} looks for the root of E G, and here ω is a trace, which solves no "
            "equation; try tc.methods.ObGD(), SwiftTD() or TIDBD(), or the problem that `with_trace` was given"
        )
    if problem.instead_of_roots and method.finds_roots:
        raise InputError(
            f"`method` {type(method).__name__} looks for roots by derivatives of samples, and ends at wrong points "
            f"on {type(problem).__name__}; use {problem.instead_of_roots}"
        )
    if (before := program_digest.passed_before(problem, method)) is not None:
        return before
    recorder = ShapeRecorder(problem, method)
    look = recorder.shape_of
    key = prng.key_shape()
    begin = look("init", problem.init, key)
    if not isinstance(begin, tuple) or len(begin) != 3:
        raise InputError(f"`init` must return (theta, omega, env), got {_layout(begin)}")
    theta, omega, env = begin
    u = look("noise", problem.noise, key)
    at = (theta, omega) if problem.samples_see_omega else (theta,)
    drawn = look("draw", problem.draw, u, *at, env)
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        raise InputError(f"`draw` must return the pair (x, env), got {_layout(drawn)}")
    x, after = drawn
    _same("draw", "env", after, env)
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(env)):
        raise InputError("`init` must make env of numbers, got a key of JAX; return `jax.random.key_data(key)`")
    for name, tree in {"theta": theta, "omega": omega}.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise InputError(f"`{_name(name, path)}` must be floating point, got {leaf.dtype}; write 0.0 for 0")
    _operator("F", "theta", look("F", problem.F, theta, omega, x), theta)
    _operator("G", "omega", look("G", problem.G, theta, omega, x), omega)
    _check_metrics("measure", look("measure", problem.measure, theta, omega))
    _check_metrics("report", look("report", problem.report, env))
    _check_schedules(method, omega)
    _check_method(problem, method, theta, omega, x, look)
    if (traced := program_digest.check_lane(problem, method, recorder)) is not None:
        return traced
    given = {"key": key, "u": u, "theta": theta, "omega": omega, "x": x, "env": env}
    for name, arguments in asked.items():
        check_pure(name, getattr(problem, name), *(given[argument] for argument in arguments))
    _check_schedules(method, omega, partial(check_pure, remedy="make it a function of k"))
    raise InputError(
        "`method` must depend on its arguments alone: each time it is traced it gives other numbers, and a run would "
        "freeze the first; make its schedules functions of k, and carry what changes in its state"
    )


def check_start(theta: PyTree, omega: PyTree) -> None:
    for name, tree in {"theta": theta, "omega": omega}.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not np.isfinite(leaf).all():
                raise InputError(f"`{_name(name, path)}` must start from finite numbers, got NaN or infinity in it")


@dataclasses.dataclass(frozen=True)
class Footprint:
    """The columns of a run, the bytes of one lane's state, and those of one instance of the problem."""

    metrics: list[str]
    lane: int
    instance: int

    def rows(self, marks: int) -> int:
        """The bytes of one lane's rows, as they are measured and as a history."""
        return 2 * marks * len(self.metrics) * 8


def footprint(instances: Instances, method: Method) -> Footprint:
    """The footprint of a method on a problem, from shapes alone."""
    problem = instances.example
    numbers = numbers_as_shapes(method)
    carry = jax.eval_shape(lambda problem, method: lane_start(problem, method, 0), problem, numbers)
    # JAX keeps the trace of a function while it exists, and with it NumPy arrays in this precision: so a lambda.
    row = jax.eval_shape(lambda *given: lane_metrics(*given), problem, numbers, carry.state, carry.env)
    # An instance is stored twice: among those of all seeds, and in its group.
    return Footprint(
        list(flatten_row(row)), _bytes((carry.state, carry.env)), 2 * _bytes(problem) if instances.per_seed else 0
    )


def metric_names(problem: ProblemSource, methods: Mapping[str, Method]) -> dict[str, list[str]]:
    """The columns that each method's history will have, in the precision that is set."""
    example, groups = make_placeholder(problem), group_by_program(methods)
    return {label: names for g in groups for names in [footprint(example, methods[g[0]]).metrics] for label in g}


def check_memory(problem: ProblemSource, methods: Mapping[str, Method], seeds: int, marks: int) -> None:
    """Refuse a run that the memory cannot hold, and say how to split it. The estimate is a lower bound."""
    small = len(methods) * seeds * (_SMALL_LANE + marks * _SMALL_ROW)
    if isinstance(problem, Problem) and small + _bytes(problem) < _LITTLE:
        return
    example, needed = make_placeholder(problem), 0
    for labels in group_by_program(methods):
        size = footprint(example, methods[labels[0]])
        needed = max(needed, seeds * (len(labels) * (2 * size.lane + size.rows(marks)) + size.instance))
    free = validation.available_memory()
    fits = seeds if free is None else int(seeds * free / (2 * max(needed, 1)))
    validation.check_memory(
        needed,
        f"`seeds`: {seeds:,} seeds at {marks:,} marks",
        f"take seeds=range({fits:,}) and the others later, fewer marks, or `tc.sweep`, which works in shards"
        if fits
        else "take a smaller problem",
    )


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def _operator(name: str, of: str, out: PyTree, like: PyTree) -> None:
    _same(name, of, out, like)
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        if not any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.floating, jnp.integer)):
            raise InputError(
                f"`{name}` must return real numbers: at `{_name(of, path)}` it returns {leaf.dtype}; "
                + ("take `jnp.real`" if "complex" in leaf.dtype.name else "write `.astype(float)`, or `jnp.where`")
            )


def _same(name: str, of: str, out: PyTree, like: PyTree) -> None:
    have, want = (jax.tree_util.tree_leaves_with_path(tree) for tree in (out, like))
    if str(jax.tree.structure(out)) != str(jax.tree.structure(like)):
        raise InputError(f"`{name}` must return the structure of {of}, {_layout(like)}, got {_layout(out)}")
    for (path, got), (_, wanted) in zip(have, want, strict=True):
        if got.shape != wanted.shape:
            raise InputError(
                f"`{name}` must return the shapes of {of}: at `{_name(of, path)}` it returns {got.shape}, "
                f"{of} has {wanted.shape}"
            )
        if of == "env" and got.dtype != wanted.dtype:
            raise InputError(
                f"`{name}` must return env as `init` made it: at `{_name(of, path)}` it returns {got.dtype}, and "
                f"`init` {wanted.dtype}; write `.astype(env.dtype)`"
            )


def _check_metrics(name: str, metrics: PyTree) -> None:
    if not isinstance(metrics, Mapping):
        raise InputError(f"`{name}` must return a dict of numbers, got {_layout(metrics)}; try {{'error': …}}")
    for metric, value in metrics.items():
        if not is_text(metric):
            raise InputError(f"`{name}` must name its metrics by text, got {short_repr(metric)}")
        if metric in RESERVED or metric.startswith(TRACKED):
            raise InputError(f"`{name}` must not call a metric {metric!r}, a column of histories; rename it")
        kinds = jnp.floating, jnp.integer, jnp.bool_
        if getattr(value, "shape", None) != () or not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
            kind = f"{value.dtype} of shape {value.shape}" if hasattr(value, "shape") else _layout(value)
            raise InputError(f"`{name}` must return one real number for {metric!r}, got {kind}; sum it, or take a norm")


def _check_method(
    problem: Problem, method: Method, theta: PyTree, omega: PyTree, x: PyTree, look: Callable[..., PyTree]
) -> None:
    """Check, on these shapes, that a method's state keeps its shapes, and its estimate and report."""
    like = numbers_as_shapes(method)
    name = type(method).__name__
    state = look(f"{name}.init", lambda method, *start: method.init(*start), like, theta, omega)
    if not (hasattr(state, "theta") and hasattr(state, "omega")):
        raise InputError(f"`{name}.init` must return a state with `.theta` and `.omega`, got {short_repr(state)}")
    k = jax.ShapeDtypeStruct((), jnp.int32)
    after = look(f"{name}.step", lambda m, state, x, k: m.step(problem.F, problem.G, state, x, k), like, state, x, k)
    _same(f"{name}.step", "the state", after, state)
    if program_digest.is_ours(method):
        return
    estimate = look(f"{name}.estimate", lambda method, state: method.estimate(state), like, state)
    if not isinstance(estimate, tuple) or len(estimate) != 2:
        raise InputError(f"`{name}.estimate` must return the pair (theta, omega), got {_layout(estimate)}")
    _check_metrics(f"{name}.report", look(f"{name}.report", lambda m, state: m.report(state), like, state))


def _check_schedules(method: object, omega: PyTree, check: Callable[..., object] | None = None) -> None:
    """Check that schedules give one number per step, or one per level of ω; or call ``check(name, schedule, k)``."""
    k = jax.ShapeDtypeStruct((), jnp.int32)
    for field in dataclasses.fields(method) if dataclasses.is_dataclass(method) else ():
        value = getattr(method, field.name)
        entries = {field.name: value}
        if isinstance(value, Method):
            _check_schedules(value, omega, check)
            continue
        if isinstance(value, Levels):
            count = len(omega) if isinstance(omega, tuple) else 1
            if count != len(value.entries):
                raise InputError(
                    f"`{field.name}` has {len(value.entries)} entries, and must have one per level of ω, which has "
                    f"{count}; give one step size for all, or ω as a tuple of levels"
                )
            entries = {f"{field.name}[{i}]": entry for i, entry in enumerate(value.entries)}
        elif not callable(value) or "static" in field.metadata:
            continue
        for name, schedule in entries.items():
            if check is not None:
                check(name, schedule, k)
            elif (shape := shape_of(name, schedule, k).shape) != ():
                raise InputError(f"`{name}` must give one number per step, got shape {shape} at k=0; return a scalar")


def _name(root: str, path: tuple[object, ...]) -> str:
    return root + jax.tree_util.keystr(path)


def _layout(tree: PyTree) -> str:
    """The shapes in a tree, short and on one line."""
    return short_repr(jax.tree.map(lambda leaf: getattr(leaf, "shape", leaf), tree))
