"""Bits that flip and files that are cut short or lost, in every kind of file."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import twoclock as tc
from faults._children import digests
from faults.campaign import Trial
from twoclock import cli

NAME = "damage"

BOWL = tc.problems.quadratic(dim=2)
RUN = {"problem": BOWL, "method": tc.Fast(), "steps": 3000, "seeds": 2, "marks": range(0, 3000, 500), "block": 64}
SWEEP = {"problems": {"bowl": BOWL}, "methods": {"a": tc.Fast(), "b": tc.Standard()}, "steps": 60, "seeds": 3}


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def lose(path: Path, rng: random.Random) -> None:
    path.unlink()


def trials(scale: float, seed: int) -> Iterator[Trial]:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        root = Path(name)
        result = tc.solve(BOWL, tc.Fast(), 60, 3)
        yield from _results(root, result, rng, max(int(60 * scale), 2))
        yield from _checkpoints(root, rng, max(int(25 * scale), 2))
        yield from _sweeps(root, rng, max(int(25 * scale), 2))


def _each(root: Path, pattern: str, rng: random.Random, many: int) -> Iterator[tuple[str, Path]]:
    """A copy of the folder for each trial, with one file harmed: what was done, and the copy."""
    harms: list[Callable[[Path, random.Random], None]] = [flip] * 6 + [cut] * 3 + [lose]
    for i in range(many):
        copy = root.with_name(f"{root.name}-{i}")
        shutil.copytree(root, copy)
        victim = rng.choice(sorted(copy.glob(pattern)))
        harm = rng.choice(harms)
        harm(victim, rng)
        yield f"{harm.__name__} {victim.name}", copy
        shutil.rmtree(copy)


def _results(root: Path, result: tc.Result, rng: random.Random, many: int) -> Iterator[Trial]:
    home = result.save(root / "result")
    for name in ("spec.json", "history.parquet", "arrays.npz"):
        for done, copy in _each(home, name, rng, many):
            yield Trial(f"a result's {name}", _refused(lambda copy=copy: tc.load(copy)) or _checked(copy, done))


def _checkpoints(root: Path, rng: random.Random, many: int) -> Iterator[Trial]:
    whole = tc.solve(**RUN)

    def stop(tick: object) -> None:
        if tick.step >= 1500:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        tc.solve(**RUN, checkpoint=root / "kept", checkpoint_every=0.0, progress=stop)
    for name in ("spec.json", "arrays.npz"):
        for done, copy in _each(root / "kept", f"*/{name}", rng, many):
            noticed = _checked(copy, done)
            try:
                same = tc.solve(**RUN, checkpoint=copy).history.equals(whole.history)
            except tc.InputError as error:
                yield Trial(f"a checkpoint's {name}", f"{done}: refused, though one is good: {error}")
                continue
            yield Trial(f"a checkpoint's {name}", noticed or (None if same else f"{done}: another result"))


def _sweeps(root: Path, rng: random.Random, many: int) -> Iterator[Trial]:
    tc.sweep(**SWEEP, out=root / "swept")
    good = digests(root / "swept")
    for pattern in ("sweep.json", "progress.json", "shards/*.json", "history/*/*/*.parquet"):
        for done, copy in _each(root / "swept", pattern, rng, many):
            lost = done.startswith("lose")
            if pattern.startswith(("history", "shards")) and not (lost and pattern.startswith("shards")):
                fault = _refused(lambda copy=copy: tc.Sweep.load(copy)) or _checked(copy, done)
            elif pattern == "sweep.json":
                fault = _refused(lambda copy=copy: tc.Sweep.load(copy))
                if lost:  # nothing says any more what the folder is: it is left alone
                    yield Trial(f"a sweep's {pattern}", fault)
                    continue
            else:
                fault = None if cli_status(["status", str(copy)]) == 0 else "`twoclock status` fails"
            if fault is None:
                tc.sweep(**SWEEP, out=copy)
                fault = None if digests(copy) == good else f"{done}: another data set"
            yield Trial(f"a sweep's {pattern}", fault)


def _refused(read: Callable[[], object]) -> str | None:
    try:
        read()
    except tc.InputError as error:
        return "more than one line" if "\n" in str(error) else None
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.100}"
    return "loaded as if nothing were"


def _checked(folder: Path, done: str) -> str | None:
    status = cli_status(["check", str(folder)])
    return None if status == 1 else f"{done}: `twoclock check` says {status}"


def cli_status(args: list[str]) -> int:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return cli.main(args)
