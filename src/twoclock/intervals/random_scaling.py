"""Random scaling: confidence intervals from the path of one average, without an estimate of the variance.

    V = n⁻² Σ_{s≤n} s² (y_s − y_n)²,        y_n ± c √(V/n)

y_s is an output at the average of the first s iterates. √n (y_n − y*) and V share one unknown scale, so the
distribution of their ratio does not depend on it: that of W(1) / √(∫ (W(r) − r W(1))² dr), W a Brownian motion.

Reference: Lee, Liao, Seo & Shin, *Fast and robust online inference with stochastic gradient descent via random
scaling*, 2022.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from twoclock import tree_math
from twoclock.intervals.bootstrap import Estimate
from twoclock.protocols import Floats, Scalar, pytree
from twoclock.tree_math import Sum, add
from twoclock.validation import number

_LINEAR = 1e-8  # a level below which the critical value is proportional to it
_FEWEST = 100  # with fewer numbers an interval is meaningless


@pytree
class Path:
    """The path of an output to its value y_n: three numbers for each of its entries.

        B = Σ_{s<n} s² (y_s − y_n),   S = Σ_{s<n} s² (y_s − y_n)²,   q = (n−1)⁻¹ Σ_{1<s≤n} s² (y_s − y_{s−1})²

    B and S make V. The published recursion sums s² y_s and s² y_s² instead and subtracts at the end, which leaves no
    correct digit in float32. The s-th iterate differs by s (y_s − y_{s−1}) from the mean before it. So q is the
    variance of the iterates, from which follows how many independent ones the mean is worth.
    """

    B: Sum
    S: Sum
    q: Floats  # a mean; it needs no compensated sum
    value: Floats | None  # y_n, stored if it is costly to compute


def begin(value: Floats, keep: bool = True) -> Path:
    """Start the path of an output, before the first iterate that counts; ``keep`` stores its value too."""
    nothing = jax.tree.map(jnp.zeros_like, value)
    return Path(tree_math.start(nothing), tree_math.start(nothing), nothing, value if keep else None)


def advance(path: Path, before: Floats, value: Floats, n: Scalar) -> Path:
    """Add the n-th value to the path, given the one before it. While n = 1 the value is just replaced.

    D = y_n − y_{n−1},   C = Σ_{s<n} s²:   S ← S + D (D C − 2B),   B ← B − D C,   q ← q + ((n D)² − q)/(n−1)
    """
    C = (n - 1) * n * (2 * n - 1) / 6
    share = jnp.where(jnp.asarray(n) > 1, 1 / jnp.maximum(jnp.asarray(n) - 1, 1), 0)
    D = jax.tree.map(jnp.subtract, value, before)
    DC = jax.tree.map(lambda d: d * jnp.asarray(C, d.dtype), D)
    S = add(path.S, jax.tree.map(lambda d, dc, b: d * (dc - 2 * b), D, DC, path.B.value))
    B = add(path.B, jax.tree.map(jnp.negative, DC))

    def blended(q: Array, d: Array) -> Array:
        return q + jnp.asarray(share, q.dtype) * (jnp.square(d * jnp.asarray(n, d.dtype)) - q)

    return Path(B, S, jax.tree.map(blended, path.q, D), None if path.value is None else value)


def scale(path: Path, n: Scalar) -> Floats:
    """√(V/n) for each entry: the interval is the value ± ``critical_value(level)`` times this."""

    def one(s: Array) -> Array:
        # Rounding can leave a sum of squares just below 0; before the first value n is 0.
        count = jnp.maximum(jnp.asarray(n, s.dtype), 1)
        return jnp.sqrt(jnp.maximum(s, 0) / count) / count

    return jax.tree.map(one, path.S.value)


def effective(path: Path, n: Scalar) -> Floats:
    """The number of independent iterates that the mean is worth: n over their correlation time, from one path.

    q is the variance of an iterate, σ²/n that of the mean, and V is σ²/6 in the mean. So it is n q / (6V), up to a
    factor of about three by chance. A drifting path is worth about two, however long it is.
    """

    def one(q: Array, s: Array) -> Array:
        count = jnp.asarray(n, s.dtype)
        return jnp.where(s > 0, q / jnp.where(s > 0, 6 * s, 1) * count * count * count, 0)

    return jax.tree.map(one, path.q, path.S.value)


def exceeds(c: float) -> float:
    """P(|t| > c) of the ratio t, by one integral of a smooth function.

        P(|t| > c) = (2/π) ∫₀^{π/2} √(x / sinh x) dφ,        x = c / sin φ

    Given its bridge t is normal with variance 1/V, and E exp(−x²V/2) = √(x / sinh x) for the integral V of a squared
    Brownian bridge; P(|N| > z) = (2/π) ∫ exp(−z²/(2 sin² φ)) dφ does the rest (Craig 1991).

    >>> round(exceeds(6.747), 4)
    0.05
    """
    return _integral(_root_of_ratio, c)


def _root_of_ratio(x: float) -> float:
    """√(x / sinh x)."""
    return math.exp(-x / 2) * math.sqrt(2 * x / -math.expm1(-2 * x)) if x > 0 else 1.0


def _integral(of_x: Callable[[float], float], c: float) -> float:
    """(2/π) ∫ of_x(c / sin φ) dφ. With sin φ = 1 / cosh u it is smooth for every c."""
    from scipy.integrate import quad

    bend = math.acosh(max(1.0, 1 / max(c, 1e-15)))  # where x is about 1
    pieces = [0.0, bend, bend + 40.0] if bend else [0.0, 40.0]
    parts = (
        quad(lambda u: of_x(c * math.cosh(u)) / math.cosh(u), lo, hi, epsabs=0, epsrel=1e-11, limit=200)[0]
        for lo, hi in itertools.pairwise(pieces)
    )
    return 2 / math.pi * sum(parts)


def critical_value(level: float) -> float:
    """The c for which y_n ± c √(V/n) covers with probability ``level``, 0 < level < 1.

    >>> round(critical_value(0.95), 3)
    6.747
    """
    return _critical_value(number("level", level, 0, 1, above=True, below=True, remedy="try 0.95"))


@functools.lru_cache(maxsize=256)
def _critical_value(level: float) -> float:
    from scipy.optimize import brentq

    if level < _LINEAR:  # the law has a smooth density at 0
        return level / _LINEAR * _critical_value(_LINEAR)

    def within(x: float) -> float:
        # The integrand of P(|t| < c); near 0 its series, for the difference would cancel.
        return x * x / 12 - x**4 / 160 if x < 0.01 else 1 - _root_of_ratio(x)

    def missing(c: float) -> float:
        return _integral(within, c) - level if level < 0.5 else (1 - level) - exceeds(c)

    # P(|t| > c) falls like exp(−c/2), so the bracket covers every level below 1 in float64.
    return float(brentq(missing, _LINEAR, 100.0, xtol=1e-20, rtol=1e-13))


class RunningMean:
    """The mean of a stream of dependent or independent numbers with its interval; it costs a microsecond per number.

    It is ``advance`` for a plain mean, in plain Python.

    Args:
        sums: n, the mean, B, S and q of an earlier one, to continue it.
    """

    def __init__(self, sums: Sequence[float] = (0.0, 0.0, 0.0, 0.0, 0.0)) -> None:
        self.sums = tuple(sums)

    def add(self, value: float) -> None:
        n, mean, B, S, q = self.sums
        n += 1
        C = (n - 1) * n * (2 * n - 1) / 6
        D = (value - mean) / n
        q += (n * D * (n * D) - q) / (n - 1) if n > 1 else 0.0
        self.sums = n, mean + D, B - D * C, S + D * (D * C - 2 * B), q

    @property
    def mean(self) -> float:
        return self.sums[1]

    @property
    def scale(self) -> float:
        """√(V/n), as ``scale``."""
        n, _, _, S, _ = self.sums
        return math.sqrt(max(S, 0.0) / max(n, 1.0) ** 3)

    @property
    def effective(self) -> float:
        """The number of independent numbers that the mean is worth, as ``effective``."""
        n, _, _, S, q = self.sums
        return q * n**3 / (6 * S) if S > 0 else 0.0

    def estimate(self, level: float = 0.95) -> Estimate:
        """The mean and its interval, which is NaN while the numbers are few."""
        c = critical_value(level)
        half = c * self.scale if self.sums[0] >= _FEWEST else math.nan
        return Estimate(self.mean, self.mean - half, self.mean + half)


class RecentMean:
    """The mean of the later part of a stream, half of it or more, so that recent learning shows in it.

    It holds two means; at every power of two the older one ends and a new one begins.

    Args:
        saved: the ``numbers`` of an earlier one, to continue it: its count and the sums of its means.
    """

    def __init__(self, saved: Sequence[float] = (0.0,) * 6) -> None:
        self.count = int(saved[0])
        self.means = [RunningMean(saved[i : i + 5]) for i in range(1, len(saved), 5)]

    @property
    def numbers(self) -> list[float]:
        """The numbers to save."""
        return [float(self.count), *(number for mean in self.means for number in mean.sums)]

    def add(self, value: float) -> None:
        if self.count > _FEWEST and self.count & (self.count - 1) == 0:
            self.means = [self.means[-1], RunningMean()]
        self.count += 1
        for mean in self.means:
            mean.add(value)

    def estimate(self, level: float = 0.95) -> Estimate:
        return self.means[0].estimate(level)
