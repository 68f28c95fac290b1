"""Constant steps without their bias: two step sizes on the same samples, extrapolated to none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic

import jax
import jax.numpy as jnp

from twoclock.intervals.random_scaling import Path, begin
from twoclock.methods import interval_state
from twoclock.methods.interval_state import Outputs
from twoclock.methods.polyak import Polyak, PolyakState
from twoclock.methods.schedule_tools import scaled
from twoclock.methods.standard import Standard
from twoclock.protocols import Floats, Method, Operator, PyTree, S, Scalar, pytree, static
from twoclock.validation import check_method


@pytree
class RichardsonRombergState(Generic[S]):
    single: PolyakState[S]
    double: PolyakState[S]
    path: Path | None

    @property
    def theta(self) -> PyTree:
        return self.single.theta

    @property
    def omega(self) -> PyTree:
        return self.single.omega


@pytree
class RichardsonRomberg(Method[RichardsonRombergState[S]], Generic[S]):
    """Run a method with its steps and with twice its steps on the same samples, and extrapolate the means.

        2 θ̄^(α) − θ̄^(2α)        and the same for ω

    With constant steps the mean of the iterates settles O(α) away from the answer; the combination settles O(α²) away,
    for a variance that tends to that of the mean. Both clocks are doubled alike, α and β; averaging weights such as λ
    stay. Choose α so that the method is still stable at 2α. The samples are those of the first of the two: where they
    depend on θ (a policy that learns and acts at once), the second sees another policy's and the bias stays.

    Args:
        method: any method; the paper's steps are constant. Its own estimate is what gets averaged.
        skip: the first so many steps are left out of the means.
        intervals: keep confidence intervals of the combination, as for ``Polyak``.

    >>> import twoclock as tc
    >>> method = tc.RichardsonRomberg(tc.Standard(alpha=0.01, beta=0.02), skip=1000, intervals=True)

    Reference: Dieuleveut, Durmus & Bach, *Bridging the gap between constant step size stochastic gradient descent and
    Markov chains*, 2020; Huo, Chen & Xie, *Bias and extrapolation in Markovian linear stochastic approximation*, 2023.
    """

    method: Method[S] = Standard(alpha=0.01, beta=0.02)  # a default binds S
    skip: Scalar = 0
    intervals: bool | Callable[[PyTree, PyTree], PyTree] = static(default=False)

    def __post_init__(self) -> None:
        check_method(self.method, "RichardsonRomberg(method=…)")
        interval_state.check("RichardsonRomberg", self.skip, self.intervals)

    def _means(self) -> tuple[Polyak[S], Polyak[S]]:
        return Polyak(self.method, 0.0, self.skip), Polyak(scaled(self.method, 2.0), 0.0, self.skip)

    def init(self, theta: PyTree, omega: PyTree) -> RichardsonRombergState[S]:
        single, double = (method.init(theta, omega) for method in self._means())
        keep = not isinstance(self.intervals, bool)
        path = begin(self._outputs(single, double), keep) if self.intervals else None
        return RichardsonRombergState(single, double, path)

    def step(
        self, F: Operator, G: Operator, state: RichardsonRombergState[S], x: PyTree, k: Scalar
    ) -> RichardsonRombergState[S]:
        one, two = self._means()
        single, double = one.step(F, G, state.single, x, k), two.step(F, G, state.double, x, k)
        before, now = (state.single, state.double), (single, double)
        n = interval_state.averaged(k, self.skip)
        path = interval_state.follow(state.path, lambda: self._outputs(*before), lambda: self._outputs(*now), n)
        return RichardsonRombergState(single, double, path)

    def _outputs(self, single: PolyakState[S], double: PolyakState[S]) -> Outputs:
        return interval_state.outputs(self.intervals, *_extrapolated(single, double))

    def estimate(self, state: RichardsonRombergState[S]) -> tuple[PyTree, PyTree]:
        return _extrapolated(state.single, state.double)

    def report(self, state: RichardsonRombergState[S]) -> Mapping[str, Scalar]:
        return self.method.report(state.single.inner)

    def track(self, state: RichardsonRombergState[S]) -> dict[str, PyTree]:
        if state.path is None:
            return {}
        outputs, n = self._outputs(state.single, state.double), state.single.weights.value
        told = interval_state.track(self.method, state.path, outputs, n, self.skip, state.omega)
        plain = interval_state.outputs(self.intervals, state.single.mean_theta.value, state.single.mean_omega.value)
        return {**told, "correction": jax.tree.map(jnp.subtract, outputs, plain)}


def _extrapolated(single: PolyakState[S], double: PolyakState[S]) -> tuple[Floats, Floats]:
    means = ((state.mean_theta.value, state.mean_omega.value) for state in (single, double))
    return jax.tree.map(lambda one, two: 2 * one - two, *means)
