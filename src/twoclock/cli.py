"""The command line: the only file that reads argv or prints."""

from __future__ import annotations

import errno
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from twoclock import __version__, catalogue, checks, options, record
from twoclock.core import InputError
from twoclock.methods import Fast
from twoclock.result import Result, load
from twoclock.solve import Interrupted, solve

_OUT = Console()
_ERR = Console(stderr=True)


@dataclass
class RunOptions:
    steps: int = 100_000
    """How many steps; one sample each."""
    seeds: int = 20
    """How many seeds."""
    precision: Literal["float64", "float32"] = "float64"
    """float32 runs with compensated sums."""
    bound: float | None = None
    """Count a seed as diverged when an entry of θ or ω leaves [−bound, bound]."""
    out: Path | None = None
    """Folder for the record; by default a new one under runs/."""
    resume: bool = False
    """Go on with an interrupted run in --out."""


def run(args: Sequence[str]) -> int:
    """twoclock run PROBLEM METHOD [OPTIONS]: run a method on a problem and keep the record."""
    if len(args) < 2 or args[0].startswith("-") or args[1].startswith("-"):
        if "-h" in args or "--help" in args:
            _OUT.print(f"{run.__doc__}\n")
            return list_all([])
        raise InputError(
            "`run` takes a PROBLEM and a METHOD, as in `twoclock run quadratic fast`; `twoclock list` shows them"
        )
    factory = catalogue.pick(catalogue.problems(), args[0], "PROBLEM")
    kind = catalogue.pick(catalogue.methods(), args[1], "METHOD")
    problem_options, method_options = options.of_factory(factory), options.of_method(kind)
    nested = [
        ("problem", problem_options, field(default_factory=problem_options)),
        ("method", method_options, field(default_factory=method_options)),
    ]
    command = make_dataclass("Run", nested, bases=(RunOptions,))
    chosen = options.parse(command, args[2:], f"twoclock run {args[0]} {args[1]}")
    problem = factory(**vars(chosen.problem))
    method = options.build_method(kind, chosen.method)
    out = _out_folder(chosen.out, chosen.resume, f"{args[0]}-{args[1]}")
    again = shlex.join(["twoclock", "run", *args])
    if record.is_complete(out):
        result = load(out)
        if result.spec.get("command") != _plain(again):
            raise InputError(f"`--out` {out} holds another run ({result.spec.get('command')}); choose another folder")
    else:
        resume = (
            again if chosen.resume else f"{again} --resume" + ("" if chosen.out else f" --out {shlex.quote(str(out))}")
        )
        result = _solve(problem, method, chosen, out, resume)
        result = replace(result, spec={**result.spec, "command": _plain(again)})
        result.save(out)
        record.remove(out / "checkpoint")
    _summary(result)
    _say_figures(_draw({args[1]: result}, out, _main_metric(result), "mean"))
    return 0


def _solve(problem: Any, method: Any, chosen: RunOptions, out: Path, resume: str) -> Result:
    try:
        return solve(
            problem, method, chosen.steps, chosen.seeds, precision=chosen.precision, bound=chosen.bound, progress=True,
            checkpoint=out / "checkpoint",
        )  # fmt: skip
    except Interrupted as stop:
        raise Interrupted(f"{str(stop).split(';')[0]}; to go on: {resume}") from None


@dataclass
class PlotOptions:
    folder: Annotated[Path, tyro.conf.Positional]
    """A run folder, or a folder of run folders to compare."""
    metric: str | None = None
    """What to draw; the first recorded metric that measures progress if left out."""
    statistic: Literal["mean", "median", "iqm"] = "mean"
    """How to sum up the seeds."""


def plot(args: Sequence[str]) -> int:
    """twoclock plot DIR [--metric M] [--statistic S]: draw a record again, or several together."""
    chosen = options.parse(PlotOptions, args, "twoclock plot")
    if record.is_complete(chosen.folder):
        results = {chosen.folder.resolve().name: load(chosen.folder)}
    else:
        found = record.results_below(chosen.folder)
        if not found:
            raise InputError(
                f"`DIR` must hold a run, {chosen.folder} has none; make one with `twoclock run … --out DIR`"
            )
        results = {name: load(path) for name, path in found.items()}
    metric = chosen.metric or _main_metric(next(iter(results.values())))
    _say_figures(_draw(results, record.writable(chosen.folder), metric, chosen.statistic))
    return 0


def list_all(args: Sequence[str]) -> int:
    """twoclock list: the problems, methods, schedules and experiments there are."""
    options.parse(make_dataclass("List", []), args, "twoclock list")
    kinds: dict[str, Mapping[str, Any]] = {
        "problems": catalogue.problems(),
        "methods": catalogue.methods(),
        "schedules": catalogue.schedules(),
        "experiments": catalogue.experiments(),
    }
    for title, found in kinds.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, thing in found.items():
            table.add_row(f"[bold]{name}[/]", (inspect.getdoc(thing) or "").split("\n")[0])
        _OUT.print(table)
    return 0


@dataclass
class ReproduceOptions:
    experiments: Annotated[tuple[str, ...], tyro.conf.Positional] = ("all",)
    """Which experiments; `twoclock list` shows them."""
    quick: bool = False
    """Fewer seeds and steps; every figure says so."""
    out: Path = Path("reproduction")
    """Folder for records and figures. What is there already is not run again."""


def reproduce(args: Sequence[str]) -> int:
    """twoclock reproduce [EXPERIMENT …] [--quick] [--out DIR]: run the experiments, draw and judge them."""
    from twoclock.experiment import run_experiment
    from twoclock.progress import bar

    chosen = options.parse(ReproduceOptions, args, "twoclock reproduce")
    known = catalogue.experiments()
    names = list(known) if "all" in chosen.experiments else chosen.experiments
    picked = {name: catalogue.pick({**known, "all": None}, name, "EXPERIMENT") for name in names}
    out = record.writable(chosen.out / ("quick" if chosen.quick else "full"))
    for name, module in picked.items():
        assert module is not None
        _OUT.print(f"[bold]{name}[/]: {module.TITLE}")
        with bar() as columns:

            def look(label: str, case: Any, columns: Any = columns) -> Callable[[Any], None]:
                seeds = case.seeds if isinstance(case.seeds, int) else len(case.seeds)
                task = columns.add_task(label, total=case.steps, lanes=seeds, diverged=0)
                return lambda tick: columns.update(task, completed=tick.step, diverged=tick.diverged)

            outcome = run_experiment(name, module, out, quick=chosen.quick, look=look)
        for claim in outcome.claims:
            _OUT.print(f"  {claim.statement} ({claim.place}): [bold]{claim.verdict}[/]", soft_wrap=True)
        _say_figures(outcome.figures.values())
    if chosen.quick:
        _OUT.print("These verdicts are of a quick run, too short for some of the claims; the full run decides.")
    return 0


def certify(args: Sequence[str]) -> int:
    """twoclock certify STRUCTURE --L … --mu-h … --mu-g … --noise …: step sizes with a proof, and the bound drawn."""
    from twoclock import certified, theory
    from twoclock import plot as drawing

    chosen = options.parse(options.Certify, args, "twoclock certify")
    known = {"L": chosen.L, "mu_h": chosen.mu_h, "mu_g": chosen.mu_g}
    if chosen.check:
        own = {name: getattr(chosen, name) for name in ("alpha", "beta", "lam") if getattr(chosen, name) is not None}
        report = theory.check(Fast(**own), chosen.structure, **known)
        _print_table("", ("proof", "inequality", "verdict"), [(f.group, f.name, str(f)) for f in report.findings])
        left = "kept at every step" if report.leaves_order is None else f"left at step {report.leaves_order}"
        _OUT.print(f"The order α ≤ β ≤ λ ≤ ¼ is {left}; proofs that cover it: {', '.join(report.covered) or 'none'}.")
        return 0
    found = theory.certify(
        chosen.structure, **known, noise=chosen.noise, proof=chosen.proof, horizon=checks.check_steps(chosen.steps)
    )
    conditions = [(c.name, f"{c.left:.6g}", f"{c.right:.6g}", f"{c.slack:.3g}") for c in found.conditions]
    _print_table(str(found), ("inequality", "left", "right", "slack"), conditions)
    for note in found.notes:
        _OUT.print(f"Note: {note}.", highlight=False)
    out = record.next_free(Path("runs"), "certify") if chosen.out is None else record.writable(chosen.out)
    table = certified.trial(found, chosen.steps, chosen.seeds, progress=True)
    rows = table[table["step"].isin([10**i for i in range(10)] + [chosen.steps])]
    columns = ("step", "measured mean", "bound")
    _print_table("", columns, [(f"{r.step:,}", f"{r.mean:.3g}", f"{r.bound:.3g}") for r in rows.itertuples()])
    drawn = drawing.render(certified.draw(found, table, chosen.seeds))
    _say_figures(record.put(out / f"bound.{kind}", content) for kind, content in drawn.items())
    return 0


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    _OUT.print(table)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "reproduce": reproduce,
    "run": run,
    "certify": certify,
    "plot": plot,
    "list": list_all,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status 2 for a wrong argument, 130 for Ctrl-C, 1 for trouble with the machine."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if not args or args[0] in ("-h", "--help"):
            _OUT.print(
                "Two-time-scale stochastic optimisation: two noisy operators in, a solution and its record out.\n"
            )
            for command in COMMANDS.values():
                usage, _, words = (command.__doc__ or "").partition(": ")
                _OUT.print(f"  {usage}\n      {words}", markup=False, highlight=False)
            return 0
        if args[0] == "--version":
            _OUT.print(__version__, highlight=False)
            return 0
        return catalogue.pick(COMMANDS, args[0], "twoclock")(args[1:])
    except InputError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "stopped", 130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return _fail(f"the disk is full ({error.filename}); what was finished is kept, run the same command again", 1)


def _fail(message: str, status: int) -> int:
    _ERR.print(f"twoclock: {message}", markup=False, highlight=False, soft_wrap=True)
    return status


def _out_folder(out: Path | None, resume: bool, stem: str) -> Path:
    if out is None:
        if resume:
            raise InputError("`--resume` needs the folder to go on in; name it with `--out DIR`")
        return record.next_free(Path("runs"), stem)
    if resume:
        return out.expanduser().absolute()
    return record.unused(out, "--out", "go on with --resume, or choose another folder")


def _plain(command: str) -> str:
    return command.replace(" --resume", "")


def _main_metric(result: Result) -> str:
    if not result.metrics:
        raise InputError("this run recorded no metrics, so there is nothing to draw; give the problem a `measure`")
    return next((m for m in ("error", "gap", "gradient") if m in result.metrics), result.metrics[0])


def _summary(result: Result) -> None:
    run = result.spec
    ended = int(result.diverged.sum())
    what = f"{run['problem']['name']}, {run['method']['name']}"
    how = f"{run['steps']:,} steps, {len(run['seeds'])} seeds, {ended} diverged, {run['wall_seconds']:.3g} s"
    table = Table(title=f"{what}: {how}", title_justify="left")
    for column in ("metric", "mean", "95 % interval", "median", "interquartile mean"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for metric in result.metrics:
        row = result.summary(metric).iloc[-1]
        interval = f"{row['low']:.3g} … {row['high']:.3g}"
        table.add_row(metric, f"{row['mean']:.4g}", interval, f"{row['median']:.4g}", f"{row['iqm']:.4g}")
    _OUT.print(table)


def _draw(results: dict[str, Result], folder: Path, metric: str, statistic: str) -> list[Path]:
    from twoclock import plot as drawing

    fig = drawing.compare(results, metric, statistic)
    return [record.put(folder / f"{metric}.{kind}", content) for kind, content in drawing.render(fig).items()]


def _say_figures(paths: Any) -> None:
    for path in paths:
        _OUT.print(f"  {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
