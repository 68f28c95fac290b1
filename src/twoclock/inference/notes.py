"""Honest notes: what makes an interval from one run untrustworthy, told from the run's own numbers."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from twoclock.inference.tracked import Tracked

# Steps k^−a: the mean has its limit law for ½ < a < 1. A measured exponent is a little below a while the shift matters.
_ALMOST_CONSTANT, _SLOWEST, _FASTEST = 0.02, 0.5, 0.95
_SAME = 0.02  # exponents of α and β nearer than this have a constant ratio
# The halves: blocks of at least this share of the run, so that neighbours are nearly independent; so many at least; and
# a difference that chance alone would make once in a thousand intervals.
_SHORTEST_BLOCK, _FEWEST_BLOCKS, _CHANCE = 1 / 40, 6, 1e-3

HALVES = "the halves of the mean differ: not settled yet; take more steps, larger ones, or a larger skip"
FEW_MARKS = "halves of the mean not compared: too few marks; leave `marks` out"


def of_steps(tracked: Tracked, mark: int) -> list[str]:
    """What the step sizes up to a mark say against all its intervals."""
    p = {name: float(values[mark]) for name, values in tracked.exponents.items() if np.isfinite(values[mark])}
    fast = {name: float(v[mark]) for name, v in tracked.memory.items() if v[mark] >= _FASTEST}
    constant = [name for name, a in p.items() if abs(a) < _ALMOST_CONSTANT]
    slow = [name for name, a in p.items() if _ALMOST_CONSTANT <= abs(a) <= _SLOWEST or a <= -_ALMOST_CONSTANT]
    notes = []
    if ones := [name for name, a in (p | fast).items() if a >= _FASTEST]:
        notes.append(f"steps ~ 1/k ({_names(ones)}): too short for the law of the mean; take k^-0.7")
    if constant and not tracked.extrapolated:
        notes.append(
            f"constant steps ({_names(constant)}): a bias of their size stays; take k^-0.7 or RichardsonRomberg"
        )
    if slow:
        notes.append(f"steps fall as k^-1/2 or slower ({_names(slow)}): their bias may exceed the interval; take k^-0.7")
    for beta, b in p.items():
        alpha = beta.removesuffix("beta") + "alpha"
        if beta.endswith("beta") and alpha in p and abs(p[alpha] - b) > _SAME:
            notes.append(f"{alpha}/{beta} is not constant: unproven for Markov samples; take the same power for both")
    return notes


def halves(tracked: Tracked, mark: int) -> Float[np.ndarray, "outputs seeds"] | None:
    """How likely chance makes the two halves of the mean differ so, for each interval; None with too few marks.

    The halves are compared by the noise *inside* them, seen between the marks: Student's t of the two means with the
    spread of the blocks about them. Against the interval itself it would be no test: what drifts widens V as well, and
    even a straight line keeps its halves inside its own interval.
    """
    from scipy.special import stdtr

    n = tracked.n[: mark + 1].max(axis=1)
    ends = _blocks(n)
    size = np.diff(n[ends], prepend=0.0)
    cut = int(np.argmin(np.abs(n[ends] - n[mark] / 2))) + 1
    if len(ends) < _FEWEST_BLOCKS or min(cut, len(ends) - cut) < 2 or abs(n[ends[cut - 1]] / n[mark] - 0.5) > 0.15:
        return None
    sums = tracked.estimate[:, ends] * n[ends][:, None]
    means = np.diff(sums, axis=1, prepend=0.0) / size[:, None]
    spread, middle, share = 0.0, [], []
    for half in (slice(cut), slice(cut, None)):
        weights = size[half] / size[half].sum()
        middle.append(np.einsum("b,obs->os", weights, means[:, half]))
        share.append(1 / size[half].sum())
        spread = spread + np.einsum("b,obs->os", size[half], (means[:, half] - middle[-1][:, None]) ** 2)
    free = len(ends) - 2
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (middle[1] - middle[0]) / np.sqrt(spread / free * sum(share))
    return 2 * stdtr(free, -np.abs(np.nan_to_num(t, nan=0.0)))


def differ(chance: Float[np.ndarray, "outputs seeds"]) -> np.ndarray:
    """Whether halves differ by more than chance."""
    return chance < _CHANCE


def _blocks(n: Float[np.ndarray, "marks"]) -> Int[np.ndarray, "blocks"]:
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
