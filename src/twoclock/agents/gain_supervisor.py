"""The guard of a regulator: which gain may act, and when the first one takes the plant back."""

from __future__ import annotations

import jax
import numpy as np
import scipy.linalg
from jaxtyping import Float

from twoclock.agents.plant_statistics import PlantStatistics
from twoclock.problems.lqr.operators import Bounds, Guard
from twoclock.protocols import PyTree

Matrix = Float[np.ndarray, "p q"]
_GROWN = 10.0  # times the size of the log's first states, from which a growing plant is not left to the first gain
_LOST = 1e3  # times the edge: no gain holds the plant
_LOOKS = 64  # a new gain is examined whenever the samples have grown by such a part
_supervise, _judge = jax.jit(Bounds.supervise), jax.jit(Bounds.judge)


class GainSupervisor:
    """Lets a gain act only if the samples prove that it stabilises, and hands a state that has left to a safe gain.

    First the safe gain, K0, drives the plant for a log. If that shows that K0 does not stabilise, the log ends, and the
    optimal gain of the plant as estimated so far takes K0's place. From then on the gain that acts is the last one that
    was proved, by `PlantStatistics.proves`; before there is one, the safe gain.

    Args:
        guard: the limits.
        K0: the gain that the user calls safe.
        statistics: of the plant; whoever owns them adds the samples.
    """

    def __init__(self, guard: Guard, K0: Matrix, statistics: PlantStatistics) -> None:
        self.guard, self.statistics = guard, statistics
        self.safe = self.acting = K0
        self.proved = self.refuted = self.lost = False
        self.bounds: Bounds | None = None  # from the end of the log on
        self.watch: PyTree = None
        self.log = np.zeros((0, K0.size // len(K0) + len(K0) + 1))
        self._looked = 0

    @property
    def held(self) -> bool:
        """Whether the safe gain has taken the plant back."""
        return self.bounds is not None and bool(self.watch["held"])

    def record(self, z: np.ndarray, cost: float) -> bool:
        """Add a sample to the log, and return whether the log has ended."""
        self.log = np.vstack([self.log, np.append(z, cost)])
        early, n = self.statistics.first, self.safe.shape[1]
        if len(self.log) >= self.guard.log:
            return True
        if len(self.log) <= 2 * early:
            return False
        left = np.abs(z[:n]) > _GROWN * np.abs(self.log[:early, :n]).max(axis=0)
        return bool(left.any()) and self.statistics.spectral_radius(self.safe) >= 1

    def end_log(self, Q: Matrix, R: Matrix, sigma: float) -> Bounds:
        """Measure the bounds, with another safe gain if the samples speak against the first."""
        n = self.safe.shape[1]
        rms, cost = np.sqrt(np.mean(self.log[:, :-1] ** 2, axis=0)), float(np.mean(self.log[:, -1]))
        if self.statistics.spectral_radius(self.safe) >= 1:
            self.refuted = True
            better = self.statistics.regulator(Q, R)
            if better is None:
                self.lost = True
            else:
                self.safe = self.acting = better
                rms, cost = self._expected(better, Q, R, sigma)
        self.log = self.log[:0]
        self.proved = self.statistics.proves(self.safe)
        self.begin(self.guard.bounds(self.safe, n, rms, cost))
        assert self.bounds is not None
        return self.bounds

    def begin(self, bounds: Bounds) -> None:
        """Guard by these bounds from now on."""
        self.bounds = bounds
        with jax.enable_x64(True):
            self.watch = jax.tree.map(np.asarray, bounds.start())

    def _expected(self, K: Matrix, Q: Matrix, R: Matrix, sigma: float) -> tuple[np.ndarray, float]:
        """The root mean squares of z and the mean cost under K, on the plant as estimated."""
        ab, noise, _ = self.statistics.fit()
        n, p = K.shape[1], len(noise)
        A, B = ab[:, :n], ab[:, n:]
        full = sigma**2 * B @ B.T
        full[:p, :p] += noise
        states = scipy.linalg.solve_discrete_lyapunov(A - B @ K, full)
        actions = K @ states @ K.T + sigma**2 * np.eye(len(K))
        return np.sqrt(np.concatenate([np.diag(states), np.diag(actions)])), float(
            np.sum(Q * states) + np.sum(R * actions)
        )

    def consider(self, K: Matrix) -> None:
        """Let K act if it is proved; at times, since a proof takes a while."""
        if self.statistics.seen - self._looked >= max(1, self.statistics.seen // _LOOKS):
            self._looked = self.statistics.seen
            if not self.held and self.statistics.proves(K):
                self.acting, self.proved = K, True
            elif not self.proved:
                self.proved = self.statistics.proves(self.acting)

    def supervise(self, K: Matrix, state: np.ndarray) -> tuple[Matrix, bool]:
        """The gain for a state, where the learner is at K, and whether the safe gain has just taken the plant back."""
        assert self.bounds is not None
        before = self.held
        with jax.enable_x64(True):
            _, self.watch = _supervise(self.bounds, K, state, self.watch)
        if self.held:
            self.lost |= bool(np.max(np.abs(state) / self.bounds.rms) > _LOST * self.bounds.limit)
            if not before and not np.array_equal(self.acting, self.safe):
                # What was proved of a linear plant has not held here, so it must be proved again.
                self.acting, self.proved = self.safe, self.statistics.proves(self.safe)
        return self.safe if self.held else self.acting, self.held and not before

    def judge(self, sample: PyTree) -> PyTree:
        """The sample with how much of it a critic may learn."""
        with jax.enable_x64(True):
            sample, self.watch = jax.tree.map(np.asarray, _judge(self.bounds, sample, self.watch))
        return sample

    def snapshot(self) -> dict[str, PyTree]:
        """All of it as arrays."""
        flags = np.asarray([self.proved, self.refuted, self.lost, self._looked])
        bounds = None if self.bounds is None else {"rms": self.bounds.rms, "weight": self.bounds.weight}
        cost = None if self.bounds is None else self.bounds.cost_unit
        return {
            "safe": self.safe, "acting": self.acting, "flags": flags, "log": self.log, "watch": self.watch,
            "bounds": bounds, "cost_unit": cost,
        }  # fmt: skip

    def restore(self, snapshot: dict[str, PyTree]) -> None:
        self.safe, self.acting, self.log = snapshot["safe"], snapshot["acting"], snapshot["log"]
        self.proved, self.refuted, self.lost = (bool(flag) for flag in snapshot["flags"][:3])
        self._looked = int(snapshot["flags"][3])
        if (saved := snapshot["bounds"]) is not None:
            limit, reach = np.float64(self.guard.limit), np.float64(self.guard.reach)
            unit = snapshot["cost_unit"]
            unit = None if unit is None else np.float64(unit)
            self.begin(Bounds(self.safe, limit, reach, saved["rms"], saved["weight"], unit))
            self.watch = snapshot["watch"]
