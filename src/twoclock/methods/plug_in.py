"""A statistical yardstick around any method: average a statistic of the samples, and solve at the average."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from twoclock.core import InputError, Method, Operator, PyTree, pytree
from twoclock.methods.fast import Fast
from twoclock.trees import blend, residue


@pytree
class PlugInState:
    inner: Any
    mean: PyTree
    low: PyTree

    @property
    def theta(self) -> PyTree:
        return self.inner.theta

    @property
    def omega(self) -> PyTree:
        return self.inner.omega


@pytree
class PlugIn:
    """Run a method as it is and report what the samples alone would say.

        S_n = (S₀ + Σ_{k=1..n} statistic(X_k)) / (n + 1),        estimate = solve(S_n)

    The inner method's trajectory does not change by a bit, so both see the very same samples, also where the samples
    depend on the iterates. Certainty equivalence and least squares are of this kind: they pay for their accuracy with
    memory and with a solve, and they need to know how the answer follows from the mean.

    Args:
        method: the method that moves the iterates.
        model: an object with ``prior``, the S₀ that counts as one sample; ``statistic(x)``, a pytree like it; and
            ``solve(mean) -> theta, omega``. Without one the inner method's estimate is reported.

    >>> import numpy as np
    >>> import twoclock as tc
    >>> rival = tc.PlugIn(tc.Fast(), tc.models.CertaintyEquivalence(Q=np.eye(3), R=np.eye(2)))
    """

    method: Method = Fast()
    model: Any = None

    def __post_init__(self) -> None:
        if not hasattr(self.method, "step"):
            raise InputError(f"`PlugIn(method=…)` must be a method, got {type(self.method).__name__}; try `Fast(…)`")
        if self.model is not None and not all(hasattr(self.model, a) for a in ("prior", "statistic", "solve")):
            raise InputError(
                f"`PlugIn(model=…)` must have prior, statistic and solve, got {type(self.model).__name__}; "
                "for a regulator try `models.CertaintyEquivalence(Q, R)`"
            )

    def init(self, theta: PyTree, omega: PyTree) -> PlugInState:
        mean = None if self.model is None else self.model.prior
        return PlugInState(self.method.init(theta, omega), mean, residue(mean)[0])

    def step(self, F: Operator, G: Operator, state: PlugInState, x: PyTree, k: Any) -> PlugInState:
        inner = self.method.step(F, G, state.inner, x, k)
        if self.model is None:
            return PlugInState(inner, None, None)
        weight = 1 / (jnp.asarray(k, float) + 2)
        return PlugInState(inner, *blend(state.mean, weight, self.model.statistic(x), state.low))

    def estimate(self, state: PlugInState) -> tuple[PyTree, PyTree]:
        return self.method.estimate(state.inner) if self.model is None else self.model.solve(state.mean)

    def report(self, state: PlugInState) -> dict[str, Any]:
        report = getattr(self.method, "report", None)
        return report(state.inner) if report else {}
