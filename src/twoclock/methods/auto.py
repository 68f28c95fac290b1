"""The default method, chosen by the sizes of θ and ω, which needs no step size; its arrival and its intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jaxtyping import Array

from twoclock import tree_math
from twoclock.intervals import batch_means
from twoclock.intervals.arrival import ONE_SEED, SMALL, score_limit
from twoclock.intervals.batch_means import BlockStatistics, Intervals
from twoclock.methods import frozen_check
from twoclock.methods.candidates import Candidates, CandidatesState
from twoclock.methods.zap import Zap, ZapState, as_vector
from twoclock.protocols import InputError, Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.validation import whole

# The squared share of θ's size that may be unknown in directions with little data; how many standard errors a seed may
# be from the median of all, and for how many seeds that is tested; a ratio that stands for "no test".
_LOOSE, _APART, _ENOUGH_SEEDS, _NO_TEST = 0.01, 6.0, 3, 1e30
_DOWN = -0.1  # the least slope, over the largest, at which noise alone may have made it negative
_UNTESTED = "without matrices there is no test for it"
_MOVING = "its estimate was still on its way"
_DOUBTFUL = "most other seeds have not"
_LONGER = "run longer, start elsewhere, or compare with steps of your own, `tc.Polyak(tc.Standard(…))`"
# Where F or G is curved, samples weigh i^¼: the variance of such a mean is that of (1 + ¼)²/(1 + ½) times fewer.
_WEIGHTED = 1.25**2 / 1.5
_REMEDIES = {
    _UNTESTED: "ask `tc.residual(problem, result)`",
    _MOVING: "run longer",
    "it diverged": "start elsewhere, or take small steps, `tc.Standard`",
    "too few samples came after its estimate was fixed": "run longer",
}


class NotArrivedWarning(UserWarning):
    """The default method has not arrived on some seeds; ``result.chosen`` gives the reason and the remedy."""


AutoState = ZapState | CandidatesState


@pytree
class Auto(Method):
    """The default method: ``Zap`` where its matrices are affordable, else ``Candidates``. It has no step size.

    The choice depends on the sizes of θ and ω alone; ``result.chosen`` explains it, and ``result.method`` is the chosen
    method, which runs the same, bit for bit.

    Args:
        max_dim: the largest number of entries of θ and ω together for ``Zap``, which stores the square of that number.

    >>> import twoclock as tc
    >>> tc.solve(tc.problems.quadratic(dim=2), steps=500, seeds=3).method
    Zap()
    """

    finds_roots = True
    reads_on_host: ClassVar[bool] = True
    refines: ClassVar[bool] = True

    max_dim: int = checked(whole, 0, default=128, static=True)

    def __new__(cls, *args: object, **options: object) -> Self:
        for name in options:
            if name.startswith("project_"):
                raise InputError(
                    f"`{name}`: the default looks for where the means of F and G are zero, which they need not be on "
                    f"the boundary of a set; take `tc.Polyak(tc.Standard(alpha, beta, {name}=…))`"
                )
        return super().__new__(cls)

    def chosen(self, theta: PyTree, omega: PyTree) -> Zap | Candidates:
        """The method for variables of these shapes.

        Args:
            theta, omega: the variables, or anything with their shapes.
        """
        return Zap() if tree_math.size((theta, omega)) <= self.max_dim else Candidates()

    def init(self, theta: PyTree, omega: PyTree) -> AutoState:
        return self.chosen(theta, omega).init(theta, omega)

    def step(self, F: Operator, G: Operator, state: AutoState, x: PyTree, k: Scalar) -> AutoState:
        return _method_of(state).step(F, G, state, x, k)  # type: ignore[arg-type]

    def between(self, F: Operator, G: Operator, state: AutoState, x: PyTree, k: Scalar) -> AutoState:
        return _method_of(state).between(F, G, state, x, k)  # type: ignore[arg-type, return-value]

    def is_due(self, state: AutoState, k: Any) -> Any:
        return _method_of(state).is_due(state, k)  # type: ignore[arg-type]

    def refine(self, state: AutoState, k: Any) -> AutoState:
        return _method_of(state).refine(state, k)  # type: ignore[arg-type]

    def estimate(self, state: AutoState) -> tuple[PyTree, PyTree]:
        return _method_of(state).estimate(state)  # type: ignore[arg-type]

    def report(self, state: AutoState) -> dict[str, Array | np.ndarray]:
        return _method_of(state).report(state)  # type: ignore[arg-type]

    def explain(
        self, theta: PyTree, omega: PyTree, steps: int, against: Sequence[str], reported: Mapping[str, np.ndarray]
    ) -> str:
        """Report in one line which method ran, why, at what cost, whether it arrived, and the remedy if it did not.

        Args:
            theta, omega: of one seed.
            steps: the number of steps of the run.
            against: the objection to the arrival of each seed; "" if there is none.
            reported: what ``report`` gave at the end, by name, one entry per seed; it may be empty.
        """
        slow, fast = tree_math.size(theta), tree_math.size(omega)
        how, bound = "MatrixFreeZap beside DoG, without matrices", "more than the {:,} for matrices"
        if isinstance(self.chosen(theta, omega), Zap):
            how, bound = "Zap, a matrix gain", "at most the {:,} for which its matrices are stored"
        words = [
            f"{how}: θ and ω have {slow} + {fast} = {slow + fast:,} entries, {bound.format(self.max_dim)}",
            f"no step size was set and no pilot run, all {steps:,} samples went into the estimate",
        ]
        arrived = np.asarray([reason == "" for reason in against])
        if arrived.any() and "noise_sq" in reported:
            error_sq = np.asarray(reported["noise_sq"], float)  # of independent samples
            if "chain_noise_sq" in reported:
                error_sq = np.maximum(error_sq, np.asarray(reported["chain_noise_sq"], float))
            error = float(np.median(np.sqrt(error_sq[arrived])))
            if np.isfinite(error) and error > 0:
                words.append(f"θ is known to ±{error:.2g} (norm, one standard error)")
        return "; ".join([*words, summarize(against)])


def _method_of(state: AutoState) -> Zap | Candidates:
    return Zap() if isinstance(state, ZapState) else Candidates()


def objections(reported: Mapping[str, np.ndarray], theta: PyTree, *, one_problem: bool = True) -> list[str]:
    """The objection to the arrival of each seed; "" if there is none.

    Args:
        reported: what ``report`` gave at the end, by name, one entry per seed.
        theta: the estimates, with a leading seed axis.
        one_problem: whether all seeds have the same solution, so that they must agree.
    """
    count = len(jax.tree.leaves(theta)[0])
    if "residual" not in reported:
        return [_UNTESTED] * count
    nothing = np.zeros(count)
    residual, from_start, loose, moved, slope, noise, of_batches = (
        np.asarray(reported.get(name, nothing), float)
        for name in (
            "residual", "start_ratio", "loose_ratio", "moved_ratio", "least_slope", "noise_sq", "batch_noise_sq",
        )
    )  # fmt: skip
    noise = np.maximum(noise, of_batches)
    rows = np.concatenate([np.reshape(leaf, (count, -1)) for leaf in jax.tree.leaves(theta)], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.sum((rows - np.median(rows, axis=0)) ** 2, axis=1)
    agree = apart <= _APART**2 * np.maximum(noise, np.median(noise))
    # Of many seeds the largest score is larger by chance. Beyond 128 entries a ratio takes the place of scores.
    most = 1.0 if "moved_ratio" in reported else (score_limit(count) / ONE_SEED) ** 2
    rules = (
        (np.isfinite(rows).all(axis=1), "it diverged"),
        (residual < _NO_TEST, "too few samples came after its estimate was fixed"),
        (residual <= most, "the means of F and G there are not zero on later samples"),
        ((from_start >= 0) & (from_start <= SMALL), "samples cannot tell its estimate from the start"),
        (moved <= _LOOSE, _MOVING),
        (slope >= _DOWN, "the means are zero there, but steps lead away from it: a maximum or a saddle"),
        (loose <= _LOOSE, "samples say too little of some directions of θ"),
        (agree | (count < _ENOUGH_SEEDS) | (not one_problem), "it is far from where the other seeds are"),
    )
    found = [next((words for passed, words in rules if not passed[i]), "") for i in range(count)]
    # If most seeds fail, one that passes may have passed by chance.
    doubtful = one_problem and count >= _ENOUGH_SEEDS and found.count("") < count / 2
    return [reason or (_DOUBTFUL if doubtful else "") for reason in found]


def summarize(against: Sequence[str]) -> str:
    """Report how many seeds arrived, the objections to the others, and the remedy."""
    missing = [reason for reason in against if reason]
    if not missing:
        return "every seed arrived"
    usual = max(set(missing), key=missing.count)
    return f"{len(missing)} of {len(against)} seeds have not arrived: {usual}; {_REMEDIES.get(usual, _LONGER)}"


def zap_intervals(state: ZapState, level: float, *, ordered: bool = True) -> Intervals:
    """An interval for each entry of θ on every lane, from NumPy's arrays with leading axes.

    The estimate is a root of the mean of n samples, so that its error is D·(mean of F and G at the solution) with the
    Newton gain D of the run's own model. The variance of that mean, on chains too, is the one between batches:

        se² = (length of a batch/n)·Σ_b (D(m_b − m̄))²/(B − 1),        θ̂ ± t·se,    t of Student with B − 1

    where m_b are means over samples after the estimate was frozen; where these are ``ordered``, samples of a chain, the
    correlation of neighbouring batches lengthens the interval. ``n`` is the model's effective number of samples.
    """
    z, slow, _ = as_vector(state)
    with np.errstate(all="ignore"):
        zap = Zap()
        to = zap.root(state, z, slow, lately=True)
        best = np.asarray(zap.best(state, z, to, slow))[..., :slow]
        frozen = frozen_check.batches(state.check)
        weights = np.asarray(frozen.weights)[..., None]
        steps = np.asarray(frozen.means @ to.gain.mT)
        number = weights.sum(axis=-2)
        off = weights * (steps - (weights * steps).sum(axis=-2, keepdims=True) / np.maximum(number, 1)[..., None, :])
        squares = (off**2).sum(axis=-2)
        n = state.model.count / np.where(state.curved > 0, _WEIGHTED, 1.0)
        error = np.sqrt(squares / np.maximum(number - 1, 1) * (frozen.length / np.maximum(n, 1))[..., None])
        lagged = (off[..., 1:, :] * off[..., :-1, :]).sum(axis=-2)
        correlation = np.where(squares > 0, lagged / np.where(squares > 0, squares, 1.0), 0.0)
        shift = z[..., :slow] - to.slow - best
    blocks = number[..., 0]
    return batch_means.intervals(
        best, BlockStatistics(error, correlation, shift, blocks - 1, blocks), level, ordered=ordered
    )
