"""Run the experiments and write the report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from reproduction.progress_bar import Overview
from twoclock import registry, storage, validation
from twoclock.cli import resumable
from twoclock.cli.options import EngineOption, option, parse, use_engine
from twoclock.protocols import InputError
from twoclock.storage.run_identity import FORMAT
from twoclock.version import __version__

if TYPE_CHECKING:  # matplotlib and all that draws is not loaded for the help
    from reproduction.runner import Outcome


@dataclass
class ReproduceOptions:
    experiments: tuple[str, ...] = option("Which experiments; `twoclock list` shows them.", ("all",), positional=True)
    quick: bool = option("Fewer seeds and steps; every page and figure says so.", False)
    out: Path = option(
        "Folder for records, figures and the report. What is there already is not run again.", Path("results")
    )
    resume: bool = option("Go on with an interrupted reproduction: the same, but an empty folder is a mistake.", False)
    tune: bool = option(
        "Tune the methods of these experiments again, instead of running them, and store the settings that they run "
        "with; with --out DIR in DIR/NAME.json instead, where no experiment reads them.",
        False,
    )
    engine: EngineOption = option(
        'What walks the steps: XLA always can, "c" and "cuda" compile a program for them.', "auto"
    )


def command(args: Sequence[str]) -> int:
    """twoclock reproduce [EXPERIMENT …] [--quick] [--out DIR] [--tune]: run the experiments, judge them, report."""
    from reproduction.parallel import run_side_by_side
    from reproduction.print_report import publish

    chosen = parse(ReproduceOptions, args, "twoclock reproduce")
    use_engine(chosen.engine)
    known = registry.experiments()
    asked = [
        validation.pick({name: name for name in (*known, "all")}, name, "EXPERIMENT") for name in chosen.experiments
    ]
    picked = {name: module for name, module in known.items() if name in asked or "all" in asked}
    if chosen.tune:
        _tune(
            chosen, picked if "all" not in asked else {n: m for n, m in known.items() if hasattr(m, "searches")}, args
        )
        return 0
    out = _folder(chosen)
    again = shlex.join(["twoclock", "reproduce", *(word for word in args if word != "--resume"), "--resume"])
    with storage.lock(out), resumable(again), Overview() as overview:
        if len(picked) > 1:
            outcomes = run_side_by_side(list(picked), out, chosen.quick, overview)
        else:
            ((name, module),) = picked.items()
            outcomes = {name: _run_here(name, module, out, chosen.quick, overview)}
    publish(outcomes, picked, out, quick=chosen.quick, command=shlex.join(["twoclock", "reproduce", *args]))
    return 0


def _tune(chosen: ReproduceOptions, picked: Mapping[str, ModuleType], args: Sequence[str]) -> None:
    from reproduction.tune_experiments import retune

    if chosen.quick or chosen.resume:
        raise InputError("`--tune` searches at the full horizon and in one piece; leave --quick and --resume out")
    elsewhere = any(word.split("=")[0] == "--out" for word in args)
    retune(picked, registry.experiments(), chosen.out.expanduser().absolute() if elsewhere else None)


def _run_here(name: str, module: ModuleType, out: Path, quick: bool, overview: Overview) -> Outcome:
    """One experiment, in this process."""
    from reproduction.runner import on_disk, run_experiment, work_left

    cases = module.cases(quick)
    done = on_disk(name, cases, out)
    overview.begin(name, module.TITLE, work_left(cases, done))
    return run_experiment(name, module, out, quick=quick, progress=overview.progress(name), cases=cases, done=done)


def _folder(chosen: ReproduceOptions) -> Path:
    """The folder, if its records have this format; quick and full runs live side by side in it."""
    out = chosen.out.expanduser().absolute() / ("quick" if chosen.quick else "full")
    note = storage.note(out, "reproduction")
    if chosen.resume and not note:
        raise InputError(f"`--resume` needs a folder to go on in, {out} has no reproduction; leave --resume out")
    if note and note.get("format") != FORMAT:
        raise InputError(
            f"`--out` {out} was made by twoclock {note.get('twoclock')}, whose records this one ({__version__}) cannot "
            "read; remove it to redo, or choose another"
        )
    storage.put_note(storage.writable(out), "reproduction", {"twoclock": __version__, "format": FORMAT})
    return out
