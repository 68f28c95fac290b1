"""What a regulator knows of its plant: the state, least squares with proofs about gains, and warnings."""

from __future__ import annotations

import math

import numpy as np
import scipy  # loads its parts when they are used
from jaxtyping import Float

from twoclock.agents.protocol import Restorable
from twoclock.protocols import InputError, PyTree
from twoclock.validation import short_repr

Matrix = Float[np.ndarray, "p q"]
Vector = Float[np.ndarray, " d"]
_DOUBT = 1e-3  # the probability that any proof of a run is wrong
_ON_CIRCLE = 1e-8  # an eigenvalue this near the unit circle may lie on it
_SHARE, _CHANCE = 0.05, 1e-6  # an older sample is reported if it explains this share, by chance less often
_DRAWS, _INFLATION = 256, 2.0  # plants that a gain is tried on, and how far around the estimate
_SPAN = 1e-10  # a regressor adds nothing if less than this share of it is new
_RECENT = 1024  # outputs that are stored
_NEAR = 0.01  # of a Gaussian's samples lie nearer to its mean than what counts as near the goal


class OutputHistory(Restorable):
    """The last L outputs and L − 1 actions as a state, s = (y_t, …, y_{t−L+1}, u_{t−1}, …, u_{t−L+1}).

    An output other than the last one begins a new episode, which is taken to start at rest there.

    Args:
        p, m: sizes of output and action.
        lags: L; with 1 the state is the output.
    """

    _STATE = ("last", "y", "u", "length")

    def __init__(self, p: int, m: int, lags: int) -> None:
        self.p, self.m, self.lags = p, m, lags
        self.size = lags * p + (lags - 1) * m
        self.last: Vector | None = None  # the last output
        self.y, self.u = np.zeros((lags, p)), np.zeros((lags, m))  # earlier outputs, newest first
        self.length = 0  # how many of them were observed

    @property
    def known(self) -> Float[np.ndarray, "k d"]:
        """The rows of [A B] that shift the state."""
        p, m, L = self.p, self.m, self.lags
        rows = np.zeros((self.size - p, self.size + m))
        rows[: (L - 1) * p, : (L - 1) * p] = np.eye((L - 1) * p)
        if L > 1:
            rows[(L - 1) * p : (L - 1) * p + m, self.size :] = np.eye(m)
            rows[(L - 1) * p + m :, L * p : L * p + (L - 2) * m] = np.eye((L - 2) * m)
        return rows

    def state(self, y: Vector) -> tuple[Vector, bool]:
        """The state at an output, and whether all of it was observed."""
        if not self._follows(y):
            return np.concatenate([np.tile(y, self.lags), np.zeros((self.lags - 1) * self.m)]), self.lags == 1
        return np.concatenate([y, self.y[:-1].ravel(), self.u[:-1].ravel()]), self.length >= self.lags - 1

    def older(self, y: Vector) -> Vector | None:
        """The output and the action that the state at y has just lost; None where there are none."""
        return np.concatenate([self.y[-1], self.u[-1]]) if self._follows(y) and self.length >= self.lags else None

    def push(self, y: Vector, u: Vector, after: Vector) -> None:
        """Record that u was applied at the output y."""
        if not self._follows(y):
            self.y[:], self.u[:], self.length = y, 0.0, 0
        self.y[1:], self.u[1:] = self.y[:-1].copy(), self.u[:-1].copy()
        self.y[0], self.u[0], self.last = y, u, after
        self.length = min(self.length + 1, self.lags)

    def _follows(self, y: Vector) -> bool:
        return self.last is not None and np.array_equal(y, self.last)


class PlantStatistics(Restorable):
    """The sums of one trajectory, and least squares of y' = [A B](s, u) + d + w from them.

    The first samples only set the scale V₀ of the regressors φ = (s, u, 1), so that no unit matters. From those after
    them come V = Σφφᵀ and the estimate. For noise with covariance Ψ and Gaussian tails, with probability 1 − δ for all
    times at once (the method of mixtures, with V₀ as the prior of the mixture),

        ‖Ψ^-½ (Θ̂ − Θ) V^½‖² ≤ β² = (1 + 1/κ)(2 log 1/δ + p log det(I + V₀⁻¹V)),     κ = λ_min(V₀⁻¹V)

    Args:
        n, m: sizes of state and action.
        known: the last rows of [A B] if they are known; only the other rows, those of y', are learnt.

    Reference: Abbasi-Yadkori, Pál & Szepesvári, *Improved algorithms for linear stochastic bandits*, 2011.
    """

    _STATE = ("past", "early", "sums", "seen")

    def __init__(self, n: int, m: int, known: Matrix | None = None) -> None:
        self.n, self.m, self.known = n, m, np.zeros((0, n + m)) if known is None else known
        self.p = n - len(self.known)
        self.d = n + m + 1
        size = self.d + self.p + m + self.p  # φ, the oldest output and action that left the state, y'
        # Sums over samples that prove nothing, over the first of the others, and over those after them.
        self.past, self.early, self.sums = np.zeros((3, size, size))
        self.first = max(20, 5 * self.d)
        self.seen = 0
        self._draws: np.ndarray | None = None

    @property
    def count(self) -> int:
        """The samples in the sums."""
        return max(self.seen - self.first, 0)

    def add(self, z: np.ndarray, older: np.ndarray, after: np.ndarray) -> None:
        """Add a sample: z = (s, u), the output and the action that have just left s, and y'."""
        v = np.concatenate([z, [1.0], older, after])
        self.seen += 1
        with np.errstate(over="ignore", invalid="ignore"):  # nothing is proved about a plant that explodes
            if self.seen <= self.first:
                self.early += np.outer(v, v)
            else:
                self.sums += np.outer(v, v)

    def restart(self) -> None:
        """Base proofs on later samples only: earlier ones are not of the scale of normal operation."""
        self.past, self.seen = self.all, 0
        self.early, self.sums = np.zeros_like(self.past), np.zeros_like(self.past)

    @property
    def all(self) -> Matrix:
        """The sums over all samples."""
        return self.past + self.early + self.sums

    def fit(self, sums: Matrix) -> tuple[Matrix, Matrix]:
        """[Â B̂] and the covariance of the noise of y', by least squares."""
        d, p = self.d, self.p
        V, cross, total = sums[:d, :d], sums[:d, -p:], sums[-p:, -p:]
        unit = 1 / np.sqrt(np.maximum(np.diag(V), 1e-300))
        rows = unit[:, None] * np.linalg.lstsq(V * np.outer(unit, unit), unit[:, None] * cross, rcond=1e-14)[0]
        spread = (total - rows.T @ cross) / max(V[-1, -1] - d, 1)
        return np.vstack([rows[:-1].T, self.known]), (spread + spread.T) / 2

    def regulator(self, Q: Matrix, R: Matrix) -> Matrix | None:
        """The optimal gain of the plant as all samples show it, if there is one."""
        ab = self.fit(self.all)[0]
        A, B = ab[:, : self.n], ab[:, self.n :]
        try:
            with np.errstate(all="ignore"):  # SciPy's balancing casts values that it does not use
                P = scipy.linalg.solve_discrete_are(A, B, Q, R)
        except (np.linalg.LinAlgError, ValueError):
            return None
        return np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)

    def proves(self, K: Matrix) -> bool:
        """Whether K stabilises every plant that is compatible with the samples.

        Every [A B] within β has the loop Â − B̂K + Ψ^½ E V^-½ [I; −K] with ‖E‖ ≤ β, so K stabilises all of them where it
        stabilises the estimate and β‖V^-½ [I; −K] (zI − Â + B̂K)⁻¹ Ψ^½‖ < 1 on the unit circle (the small-gain theorem).
        """
        loop = self._uncertain_loop(K) if self.count >= 2 * self.first else None
        return loop is not None and _stable(loop[0]) and _gain_below(*loop, self._reach(loop[1]))

    def disproves(self, K: Matrix) -> bool:
        """Whether K stabilises no compatible plant: none of them moves an eigenvalue across the circle."""
        loop = self._uncertain_loop(K) if self.count >= 2 * self.d else None
        return loop is not None and not _stable(loop[0]) and _gain_below(*loop, self._reach(loop[1]))

    def passes(self, K: Matrix) -> bool:
        """Whether K stabilises each of 256 plants drawn around the estimate with twice its standard errors.

        Many gains pass long before they are proved. Where one direction of the error decides, a gain that passes is
        unstable with probability 10⁻⁵ or less; but that is no theorem.
        """
        loop = self._uncertain_loop(K) if self.count >= 2 * self.first else None
        if loop is None or not _stable(loop[0]):
            return False
        A, enter, leave = loop
        if self._draws is None:
            self._draws = np.random.default_rng(0).standard_normal((_DRAWS, self.p, self.d - 1))
        return _stable(A + _INFLATION * enter @ self._draws @ leave)

    def _uncertain_loop(self, K: Matrix) -> tuple[Matrix, Matrix, Matrix] | None:
        """The estimated loop, Ψ^½ and V^-½ [I; −K], in units of the states' own sizes; None if nothing is known yet."""
        if not np.isfinite(self.sums).all():
            return None
        ab, noise = self.fit(self.sums)
        loop = ab[:, : self.n] - ab[:, self.n :] @ K
        V = self.sums[: self.d, : self.d]
        unit = 1 / np.sqrt(np.maximum(np.diag(V), 1e-300))
        centred = V[:-1, :-1] - np.outer(V[:-1, -1], V[-1, :-1]) / self.count
        try:
            root = np.linalg.cholesky(centred * np.outer(unit[:-1], unit[:-1]))
        except np.linalg.LinAlgError:  # the regressors are linearly dependent
            return None
        size = unit[: self.n]
        noise = noise * (1 + 4 * math.sqrt(2 / self.count))  # it is an estimate itself
        values, vectors = np.linalg.eigh(noise * np.outer(size[: self.p], size[: self.p]))
        enter = np.vstack([vectors * np.sqrt(np.maximum(values, 0)), np.zeros((self.n - self.p, self.p))])
        leave = np.linalg.solve(root, np.vstack([np.eye(self.n), -K * unit[self.n : -1, None] / size]))
        loop = loop * size[:, None] / size
        return (loop, enter, leave) if np.isfinite(loop).all() and np.isfinite(leave).all() else None

    def _reach(self, enter: Matrix) -> float:
        """1/β; 0 where β is infinite. Outputs without noise are known exactly and do not count."""
        unit = 1 / np.sqrt(np.diag(self.sums)[: self.d])
        V, V0 = (M[: self.d, : self.d] * np.outer(unit, unit) for M in (self.sums, self.early))
        try:
            ratios = scipy.linalg.eigh(V, V0 + 1e-12 * np.eye(self.d), eigvals_only=True)
        except np.linalg.LinAlgError:
            return 0.0
        noisy = int(np.sum(np.square(enter).sum(axis=0) > _SPAN * np.square(enter).sum()))
        mixture = 2 * math.log(1 / _DOUBT) + noisy * float(np.sum(np.log1p(np.maximum(ratios, 0.0))))
        return 1 / math.sqrt((1 + 1 / ratios[0]) * mixture) if ratios[0] > 0 else 0.0

    def memory_gain(self) -> tuple[float, bool]:
        """The share of the noise that the sample before the state explains, and whether that is more than chance.

        If s is a complete state, the older sample says nothing about y' beyond (s, u).
        """
        if self.count < 100 or not np.isfinite(self.sums).all():
            return 0.0, False
        k = len(self.sums) - self.p
        rest = [i for i in range(len(self.sums)) if i != self.d - 1]
        C = self.sums - np.outer(self.sums[:, self.d - 1], self.sums[self.d - 1]) / self.count
        C = C[np.ix_(rest, rest)]
        unit = 1 / np.sqrt(np.maximum(np.diag(C), 1e-300))
        C, d, k = C * np.outer(unit, unit), self.d - 1, k - 1
        alone, both = (
            np.diag(C[k:, k:] - C[k:, :j] @ np.linalg.pinv(C[:j, :j], rcond=_SPAN, hermitian=True) @ C[:j, k:])
            for j in (d, k)
        )
        known = alone > 1e-9  # a state that predicts y' to all digits needs no older sample
        share = np.where(known, 1 - both / np.where(known, alone, 1.0), 0.0)
        worst = float(np.max(share, initial=0.0))
        chance = float(scipy.special.chdtri(k - d, _CHANCE)) / self.count
        return worst, worst > max(_SHARE, chance)

    def restore(self, snapshot: dict[str, PyTree]) -> None:
        if snapshot["sums"].shape != self.sums.shape:
            raise InputError("`path` is of a regulator with other sizes of states, actions or lags")
        super().restore(snapshot)


def _stable(loops: np.ndarray) -> bool:
    """Whether all eigenvalues of a loop, or of many, lie within the unit circle."""
    return bool(np.abs(np.linalg.eigvals(loops)).max() < 1)


def _gain_below(A: Matrix, B: Matrix, C: Matrix, bound: float) -> bool:
    """Whether ‖C(zI − A)⁻¹B‖ < bound on the whole unit circle.

    This holds if it does at z = 1 and the bound is nowhere a singular value on the circle. The pencil below has an
    eigenvalue on the circle where it is one (Boyd, Balakrishnan & Kabamba, *A bisection method for computing the H∞
    norm*, 1989).
    """
    if not bound > 0:
        return False
    n = len(A)
    eye, zero = np.eye(n), np.zeros((n, n))
    B, C = B / math.sqrt(bound), C / math.sqrt(bound)
    try:
        if np.linalg.norm(C @ np.linalg.solve(eye - A, B), 2) >= 1:
            return False
    except np.linalg.LinAlgError:  # A has the eigenvalue 1
        return False
    left, right = np.block([[A, B @ B.T], [zero, eye]]), np.block([[eye, zero], [C.T @ C, A.T]])
    found = scipy.linalg.eigvals(left, right, homogeneous_eigvals=True)
    above, below = np.abs(found)
    return bool(np.all(np.abs(above - below) > _ON_CIRCLE * np.maximum(above, below)))


class PlantWarning(UserWarning):
    """A regulator's plant is not what its model says, or a guard had to act."""


class PlantWarnings(Restorable):
    """Counts and recent outputs of a plant, and the warnings that follow from them.

    Args:
        cost: the p×p cost of an output; whether a goal is reached is judged in its directions alone.
    """

    _STATE = ("recent", "count", "cut")

    def __init__(self, cost: Float[np.ndarray, "p p"]) -> None:
        p = len(cost)
        sizes, directions = np.linalg.eigh(cost)
        self._costly = directions[:, sizes > 1e-9 * sizes[-1]]
        self.recent = np.full((_RECENT, p), np.nan)  # minus the goal
        self.count = self.cut = 0

    def add(self, output: np.ndarray, cut: bool) -> None:
        """Add a sample: its output minus the goal, and whether the applied action differs from the chosen one."""
        self.recent[self.count % _RECENT] = output
        self.count += 1
        self.cut += cut

    def lines(self, statistics: PlantStatistics, goal: Float[np.ndarray, " p"], lags: int) -> dict[str, str]:
        """Warnings by topic."""
        found: dict[str, str] = {}
        share, matters = statistics.memory_gain()
        if matters:
            found["memory"] = (
                f"the state is incomplete: the sample before it explains {share:.0%} of what it leaves unexplained; "
                f"something is not seen, or the plant changes or is not linear; try `lags={max(2 * lags, 4)}`"
            )
        if self.cut > max(10, 0.01 * self.count):
            found["cut"] = (
                f"{self.cut / self.count:.0%} of the actions were not applied as asked: the plant was learnt from what "
                "was applied, and the gain is the best without such limits, not with them; lower `sigma` or raise `R`"
            )
        if (nearest := self._nearest()) is not None:
            found["goal"] = (
                f"no output of the last {_RECENT:,} came near the goal {short_repr(goal.tolist())}, the nearest was "
                f"{short_repr(np.round(nearest + goal, 4).tolist())}: it cannot be reached, or not at this cost; "
                "a `reference` is held whatever it costs, if the plant can be held there"
            )
        return found

    def _nearest(self) -> Float[np.ndarray, " p"] | None:
        """The recent output nearest to the goal, if even that one is far away compared with their spread."""
        if self.count < _RECENT or not self._costly.size:
            return None
        away = self.recent @ self._costly
        unit = np.sqrt(np.mean(away**2, axis=0))
        scaled = away / np.where(unit > 0, unit, 1.0)
        spread = scaled.T @ scaled / len(scaled)
        distance = np.einsum("ij,jk,ik->i", scaled, np.linalg.pinv(spread, rcond=1e-9, hermitian=True), scaled)
        rank = np.linalg.matrix_rank(spread, tol=1e-9, hermitian=True)
        nearest = int(np.argmin(distance))
        far = rank > 0 and distance[nearest] > scipy.special.chdtri(rank, 1 - _NEAR)
        return self.recent[nearest] if far else None
