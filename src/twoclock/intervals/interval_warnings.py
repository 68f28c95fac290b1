"""What a run tracked for its intervals, and the notes that warn of intervals not to be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from twoclock.intervals.bootstrap import TRACKED, by_step_and_seed
from twoclock.intervals.random_scaling import critical_value

if TYPE_CHECKING:
    import pandas as pd

# Steps k^−a: the mean has its limit law for ½ < a < 1. A measured exponent is a little below a while the shift matters.
_ALMOST_CONSTANT, _SLOWEST, _FASTEST = 0.02, 0.5, 0.95
_SAME = 0.02  # exponents of α and β nearer than this have a constant ratio
# Worth fewer independent iterates than this, 95 % intervals cover less than 93 %: .75 at 6, .85 at 15, .91 at 30, .93
# at 60, .945 at 120 (steps c k^−a on one linear problem, a from .55 to .8, c from .2 to 2, 2,000 seeds each).
_FEWEST_EFFECTIVE = 60
# The parts of a mean are compared over blocks of at least this share of it, of which there must be so many, where the
# mean of its first share differs from the rest as chance makes it once in a thousand intervals.
_SHORTEST_BLOCK, _FEWEST_BLOCKS, _FIRST_SHARES, _CHANCE = 1 / 40, 5, (0.1, 0.5), 1e-3
# Of half a length. On one slow chain, constant steps from .02 to .2, intervals covered .00 to .77 where the bias taken
# away was 1.3 to 1.9 half-lengths, .93 and .945 at 1.0 and 1.1, and .88 to .945 at .04 to .12.
_LARGEST_CORRECTION = 0.5
# A bias that falls like the steps shows in how far the mean over the seeds moves from the first half of the run to the
# second, which is about as large as the bias that is left: in half-lengths of an interval, in standard errors, and from
# so many seeds on. TDC along a slow chain, at .47 half-lengths, covered .92 where 95 % was promised; at .3, .94. On a
# curved problem looked at afterwards: .90 at .41, .80 at .6, .75 at .7.
_LARGEST_DRIFT, _SURE, _ENOUGH_SEEDS = 1 / 3, 4.0, 20

NO_INTERVAL = "diverged after step {:,}: no interval"
_HALVES = "the halves of the mean disagree: not settled; take more steps, larger ones or a larger skip"


@dataclass(frozen=True)
class Tracked:
    """The outputs of a run at its marks.

    Attributes:
        steps: the marks.
        seeds: the seeds.
        outputs: the names of the outputs.
        n: how many iterates the mean was of.
        estimate: y_n of each output.
        scale: √(V/n) of each output.
        effective: how many independent iterates the mean was worth.
        exponents: of each step size at the marks, p̂ in k^−p̂; NaN where it is unknown.
        memory: the same for the averaging weights.
        correction: what an extrapolation added to each output; None where there was none.
    """

    steps: Int[np.ndarray, " marks"]
    seeds: Int[np.ndarray, " seeds"]
    outputs: list[str]
    n: Float[np.ndarray, "marks seeds"]
    estimate: Float[np.ndarray, "outputs marks seeds"]
    scale: Float[np.ndarray, "outputs marks seeds"]
    effective: Float[np.ndarray, "outputs marks seeds"]
    exponents: dict[str, Float[np.ndarray, " marks"]]
    memory: dict[str, Float[np.ndarray, " marks"]]
    correction: Float[np.ndarray, "outputs marks seeds"] | None


def read(history: pd.DataFrame) -> Tracked | None:
    """Read what was tracked from the columns of a history; None where nothing was."""
    names = list(_columns(history, "estimate"))
    if not names:
        return None
    steps, seeds, n = by_step_and_seed(history, f"{TRACKED}n")
    longest = n.argmax(axis=1)  # a seed that has not diverged: schedules are the same for all

    def every(kind: str) -> Float[np.ndarray, "outputs marks seeds"]:
        return np.stack([by_step_and_seed(history, f"{TRACKED}{kind}:{name}")[2] for name in names])

    def of_schedules(kind: str) -> dict[str, Float[np.ndarray, " marks"]]:
        columns = _columns(history, kind).items()
        return {name: by_step_and_seed(history, column)[2][np.arange(len(steps)), longest] for name, column in columns}

    return Tracked(
        steps, seeds, names, n, every("estimate"), every("scale"), every("effective"), of_schedules("exponent"),
        of_schedules("memory"), every("correction") if _columns(history, "correction") else None,
    )  # fmt: skip


def _columns(history: pd.DataFrame, kind: str) -> dict[str, str]:
    """The columns of one kind, by the name of their output."""
    start = f"{TRACKED}{kind}:"
    return {column.removeprefix(start): column for column in history.columns if column.startswith(start)}


def notes(tracked: Tracked, mark: int, lost: Bool[np.ndarray, " seeds"], diverged: Mapping[int, int]) -> list[str]:
    """The note of each seed and output at a mark; "" where nothing speaks against its interval."""
    shared = [_note_memory(tracked, mark, lost), *_note_steps(tracked, mark)]
    corrected, drifting = _note_corrections(tracked, mark, lost), _note_drifts(tracked, mark, lost)
    moved = _find_moved(tracked, mark)
    rows = []
    for s, seed in enumerate(tracked.seeds.tolist()):
        if lost[s]:
            rows += [NO_INTERVAL.format(diverged[seed])] * len(tracked.outputs)
            continue
        for large, biased, moves in zip(corrected, drifting, moved[:, s], strict=True):
            rows.append("; ".join(filter(None, [_HALVES if moves else "", large, biased, *shared])))
    return rows


def _note_steps(tracked: Tracked, mark: int) -> list[str]:
    """What the step sizes up to a mark say against all its intervals."""
    p = {name: float(values[mark]) for name, values in tracked.exponents.items() if np.isfinite(values[mark])}
    weights = {name: float(values[mark]) for name, values in tracked.memory.items() if np.isfinite(values[mark])}
    constant = [name for name, a in p.items() if abs(a) < _ALMOST_CONSTANT]
    slow = [name for name, a in p.items() if a <= _SLOWEST and name not in constant]
    notes = []
    if ones := [name for name, a in (p | weights).items() if a >= _FASTEST]:
        notes.append(f"steps ~ 1/k ({_names(ones)}): too short for the law of the mean; take k^-0.6")
    if constant and tracked.correction is None:
        notes.append(
            f"constant steps ({_names(constant)}) leave a bias of their size; take RichardsonRomberg or k^-0.6"
        )
    if slow:
        notes.append(f"steps fall as k^-1/2 or slower ({_names(slow)}) and may leave a bias; take k^-0.6")
    for beta, b in p.items():
        alpha = beta.removesuffix("beta") + "alpha"
        if beta.endswith("beta") and alpha in p and abs(p[alpha] - b) > _SAME:
            notes.append("alpha/beta is not constant: unproven for Markov samples; take the same power for both")
    return notes


def _note_memory(tracked: Tracked, mark: int, lost: Bool[np.ndarray, " seeds"]) -> str:
    """ "", or that the iterates are too correlated, by the median over the seeds that have not diverged.

    One path tells its effective number up to a factor of three, and where V is small by chance, where the interval
    fails, it looks large. It is a property of the steps and the problem, so the seeds may tell it together. The slowest
    output speaks for all: they are functions of the same iterates, and what has not settled in one leaks into the rest.
    On a slow chain intervals of the fastest of three outputs covered .90 where the other two were known to be too slow.
    """
    effective = tracked.effective[:, mark, ~lost]
    worth = float(np.median(effective, axis=1).min()) if effective.size else np.inf
    if worth >= _FEWEST_EFFECTIVE:
        return ""
    of = "worth" if len(tracked.outputs) == 1 else "the slowest output is worth"
    return (
        f"{of} about {worth:.0f} independent iterates, {_FEWEST_EFFECTIVE} are needed; take more steps, or larger ones"
    )


def _find_moved(tracked: Tracked, mark: int) -> Bool[np.ndarray, "outputs seeds"]:
    """Where the first tenth or half of the mean disagrees with the rest; nowhere where too few marks can tell.

    Both are judged by the noise between neighbouring blocks (von Neumann's successive differences), which a slow drift
    hardly enters. Against the interval itself it would be no test: what drifts widens V as well, and a straight line
    keeps its halves inside its own interval.
    """
    from scipy.special import stdtr

    n = tracked.n[: mark + 1].max(axis=1)
    ends = _blocks(n)
    count, size = n[ends], np.diff(n[ends], prepend=0.0)
    first = [int(np.argmin(np.abs(count - share * count[-1]))) + 1 for share in _FIRST_SHARES]
    near = np.abs(count[np.asarray(first) - 1] / count[-1] - _FIRST_SHARES) < np.asarray(_FIRST_SHARES) / 2
    if len(ends) - first[0] < _FEWEST_BLOCKS or not near.all():
        return np.zeros((len(tracked.outputs), len(tracked.seeds)), bool)
    sums = np.diff(tracked.estimate[:, ends] * count[:, None], axis=1, prepend=0.0)
    later = size[first[0] :]
    scaled = np.diff(sums[:, first[0] :] / later[:, None], axis=1) / np.sqrt(1 / later[1:] + 1 / later[:-1])[:, None]
    variance = np.mean(scaled**2, axis=1)
    # The degrees of freedom of a mean of squared successive differences, which overlap (Satterthwaite).
    shared = 1 / later[1:-1] / np.sqrt((1 / later[:-2] + 1 / later[1:-1]) * (1 / later[1:-1] + 1 / later[2:]))
    free = (len(later) - 1) ** 2 / (len(later) - 1 + 2 * np.sum(shared**2))
    chance = np.ones(variance.shape)
    for cut in first:
        before, after = sums[:, :cut].sum(axis=1) / count[cut - 1], sums[:, cut:].sum(axis=1) / size[cut:].sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (after - before) / np.sqrt(variance * (1 / count[cut - 1] + 1 / size[cut:].sum()))
        chance = np.minimum(chance, 2 * stdtr(free, -np.abs(np.nan_to_num(t))))
    return len(first) * chance < _CHANCE


def _note_drifts(tracked: Tracked, mark: int, lost: Bool[np.ndarray, " seeds"]) -> list[str]:
    """For each output "", or that the seeds move together: what one run takes for noise, many show to be a bias."""
    n = tracked.n[: mark + 1].max(axis=1)
    middle = int(np.argmin(np.abs(n - n[-1] / 2)))
    share = n[middle] / max(n[-1], 1.0)
    if (~lost).sum() < _ENOUGH_SEEDS or abs(share - 0.5) > 0.1:
        return [""] * len(tracked.outputs)
    first, whole = tracked.estimate[:, middle, ~lost], tracked.estimate[:, mark, ~lost]
    moved = (first - whole) / (1 - share)  # the mean of the first part less that of the rest
    drift, error = np.abs(moved.mean(axis=1)), moved.std(axis=1) / np.sqrt(moved.shape[1])
    half = critical_value(0.95) * np.median(tracked.scale[:, mark, ~lost], axis=1)
    message = "the seeds move together, by {:.2g} half-lengths over the run: a bias is left; take smaller or more steps"
    return [
        message.format(d / h) if d > max(_LARGEST_DRIFT * h, _SURE * e) and h > 0 else ""
        for d, h, e in zip(drift, half, error, strict=True)
    ]


def _note_corrections(tracked: Tracked, mark: int, lost: Bool[np.ndarray, " seeds"]) -> list[str]:
    """For each output "", or how much an extrapolation moved it, in half-lengths of the typical 95 % interval.

    2θ̄^(α) − θ̄^(2α) takes away a bias bα and leaves one of order α². What is left is unknown, and small beside what was
    taken away only where the steps are; where even that is small beside the interval, so is the rest.
    """
    if tracked.correction is None or lost.all():
        return [""] * len(tracked.outputs)
    half = critical_value(0.95) * np.median(tracked.scale[:, mark, ~lost], axis=1)
    moved = np.abs(np.median(tracked.correction[:, mark, ~lost], axis=1))
    message = "the bias taken away is {:.2g} half-lengths, and what is left is unknown; take smaller steps"
    return [message.format(m / h) if m > _LARGEST_CORRECTION * h > 0 else "" for m, h in zip(moved, half, strict=True)]


def _blocks(n: Float[np.ndarray, " marks"]) -> Int[np.ndarray, " blocks"]:
    """The marks that end blocks of a share of the run or more, the last among them."""
    ends: list[int] = []
    for i, count in enumerate(n):
        if count - (n[ends[-1]] if ends else 0.0) >= n[-1] * _SHORTEST_BLOCK:
            ends.append(i)
    if not ends or ends[-1] != len(n) - 1:  # what is left over joins the block before it
        ends[-1:] = [len(n) - 1]
    return np.asarray(ends)


def _names(paths: list[str]) -> str:
    return ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in paths))
