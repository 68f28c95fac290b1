"""Averages of the iterates of any method, Polyak's and Richardson–Romberg's, and the data for their intervals."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twoclock import tree_math
from twoclock.intervals.random_scaling import Path, advance, begin, effective, scale
from twoclock.methods.fast import Fast, Standard, WrapperState, wrapped_method
from twoclock.protocols import Floats, InputError, Method, Operator, PyTree, Scalar, Schedule, State, checked, pytree
from twoclock.schedules import Levels
from twoclock.tree_math import Sum, add, blend
from twoclock.validation import NOT_NEGATIVE, check_number, function, readable_trace_errors, short_repr
from twoclock.validation.arrays import flatten_tree

OutputChoice = bool | Callable[[PyTree, PyTree], PyTree]
Outputs = Mapping[str, Floats]
_POWER = 0.5
S = TypeVar("S", "PolyakState", "RichardsonRombergState")
# The rule for ``skip``.
_STEP_COUNT = (
    lambda v: v >= 0 and v == int(v),
    "be a whole number that is not negative",
    "it counts the steps before the mean begins",
)


def check_outputs(what: str, intervals: object) -> None:
    """Check the argument that names the outputs with intervals."""
    if isinstance(intervals, bool):
        return
    if not callable(intervals):
        raise InputError(
            f"`{what}` must be True, False or a function (theta, omega) -> outputs, got {short_repr(intervals)}"
        )
    function(what, intervals, "theta", "omega")


@pytree
class PolyakState(WrapperState):
    mean_theta: Sum
    mean_omega: Sum
    weights: Sum
    path: Path | None


class _Averaging(Method):
    """A method that follows its outputs where it has intervals."""

    method: Method
    skip: Scalar
    intervals: OutputChoice

    def _outputs(self, state: State) -> Outputs:
        return outputs(self.intervals, *self.estimate(state))

    def _start_path(self, state: S) -> S:
        if not self.intervals:
            return state
        return dataclasses.replace(state, path=begin(self._outputs(state), not isinstance(self.intervals, bool)))

    def _follow(self, before: S, state: S, n: Scalar) -> S:
        """The state with one more iterate in its path."""
        if before.path is None:
            return state
        old = self._outputs(before) if before.path.value is None else before.path.value
        return dataclasses.replace(state, path=advance(before.path, old, self._outputs(state), n))

    def _track(self, path: Path, now: Outputs, n: Scalar, omega: PyTree) -> dict[str, PyTree]:
        """The statistics of an interval at a mark, and those that show whether it can be trusted.

        n: the iterates in the mean · estimate: y_n · scale: √(V/n) · effective: how many independent iterates it is
        worth · exponent, memory: how fast step sizes and averaging weights fall; of β only where ω has an entry.
        """
        k = jnp.asarray(n, float) + self.skip - 1
        falling = exponents(self.method, k, weights=False)
        moves = any(jnp.size(leaf) for leaf in jax.tree.leaves(omega))
        steps = {path: p for path, p in falling.items() if moves or path.rpartition(".")[2] != "beta"}
        numbers = {"n": n, "estimate": now, "scale": scale(path, n), "effective": effective(path, n)}
        return {**numbers, "exponent": steps, "memory": exponents(self.method, k, weights=True)}


@pytree
class Polyak(_Averaging):
    """Run a method unchanged and report a weighted mean of its iterates.

        θ̄_n = Σ_{k=1..n} k^power θ_k / Σ_{k=1..n} k^power        and the same for ω

    The inner method's trajectory is unchanged, bit for bit. A power above 0 forgets the start faster and costs a factor
    (1+power)²/(1+2·power) in variance.

    Args:
        method: any method; its own estimate is averaged.
        power: the exponent of the weights, not negative; ½ by default. With intervals it must be 0: weights that grow
            make V and the error of the mean dependent, so coverage would differ from the level.
        skip: the burn-in, the number of first steps that the mean leaves out; k counts from there.
        intervals: True for an interval for each coordinate of θ; or a function (θ, ω) → array, or dict of arrays, of
            the outputs to have intervals for (a loss, a difference, ω itself), taken at the means. The run stores three
            numbers per output, and ``result.interval(level)`` has y_n ± c √(V/n) (``intervals.random_scaling``). They
            hold for steps ~ k^−a with ½ < a < 1, and for samples of a Markov chain where α/β is constant.

    >>> import twoclock as tc
    >>> step = tc.Power(0.5, p=0.7)
    >>> method = tc.Polyak(tc.Standard(step, step), skip=100, intervals=True)
    >>> result = tc.solve(tc.problems.quadratic(dim=2), method, steps=1000, seeds=3)
    >>> result.interval(0.9).columns.tolist()
    ['seed', 'output', 'estimate', 'low', 'high', 'note']

    Reference: Polyak & Juditsky, *Acceleration of stochastic approximation by averaging*, 1992; Shamir & Zhang, 2013;
    of the intervals Lee, Liao, Seo & Shin, 2022.
    """

    method: Method = wrapped_method(Fast())
    power: float | None = checked(
        lambda what, power: None if power is None else check_number(what, power, *NOT_NEGATIVE), default=None
    )
    skip: Scalar = checked(check_number, *_STEP_COUNT, default=0)
    intervals: OutputChoice = checked(check_outputs, default=False, static=True)

    def __post_init__(self) -> None:
        if self.power is None:
            object.__setattr__(self, "power", 0.0 if self.intervals else _POWER)
        if self.intervals:
            check_number(
                "Polyak(power=…)", self.power, lambda v: v == 0, "be 0 with intervals",
                "weights that grow make the mean and its spread dependent; leave `power` out",
            )  # fmt: skip

    def init(self, theta: PyTree, omega: PyTree) -> PolyakState:
        inner = self.method.init(theta, omega)
        theta, omega = self.method.estimate(inner)
        mean_theta, mean_omega = tree_math.start(theta), tree_math.start(omega)
        weights = tree_math.start(jnp.zeros_like(jnp.asarray(self.power, float)))
        return self._start_path(PolyakState(inner, mean_theta, mean_omega, weights, None))

    def step(self, F: Operator, G: Operator, state: PolyakState, x: PyTree, k: Scalar) -> PolyakState:
        inner = self.method.step(F, G, state.inner, x, k)
        theta, omega = self.method.estimate(inner)
        n = count_averaged(k, self.skip)
        if self.intervals:  # all weights are 1
            weights = Sum(n, state.weights.residue)
        else:
            # Σ_{k≤n} (k/n)^power: relative to the newest weight the sum lies in [1, n], so no power overflows. From n−1
            # to n all older weights shrink by a share 1 − (1 − 1/n)^power; at n = 1 there are none.
            older = jax.tree.map(lambda w: jnp.where(n > 1, w, jnp.zeros_like(w)), state.weights)
            shrink = -jnp.expm1(cast("float", self.power) * jnp.log1p(-1 / jnp.maximum(n, 2)))
            weights = add(older, 1 - shrink * older.value)
        newest = 1 / weights.value
        mean_theta = blend(state.mean_theta, newest, theta)
        mean_omega = blend(state.mean_omega, newest, omega)
        return self._follow(state, PolyakState(inner, mean_theta, mean_omega, weights, None), n)

    def estimate(self, state: PolyakState) -> tuple[PyTree, PyTree]:
        return state.mean_theta.value, state.mean_omega.value

    def report(self, state: PolyakState) -> Mapping[str, Scalar]:
        return self.method.report(state.inner)

    def track(self, state: PolyakState) -> dict[str, PyTree]:
        if state.path is None:
            return {}
        return self._track(state.path, self._outputs(state), state.weights.value, state.omega)


@pytree
class RichardsonRombergState(WrapperState):
    inner: PolyakState
    double: PolyakState
    path: Path | None


@pytree
class RichardsonRomberg(_Averaging):
    """Run a method with its steps and with twice its steps on the same samples, and extrapolate the means.

        2 θ̄^(α) − θ̄^(2α)        and the same for ω

    With constant steps the mean of the iterates settles O(α) away from the answer, the combination O(α²) away. α and β
    are doubled, averaging weights such as λ stay; the method must still be stable at 2α. Where samples depend on θ (a
    policy that learns while it acts), the second run sees the samples of another policy and the bias remains.

    Args:
        method: any method, with constant steps in the paper. Its own estimate is averaged.
        skip: the burn-in, the number of first steps that the means leave out.
        intervals: the outputs to have confidence intervals for, as in ``Polyak``.

    >>> import twoclock as tc
    >>> method = tc.RichardsonRomberg(tc.Standard(alpha=0.01, beta=0.02), skip=1000, intervals=True)

    Reference: Dieuleveut, Durmus & Bach, *Bridging the gap between constant step size stochastic gradient descent and
    Markov chains*, 2020; Huo, Chen & Xie, *Bias and extrapolation in Markovian linear stochastic approximation*, 2023.
    """

    method: Method = wrapped_method(Standard(alpha=0.01, beta=0.02))
    skip: Scalar = checked(check_number, *_STEP_COUNT, default=0)
    intervals: OutputChoice = checked(check_outputs, default=False, static=True)

    def _means(self) -> tuple[Polyak, Polyak]:
        return Polyak(self.method, 0.0, self.skip), Polyak(scale_steps(self.method, 2.0), 0.0, self.skip)

    def init(self, theta: PyTree, omega: PyTree) -> RichardsonRombergState:
        single, double = (method.init(theta, omega) for method in self._means())
        return self._start_path(RichardsonRombergState(single, double, None))

    def step(
        self, F: Operator, G: Operator, state: RichardsonRombergState, x: PyTree, k: Scalar
    ) -> RichardsonRombergState:
        one, two = self._means()
        moved = RichardsonRombergState(one.step(F, G, state.inner, x, k), two.step(F, G, state.double, x, k), None)
        return self._follow(state, moved, count_averaged(k, self.skip))

    def estimate(self, state: RichardsonRombergState) -> tuple[PyTree, PyTree]:
        single, double = ((mean.mean_theta.value, mean.mean_omega.value) for mean in (state.inner, state.double))
        return jax.tree.map(lambda one, two: 2 * one - two, single, double)

    def report(self, state: RichardsonRombergState) -> Mapping[str, Scalar]:
        return self.method.report(state.inner.inner)

    def track(self, state: RichardsonRombergState) -> dict[str, PyTree]:
        if state.path is None:
            return {}
        now, n = self._outputs(state), state.inner.weights.value
        plain = outputs(self.intervals, state.inner.mean_theta.value, state.inner.mean_omega.value)
        return {**self._track(state.path, now, n, state.omega), "correction": jax.tree.map(jnp.subtract, now, plain)}


def count_averaged(k: Scalar, skip: Scalar) -> Float[Array, ""]:
    """The number of iterates in the mean after step k; 1 during the burn-in, when the mean follows the iterate."""
    return jnp.maximum(jnp.asarray(k, float) + 1 - skip, 1)


def outputs(intervals: OutputChoice, theta: Floats, omega: Floats) -> Outputs:
    """The outputs with intervals, by name."""
    if isinstance(intervals, bool):
        values: PyTree = {"theta": theta}
    else:
        with readable_trace_errors("intervals"):
            values = intervals(theta, omega)
    named = values if isinstance(values, Mapping) else {"f": values}
    if not any(jnp.size(leaf) for _, leaf in flatten_tree("intervals", named)[0]):
        raise InputError(f"`intervals` must give at least one number, got {short_repr(named)}; return an array")
    return tree_math.as_floats("intervals", dict(named))


def exponents(method: Method, k: Scalar, *, weights: bool) -> dict[str, Float[Array, ""]]:
    """How fast each step size (or averaging weight) falls over the last half of k steps, p̂ in α_k ~ k^−p̂; else NaN.

    It is measured, so that a floor, a shift or a user's function has its actual effect.
    """
    later = jnp.asarray(k, jnp.int32)
    earlier = later // 2
    found = {}
    for path, schedule, is_weight in _schedules(method):
        if is_weight == weights:
            now, then = schedule(later), schedule(earlier)
            known = (later > 1) & (now > 0) & (then > 0)
            ratio = jnp.where(known, then, 1) / jnp.where(known, now, 1)
            span = (jnp.asarray(later, float) + 1) / (jnp.asarray(earlier, float) + 1)
            found[path] = jnp.where(known, jnp.log(ratio) / jnp.log(jnp.maximum(span, 1.1)), jnp.nan)
    return found


def scale_steps(method: Method, factor: float) -> Method:
    """The method with every step size, those inside a wrapped method too, times a factor; averaging weights stay."""
    new = copy.copy(method)
    for name, part, is_weight in _parts(method):
        if not is_weight:
            object.__setattr__(new, name, _scaled(part, factor))
    return new


def _scaled(part: Method | Schedule, factor: float) -> Method | Schedule:
    if isinstance(part, Method):
        return scale_steps(part, factor)
    if isinstance(part, Levels):
        return Levels(tuple(_ScaledSchedule(entry, factor) for entry in part.entries))
    return _ScaledSchedule(part, factor)


@pytree
class _ScaledSchedule:
    schedule: Schedule
    factor: Scalar

    def __call__(self, k: Scalar) -> Array:
        return jnp.asarray(self.factor, float) * self.schedule(k)


def _schedules(method: Method) -> Iterator[tuple[str, Schedule, bool]]:
    """Path, schedule and whether it is an averaging weight, of a method and those inside it."""
    for name, part, is_weight in _parts(method):
        if isinstance(part, Method):
            yield from ((f"{name}.{path}", schedule, inside) for path, schedule, inside in _schedules(part))
        elif isinstance(part, Levels):
            yield from ((f"{name}_{i}", entry, is_weight) for i, entry in enumerate(part.entries, 1))
        else:
            yield name, part, is_weight


def _parts(method: Method) -> Iterator[tuple[str, Method | Schedule, bool]]:
    """The fields of a method that are methods or schedules, and whether they are averaging weights."""
    for field in getattr(method, "__dataclass_fields__", {}).values():
        value = getattr(method, field.name)
        if isinstance(value, Method) or (callable(value) and not field.metadata.get("static")):
            yield field.name, value, field.metadata.get("most", math.inf) < math.inf
