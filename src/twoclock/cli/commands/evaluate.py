"""The value of a policy from a log."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from twoclock import storage
from twoclock.cli import options, user_module
from twoclock.cli.console import ERR, print_table, say
from twoclock.cli.resume_hint import resumable


@dataclass
class EvaluateOptions:
    log: Annotated[str, tyro.conf.Positional]
    """A Parquet file, a folder of them, or the id of a local Minari dataset."""
    policy: tuple[str, ...]
    """The policy as file.py:name, an array or a function of a batch of states; several are compared."""
    gamma: float
    """The discount."""
    state: tuple[str, ...] = ("state",)
    """Columns of the state."""
    action: tuple[str, ...] = ("action",)
    reward: str = "reward"
    next_state: tuple[str, ...] | None = None
    """Taken from the following row if left out."""
    terminated: str = "terminated"
    """The flag after which nothing is earned; "none" where episodes never end by themselves."""
    truncated: str | None = None
    episode: str | None = None
    step: str | None = None
    propensity: str | None = None
    on_bad: Literal["raise", "drop"] = "raise"
    """Name the first bad row, or leave bad rows out and count them."""
    features: str = "onehot"
    """onehot, rbf, tiles, fourier, or file.py:name for a function of (states, actions)."""
    estimator: str = "auto"
    """auto, all, or the name of one."""
    level: float = 0.95
    """Of the intervals."""
    bootstrap: options.Whole = 200
    """Resamples for a second interval."""
    on: Literal["local", "ray"] = "local"
    address: str | None = None
    """Of the Ray cluster, host:port; started on this machine if left out."""
    report: Path | None = None
    """Folder for the report, by default a new one under runs/; a run that was stopped goes on from what is there."""


def command(args: Sequence[str]) -> int:
    """twoclock evaluate LOG --policy file.py:pi --gamma G [--report DIR]: a policy's value from a log."""
    from twoclock.logs import evaluate, read
    from twoclock.logs.pass_checkpoint import discard

    chosen = options.parse(EvaluateOptions, args, "twoclock evaluate")
    policies = {text.rpartition(":")[2]: user_module.named(text, "--policy") for text in chosen.policy}
    features = user_module.named(chosen.features, "--features") if ".py:" in chosen.features else chosen.features
    columns: dict[str, Any] = {
        name: getattr(chosen, name) for name in ("reward", "truncated", "episode", "step", "propensity")
    }
    columns["terminated"] = None if chosen.terminated == "none" else chosen.terminated
    for role in ("state", "action", "next_state"):
        names = getattr(chosen, role)
        columns[role] = names[0] if names is not None and len(names) == 1 else names
    there = (
        nullcontext(storage.writable(chosen.report)) if chosen.report else storage.numbered(Path("runs"), "evaluate")
    )
    with there as out, resumable(shlex.join(["twoclock", "evaluate", *args])):
        with _bar("reading") as look:
            log = read(chosen.log, **columns, on_bad=chosen.on_bad, progress=look)
        say(f"{log!r}", ERR)
        with _bar("evaluating") as look:
            v = evaluate(
                log, next(iter(policies.values())) if len(policies) == 1 else policies, chosen.gamma, features,
                chosen.estimator, chosen.level, bootstrap=chosen.bootstrap, on=chosen.on, address=chosen.address,
                progress=look, checkpoint=out / "passes",
            )  # fmt: skip
        v.save(out)
        page = v.report(out)
        discard(out / "passes")
    rows = [
        (str(p), str(e), f"{value:.6g}", f"{low:.5g} … {high:.5g}", str(note))
        for p, e, value, low, high, note in v.table[["policy", "estimator", "value", "low", "high", "note"]].itertuples(
            index=False
        )
    ]
    print_table("", ("policy", "estimator", "value", f"{chosen.level:.0%} interval", "note"), rows)
    say(repr(v))
    say(f"  {page}")
    return 0


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal: parts done, and the time left."""
    from rich.progress import Progress

    with Progress(console=ERR) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
