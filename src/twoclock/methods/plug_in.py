"""A statistical yardstick around any method: average a statistic of the samples, and solve at the average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, runtime_checkable

import jax.numpy as jnp

from twoclock import tree_math
from twoclock.methods.fast import Fast
from twoclock.methods.wrapper import Around
from twoclock.protocols import InputError, Method, Operator, PyTree, S, Scalar, pytree
from twoclock.tree_math import Sum, blend
from twoclock.validation import check_method


@runtime_checkable
class Model(Protocol):
    """How an answer follows from the mean of a statistic of the samples."""

    @property
    def prior(self) -> PyTree:
        """The mean before the first sample; it counts as one."""

    def statistic(self, x: PyTree) -> PyTree:
        """A pytree like the prior."""

    def solve(self, mean: PyTree) -> tuple[PyTree, PyTree]:
        """The θ, ω that the mean tells."""


@pytree
class PlugInState(Around[S]):
    inner: S
    mean: Sum | None


@pytree
class PlugIn(Method[PlugInState[S]], Generic[S]):
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

    method: Method[S] = Fast()  # a default binds S
    model: Model | None = None

    def __post_init__(self) -> None:
        check_method(self.method, "PlugIn(method=…)")
        if self.model is not None and not all(hasattr(self.model, a) for a in ("prior", "statistic", "solve")):
            raise InputError(
                f"`PlugIn(model=…)` must have prior, statistic and solve, got {type(self.model).__name__}; "
                "for a regulator try `models.CertaintyEquivalence(Q, R)`"
            )

    def init(self, theta: PyTree, omega: PyTree) -> PlugInState[S]:
        mean = None if self.model is None else tree_math.start(self.model.prior, "prior")
        return PlugInState(self.method.init(theta, omega), mean)

    def step(self, F: Operator, G: Operator, state: PlugInState[S], x: PyTree, k: Scalar) -> PlugInState[S]:
        inner = self.method.step(F, G, state.inner, x, k)
        if self.model is None or state.mean is None:
            return PlugInState(inner, None)
        weight = 1 / (jnp.asarray(k, float) + 2)  # S₀ counts as one sample and this is sample k + 1
        return PlugInState(inner, blend(state.mean, weight, self.model.statistic(x)))

    def estimate(self, state: PlugInState[S]) -> tuple[PyTree, PyTree]:
        if self.model is None or state.mean is None:
            return self.method.estimate(state.inner)
        return self.model.solve(state.mean.value)

    def report(self, state: PlugInState[S]) -> Mapping[str, Scalar]:
        return self.method.report(state.inner)
