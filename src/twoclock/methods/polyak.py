"""Averaging of the iterates around any method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twoclock import tree_math
from twoclock.intervals.random_scaling import Path, begin
from twoclock.methods import interval_state
from twoclock.methods.fast import Fast
from twoclock.methods.interval_state import Outputs
from twoclock.methods.wrapper import Around
from twoclock.protocols import Method, Operator, PyTree, S, Scalar, pytree, static
from twoclock.tree_math import Sum, add, blend
from twoclock.validation import check_method, check_number

_POWER = 0.5


@pytree
class PolyakState(Around[S]):
    inner: S
    mean_theta: Sum
    mean_omega: Sum
    weights: Sum
    path: Path | None


@pytree
class Polyak(Method[PolyakState[S]], Generic[S]):
    """Run a method as it is and report a weighted mean of its iterates.

        θ̄_n = Σ_{k=1..n} k^power θ_k / Σ_{k=1..n} k^power        and the same for ω

    The inner method's trajectory does not change by a bit. Power 0 is the plain mean; a larger power forgets the start
    sooner and costs a factor (1+power)²/(1+2·power) in variance against it.

    With ``intervals`` the run keeps what its own confidence intervals need, three numbers an output, and
    ``result.interval(level)`` has them: y_n ± c √(V/n), V = n⁻² Σ s² (y_s − y_n)² (``inference.random_scaling``). They
    hold for steps ~ k^−a with ½ < a < 1. Samples may come from a Markov chain: where α/β is constant, (θ, ω) is one
    iterate with one law, each of its coordinates has an interval by itself, and nothing more has to be kept. An output
    f(θ, ω) is taken at the means, y_s = f(θ̄_s, ω̄_s), so its estimate is f of the estimates; the mean of f(θ_k, ω_k)
    would carry a bias of the order of the step size where f is curved.

    Args:
        method: any method; its own estimate is what gets averaged.
        power: the exponent of the weights, not negative; ½ by default. With intervals it is 0, and no other is taken:
            weights that grow make V and the error of the mean dependent, and no level would be what it says.
        skip: the first so many steps are left out of the mean; k counts from there.
        intervals: True to keep an interval for each coordinate of θ; or a function (θ, ω) → array, or dict of arrays,
            of the outputs to keep intervals for instead (a value at a state, a loss, a difference, ω itself).

    >>> import twoclock as tc
    >>> method = tc.Polyak(tc.Fast(alpha=0.01, beta=0.02, lam=0.1), power=2)
    >>> step = tc.Power(0.5, p=0.7)
    >>> method = tc.Polyak(tc.Standard(step, step), skip=100, intervals=True)
    >>> result = tc.solve(tc.problems.quadratic(dim=2), method, steps=1000, seeds=3)
    >>> result.interval(0.9).columns.tolist()
    ['seed', 'output', 'estimate', 'low', 'high', 'note']

    Reference: Polyak & Juditsky, *Acceleration of stochastic approximation by averaging*, 1992; Shamir & Zhang, 2013;
    of the intervals Lee, Liao, Seo & Shin, 2022.
    """

    method: Method[S] = Fast()  # a default binds S
    power: float | None = None
    skip: Scalar = 0
    intervals: bool | Callable[[PyTree, PyTree], PyTree] = static(default=False)

    def __post_init__(self) -> None:
        check_method(self.method, "Polyak(method=…)")
        interval_state.check("Polyak", self.skip, self.intervals)
        if self.power is None:
            object.__setattr__(self, "power", 0.0 if self.intervals else _POWER)
        check_number("Polyak(power=…)", self.power, lambda v: v >= 0, "be a finite number that is not negative")
        if self.intervals:
            check_number(
                "Polyak(power=…)", self.power, lambda v: v == 0, "be 0 with intervals",
                "weights that grow make the mean and its spread dependent; leave `power` out",
            )  # fmt: skip

    def init(self, theta: PyTree, omega: PyTree) -> PolyakState[S]:
        inner = self.method.init(theta, omega)
        theta, omega = self.method.estimate(inner)
        mean_theta, mean_omega = tree_math.start(theta), tree_math.start(omega)
        weights = tree_math.start(jnp.zeros_like(jnp.asarray(self.power, float)))
        keep = not isinstance(self.intervals, bool)
        path = begin(self._outputs(mean_theta, mean_omega), keep) if self.intervals else None
        return PolyakState(inner, mean_theta, mean_omega, weights, path)

    def step(self, F: Operator, G: Operator, state: PolyakState[S], x: PyTree, k: Scalar) -> PolyakState[S]:
        inner = self.method.step(F, G, state.inner, x, k)
        theta, omega = self.method.estimate(inner)
        n = interval_state.averaged(k, self.skip)
        weights = self._weights(state.weights, n)
        newest = 1 / weights.value
        mean_theta = blend(state.mean_theta, newest, theta)
        mean_omega = blend(state.mean_omega, newest, omega)
        before, now = (state.mean_theta, state.mean_omega), (mean_theta, mean_omega)
        path = interval_state.follow(state.path, lambda: self._outputs(*before), lambda: self._outputs(*now), n)
        return PolyakState(inner, mean_theta, mean_omega, weights, path)

    def _weights(self, older: Sum, n: Float[Array, ""]) -> Sum:
        """Σ_{k≤n} (k/n)^power: in units of the newest weight they lie in [1, n], and no power overflows."""
        if self.intervals:  # all are 1
            return Sum(n, older.residue)
        # From n−1 to n all older weights shrink by a share 1 − (1 − 1/n)^power; at n = 1 there are none.
        older = jax.tree.map(lambda w: jnp.where(n > 1, w, jnp.zeros_like(w)), older)
        shrink = -jnp.expm1(cast("float", self.power) * jnp.log1p(-1 / jnp.maximum(n, 2)))
        return add(older, 1 - shrink * older.value)

    def _outputs(self, mean_theta: Sum, mean_omega: Sum) -> Outputs:
        return interval_state.outputs(self.intervals, mean_theta.value, mean_omega.value)

    def estimate(self, state: PolyakState[S]) -> tuple[PyTree, PyTree]:
        return state.mean_theta.value, state.mean_omega.value

    def report(self, state: PolyakState[S]) -> Mapping[str, Scalar]:
        return self.method.report(state.inner)

    def track(self, state: PolyakState[S]) -> dict[str, PyTree]:
        if state.path is None:
            return {}
        outputs = self._outputs(state.mean_theta, state.mean_omega)
        return interval_state.track(self.method, state.path, outputs, state.weights.value, self.skip, state.omega)
