"""Off-policy evaluation of a policy from a log."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from twoclock.cli import ERR, open_folder, print_table, resumable, say
from twoclock.cli.options import load_object, option, parse
from twoclock.protocols import InputError


@dataclass
class EvaluateOptions:
    log: str = option(
        "A Parquet or CSV file, a folder of Parquet files, or the id of a local Minari dataset.", positional=True
    )
    policy: tuple[str, ...] = option(
        "The policy as file.py:name, an array or a function of a batch of states; several are compared."
    )
    gamma: float = option("The discount.")
    state: tuple[str, ...] = option("Columns of the state.", ("state",))
    action: tuple[str, ...] = option("Columns of the action.", ("action",))
    reward: str = option("Column of the reward.", "reward")
    next_state: tuple[str, ...] | None = option("Taken from the following row if left out.", None)
    terminated: str = option(
        'The flag after which nothing is earned; "none" where episodes never terminate.', "terminated"
    )
    truncated: str | None = option(
        "The flag of an episode that was cut off, after which more would have been earned.", None
    )
    episode: str | None = option("Column with the number or name of the episode.", None)
    step: str | None = option("Column of the step within an episode, by which rows are sorted.", None)
    propensity: str | None = option("Column of the probability with which the logged action was taken.", None)
    actions: tuple[str, ...] | None = option(
        "The order of the actions in a policy's columns, if actions have names and the policy gives plain arrays.", None
    )
    on_bad: Literal["raise", "drop"] = option("Report the first bad row and stop, or leave bad rows out.", "raise")
    features: str = option(
        "onehot, rbf, tiles, fourier, or file.py:name for a function of (states, actions).", "onehot"
    )
    estimator: str = option("auto, all, or the name of one.", "auto")
    level: float = option("Of the intervals.", 0.95)
    bootstrap: int = option("Resamples for a second interval.", 200)
    unit: str = option("Of the rewards, such as €, for the words and the report.", "")
    on: Literal["local", "ray"] = option("Where to run.", "local")
    address: str | None = option("Of the Ray cluster, host:port; started on this machine if left out.", None)
    report: Path | None = option(
        "Folder for the report; by default a new one under runs/. A stopped evaluation resumes from there.",
        None,
    )


def command(args: Sequence[str]) -> int:
    """twoclock evaluate LOG --policy file.py:pi --gamma G [--report DIR]: a policy's value from a log."""
    from twoclock import storage
    from twoclock.logs import evaluate, read

    chosen = parse(EvaluateOptions, args, "twoclock evaluate")
    names = [text.rpartition(":")[2] for text in chosen.policy]
    policies = {
        name if names.count(name) == 1 else text: load_object(text, "--policy")
        for name, text in zip(names, chosen.policy, strict=True)
    }
    if len(policies) < len(names):
        raise InputError(f"`--policy` must name each policy once, got {' '.join(chosen.policy)}")
    features = load_object(chosen.features, "--features") if ".py:" in chosen.features else chosen.features
    columns: dict[str, Any] = {
        name: getattr(chosen, name) for name in ("reward", "truncated", "episode", "step", "propensity")
    }
    columns["terminated"] = None if chosen.terminated == "none" else chosen.terminated
    for role in ("state", "action", "next_state"):
        names = getattr(chosen, role)
        columns[role] = names[0] if names is not None and len(names) == 1 else names
    if chosen.actions is not None:
        columns["actions"] = _labels(chosen.actions)
    with open_folder(chosen.report, "evaluate") as out, resumable(shlex.join(["twoclock", "evaluate", *args])):
        with _progress_bar("reading") as look:
            log = read(chosen.log, **columns, on_bad=chosen.on_bad, progress=look)
        say(f"{log!r}", ERR)
        with _progress_bar("evaluating") as look:
            v = evaluate(
                log, next(iter(policies.values())) if len(policies) == 1 else policies, chosen.gamma, features,
                chosen.estimator, chosen.level, bootstrap=chosen.bootstrap, on=chosen.on, address=chosen.address,
                progress=look, checkpoint=out / "passes", unit=chosen.unit,
            )  # fmt: skip
        v.save(out)
        page = v.report(out)
        storage.discard(out / "passes")
    rows = [
        (str(r.policy), str(r.estimator), f"{r.value:.6g}", f"{r.low:.5g} … {r.high:.5g}", str(r.note))
        for r in v.table.itertuples()
    ]
    say(repr(v))  # ahead of the numbers, since it begins with the condition under which they hold
    if len(policies) == 1:
        say(v.decision)
    print_table("", ("policy", "estimator", "value", f"{chosen.level:.0%} interval", "note"), rows)
    say(f"  {page}")
    return 0


def _labels(given: Sequence[str]) -> list[str | int | float]:
    """The actions as numbers where all of them are, else as text."""
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(text) for text in given]
    return list(given)


@contextmanager
def _progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar: parts done, and the time left."""
    from rich.progress import Progress

    with Progress(console=ERR) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
