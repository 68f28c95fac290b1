"""Constant steps without their bias: two step sizes on the same samples, extrapolated to none."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from twoclock.intervals.random_scaling import Path, begin
from twoclock.methods.polyak import (
    STEP_COUNT,
    OutputChoice,
    Outputs,
    Polyak,
    PolyakState,
    check_outputs,
    count_averaged,
    follow,
    outputs,
    track_path,
)
from twoclock.methods.schedule_tools import scaled
from twoclock.methods.standard import Standard
from twoclock.methods.update_rule import wrapped_method
from twoclock.protocols import Floats, Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.validation import check_number


@pytree
class RichardsonRombergState:
    single: PolyakState
    double: PolyakState
    path: Path | None

    @property
    def theta(self) -> PyTree:
        return self.single.theta

    @property
    def omega(self) -> PyTree:
        return self.single.omega


@pytree
class RichardsonRomberg(Method):
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

    method: Method = wrapped_method(Standard(alpha=0.01, beta=0.02))
    skip: Scalar = checked(check_number, *STEP_COUNT, default=0)
    intervals: OutputChoice = checked(check_outputs, default=False, static=True)

    def _means(self) -> tuple[Polyak, Polyak]:
        return Polyak(self.method, 0.0, self.skip), Polyak(scaled(self.method, 2.0), 0.0, self.skip)

    def init(self, theta: PyTree, omega: PyTree) -> RichardsonRombergState:
        single, double = (method.init(theta, omega) for method in self._means())
        keep = not isinstance(self.intervals, bool)
        path = begin(self._outputs(single, double), keep) if self.intervals else None
        return RichardsonRombergState(single, double, path)

    def step(
        self, F: Operator, G: Operator, state: RichardsonRombergState, x: PyTree, k: Scalar
    ) -> RichardsonRombergState:
        one, two = self._means()
        single, double = one.step(F, G, state.single, x, k), two.step(F, G, state.double, x, k)
        before, now = (state.single, state.double), (single, double)
        n = count_averaged(k, self.skip)
        path = follow(state.path, lambda: self._outputs(*before), lambda: self._outputs(*now), n)
        return RichardsonRombergState(single, double, path)

    def _outputs(self, single: PolyakState, double: PolyakState) -> Outputs:
        return outputs(self.intervals, *_extrapolate(single, double))

    def estimate(self, state: RichardsonRombergState) -> tuple[PyTree, PyTree]:
        return _extrapolate(state.single, state.double)

    def report(self, state: RichardsonRombergState) -> Mapping[str, Scalar]:
        return self.method.report(state.single.inner)

    def track(self, state: RichardsonRombergState) -> dict[str, PyTree]:
        if state.path is None:
            return {}
        now, n = self._outputs(state.single, state.double), state.single.weights.value
        plain = outputs(self.intervals, state.single.mean_theta.value, state.single.mean_omega.value)
        tracked = track_path(self.method, state.path, now, n, self.skip, state.omega)
        return {**tracked, "correction": jax.tree.map(jnp.subtract, now, plain)}


def _extrapolate(single: PolyakState, double: PolyakState) -> tuple[Floats, Floats]:
    means = ((state.mean_theta.value, state.mean_omega.value) for state in (single, double))
    return jax.tree.map(lambda one, two: 2 * one - two, *means)
