"""Specification of a learner: two operators, a method and where they start, checked and in the precision of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.engine import compatibility, program_digest
from twoclock.engine.online_engine import Layout
from twoclock.engine.protocol import LaneState, Operators, state_metrics
from twoclock.engine.run_batch import make_instances
from twoclock.engine.tracing import trace
from twoclock.methods import Polyak
from twoclock.problems.custom import Custom, Measure, custom
from twoclock.protocols import InputError, Method, Operator, Problem, PyTree, Scalar, pytree, static
from twoclock.validation import run_args

Intervals = bool | Callable[[PyTree, PyTree], PyTree]


@pytree
class Functions:
    """A user's own operators."""

    F: Operator = static()
    G: Operator = static()
    metrics: Callable[[PyTree, PyTree], Mapping[str, Scalar]] | None = static(default=None)

    def measure(self, theta: PyTree, omega: PyTree) -> Mapping[str, Scalar]:
        return {} if self.metrics is None else self.metrics(theta, omega)


@dataclass(frozen=True, eq=False)
class LearnerSpec:
    """Operators and a method.

    Attributes:
        source: the problem, or one made of the user's functions, which cannot draw.
        operators: F, G and measure, as a pytree in the precision of the run.
        method: as the user gave it, with what keeps intervals around it.
        numbers: the method in the precision of the run.
        start: the carry before the first sample.
        draws: whether the source says itself what its samples look like.
    """

    source: Problem
    operators: Operators
    method: Method
    numbers: Method
    start: LaneState
    draws: bool

    @classmethod
    def of(
        cls,
        F: Operator | Problem,
        G: Operator | Method,
        method: Method | None,
        theta: PyTree,
        omega: PyTree,
        intervals: Intervals,
        measure: Measure | None,
    ) -> LearnerSpec:
        """Check the arguments of ``Learner``."""
        draws = isinstance(F, Problem)
        if draws and not (method is theta is omega is measure is None):
            raise InputError("`Learner(problem, method)` takes F, G and the start from the problem; leave out the rest")
        if isinstance(F, Problem):
            source: Problem = make_instances(run_args.check_problem(F), []).batched
            operators: Operators = source
            given: object = G
        else:
            given = method
            own = custom(F, cast("Operator", G), lambda key: None, theta, omega, measure=measure)
            source, operators = make_instances(own, []).batched, Functions(own.F, own.G, own.metrics)
        method = run_args.check_method(given)
        if intervals is not False:
            if method.knows("track"):
                raise InputError(
                    f"`intervals` is for a plain method; of {type(method).__name__} itself ask them, "
                    f"`{type(method).__name__}(…, intervals=True)`"
                )
            method = Polyak(method, intervals=intervals)
        program_digest.start_in_precision()
        theta, omega, _ = source.init(prng.start_key(0))
        compatibility.check_start(theta, omega)
        if draws:
            compatibility.check_fit(source, method)
        numbers = jax.tree.map(lambda leaf: np.asarray(leaf, jnp.result_type(float)), method)
        state = jax.tree.map(np.asarray, numbers.init(theta, omega))
        carry: LaneState = jax.tree.map(np.asarray, LaneState(state, None, jnp.asarray(True), jnp.zeros((), jnp.int32)))
        return cls(source, operators, method, numbers, carry, draws)

    def check(self, layout: Layout) -> None:
        """Refuse samples that F and G cannot take."""
        if self.draws:
            _, _, env = jax.eval_shape(self.source.init, prng.start_key(0))
            theta = self.start.state.theta
            x, _ = jax.eval_shape(lambda t, e: self.source.draw(self.source.noise(prng.start_key(0)), t, e), theta, env)
            want = Layout.of(x)
            if want.words != layout.words:
                raise InputError(f"`x` must be as the problem draws it, {want.words}; got {layout.words}")
            return
        assert isinstance(self.source, Custom)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), layout.example)
        compatibility.check_fit(replace(self.source, source=lambda key: jax.tree.map(jnp.asarray, zeros)), self.method)

    @cached_property
    def estimate(self) -> Callable[[PyTree], tuple[PyTree, PyTree]]:
        """From the method's state to what it reports; most just pick it out, which JAX need not compile."""
        made: Callable[[PyTree], tuple[PyTree, PyTree]] = self.numbers.estimate
        return jax.jit(made) if jax.make_jaxpr(made)(self.start.state).eqns else made

    @cached_property
    def measure(self) -> Callable[[PyTree], dict[str, PyTree]]:
        """From the method's state to its metrics."""
        traced, _ = trace(state_metrics, self.operators, self.numbers, self.start.state)

        def measure(state: PyTree) -> dict[str, PyTree]:
            with traced.separate_traces():
                return _measure(self.operators, self.numbers, state, program=traced.digest)

        return measure


@partial(jax.jit, static_argnames="program")
def _measure(operators: Operators, method: Method, state: PyTree, *, program: str) -> dict[str, PyTree]:
    """``program`` tells functions apart that have changed since they were compiled."""
    return state_metrics(operators, method, state)
