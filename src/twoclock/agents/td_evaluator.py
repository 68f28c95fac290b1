"""Online policy evaluation: the value of a policy from transitions, by TD or gradient TD, with intervals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock import validation
from twoclock.agents.protocol import LearnerAgent, check_index, check_reward
from twoclock.methods import BatchMeans, Fast, Intentional, ObGD, Polyak, Standard
from twoclock.online import Learner
from twoclock.problems.custom import is_module, split_module
from twoclock.problems.policy_evaluation.nonlinear import Value, value_operators
from twoclock.problems.policy_evaluation.td_lambda import trace_operators
from twoclock.protocols import InputError, Method, PyTree
from twoclock.schedules import Constant, Power
from twoclock.storage.atomic_file import Document
from twoclock.validation import run_args
from twoclock.validation.arrays import Array, Number, as_array, check_start

if TYPE_CHECKING:
    import pandas as pd

Observed = Float[np.ndarray, "*shape"]
FeatureMap = Callable[[PyTree], ArrayLike]
FeatureTable = Float[np.ndarray, "s d"] | FeatureMap | None
FeatureFn = Callable[[str, PyTree], Observed]
Ratio = float | Callable[[PyTree, PyTree], float]
Behaviour = Callable[[PyTree, np.random.Generator], PyTree]

# The first step size, as a share of the largest that E‖φ‖² allows; it is constant for that many samples, then falls as
# k^−0.6.
_FIRST, _HOLD = 0.1, 300.0


class Evaluator(LearnerAgent):
    """Learns the value V(x) = E Σ γ^k r_k of a policy π, from transitions under π itself or another policy b.

        agent = tc.agents.Evaluator(policy_ratio=lambda x, u: pi(u, x) / b(u, x), features=phi, gamma=0.99, at=[x0])
        agent.observe(x, u, x_next, reward, terminated, truncated)
        agent.value(x0), agent.interval()

    The operators are those of `problems.value_operators`, with V = φ(x)ᵀθ or a network: ``td``, ``tdc`` and ``gtd2``,
    which converge off-policy too, and ``tdrc``. With ``lam`` TD has an eligibility trace (`problems.trace_operators`).
    After the last step of a terminated episode the value is 0; after one that was cut off it is V.

    Args:
        policy_ratio: ρ = π(u|x)/b(u|x), a function of (x, u); 1.0 where π itself acts.
        features: φ: a table with one row per state, for states numbered from 0; a function of x; None for x itself.
        gamma: the discount.
        at: observations at which the value is reported, each with its interval; all states of a table by default.
        value: instead of φᵀθ, a network V(params, φ(x)) -> number in jax.numpy.
        params: where its parameters start: any pytree of floats, or an Equinox module.
        operator: "td", "tdc", "gtd2" or "tdrc".
        lam: the λ of TD's eligibility trace.
        method: the steps. By default `Fast`, or `ObGD` for a trace, with steps for features as large as those at
            ``at``. A network's steps are not known beforehand: with "td" they are those of `ObGD`, which needs none
            (and is no match for tuned ones, see docs/live.md); with others you give them.
        intervals: average the iterates, which gives intervals; False for a method that already averages. "blocks", for
            linear features, uses block scores, whose intervals are valid at any stopping time.
        skip: the number of samples before the average begins.
        behaviour: ``behaviour(x, rng) -> u``, for ``act``.
        seed: of the generator that is passed to ``behaviour``.

    >>> import numpy as np, twoclock as tc
    >>> agent, rng = tc.agents.Evaluator(1.0, np.eye(2), gamma=0.5, operator="td"), np.random.default_rng(0)
    >>> s = 0
    >>> for _ in range(5000):
    ...     t = int(rng.integers(2))
    ...     agent.observe(s, None, t, reward=float(s == 0))
    ...     s = t
    >>> [round(agent.value(s), 1) for s in (0, 1)]
    [1.5, 0.5]

    Reference: Sutton et al. 2009 (TDC); Ghiassian et al. 2020 (TDRC); Maei et al. 2009 (networks); Zeng & Doan,
    Section 4.1 (Fast TDC).
    """

    _NUMBERS = ("gamma", "operator", "lam", "intervals", "skip", "seed")
    _ARRAYS = ("features", "at")
    _OTHERS = ("policy_ratio", "params", "behaviour")
    _FUNCTIONS = ("policy_ratio", "features", "value")
    _PLAIN = ("_first",)
    _FORMAT = 2
    _STREAM = 0x65766C

    def __init__(
        self,
        policy_ratio: Ratio,
        features: ArrayLike | FeatureMap | None,
        gamma: float,
        *,
        at: PyTree = None,
        value: Value | None = None,
        params: PyTree = None,
        operator: str = "tdc",
        lam: float = 0.0,
        method: Method | None = None,
        intervals: bool | Literal["blocks"] = True,
        skip: int = 0,
        behaviour: Behaviour | None = None,
        seed: int = 0,
    ) -> None:
        given = policy_ratio
        self.policy_ratio = given if callable(given) else validation.number("policy_ratio", given, 0)
        self.gamma = validation.number("gamma", gamma, 0, 1)
        self.operator = validation.choice("operator", operator, ("td", "tdc", "gtd2", "tdrc"))
        self.lam = validation.number("lam", lam, 0, 1)
        in_blocks = isinstance(intervals, str) and intervals == "blocks"  # an array of text compares entry by entry
        self.intervals = "blocks" if in_blocks else validation.flag("intervals", intervals)
        self.skip = validation.whole("skip", skip, least=0)
        if behaviour is not None:
            validation.function("behaviour", behaviour, "x", "rng")
        if (value is None) != (params is None):
            raise InputError(
                "`value` and `params` go together: the network V(params, x) and where its parameters start"
            )
        self.features, self._phi = _feature_fn(features)
        self.at, self._at_phi = _check_at(at, self.features, self._phi)
        self.network, self.params, self.behaviour = value, params, behaviour
        self._value, start = self._approximation()
        if method is None:
            method = _default_method(self.operator, self.gamma * self.lam, None if value is not None else self._at_phi)
        self.method = run_args.check_method(method)
        self._traced = _has_trace(self.operator, self.lam, self.method)
        self._set_seed(seed)
        self._first = True
        self._learner = self._make_learner(start)

    def act(self, x: PyTree) -> PyTree:
        """Draw an action of ``behaviour`` in x."""
        if self.behaviour is None:
            raise InputError("`act` needs a policy that acts: give `behaviour=`, a function of x and a generator")
        return self.behaviour(x, self._rng)

    def _learn(self, x: PyTree, u: PyTree, x_next: PyTree, reward: float | None, ended: bool, cut: bool) -> None:
        rho = self.policy_ratio(x, u) if callable(self.policy_ratio) else self.policy_ratio
        rho = validation.number("policy_ratio(x, u)", rho, 0)
        here, after = self._phi("x", x), self._phi("x_next", x_next)
        self._learner.update(self._sample(here, after, rho, check_reward(reward), ended))
        self._first = ended or cut

    def value(self, x: PyTree) -> float:
        """The learnt V(x), by the mean of the iterates where they are averaged."""
        phi = self._phi("x", x)
        with jax.enable_x64(True):
            return float(self._value_at(self._learner.theta, phi))

    def interval(self, level: float = 0.95, *, anytime: bool | int = False) -> pd.DataFrame:
        """Confidence intervals of the value at ``at``: output, estimate, low, high, note.

        They are for the operator's solution within its features; what features cannot express is not covered.

        Args:
            level: the coverage, between 0 and 1.
            anytime: True for intervals that hold at all looks from 1,000 samples on, or a number for from that many
                on; for ``Evaluator(intervals="blocks")``.
        """
        how: Literal["blocks"] | None = "blocks" if self.intervals == "blocks" else None
        if anytime is not False and how is None:
            raise InputError("`anytime` needs block scores; make the agent with `Evaluator(…, intervals='blocks')`")
        return self._learner.interval(level, how, anytime=anytime)

    @property
    def settings(self) -> dict[str, object]:
        """The arguments that make an equal agent."""
        return {**super().settings, "value": self.network}

    @property
    def theta(self) -> PyTree:
        """The learnt parameters."""
        return self._learner.theta

    @classmethod
    def load(  # type: ignore[override]
        cls,
        path: str | Path,
        policy_ratio: Ratio | None = None,
        features: FeatureMap | None = None,
        *,
        value: Value | None = None,
        params: PyTree = None,
        method: Method | None = None,
        behaviour: Behaviour | None = None,
    ) -> Self:
        """Load a saved evaluator. Pass the same functions, and ``params``.

        Args:
            path: the folder of ``save``.
            policy_ratio, features: of the saved agent, where they are functions.
            value, params: its network, if it has one.
            method: the method of the saved agent, if it holds a function.
            behaviour: for ``act``.
        """

        def others(about: Document) -> dict[str, object]:
            ratio = about["policy_ratio"] if policy_ratio is None else policy_ratio
            if ratio is None:
                raise InputError("`policy_ratio` must be given: it is a function, which no record can hold")
            functions = {"features": features, "value": value, "behaviour": behaviour}
            return {"policy_ratio": ratio, "params": params, **functions}

        return cls._load(path, method, others)

    def _state(self) -> tuple[Document, dict[str, PyTree]]:
        ratio = None if callable(self.policy_ratio) else self.policy_ratio
        return {**super()._state()[0], "policy_ratio": ratio}, {}

    def __repr__(self) -> str:
        return f"Evaluator({self.operator}, {self.steps:,} samples{', diverged' if self.diverged else ''})"

    def _approximation(self) -> tuple[Value, PyTree]:
        """V(θ, φ) and where θ starts."""
        if self.network is None:
            if self._at_phi.ndim != 2:
                raise InputError(f"`features` must give a vector, got the shape {self._at_phi.shape[1:]}")
            return lambda theta, phi: jnp.sum(phi * theta), np.zeros(self._at_phi.shape[1])
        validation.function("value", self.network, "params", "x")
        value, params = self.network, self.params
        if is_module(params):
            network, (params, whole) = value, split_module(params)

            def value(learned: PyTree, phi: Array) -> Number:
                return network(whole(learned), phi)

        check_start("params", params)
        start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        shape = getattr(validation.trace_shapes("value", value, start, self._at_phi[0]), "shape", None)
        if shape != ():
            raise InputError(f"`value` must return one number, got {'no array' if shape is None else f'shape {shape}'}")
        return value, start

    def _make_learner(self, start: PyTree) -> Learner:
        value, at_phi, traced = self._value, self._at_phi, self._traced

        def value_at(theta: PyTree, phi: Observed) -> Number:
            with validation.trace_anew():  # a constant in the network may have changed since another evaluator
                return value(theta, phi)

        self._value_at = jax.jit(value_at)
        F, G = trace_operators(value) if traced else value_operators(value, self.operator)
        omega = jax.tree.map(np.zeros_like, start) if traced or self.operator != "td" else ()

        def values(theta: PyTree, omega: PyTree) -> Float[Array, " at"]:
            return jax.vmap(value, (None, 0))(theta, jnp.asarray(at_phi))

        def measure(theta: PyTree, omega: PyTree) -> dict[str, Number]:
            return {"value": jnp.mean(values(theta, omega))}

        method = self.method
        if self.intervals:
            if method.knows("track"):
                raise InputError(f"`intervals` must be False with {type(method).__name__}, which averages already")
            outputs = lambda theta, omega: {"value": values(theta, omega)}  # noqa: E731
            in_blocks = self.intervals == "blocks"
            method = Polyak(method, skip=self.skip, intervals=False if in_blocks else outputs)
            method = BatchMeans(method, intervals=outputs) if in_blocks else method
        example = self._sample(at_phi[0], at_phi[0], 1.0, 0.0, False)
        return Learner(F, G, method, start, omega, measure=measure, example=example)

    def _sample(self, here: Observed, after: Observed, rho: float, reward: float, terminated: bool) -> PyTree:
        gamma = 0.0 if terminated else self.gamma
        sample = {"s": here, "next_state": after, "rho": rho, "r": reward, "gamma": gamma}
        if self._traced:
            sample["keep"] = 0.0 if self._first else self.gamma * self.lam
        return sample


def _feature_fn(features: ArrayLike | FeatureMap | None) -> tuple[FeatureTable, FeatureFn]:
    """Check the features, and make the function that returns those of an observation."""
    if features is None:
        return None, as_array
    if callable(features):
        validation.function("features", features, "x")
        return features, lambda name, x: as_array(f"features({name})", features(x))
    table = as_array("features", features)
    if table.ndim != 2 or not table.size:
        raise InputError(
            f"`features` must have one row per state, got the shape {table.shape}; or give a function of x"
        )
    if not table.any():
        raise InputError("`features` must not all be zero: every θ would give the same values; try np.eye(states)")
    return table, lambda name, x: table[check_index(name, x, len(table))]


def _check_at(at: PyTree, features: FeatureTable, feature_fn: FeatureFn) -> tuple[np.ndarray, Observed]:
    """The observations at which the value is reported, and their features."""
    if at is None:
        if not isinstance(features, np.ndarray):
            raise InputError(
                "`at` must be given: observations at which the value is reported, such as `[env.reset()[0]]`"
            )
        at = np.arange(len(features))
    try:
        given = np.asarray(at)
    except ValueError:
        given = np.asarray(None)
    if given.ndim == 0 or not len(given) or given.dtype.kind not in "biuf":
        raise InputError(
            f"`at` must be a list of observations, numbers or arrays alike, got {validation.short_repr(at)}"
        )
    phi = [feature_fn("at", x) for x in given]
    if len({row.shape for row in phi}) > 1:
        raise InputError("`features` must have the same shape at every observation, and differs at `at`")
    return given, np.stack(phi)


def _default_method(operator: str, decay: float, phi: Float[np.ndarray, "at d"] | None) -> Method:
    """The steps where none are given: for a trace that decays by γλ, and features (None for a network) of this size."""
    if phi is None:
        if operator != "td":
            raise InputError(
                f"`method` must be given for a network with operator '{operator}': its steps are not known beforehand; "
                "with operator='td' none are needed"
            )
        return ObGD()
    size = float(np.max(np.sum(phi**2, axis=1)))
    if size == 0:
        raise InputError("`features` must not be zero at all of `at`: their size sets the steps; give `method`")
    step = Power(_FIRST * (1 - decay) / size * _HOLD**0.6, p=0.6, shift=_HOLD)
    return ObGD(step) if decay else Fast(step, step, 0.25)


def _has_trace(operator: str, lam: float, method: Method) -> bool:
    """Whether ω is an eligibility trace; an error where operator or method do not fit one."""
    inner = method
    while isinstance(wrapped := getattr(inner, "method", None), Method):  # inside those that average
        inner = wrapped
    streaming = isinstance(inner, (ObGD, Intentional))
    if not (lam or streaming):
        return False
    if operator != "td":
        raise InputError(f"`operator` must be 'td' with `lam`, ObGD or Intentional, got '{operator}'; leave those out")
    if not streaming and not (isinstance(inner, Standard) and isinstance(inner.beta, Constant) and inner.beta.c == 1):
        raise InputError(
            f"`method` must move the trace whole where there is `lam`, got {inner}; write `Standard(alpha, 1.0)`, or "
            "take ObGD or Intentional"
        )
    return True
