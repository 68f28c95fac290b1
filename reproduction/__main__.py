"""``python -m reproduction``: run the experiments of the paper, judge them and write the report.

The screen that ends it is kept with a digest of what it came from, and shown again if that is the same. Whatever
differs, be it one byte of the code, a record, a picture or an option, the report is made again.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NoReturn

import twoclock_command
from reproduction import FULL_RUN

if TYPE_CHECKING:  # JAX takes seconds to load: not before Ctrl-C can be caught
    from reproduction.runner import ExperimentOutcome

COMMAND = "python -m reproduction"
# A line of the screen, and how `rich` prints it.
Line = tuple[str, Mapping[str, bool | str]]
_SCREEN = "screen"
_VARIABLES = ("JAX", "MPL", "TWOCLOCK", "XLA")
_OF_MAKE = "TWOCLOCK_AGAIN"  # what to call after Ctrl-C, which no report has
Modules = Mapping[str, ModuleType]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    from twoclock import cli

    return cli.guard("reproduction", _run, argv)


def _run(args: Sequence[str]) -> int:
    import twoclock as tc
    from reproduction import experiments
    from twoclock import storage

    # Only the help needs the experiments, which take seconds to load.
    options = _parser(experiments.discover() if {"-h", "--help"} & set(args) else {}).parse_args(args)
    if options.engine != "auto":
        os.environ["TWOCLOCK_ENGINE"] = options.engine
    out = (options.out or Path("results")).expanduser().absolute()
    folder = out / ("quick" if options.quick else "full")
    source, kept = source_digest(args, folder), storage.note(folder, _SCREEN)
    if kept and kept.get("source") == source and kept.get("results") == results_digest(folder):
        made = datetime.datetime.fromisoformat(kept["made"])
        show([(f"Nothing has changed since {made.day} {made:%B %Y, %H:%M}, so this is what it was then:", {})])
        show(kept["lines"])
        return 0
    known = experiments.discover()
    if options.report is not None:
        if len(args) > 2 or (len(args) == 2 and "=" in args[0]):
            raise tc.InputError("`--report` takes a folder and nothing else; leave the other arguments out")
        _redraw(options.report.expanduser().absolute(), known, args)
        return 0
    names = [*known, "all"]
    for name in options.experiments:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
            raise tc.InputError(f"`EXPERIMENT` has no {name!r}; {hint}")
    asked = options.experiments or ["all"]
    chosen = {name: module for name, module in known.items() if name in asked or "all" in asked}
    if options.quick and "all" in asked:  # what is long and ours is left to the full run
        chosen = {name: module for name, module in chosen.items() if getattr(module, "QUICK", True)}
    if options.tune:
        from reproduction.tuned_settings import tunable, tune_again

        if options.quick or options.resume:
            raise tc.InputError(
                "`--tune` searches at the full horizon and in one piece; leave --quick and --resume out"
            )
        tune_again(tunable(known) if "all" in asked else chosen, known, out if options.out else None)
        return 0
    _prepare(folder, options.resume)
    status, lines = _reproduce(chosen, folder, args)
    # The tables of --verbose are not kept; and not if the code was changed meanwhile.
    if status == 0 and not options.verbose and source_digest(args, folder) == source:
        made_at = datetime.datetime.now().isoformat(timespec="seconds")
        content = {"source": source, "results": results_digest(folder), "made": made_at, "lines": lines}
        storage.put_note(folder, _SCREEN, content)
    return status


class _OneLineParser(argparse.ArgumentParser):
    """Raises a one-line ``InputError`` instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        from twoclock import InputError

        known = [word for action in self._actions for word in action.option_strings]
        wrong = next((word for word in message.split() if word.startswith("--")), "").rstrip(":")
        near = difflib.get_close_matches(wrong, known, n=1) if wrong not in known else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{message}{hint}; see `{COMMAND} --help`")


def _parser(known: Modules) -> argparse.ArgumentParser:
    names = "\n".join(f"  {name:22} {module.TITLE}" for name, module in known.items())
    parser = _OneLineParser(
        prog=COMMAND,
        description="Run the experiments of the paper, judge its claims and write the report.",
        epilog=f"experiments:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("experiments", nargs="*", metavar="EXPERIMENT", help="which experiments; all by default")
    add("--quick", action="store_true", help="fewer seeds and steps; every page and figure says so")
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for records, figures and the report (default: results); what is there already is not run again",
    )
    add("--verbose", action="store_true", help="print every claim with its verdict, beside the summary")
    add("--resume", action="store_true", help="continue an interrupted run: as without, but the folder must exist")
    add(
        "--tune",
        action="store_true",
        help="tune the methods of these experiments again instead of running them, and store the settings that they "
        "run with; with --out DIR in DIR/NAME.json instead, where no experiment reads them",
    )
    add(
        "--engine",
        choices=("auto", "c", "cuda", "xla"),
        default="auto",
        help='what computes the steps: XLA always can, "c" and "cuda" compile a program for them',
    )
    add(
        "--report",
        type=Path,
        metavar="DIR",
        help="write the report again, from the records in a reproduction's folder `full` or `quick` alone",
    )
    return parser


def _prepare(folder: Path, resume: bool) -> None:
    """Make the folder, unless its records have another format; quick and full runs live side by side in it."""
    import twoclock as tc
    from twoclock import storage

    note = storage.note(folder, "reproduction")
    if resume and not note:
        raise tc.InputError(
            f"`--resume` needs a folder with an earlier reproduction, {folder} has none; leave --resume out"
        )
    if note and note.get("format") != storage.FORMAT:
        raise tc.InputError(
            f"`--out` {folder} was made by twoclock {note.get('twoclock')}, whose records this one ({tc.__version__}) "
            "cannot read; remove it to redo, or choose another"
        )
    made_by = {"twoclock": tc.__version__, "format": storage.FORMAT}
    storage.put_note(storage.writable(folder), "reproduction", {**(note or {}), **made_by})


def _reproduce(chosen: Modules, folder: Path, args: Sequence[str]) -> tuple[int, list[Line]]:
    """Run, judge and write the report; returns the exit status, 1 if an experiment failed, and the screen."""
    from reproduction.runner import ProgressDisplay, run_experiment, run_side_by_side
    from twoclock import cli, storage

    quick = folder.name == "quick"
    again = f"{COMMAND} {shlex.join([*(word for word in args if word != '--resume'), '--resume'])}"
    again = os.environ.get("TWOCLOCK_AGAIN", again)  # make names itself: its user may have no other command
    display = ProgressDisplay(list(chosen), quick)
    began = time.monotonic()
    failed: Mapping[str, str] = {}
    with storage.lock(folder), cli.resumable(again), display.bars:
        try:
            if len(chosen) > 1:
                outcomes, failed = run_side_by_side(list(chosen), folder, quick, display)
            else:
                ((name, module),) = chosen.items()
                outcomes = {name: run_experiment(name, module, folder, quick=quick, post=display.show)}
        finally:
            if any(display.work.values()):
                note = storage.note(folder, "reproduction")
                minutes = note.get("minutes", 0.0) + (time.monotonic() - began) / 60
                when = {"ended": datetime.date.today().isoformat(), "minutes": minutes, "cores": os.cpu_count()}
                storage.put_note(folder, "reproduction", {**note, **when})
    kept = f"; {display.kept} of {display.cases} cases were there already" if display.kept else ""
    took = f" in {(time.monotonic() - began) / 60:.1f} minutes{kept}"
    return bool(failed), _publish(outcomes, chosen, folder, args, took, failed)


def _redraw(folder: Path, known: Modules, args: Sequence[str]) -> None:
    from reproduction.runner import run_experiment
    from twoclock import InputError, storage

    there = {name: module for name, module in known.items() if (folder / name).is_dir()}
    if not there or not storage.note(folder, "reproduction"):
        raise InputError(
            f"`--report` must be a reproduction's `full` or `quick` folder, {folder} is none; make one with `{COMMAND}`"
        )
    quick = folder.name == "quick"
    outcomes = {name: run_experiment(name, module, folder, quick=quick, run=False) for name, module in there.items()}
    _publish(outcomes, there, folder, args)


def _publish(
    outcomes: Mapping[str, ExperimentOutcome],
    modules: Modules,
    folder: Path,
    args: Sequence[str],
    how_long: str = "",
    failed: Mapping[str, str] = MappingProxyType({}),
) -> list[Line]:
    """Write the report and print one screen: what ran, what was found, a line for each figure, where the report is."""
    from rich.console import Console
    from rich.table import Table

    from reproduction.report import against_full_run, findings, headline, panels_of, write
    from twoclock import storage
    from twoclock.storage import environment

    quick, verbose = folder.name == "quick", "--verbose" in args
    panels = {name: panels_of(name, module) for name, module in modules.items()}
    facts = {"command": f"{COMMAND} {shlex.join(args)}".strip(), **_facts(outcomes), **environment()}
    written = write(list(outcomes.values()), panels, folder, facts, quick=quick)
    claims = [claim for outcome in outcomes.values() for claim in outcome.claims]
    if verbose:
        for title, ours in (("The paper's claims", False), ("Our own claims", True)):
            table = Table("claim", "place", "verdict", title=title, title_justify="left")
            for claim in (claim for claim in claims if claim.ours is ours and not claim.detail):
                table.add_row(claim.statement, claim.place, f"[bold]{claim.verdict}[/]")
            if table.row_count:
                Console().print(table)
    many = f"{len(outcomes)} experiment{'s' if len(outcomes) > 1 else ''}"
    ran = (
        f"Of {len(outcomes) + len(failed)} experiments {len(failed)} failed"
        if failed
        else f"Everything ran: {many}, 0 errors"
    )
    lines: list[Line] = [(f"{ran}{how_long}.", {"style": "bold"})]
    for name, trace in failed.items():
        log = storage.put(folder / f"{name}-failed.txt", trace)
        lines += [(f"  {name} failed: {trace.strip().splitlines()[-1]}", {}), (f"    {log}", {"soft_wrap": True})]
    papers = [claim for claim in claims if not claim.ours and not claim.detail]
    against = against_full_run(papers) if quick and papers else ""
    said = [headline(claims, quick=quick), *findings(list(outcomes.values())), against]
    lines += [(f"  • {sentence}", {}) for sentence in said if sentence]
    one_line: Mapping[str, bool | str] = {"no_wrap": True, "overflow": "ellipsis"}
    lines += [(f"  {line}", one_line) for line in _figure_lines(list(outcomes.values()))]
    if not verbose:
        lines.append(("  Every claim with its verdict: --verbose, or the report:", {}))
    lines += [(f"  {written[name]}", {"soft_wrap": True}) for name in ("report.html", "report.md")]
    show(lines)
    return lines


def _figure_lines(outcomes: Sequence[ExperimentOutcome]) -> list[str]:
    """A line for each figure with what was found of its claims; one for all of ours that are left to the full run."""
    from reproduction.report import summarised
    from reproduction.verdicts import SIGNS, kind

    lines: dict[str, None] = {}
    for outcome in outcomes:
        named = {claim.name: claim for claim in outcome.claims if not claim.detail}
        first = next(iter(named.values()), None)
        for picture in outcome.pictures:
            about = outcome.judged.get(picture) or ({first.name: outcome.title} if first else {})
            for claim in (named[name] for name in about if name in named):
                left = claim.ours and kind(claim.verdict) == "left"
                label = "Our own claims" if left else about[claim.name]
                lines[f"{SIGNS[kind(claim.verdict)]} {label}: {summarised(claim)}"] = None
    return sorted(lines, key=lambda line: line.startswith(SIGNS["left"]))


def _facts(outcomes: Mapping[str, ExperimentOutcome]) -> dict[str, str]:
    """Seeds, precision and wall time, from the records."""
    from reproduction.comparisons import span

    facts = {}
    for outcome in outcomes.values():
        runs = [(case, result.spec) for case, results in outcome.records.items() for result in results.values()]
        # Methods that ran as one program share its wall time.
        wall = sum(seconds for _, seconds in {(case, spec["wall_seconds"]) for case, spec in runs})
        if not runs:
            facts[outcome.title] = "closed forms; nothing is run"
            continue
        seeds = span([len(spec["seeds"]) for _, spec in runs], "d")
        steps = max(spec["steps"] for _, spec in runs)
        precision = ", ".join(sorted({spec["precision"] for _, spec in runs}))
        made = ", ".join(sorted({f"twoclock {s['versions']['twoclock']}, jax {s['versions']['jax']}" for _, s in runs}))
        facts[outcome.title] = (
            f"{wall:,.0f} s of wall time, up to {steps:,} steps, {seeds} seeds a run, {precision}; {made}"
        )
    return facts


def show(lines: Iterable[Line]) -> None:
    """Print the lines."""
    from twoclock import cli

    for text, style in lines:
        cli.OUT.print(text, markup=False, highlight=False, **style)  # type: ignore[arg-type]


def code_folders() -> tuple[Path, ...]:
    """What the screen depends on beside the records: the reproduction, the library and the tables of the full run."""
    return Path(__file__).parent, Path(str(files("twoclock"))), FULL_RUN


def source_digest(args: Sequence[str], folder: Path) -> str:
    """The digest of what a report comes from beside its records: options, settings, code, and what is installed."""
    settings = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name != _OF_MAKE}
    installed = sorted({entry.name for path in sys.path for entry in Path(path).glob("*.dist-info")})
    words = [list(args), str(folder), sorted(settings.items()), sys.version, installed]
    return _digest(json.dumps(words), code_folders())


def results_digest(folder: Path) -> str:
    """The digest of all records, pictures and pages; the screen itself and the files of a run in progress apart."""
    return _digest("", [folder], leave_out=folder / f"{_SCREEN}.json")


def _digest(words: str, folders: Iterable[Path], leave_out: Path | None = None) -> str:
    digest = hashlib.sha256(words.encode(errors="surrogateescape"))
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix == ".pyc" or path.name.startswith(".") or path == leave_out or not path.is_file():
                continue
            with suppress(OSError), path.open("rb") as file:  # one that another process has just removed
                content = hashlib.file_digest(file, "sha256").hexdigest()
                digest.update(f"{path} {content}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


if __name__ == "__main__":
    twoclock_command.load("reproduction").program(main)
