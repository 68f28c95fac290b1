"""Run a method on a problem."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from twoclock import registry, storage, validation
from twoclock.cli import load_command, main_metric, options, print_table, resumable, save_figure, say
from twoclock.cli.options import EngineOption, option
from twoclock.param_paths import with_settings
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.result import Result, load
from twoclock.solve import check_fit, solve
from twoclock.storage.run_identity import RunSpec, describe, explain_mismatch, identify


@dataclass
class RunOptions:
    steps: int = option("How many steps; one sample each.", 100_000)
    seeds: int = option("How many seeds.", 20)
    precision: Literal["float64", "float32"] = option("float32 runs with compensated sums.", "float64")
    engine: EngineOption = option(
        'What runs the steps: XLA always can, "c" and "cuda" compile a program for them.', "auto"
    )
    bound: float | None = option("Count a seed as diverged when an entry of θ or ω leaves [−bound, bound].", None)
    out: Path | None = option("Folder for the record; by default a new one under runs/.", None)
    resume: bool = option("Go on with an interrupted run in --out.", False)


def command(args: Sequence[str]) -> int:
    """twoclock run PROBLEM [METHOD] [OPTIONS]: run a problem, or file.py:name, and keep the record."""
    if args and not args[0].startswith("-") and (len(args) < 2 or args[1].startswith("-")):
        args = [args[0], "auto", *args[1:]]
    if len(args) < 2 or args[0].startswith("-"):
        if "-h" in args or "--help" in args:
            say(f"{command.__doc__}\n")
            return load_command("list")([])
        raise InputError(
            "`run` takes a PROBLEM, as in `twoclock run quadratic`, and a METHOD if you want another than auto; "
            "`twoclock list` shows them"
        )
    _, of_file, name = args[0].rpartition(".py:")
    factory = options.load_problem(args[0]) if of_file else validation.lookup(registry.problems(), args[0], "PROBLEM")
    kind = validation.lookup(registry.methods(), args[1], "METHOD")
    declared = [
        *options.options_of(RunOptions),
        *options.options_of_factory(factory, "problem."),
        *options.options_of_method(kind, "method."),
    ]
    values = options.read_values(declared, args[2:], f"twoclock run {args[0]} {args[1]}")
    chosen = RunOptions(**{name: value for name, value in values.items() if "." not in name})  # type: ignore[arg-type]
    of_problem, of_method = (
        {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        for prefix in ("problem.", "method.")
    )
    with options.user_code(f"`PROBLEM` {args[0]} fails"):
        problem = factory(**of_problem)
    method = with_settings(kind(), of_method)
    with _out_folder(chosen.out, chosen.resume, f"{name}-{args[1]}") as out:
        result = _load_or_solve(problem, method, chosen, out, shlex.join(["twoclock", "run", *args]))
        _print_summary(result)
        from twoclock import plot  # a second, which a wrong argument need not wait for

        metric = main_metric(result)
        save_figure(plot.compare({args[1]: result}, metric), out, metric)
    return 0


def _load_or_solve(problem: ProblemSource, method: Method, chosen: RunOptions, out: Path, command: str) -> Result:
    """The record in the folder, made if it is not there yet."""
    spec = RunSpec.checked(chosen.steps, chosen.seeds, precision=chosen.precision, bound=chosen.bound)
    check_fit(problem, method, spec)
    identity = identify(problem, {"": method}, spec)[""]
    if storage.is_complete(out):
        result = load(out)
        here = {**spec.as_dict(), "problem": describe(problem), "method": describe(method)}
        if differs := identity.difference(result.spec.get("identity", {})):
            raise InputError(
                f"`--out` {out} holds another run ({result.spec.get('command')}): "
                f"{explain_mismatch(differs, result.spec.get(differs), here.get(differs))[0]}; choose another folder"
            )
        return result
    resume = command if chosen.resume else f"{command} --resume"
    with resumable(resume + ("" if chosen.out else f" --out {shlex.quote(str(out))}")):
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
    """The folder for the record, for this process alone."""
    if out is None:
        if resume:
            raise InputError("`--resume` needs the folder to go on in; name it with `--out DIR`")
        with storage.numbered(Path("runs"), stem) as path:
            yield path
        return
    path = storage.absolute(out)
    if not resume:
        path = storage.unused(out, "--out", "go on with --resume, or choose another folder")
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
