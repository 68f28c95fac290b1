"""What a seed was paid: means over the later half of its steps at each mark, and an interval for the last of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from twoclock.protocols import PyTree
from twoclock.stats import TRACKED

# Names of the means: of the agent's own costs, of rewards, and of the sums of rewards of episodes that ended.
COST, REWARD, RETURN = "mean_cost", "mean_reward", "mean_return"


class Tally:
    """Counts costs, rewards and returns.

    At mark m each mean is over the steps after m/2, so that what was learnt meanwhile shows in it. From half of the run
    on, the path of the mean is followed for its interval (``inference.random_scaling`` has the formulas).

    Args:
        marks: at which it will be asked; the last is the end.
        kinds: of COST and REWARD those that there are.
    """

    def __init__(self, marks: Sequence[int], kinds: Sequence[str]) -> None:
        self.kinds, self.skip = tuple(kinds), marks[-1] // 2
        self._halves = {mark // 2 for mark in marks}
        self._sums = dict.fromkeys((*kinds, RETURN), 0.0)
        self._episodes, self._episode = 0, 0.0
        self._at: dict[int, tuple[float, ...]] = {0: self._now()} if 0 in self._halves else {}
        self._paths = {kind: [0.0] * 4 for kind in kinds}  # of each: the mean, B, S and q
        self.step = 0

    def add(self, paid: dict[str, float], ended: bool) -> None:
        """One step: what was paid, by kind, and whether an episode ended with it."""
        self.step += 1
        n = self.step - self.skip
        for kind, value in paid.items():
            self._sums[kind] += value
            if n > 0:
                _follow(self._paths[kind], value, n)
        self._episode += paid.get(REWARD, 0.0)
        if ended:
            self._sums[RETURN] += self._episode
            self._episodes, self._episode = self._episodes + 1, 0.0
        if self.step in self._halves:
            self._at[self.step] = self._now()

    def row(self, tracked: bool) -> dict[str, float]:
        """The means of the present mark; with what their intervals need if ``tracked``."""
        *then, before = self._at.get(self.step // 2, (0.0,) * (len(self._sums) + 1))
        span, ended = self.step - self.step // 2, self._episodes - before
        of = dict(zip(self._sums, then, strict=True))
        found = {kind: (self._sums[kind] - of[kind]) / span if span else math.nan for kind in self.kinds}
        if REWARD in self.kinds:
            found[RETURN] = (self._sums[RETURN] - of[RETURN]) / ended if ended else math.nan
        return found | (self._tracked() if tracked else {})

    def _tracked(self) -> dict[str, float]:
        n = max(self.step - self.skip, 0)
        found = {f"{TRACKED}n": float(n)}
        for kind, (mean, _, S, q) in self._paths.items():
            name = f"{kind} from step {self.skip + 1:,} on"
            found[f"{TRACKED}estimate:{name}"] = mean
            found[f"{TRACKED}scale:{name}"] = math.sqrt(max(S, 0.0) / max(n, 1) ** 3)
            found[f"{TRACKED}effective:{name}"] = q * n**3 / (6 * S) if S > 0 else 0.0
        return found

    def _now(self) -> tuple[float, ...]:
        return (*self._sums.values(), float(self._episodes))

    def kept(self) -> dict[str, PyTree]:
        """As arrays, to go on from."""
        return {
            "step": np.asarray(self.step), "sums": np.asarray([*self._now(), self._episode]),
            "halves": np.asarray(list(self._at), int), "at": np.asarray(list(self._at.values())),
            "paths": np.asarray(list(self._paths.values())),
        }  # fmt: skip

    def restore(self, kept: dict[str, PyTree]) -> None:
        *sums, episodes, self._episode = kept["sums"].tolist()
        self._sums, self._episodes, self.step = (
            dict(zip(self._sums, sums, strict=True)),
            int(episodes),
            int(kept["step"]),
        )
        self._at = {h: tuple(at) for h, at in zip(kept["halves"].tolist(), kept["at"].tolist(), strict=True)}
        self._paths = dict(zip(self._paths, kept["paths"].tolist(), strict=True))


def _follow(path: list[float], value: float, n: int) -> None:
    """The n-th number of a mean: D = y_n − y_{n−1}, C = Σ_{s<n} s², S += D(DC − 2B), B −= DC."""
    mean, B, S, q = path
    D, C = (value - mean) / n, (n - 1) * n * (2 * n - 1) / 6
    q += ((n * D) ** 2 - q) / (n - 1) if n > 1 else 0.0
    path[:] = mean + D, B - D * C, S + D * (D * C - 2 * B), q
