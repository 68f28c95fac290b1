"""The guard of a regulator: it decides which gain acts, and when the safe gain takes over."""

from __future__ import annotations

import jax
import numpy as np
import scipy
from jaxtyping import Float

from twoclock.agents.plant_statistics import PlantStatistics
from twoclock.agents.protocol import Restorable
from twoclock.problems.lqr.operators import Bounds, Guard
from twoclock.protocols import PyTree

Matrix = Float[np.ndarray, "p q"]
_FAR = 8.0  # times the expected size: a state that is still coming back
_LOST = 1e3  # times the edge, or the state at which the safe gain took over beyond it: no gain holds the plant
_GROWN = 1e3  # times the first states: K0 does not hold the plant, even where too little is known for a proof
_LOOKS = 64  # a new gain is examined whenever the number of samples has grown by this share
_supervise, _judge = jax.jit(Bounds.supervise), jax.jit(Bounds.judge)


class GainSupervisor(Restorable):
    """Lets a gain act only if the samples show that it stabilises; the safe gain takes over where a state leaves its
    range.

    First the safe gain, K0, drives the plant for a log. If the log shows that K0 does not stabilise, the optimal gain
    of the estimated plant replaces it. The first such gain that passes the test then has a log. From the end of the log
    on the gain that acts is the last one that was proved or passed the test of `PlantStatistics`; at first the safe
    gain.

    Args:
        guard: the limits.
        K0: the gain that the user calls safe.
        Q, R, sigma: the cost and the exploration, for another safe gain.
        statistics: of the plant, to which the regulator adds the samples.
        leads_back: whether the learner returns to the safe gain while its own gain is not proved. An actor must; a
            model needs no such help.
    """

    _STATE = (
        "safe", "acting", "proved", "refuted", "lost", "rejected", "watch", "_first", "_few", "_replaced", "_looked",
        "_edge",
    )  # fmt: skip

    def __init__(
        self,
        guard: Guard,
        K0: Matrix,
        Q: Matrix,
        R: Matrix,
        sigma: float,
        statistics: PlantStatistics,
        leads_back: bool = False,
    ) -> None:
        self.guard, self.statistics, self.leads_back = guard, statistics, leads_back
        self.Q, self.R, self.sigma = Q, R, sigma
        self.safe = self.acting = K0
        self.proved = self.refuted = self.lost = False
        self.rejected = False  # the learner's present gain was not proved
        self.bounds: Bounds | None = None  # from the end of the log on
        self.watch: PyTree = None
        self.log: list[np.ndarray] = []  # rows of z and the cost
        self._first, self._few = np.zeros(K0.shape[1]), 0  # the size of the first states, and how many there were
        self._replaced = False  # another safe gain has passed
        self._looked, self._edge = 0, 0.0

    @property
    def held(self) -> bool:
        """Whether the safe gain has taken the plant back."""
        return self.bounds is not None and bool(self.watch["held"])

    def record(self, z: np.ndarray, cost: float) -> bool:
        """Add a sample to the log, and return whether the log has ended."""
        size, self._few = np.abs(z[: self.safe.shape[1]]), self._few + 1
        if self._few <= self.statistics.first:
            self._first = np.maximum(self._first, size)
        elif not self.refuted:
            looks = self._few % max(1, self._few // 16) == 0
            self.refuted = self._beyond(size, _GROWN) or (looks and self.statistics.disproves(self.safe))
        if not self.refuted or self._replaced:
            self.log.append(np.append(z, cost))
            return len(self.log) >= self.guard.log
        # No gain is known to be safe. The best guess changes with each sample until one passes and has a log.
        better = self.statistics.regulator(self.Q, self.R)
        self.safe = self.acting = self.safe if better is None else better
        self._replaced, self.log = self.statistics.passes(self.safe), []
        if (size > _FAR * self._expected()).any():
            self.statistics.restart()
        self.lost |= self._beyond(size, _LOST**4)
        return False

    def _beyond(self, size: np.ndarray, times: float) -> bool:
        """Whether a state exceeds the first states by a factor; before the first nonzero state it cannot."""
        return bool(((size > times * self._first) & (self._first > 0)).any())

    def _expected(self) -> np.ndarray:
        """The root mean squares of the states under the safe gain on the estimated plant; 0 if it is unstable."""
        ab, noise = self.statistics.fit(self.statistics.all)
        n, p = self.safe.shape[1], len(noise)
        A, B = ab[:, :n], ab[:, n:]
        loop, entering = A - B @ self.safe, self.sigma**2 * B @ B.T
        entering[:p, :p] += noise
        if not np.isfinite(loop).all() or np.abs(np.linalg.eigvals(loop)).max() >= 1:
            return np.zeros(n)
        return np.sqrt(np.maximum(np.diag(scipy.linalg.solve_discrete_lyapunov(loop, entering)), 0.0))

    def end_log(self) -> Bounds:
        """Measure the bounds from the log."""
        log, n = np.asarray(self.log), self.safe.shape[1]
        self.log = []
        self.proved = self.statistics.proves(self.safe)
        self.bounds = self.guard.measure(self.safe, log[:, :n], log[:, n:-1], log[:, -1])
        with jax.enable_x64(True):
            self.watch = jax.tree.map(np.asarray, self.bounds.start())
        return self.bounds

    def consider(self, K: Matrix) -> None:
        """Let K act if it is proved. This is tried from time to time, since a proof is slow."""
        if self.statistics.seen - self._looked >= max(1, self.statistics.seen // _LOOKS):
            self._looked = self.statistics.seen
            proved = self.statistics.proves(K)
            self.rejected = not proved and not self.statistics.passes(K)
            if not self.held and not self.rejected:
                self.acting, self.proved = K, proved
            elif not self.proved:
                self.proved = self.statistics.proves(self.acting)

    def supervise(self, K: Matrix, state: np.ndarray) -> tuple[Matrix, bool]:
        """The gain for a state when the learner has K, and whether the safe gain has just taken over."""
        assert self.bounds is not None
        before = self.held
        with jax.enable_x64(True):
            _, self.watch = _supervise(self.bounds, K, state, self.watch)
        if self.held:
            size = float(np.max(np.abs(state) / self.bounds.rms))
            self._edge = self._edge if before else max(size, self.guard.limit)
            self.lost |= size > _LOST * self._edge
            if not before and not np.array_equal(self.acting, self.safe):
                # What was proved of a linear plant has not held here, so it must be proved again.
                self.acting, self.proved = self.safe, self.statistics.proves(self.safe)
        return self.safe if self.held else self.acting, self.held and not before

    def judge(self, sample: PyTree) -> PyTree:
        """The sample with the weight that a critic gives it; a rejected actor moves back to the safe gain."""
        with jax.enable_x64(True):
            sample, self.watch = jax.tree.map(np.asarray, _judge(self.bounds, sample, self.watch))
        return sample | {"held": sample["held"] | (self.rejected and self.leads_back)}

    @property
    def interventions(self) -> dict[str, int]:
        """How often the safe gain took over, for how many steps, and samples learnt from in part."""
        counts = {} if self.bounds is None else self.bounds.report(self.watch)
        return {name: int(count) for name, count in counts.items()}

    def lines(self) -> dict[str, str]:
        """Warnings by topic."""
        found: dict[str, str] = {}
        if self.refuted:
            found["K0"] = (
                "`K0` does not stabilise the plant, as the samples show; the optimal gain of the plant as estimated "
                "took its place"
            )
        if self.lost:
            found["lost"] = "the plant is lost: its state grew without bound under the guard's safe gain; check `K0`"
        elif trips := self.interventions.get("guard_trips", 0):
            found["trips"] = f"a state left what the guard's log had shown, {trips:,} times; `K0` took over"
        return found

    def snapshot(self) -> dict[str, PyTree]:
        log = np.asarray(self.log).reshape(len(self.log), sum(self.safe.shape) + 1)
        now = self.bounds
        bounds = None if now is None else {"rms": now.rms, "weight": now.weight, "cost_unit": now.cost_unit}
        return super().snapshot() | {"log": log, "bounds": bounds}

    def restore(self, snapshot: dict[str, PyTree]) -> None:
        super().restore(snapshot)
        self.log = list(snapshot["log"])
        if (saved := snapshot["bounds"]) is not None:
            limit, reach, unit = np.float64(self.guard.limit), np.float64(self.guard.reach), saved["cost_unit"]
            unit = None if unit is None else np.float64(unit)
            self.bounds = Bounds(self.safe, limit, reach, saved["rms"], saved["weight"], unit)
