"""Intervals of a run as tables (seed, output, estimate, low, high, note), and notes on those that cannot be trusted."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from twoclock.intervals import batch_means
from twoclock.intervals.bootstrap import TRACKED, by_step_and_seed
from twoclock.intervals.confidence_sequence import FIRST_LOOK, first_look, stretch
from twoclock.intervals.random_scaling import critical_value
from twoclock.protocols import InputError
from twoclock.validation import choice, short_repr

if TYPE_CHECKING:
    import pandas as pd

# Steps k^−a: the mean is asymptotically normal for ½ < a < 1. While the shift matters a measured exponent is below a.
_ALMOST_CONSTANT, _SLOWEST, _FASTEST = 0.02, 0.5, 0.95
_SAME = 0.02  # exponents of α and β nearer than this have a constant ratio
# With fewer effectively independent iterates than this, 95 % intervals cover less than 93 %: .75 at 6, .85 at 15, .91
# at 30, .93 at 60, .945 at 120 (steps c k^−a on one linear problem, a from .55 to .8, c from .2 to 2, 2,000 seeds
# each).
_FEWEST_EFFECTIVE = 60
# To compare the parts of a mean: the shortest block as a share of the run, the fewest blocks, the first shares that are
# compared with the rest, and the probability of a false alarm for each interval.
_SHORTEST_BLOCK, _FEWEST_BLOCKS, _FIRST_SHARES, _CHANCE = 1 / 40, 5, (0.1, 0.5), 1e-3
# In half-lengths. On a slow chain with constant steps from .02 to .2, intervals covered .00 to .77 where the corrected
# bias was 1.3 to 1.9 half-lengths, .93 and .945 at 1.0 and 1.1, and .88 to .945 at .04 to .12.
_LARGEST_CORRECTION = 0.5
# If a bias falls like the steps, the mean over the seeds moves from the first half of the run to the second by about
# the bias that is left. The limits: in half-lengths of an interval, in standard errors, and the fewest seeds. TDC on a
# slow chain, at .47 half-lengths, covered .92 where 95 % was promised; at .3, .94. On a curved problem examined
# afterwards: .90 at .41, .80 at .6, .75 at .7.
_LARGEST_DRIFT, _SURE, _ENOUGH_SEEDS = 1 / 3, 4.0, 20

_NO_INTERVAL = "diverged after step {:,}: no interval"
_HALVES = "the halves of the mean disagree: not settled; take more steps, larger ones or a larger skip"
_DRIFT = "the seeds move together, by {:.2g} half-lengths over the run: a bias is left; take smaller or more steps"
_CORRECTION = "the bias taken away is {:.2g} half-lengths, and what is left is unknown; take smaller steps"


def interval(
    history: pd.DataFrame,
    diverged: Mapping[int, int],
    level: float = 0.95,
    how: str | None = None,
    step: int | None = None,
    anytime: bool | int = False,
) -> pd.DataFrame:
    """The intervals of a run at a mark.

    Args:
        history: of the run, with the columns for intervals.
        diverged: the last finite step of each seed that diverged; those have no interval, so NaN.
        level: the coverage.
        how: "random-scaling", or "blocks" for linear problems; None for the first, or for blocks with ``anytime``.
        step: the mark; the last by default.
        anytime: whether the intervals hold at all marks at once, or the number of samples at the first look.
    """
    anytime = bool(anytime) if isinstance(anytime, np.bool_) else anytime
    if how is None:
        how = "random-scaling" if anytime is False else "blocks"
    if choice("how", how, ("random-scaling", "blocks")) == "blocks":
        return _above_floor(history, _from_blocks(history, diverged, level, step, anytime))
    if anytime is not False:
        raise InputError(
            "`anytime` needs the long-run variance, which random scaling has not; take how='blocks', for runs of "
            "`tc.methods.BatchMeans(method)`"
        )
    c, tracked = critical_value(level), _read(history)
    return _above_floor(history, _at_mark(tracked, _mark(tracked.steps, step), c, diverged))


def _above_floor(history: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """The table with intervals cut where an output cannot be lower, such as a mean of costs."""
    floors = {name: history[column].iloc[-1] for name, column in _columns(history, "floor").items()}
    least = table["output"].map(floors).fillna(-np.inf) if floors else -np.inf
    return table.assign(low=np.maximum(table["low"], least))


def by_step(
    history: pd.DataFrame, diverged: Mapping[int, int], level: float = 0.95, seed: int | None = None
) -> pd.DataFrame:
    """The intervals of one seed, the first by default, at every mark that has them; with a column ``step``.

    The note is that of the last mark. Intervals from blocks have two more columns, ``anytime_low`` and
    ``anytime_high``: the ends of intervals that hold at all marks from the first look on, NaN before it.
    """
    chosen = history["seed"].iloc[0] if seed is None else seed
    if isinstance(chosen, bool) or chosen not in history["seed"].to_numpy():
        raise InputError(f"`seed` must be one of the run, got {short_repr(seed)}; see `result.spec['seeds']`")
    if outputs := list(_columns(history, "block-estimate")):
        return _blocks_by_step(history, diverged, level, int(chosen), outputs)
    c, tracked = critical_value(level), _read(history)
    seeds, final = tracked.seeds.tolist(), len(tracked.steps) - 1
    last = _at_mark(tracked, final, c, diverged)
    marks, s = np.flatnonzero(tracked.n.max(axis=1) >= 2), seeds.index(chosen)
    lost = tracked.steps[marks] > diverged.get(int(chosen), tracked.steps[-1])
    estimate, scale = tracked.estimate[:, marks, s].T, tracked.scale[:, marks, s].T
    half = np.where(lost[:, None], np.nan, c * scale)
    notes = last["note"][last["seed"] == chosen].tolist() * len(marks)
    table = make_table(tracked.steps[marks], tracked.outputs, estimate, estimate - half, estimate + half, notes)
    return table.rename(columns={"seed": "step"}).assign(seed=int(chosen))


def summary(history: pd.DataFrame, diverged: Mapping[int, int]) -> str:
    """Say in a line how many intervals there are at the last mark, with reasons to doubt them; "" if none."""
    if not _columns(history, "estimate"):
        return ""
    tracked = _read(history)
    if tracked.n[-1].max() < 2:
        return ""
    notes = _at_mark(tracked, len(tracked.steps) - 1, 1.0, diverged)["note"]
    many = f"intervals: {len(tracked.outputs)} output{'s' * (len(tracked.outputs) > 1)} a seed"
    noted = notes[notes != ""]
    if noted.empty:
        return many
    return f"{many}, {len(noted)} of {len(notes)} with a note: {noted.value_counts().index[0].partition(';')[0]}"


@dataclass(frozen=True)
class Tracked:
    """The outputs of a run at its marks, from columns of its history (see ``methods.averaging.track_path``).

    Schedules (``exponents``, ``memory``) are the same for all seeds; ``correction`` is None without an extrapolation.
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


def _read(history: pd.DataFrame) -> Tracked:
    names = list(_columns(history, "estimate"))
    if not names:
        raise InputError("`interval` needs data that this run did not collect; run `tc.Polyak(method, intervals=True)`")
    steps, seeds, n = by_step_and_seed(history, f"{TRACKED}n")
    longest = n.argmax(axis=1)  # a seed that has not diverged

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


def _mark(steps: Int[np.ndarray, " marks"], step: object) -> int:
    """The place of a step among the marks; None stands for the last."""
    if step is None:
        return len(steps) - 1
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step not in steps:
        some = ", ".join(map(str, steps[-3:]))
        raise InputError(f"`step` must be a mark of the run ({some} are the last), got {short_repr(step)}; see `marks`")
    return int(np.searchsorted(steps, step))


def _at_mark(tracked: Tracked, mark: int, c: float, diverged: Mapping[int, int]) -> pd.DataFrame:
    """The intervals y_n ± c √(V/n) at a mark, one row per seed and output, with a note on each."""
    if tracked.n[mark].max() < 2:
        raise InputError(
            f"`interval` needs two averaged iterates or more, there are none at step {tracked.steps[mark]:,}; "
            "take more steps, or a smaller `skip`"
        )
    lost = np.asarray([diverged.get(seed, np.inf) < tracked.steps[mark] for seed in tracked.seeds.tolist()])
    shared = [_note_memory(tracked, mark, lost), *_note_steps(tracked, mark)]
    biased = _note_bias(tracked, mark, lost)
    notes = []
    for seed, gone, moved in zip(tracked.seeds.tolist(), lost, _find_moved(tracked, mark).T, strict=True):
        for moves, bias in zip(moved, biased, strict=True):
            against = "; ".join(filter(None, [_HALVES if moves else "", *bias, *shared]))
            notes.append(_NO_INTERVAL.format(diverged[seed]) if gone else against)
    estimate, half = tracked.estimate[:, mark].T, np.where(lost[:, None], np.nan, c * tracked.scale[:, mark].T)
    return make_table(tracked.seeds, tracked.outputs, estimate, estimate - half, estimate + half, notes)


def _from_blocks(
    history: pd.DataFrame, diverged: Mapping[int, int], level: float, step: int | None, anytime: bool | int = False
) -> pd.DataFrame:
    """The intervals by batch means at a mark, one row per seed and output."""
    outputs = list(_columns(history, "block-estimate"))
    if not outputs:
        what = "how='blocks'" if anytime is False else "anytime=True"
        raise InputError(
            f"`interval({what})` needs data that this run did not collect; run "
            "`tc.methods.BatchMeans(method)` on linear problems"
        )
    steps = history["step"].unique()
    mark = _mark(steps, step)
    rows = history[history["step"] == steps[mark]]
    found = _block_intervals(rows, outputs, level)
    if anytime is not False:
        samples = _samples(history)
        first = first_look(anytime, samples)
        if samples[mark] < first:
            raise InputError(
                f"`anytime` promises nothing before its first look at {first:,} samples, and step {steps[mark]:,} has "
                f"{samples[mark]:,.0f}; give a later `step`, or before any look a smaller `anytime`"
            )
        found = _stretched(found, samples[[mark]], first, level)
    table = make_table(rows["seed"].to_numpy(), outputs, *found)
    for seed, last in diverged.items():
        if last < steps[mark]:
            lost = table["seed"] == seed
            table.loc[lost, ["low", "high"]] = np.nan
            table.loc[lost, "note"] = _NO_INTERVAL.format(last)
    return table


def _blocks_by_step(
    history: pd.DataFrame, diverged: Mapping[int, int], level: float, seed: int, outputs: list[str]
) -> pd.DataFrame:
    rows, samples = history[history["seed"] == seed], _samples(history)
    first = next((int(n) for n in samples if n >= FIRST_LOOK), sys.maxsize)
    finite = rows["step"] <= diverged.get(seed, rows["step"].iloc[-1])
    with_blocks = (finite & (rows[f"{TRACKED}block-count"] > 1)).to_numpy()
    rows, samples = rows[with_blocks], samples[with_blocks]
    if rows.empty:
        raise InputError("`intervals` needs a mark with two samples or more before any divergence; take more `marks`")
    found = _block_intervals(rows, outputs, level)
    longer = _stretched(found, samples, first, level)
    table = make_table(rows["step"].to_numpy(), outputs, *found[:3], found.note[-len(outputs) :] * len(rows))
    ends = {"anytime_low": longer.low.ravel(), "anytime_high": longer.high.ravel()}
    return table.rename(columns={"seed": "step"}).assign(seed=seed, **ends)


def _block_intervals(rows: pd.DataFrame, outputs: list[str], level: float) -> batch_means.Intervals:
    """The intervals by batch means of some rows of a history, rows × outputs."""

    def every(kind: str) -> Float[np.ndarray, "rows outputs"]:
        return rows[[f"{TRACKED}block-{kind}:{name}" for name in outputs]].to_numpy(float)

    of_run = (rows[f"{TRACKED}block-{kind}"].to_numpy(float) for kind in ("freedom", "count"))
    statistics = batch_means.BlockStatistics(every("error"), every("correlation"), every("shift"), *of_run)
    return batch_means.intervals(every("estimate"), statistics, level)


def _samples(history: pd.DataFrame) -> Float[np.ndarray, " marks"]:
    """The samples in the blocks at each mark: all of them, or those that are counted."""
    counted = f"{TRACKED}block-n" if f"{TRACKED}block-n" in history else "step"
    return by_step_and_seed(history, counted)[2].max(axis=1).astype(float)


def _stretched(
    found: batch_means.Intervals, samples: Float[np.ndarray, " rows"], first: int, level: float
) -> batch_means.Intervals:
    """The intervals that hold at all looks from the first on; NaN before it."""
    n = np.where(samples < first, np.nan, samples)[:, None]
    longer = stretch(n, first, level)
    low, high = (found.estimate + (end - found.estimate) * longer for end in (found.low, found.high))
    return found._replace(low=low, high=high)


def make_table(
    seeds: Sequence[int] | np.ndarray, outputs: list[str], estimate: np.ndarray, low: np.ndarray, high: np.ndarray,
    note: list[str],
) -> pd.DataFrame:  # fmt: skip
    import pandas as pd

    names = np.tile(np.asarray(outputs, object), len(seeds))
    ends = {"estimate": estimate.ravel(), "low": low.ravel(), "high": high.ravel()}
    return pd.DataFrame({"seed": np.repeat(np.asarray(seeds), len(outputs)), "output": names, **ends, "note": note})


def _note_steps(tracked: Tracked, mark: int) -> list[str]:
    """Notes on the step sizes up to a mark, which concern all its intervals."""
    p, weights = (
        {path: float(values[mark]) for path, values in found.items() if np.isfinite(values[mark])}
        for found in (tracked.exponents, tracked.memory)
    )

    def names(paths: list[str]) -> str:
        return ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in paths))

    constant = [name for name, a in p.items() if abs(a) < _ALMOST_CONSTANT]
    notes = []
    if ones := [name for name, a in (p | weights).items() if a >= _FASTEST]:
        notes.append(f"steps ~ 1/k ({names(ones)}): the mean is not normal yet; take k^-0.6")
    if constant and tracked.correction is None:
        notes.append(f"constant steps ({names(constant)}) leave a bias of their size; take RichardsonRomberg or k^-0.6")
    if slow := [name for name, a in p.items() if a <= _SLOWEST and name not in constant]:
        notes.append(f"steps fall as k^-1/2 or slower ({names(slow)}) and may leave a bias; take k^-0.6")
    for path, b in p.items():
        owner, dot, name = path.rpartition(".")
        alpha = f"{owner}{dot}alpha"
        if name.startswith("beta") and alpha in p and abs(p[alpha] - b) > _SAME:
            notes.append(f"alpha/{name} is not constant: unproven for Markov samples; take the same power for both")
    return notes


def _note_memory(tracked: Tracked, mark: int, lost: Bool[np.ndarray, " seeds"]) -> str:
    """A note if the iterates are too correlated, else ""; judged by the median over the seeds that have not diverged.

    One path shows its effective number up to a factor of three, and the number looks large where V is small by chance,
    which is where the interval fails. It is a property of the steps and the problem, so the seeds are pooled. The
    slowest output decides for all, since all are functions of the same iterates. On a slow chain, intervals of the
    fastest of three outputs covered .90 while the other two were too slow.
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
    """Which first tenths or halves of the mean disagree with the rest; none if there are too few marks to decide.

    Both are judged by the noise between neighbouring blocks (von Neumann's successive differences), which a slow drift
    hardly affects. The interval itself would be no yardstick: a drift widens V as well, and both halves of a straight
    line lie inside its interval.
    """
    from scipy.special import stdtr

    n = tracked.n[: mark + 1].max(axis=1)
    ends: list[int] = []  # the marks that end blocks of a share of the run or more
    for i, reached in enumerate(n):
        if reached - (n[ends[-1]] if ends else 0.0) >= n[-1] * _SHORTEST_BLOCK:
            ends.append(i)
    if not ends or ends[-1] != mark:  # a shorter last block joins the one before it
        ends[-1:] = [mark]
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


def _note_bias(tracked: Tracked, mark: int, lost: Bool[np.ndarray, " seeds"]) -> list[list[str]]:
    """For each output, a note if the half-length of its typical 95 % interval is too short for a bias.

    An extrapolation 2θ̄^(α) − θ̄^(2α) removes a bias bα and leaves one of order α². The rest is unknown. It is small
    compared with the removed part if the steps are small; and if the removed part is small compared with the interval,
    so is the rest. Seeds that move together from the first half to the second show a bias that looks like noise in one
    run.
    """
    notes: list[list[str]] = [[] for _ in tracked.outputs]
    if lost.all():
        return notes
    half = critical_value(0.95) * np.median(tracked.scale[:, mark, ~lost], axis=1)
    if tracked.correction is not None:
        taken = np.abs(np.median(tracked.correction[:, mark, ~lost], axis=1))
        for note, m, h in zip(notes, taken, half, strict=True):
            note += [_CORRECTION.format(m / h)] if m > _LARGEST_CORRECTION * h > 0 else []
    n = tracked.n[: mark + 1].max(axis=1)
    middle = int(np.argmin(np.abs(n - n[-1] / 2)))
    share = n[middle] / max(n[-1], 1.0)
    if (~lost).sum() >= _ENOUGH_SEEDS and abs(share - 0.5) <= 0.1:
        first, whole = tracked.estimate[:, middle, ~lost], tracked.estimate[:, mark, ~lost]
        moved = (first - whole) / (1 - share)  # the mean of the first part minus that of the rest
        drift, error = np.abs(moved.mean(axis=1)), moved.std(axis=1) / np.sqrt(moved.shape[1])
        for note, d, h, e in zip(notes, drift, half, error, strict=True):
            note += [_DRIFT.format(d / h)] if d > max(_LARGEST_DRIFT * h, _SURE * e) and h > 0 else []
    return notes
