"""Run a method on a problem."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
from scipy.special import stdtrit

from twoclock import registry, storage, validation
from twoclock.cli import main_metric, options, print_table, resumable, save_figure, say
from twoclock.cli.options import EngineOption, option
from twoclock.param_paths import with_settings
from twoclock.protocols import InputError, Method, Problem, ProblemSource
from twoclock.result import Result, load
from twoclock.solve import check_fit, solve
from twoclock.storage.run_identity import Precision, RunSpec, describe, explain_mismatch, identify

_HELP = """PROBLEM  a name that `twoclock list` shows, or file.py:name of a problem or of a function that makes one
METHOD   a name that `twoclock list` shows, or file.py:name of a method; auto, which needs no step size, if left out

`twoclock run PROBLEM METHOD --help` shows the settings of both as well.
"""
_SHOWN = 6  # entries of θ


@dataclass
class RunOptions:
    steps: int = option("The number of steps; each takes one sample.", 100_000)
    seeds: int = option("How many seeds.", 20)
    precision: Precision = option("float32 has compensated sums; bfloat16 is for F and G of networks.", "float64")
    engine: EngineOption = option(
        'What runs the steps: "xla" works everywhere, "c" and "cuda" compile a program for them.', "auto"
    )
    bound: float | None = option("Count a seed as diverged when an entry of θ or ω leaves [−bound, bound].", None)
    out: Path | None = option("Folder for the record; by default a new one under runs/.", None)
    resume: bool = option("Resume an interrupted run in --out.", False)


def command(args: Sequence[str]) -> int:
    """twoclock run PROBLEM [METHOD] [OPTIONS]: run a problem, or file.py:name, and save the record."""
    if args and not args[0].startswith("-") and (len(args) < 2 or args[1].startswith("-")):
        args = [args[0], "auto", *args[1:]]
    if len(args) < 2 or args[0].startswith("-"):
        if "-h" in args or "--help" in args:
            say(f"{command.__doc__}\n")
            say(_HELP)
            options.read_values(options.options_of(RunOptions), ["--help"], "twoclock run PROBLEM [METHOD]")
        raise InputError(
            "`run` takes a PROBLEM, as in `twoclock run quadratic`, and a METHOD if you want another than auto; "
            "`twoclock list` shows them"
        )
    _, of_file, name = args[0].rpartition(".py:")
    _, own_method, method_name = args[1].rpartition(".py:")
    factory = options.load_problem(args[0]) if of_file else validation.lookup(registry.problems(), args[0], "PROBLEM")
    kind = options.load_method(args[1]) if own_method else validation.lookup(registry.methods(), args[1], "METHOD")
    declared = [
        *options.options_of(RunOptions),
        *options.options_of_factory(factory, "problem."),
        *(options.options_of_method if isinstance(kind, type) else options.options_of_factory)(kind, "method."),
    ]
    values = options.read_values(declared, args[2:], f"twoclock run {args[0]} {args[1]}")
    chosen = RunOptions(**{name: value for name, value in values.items() if "." not in name})  # type: ignore[arg-type]
    of_problem, of_method = (
        {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        for prefix in ("problem.", "method.")
    )
    with options.user_code(f"`PROBLEM` {args[0]} fails"):
        problem = factory(**of_problem)
    with options.user_code(f"`METHOD` {args[1]} fails"):
        method = with_settings(kind(), of_method) if isinstance(kind, type) else kind(**of_method)
    again = shlex.join(["twoclock", "run", *args])
    with _out_folder(chosen.out, chosen.resume, f"{name}-{method_name}") as out:
        to_go_on = again if chosen.resume else f"{again} --resume"
        with resumable(to_go_on + ("" if chosen.out else f" --out {shlex.quote(str(out))}")):
            result = _load_or_solve(problem, method, chosen, out, again)
            _print_summary(result)
            _print_theta(result, own_instances=not isinstance(problem, Problem))
            from twoclock import plot  # takes a second, which a wrong argument need not wait for

            metric = main_metric(result)
            save_figure(plot.compare({method_name: result}, metric), out, metric)
    return 0


def _load_or_solve(problem: ProblemSource, method: Method, chosen: RunOptions, out: Path, command: str) -> Result:
    """Load the record from the folder, or make it."""
    spec = RunSpec.checked(chosen.steps, chosen.seeds, precision=chosen.precision, bound=chosen.bound)
    check_fit(problem, method, spec)
    identity = identify(spec.in_precision(problem), {"": method}, spec)[""]
    if storage.is_complete(out):
        result = load(out)
        here = {**spec.as_dict(), "problem": describe(problem), "method": describe(method)}
        if differs := identity.difference(result.spec.get("identity", {})):
            raise InputError(
                f"`--out` {out} holds another run ({result.spec.get('command')}): "
                f"{explain_mismatch(differs, result.spec.get(differs), here.get(differs))[0]}; choose another folder"
            )
        return result
    result = solve(
        problem, method, chosen.steps, chosen.seeds, precision=chosen.precision, bound=chosen.bound, progress=True,
        checkpoint=out / "checkpoint", engine=chosen.engine,
    )  # fmt: skip
    result = replace(
        result, spec={**result.spec, "command": command.replace(" --resume", ""), "identity": identity.as_json()}
    )
    result.save(out)
    storage.discard(out / "checkpoint")
    return result


@contextmanager
def _out_folder(out: Path | None, resume: bool, stem: str) -> Iterator[Path]:
    """Reserve the folder for the record to this process."""
    if out is None:
        if resume:
            raise InputError("`--resume` needs the folder of the run; name it with `--out DIR`")
        with storage.numbered(Path("runs"), stem) as path:
            yield path
        return
    path = storage.absolute(out)
    if not resume:
        path = storage.unused(out, "--out", "continue with --resume, or choose another folder")
    with storage.lock(path):
        yield path


def _print_summary(result: Result) -> None:
    run, rows = result.spec, []
    for metric in result.metrics:
        row = result.summary(metric).iloc[-1]
        interval = f"{row['low']:.3g} … {row['high']:.3g}"
        rows.append((metric, f"{row['mean']:.4g}", interval, f"{row['median']:.4g}", f"{row['iqm']:.4g}"))
    ended = f"{int(result.diverged.sum())} diverged, {run['wall_seconds']:.3g} s"
    title = f"{run['problem']['name']}, {run['method']['name']}: {run['steps']:,} steps, {len(run['seeds'])} seeds, "
    print_table(title + ended, ("metric", "mean", "95 % interval", "median", "interquartile mean"), rows)
    if run["method"]["name"] == "Auto":
        say(f"chosen: {result.chosen}")


def _print_theta(result: Result, own_instances: bool) -> None:
    """Print the first entries of θ with intervals: from the spread over seeds, or of one seed from its own samples."""
    fine = np.flatnonzero(~result.diverged)
    if not len(fine):
        return
    leaves = jax.tree_util.tree_leaves_with_path(result.theta)
    names = [f"theta{jax.tree_util.keystr(path)}" for path, _ in leaves]
    shapes = [np.shape(leaf)[1:] for _, leaf in leaves]
    entries = [
        f"{name}[{', '.join(map(str, where))}]" if where else name
        for name, shape in zip(names, shapes, strict=True)
        for where in np.ndindex(*shape)
    ]
    values = np.concatenate([np.reshape(leaf, (len(result.diverged), -1)) for _, leaf in leaves], axis=1)[fine]
    found: dict[str, tuple[float, float]] = {}
    notes: list[str] = []
    if own_instances or len(fine) == 1:  # where each seed has another problem, a mean over seeds is meaningless
        seed = result.spec["seeds"][fine[0]]
        mean, title, how = values[0], f"θ of seed {seed}", "from its own samples"
        with suppress(InputError):  # most methods have no intervals
            table = result.interval()
            own = table[table["seed"] == seed]
            found = {
                output: (low, high) for output, low, high in zip(own["output"], own["low"], own["high"], strict=True)
            }
            notes = [note for note in own["note"].unique() if note]
    else:
        mean, title, how = values.mean(axis=0), f"θ, the mean of {len(fine)} seeds", "by the seeds"
        half = stdtrit(len(fine) - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(len(fine))
        found = {name: (m - h, m + h) for name, m, h in zip(entries, mean, half, strict=True)}
    known = {name: f"{low:.5g} … {high:.5g}" for name, (low, high) in found.items() if np.isfinite(high - low)}
    rows = [(name, f"{m:.5g}", known.get(name, "unknown")) for name, m in zip(entries[:_SHOWN], mean, strict=False)]
    more = f", the first {_SHOWN} of {len(entries):,} entries" if len(entries) > _SHOWN else ""
    print_table(title + more, ("entry", "value", f"95 % interval, {how}"), rows)
    if not known and not notes:
        notes = ["for intervals run several seeds of one problem; up to 128 entries a run without METHOD has them too"]
    for note in notes:
        say(f"note: {note}")
