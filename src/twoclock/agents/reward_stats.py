"""Mean costs, rewards and returns of a seed over the later half of its steps, at each mark, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from twoclock.intervals.bootstrap import TRACKED
from twoclock.intervals.random_scaling import RunningMean
from twoclock.protocols import PyTree

# Names of the means: of the agent's own costs, of rewards, and of the sums of rewards of episodes that ended.
COST, REWARD, RETURN = "mean_cost", "mean_reward", "mean_return"


class RewardStats:
    """Costs, rewards and returns of one seed.

    At mark m each mean is over the steps after m/2, so that what was learnt meanwhile shows in it. From half of the run
    on, the path of the mean is followed for its interval (``RunningMean``).

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
        self._paths = {kind: RunningMean() for kind in kinds}
        self.step = 0

    def add(self, paid: dict[str, float], ended: bool) -> None:
        """One step: what was paid, by kind, and whether an episode ended with it."""
        self.step += 1
        for kind, value in paid.items():
            self._sums[kind] += value
            if self.step > self.skip:
                self._paths[kind].add(value)
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
        means = {kind: (self._sums[kind] - of[kind]) / span if span else math.nan for kind in self.kinds}
        if REWARD in self.kinds:
            means[RETURN] = (self._sums[RETURN] - of[RETURN]) / ended if ended else math.nan
        if tracked:
            means[f"{TRACKED}n"] = float(max(self.step - self.skip, 0))
            for kind, path in self._paths.items():
                name = f"{kind} from step {self.skip + 1:,} on"
                means[f"{TRACKED}estimate:{name}"] = path.mean
                means[f"{TRACKED}scale:{name}"] = path.scale
                means[f"{TRACKED}effective:{name}"] = path.effective
        return means

    def _now(self) -> tuple[float, ...]:
        return (*self._sums.values(), float(self._episodes))

    def snapshot(self) -> dict[str, PyTree]:
        """All of it as arrays."""
        return {
            "step": np.asarray(self.step), "sums": np.asarray([*self._now(), self._episode]),
            "halves": np.asarray(list(self._at), int), "at": np.asarray(list(self._at.values())),
            "paths": np.asarray([path.sums for path in self._paths.values()]),
        }  # fmt: skip

    def restore(self, snapshot: dict[str, PyTree]) -> None:
        *sums, episodes, self._episode = snapshot["sums"].tolist()
        self._sums = dict(zip(self._sums, sums, strict=True))
        self._episodes, self.step = int(episodes), int(snapshot["step"])
        self._at = {h: tuple(at) for h, at in zip(snapshot["halves"].tolist(), snapshot["at"].tolist(), strict=True)}
        self._paths = {kind: RunningMean(s) for kind, s in zip(self._paths, snapshot["paths"].tolist(), strict=True)}
