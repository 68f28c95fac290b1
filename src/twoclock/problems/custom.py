"""Problems from a user's operators, and two variants of a problem with a known answer: without noise, or with ω*."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.protocols import InputError, Key, Operator, Problem, PyTree, Scalar, forwarded, pytree, static
from twoclock.tree_math import difference
from twoclock.validation import function
from twoclock.validation.arrays import check_start, flatten_tree

__all__ = ["custom", "exact", "oracle"]

Draw = Callable[..., tuple[PyTree, PyTree]]
Measure = Callable[[PyTree, PyTree], Mapping[str, Scalar]]


@pytree
class Custom(Problem):
    theta: PyTree
    omega: PyTree
    env: PyTree
    slow: Operator = static()
    fast: Operator = static()
    source: Callable[[Key], PyTree] = static()
    sampler: Draw | None = static(default=None)
    metrics: Measure | None = static(default=None)

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        return jax.tree.map(jnp.asarray, (self.theta, self.omega, self.env))

    def noise(self, key: Key) -> PyTree:
        return self.source(key)

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.slow(theta, omega, x)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.fast(theta, omega, x)

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return (u, env) if self.sampler is None else self.sampler(u, theta, env)

    def measure(self, theta: PyTree, omega: PyTree) -> Mapping[str, Scalar]:
        return {} if self.metrics is None else self.metrics(theta, omega)


@pytree
class CustomFromOmega(Custom):
    """A problem whose samples depend on ω too."""

    def draw(self, u: PyTree, theta: PyTree, omega: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:  # type: ignore[override]
        assert self.sampler is not None
        return self.sampler(u, theta, omega, env)


def custom(
    F: Operator,
    G: Operator | Sequence[Operator],
    noise: Callable[[Key], PyTree],
    theta: PyTree,
    omega: PyTree,
    draw: Draw | None = None,
    env: PyTree = None,
    measure: Measure | None = None,
) -> Custom:
    """A problem from two functions, or from one function per level.

    Find θ with E[F(θ, ω*(θ), X)] = 0, where ω*(θ) is the root of E[G(θ, ·, X)]. G need not be a gradient.

    With more than two levels ω is a tuple, slower levels first. The last operator is solved for every value of the
    levels before it, then the one before it, and so on. ``tc.Fast(alpha, (beta_1, beta_2), lam)`` gives each its step.

    Args:
        F: ``F(theta, omega, x)``, of the structure of theta.
        G: ``G(theta, omega, x)``, of the structure of omega; or one function per level, each called with the whole
            tuple and returning the structure of its entry.
        noise: ``noise(key) -> u``, the randomness of one step.
        theta: the start of the slow variable, any pytree of floats; of a network (an Equinox module) the arrays are
            learned, and F, G, draw and measure get the whole module.
        omega: the start of the fast variable, likewise.
        draw: ``draw(u, theta, env) -> (x, env)`` makes the sample; without it x is u itself. Samples that depend on
            the fast variable too, as in a mean field, come from ``draw(u, theta, omega, env)``.
        env: the start of the environment of ``draw``, such as the state of a Markov chain.
        measure: ``measure(theta, omega) -> {name: scalar}``, recorded at the marks.

    Minimise ½(θ−1)² where the gradient θ−1 is only known through ω, which tracks θ in noise:

    >>> import jax, twoclock as tc
    >>> problem = tc.problems.custom(
    ...     F=lambda theta, omega, x: omega - 1,
    ...     G=lambda theta, omega, x: omega - theta + x,
    ...     noise=lambda key: jax.random.normal(key),
    ...     theta=0.0,
    ...     omega=0.0,
    ...     measure=lambda theta, omega: {"error": (theta - 1) ** 2},
    ... )
    >>> result = tc.solve(problem, tc.Fast(), steps=1000, seeds=4)
    >>> bool(result.summary("error")["mean"].iloc[-1] < 0.1)
    True
    """
    function("custom(F=…)", F, "theta", "omega", "x")
    if isinstance(G, Sequence):
        G = _join_levels(G, omega)
    else:
        function("custom(G=…)", G, "theta", "omega", "x")
    function("custom(noise=…)", noise, "key")
    kind = Custom
    if draw is not None:
        if _takes_omega(draw):
            function("custom(draw=…)", draw, "u", "theta", "omega", "env")
            kind = CustomFromOmega
        else:
            function("custom(draw=…)", draw, "u", "theta", "env")
    if measure is not None:
        function("custom(measure=…)", measure, "theta", "omega")
    flatten_tree("theta", theta), flatten_tree("omega", omega)
    problem = kind(theta, omega, env, F, G, noise, draw, measure)
    if is_module(theta) or is_module(omega):
        (theta, slow), (omega, fast) = split_module(theta), split_module(omega)

        def on_modules(u: PyTree, *at: PyTree) -> tuple[PyTree, PyTree]:
            assert draw is not None
            return draw(u, *(join(one) for join, one in zip((slow, fast), at[:-1], strict=False)), at[-1])

        problem = kind(
            theta, omega, env,
            lambda theta, omega, x: select_learned(F(slow(theta), fast(omega), x)),
            lambda theta, omega, x: select_learned(G(slow(theta), fast(omega), x)),
            noise, None if draw is None else on_modules,
            None if measure is None else lambda theta, omega: measure(slow(theta), fast(omega)),
        )  # fmt: skip
    check_start("theta", theta)
    check_start("omega", omega, may_be_empty=True)
    check_start("env", env, may_be_empty=True, real=False)
    return problem


def _takes_omega(draw: object) -> bool:
    """Whether ``draw`` is a function of (u, theta, omega, env): it names omega, or four arguments have no default.

    A fourth argument with a default, as in ``lambda u, theta, env, rho=0.9: …``, is the user's own constant.
    """
    if not callable(draw):
        return False
    try:
        parameters = inspect.signature(draw).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    given = [p for p in parameters.values() if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
    return "omega" in parameters or len(given) == 4


def _join_levels(operators: Sequence[Operator], omega: PyTree) -> Operator:
    """One operator on a tuple of levels."""
    if not isinstance(omega, tuple) or len(omega) != len(operators) or not operators:
        got = f"a tuple of {len(omega)}" if isinstance(omega, tuple) else f"a {type(omega).__name__}"
        raise InputError(
            f"`custom(omega=…)` must be a tuple with one entry per operator of `G`, of which there are "
            f"{len(operators)}, got {got}"
        )
    for i, operator in enumerate(operators):
        function(f"custom(G[{i}]=…)", operator, "theta", "omega", "x")
    return lambda theta, omega, x: tuple(operator(theta, omega, x) for operator in operators)


def is_module(tree: PyTree) -> bool:
    """Whether a tree, such as an Equinox network with its activation, holds functions beside arrays of floats."""
    leaves = jax.tree.leaves(tree)
    arrays = (jax.Array, np.ndarray, np.generic)
    return any(map(_is_learned, leaves)) and any(callable(leaf) and not isinstance(leaf, arrays) for leaf in leaves)


def select_learned(tree: PyTree) -> PyTree:
    """The tree with None for every leaf that is no array of floats, as ``equinox.filter_grad`` returns it."""
    return jax.tree.map(lambda leaf: leaf if _is_learned(leaf) else None, tree)


def split_module(tree: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """The learned arrays of a module, and the function that rebuilds the module around them."""
    if not is_module(tree):
        return tree, lambda tree: tree
    rest = jax.tree.map(lambda leaf: None if _is_learned(leaf) else leaf, tree)

    def join(arrays: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: b if a is None else a, arrays, rest, is_leaf=lambda leaf: leaf is None)

    return select_learned(tree), join


def _is_learned(leaf: object) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


@pytree
class Exact(Problem):
    """See `exact`."""

    problem: Problem
    h, field, omega_star, measure = forwarded("problem", "h", "field", "omega_star", "measure")

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        theta, omega, _ = self.problem.init(key)
        return theta, omega, None

    def noise(self, key: Key) -> PyTree:
        return jnp.zeros(())

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return u, env

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.field(theta)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return difference(omega, self.problem.omega_star(theta))


def exact(problem: Problem) -> Exact:
    """The same problem with exact means instead of samples: how a method behaves without noise.

        F = the mean of F at ω*(θ),        G = ω − ω*(θ)

    Standard with steps α on it is exact gradient descent; for a regulator, exact natural policy gradient.

    Args:
        problem: a problem with ``h`` or ``field``, ``omega_star`` and ``measure``.

    >>> import twoclock as tc
    >>> problem = tc.problems.exact(tc.problems.paper_lqr())
    >>> result = tc.solve(problem, tc.Standard(alpha=0.2, beta=1.0), steps=100, seeds=1)
    >>> bool(result.history.gap.iloc[-1] < 1e-9)
    True
    """
    if not isinstance(problem, Problem):
        raise InputError(
            f"`problem` must be a `tc.Problem`, got {type(problem).__name__}; try `tc.problems.quadratic()`"
        )
    missing = [n for n in ("omega_star", "measure") if not problem.knows(n)]
    if missing or not (problem.knows("h") or problem.knows("field")):
        raise InputError(f"`problem` must know its answer to be made exact; it has no {', '.join(missing) or 'h'}")
    return Exact(problem)


@pytree
class Oracle(Problem):
    """A problem whose F is taken at ω*(θ); see `oracle`."""

    problem: Problem
    init, noise, draw, G, measure = forwarded("problem", "init", "noise", "draw", "G", "measure")

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.problem.F(theta, self.problem.omega_star(theta), x)


def oracle(problem: Problem) -> Oracle:
    """The same problem with ω*(θ) known: the noisy gradient oracle H of plain SGD, a yardstick for two time scales.

        H(θ, X) = F(θ, ω*(θ), X)

    ``Standard`` on it is stochastic gradient descent; a method that must estimate ω*(θ) cannot be expected to do
    better.

    Args:
        problem: a problem with a known ``omega_star``.

    >>> import twoclock as tc
    >>> sgd = tc.problems.oracle(tc.problems.rates("strongly-convex", "kinked"))
    >>> result = tc.solve(sgd, tc.Standard("2/(k+20)", 0.1), steps=1000, seeds=4)

    Reference: Zeng & Doan, eq. (standard_SGD_oracle).
    """
    if not isinstance(problem, Problem) or not problem.knows("omega_star") or problem.samples_see_omega:
        raise InputError(
            f"`problem` must be a `tc.Problem` that knows `omega_star`, got {type(problem).__name__}; "
            "try `tc.problems.quadratic()`"
        )
    return Oracle(problem)
