"""Standard two-time-scale stochastic approximation and Algorithm 1 of the paper, with moves and states of variables.

A variable moves along a direction by a transformation (optax's pair init, update), a step and a projection. The step
size belongs to the method, so ``optax.adam(1e-3)``, which has one and flips the sign, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twoclock import tree_math
from twoclock.protocols import InputError, Method, Operator, PyTree, Scalar, State, checked, pytree
from twoclock.schedules import LevelSizes, OptionalLevelSizes, StepSize, step_size
from twoclock.tree_math import Sizes, Sum, blend, sqnorm
from twoclock.validation import choice
from twoclock.validation.arrays import as_array, flatten_tree
from twoclock.validation.run_args import check_method


@runtime_checkable
class Transformation(Protocol):
    """A ``GradientTransformation`` of optax."""

    @property
    def init(self) -> Callable[[PyTree], PyTree]: ...
    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]: ...


Projection = Callable[[PyTree], PyTree]


@pytree
class MovedVariable:
    """θ or ω: the sum of its steps, and the state of the transformation (None where there is none)."""

    sum: Sum
    memory: PyTree

    @property
    def value(self) -> PyTree:
        return self.sum.value


V = TypeVar("V", MovedVariable, Sum)


@pytree
class Both(Generic[V]):
    """A state whose θ and ω are the values of its slow and its fast variable."""

    slow: V
    fast: V

    @property
    def theta(self) -> PyTree:
        return self.slow.value

    @property
    def omega(self) -> PyTree:
        return self.fast.value


@pytree
class WrapperState:
    """The state of a method that runs another one unchanged."""

    inner: State

    @property
    def theta(self) -> PyTree:
        return self.inner.theta

    @property
    def omega(self) -> PyTree:
        return self.inner.omega


def start(name: str, x: PyTree, transform: Transformation | None, project: Projection | None) -> MovedVariable:
    """The variable before its first move, inside its set."""
    x = tree_math.as_floats(name, x)
    inside = tree_math.start(x if project is None else project(x), name)
    check_transformation(f"transform_{name}", transform, inside.value)
    return MovedVariable(inside, None if transform is None else transform.init(inside.value))


def move(
    x: MovedVariable,
    size: Sizes,
    direction: PyTree,
    transform: Transformation | None,
    project: Projection | None,
    weight: Sizes | None = None,
) -> MovedVariable:
    """Step along d = transform(direction), x ← P(x − size·d).

    With a ``weight`` and a projection P the step is a share of the way to where a step 1/weight as long would end,

        x ← P((1 − weight)·x + weight·P(x − (size/weight)·d))

    and the outer P corrects only rounding where the set is convex.
    """
    memory = x.memory
    if transform is not None:
        direction, memory = transform.update(direction, memory, x.value)
    if project is None:
        return MovedVariable(tree_math.descend(x.sum, size, direction), memory)
    if weight is None:
        moved = tree_math.descend(x.sum, size, direction)
    else:
        weights = jax.tree.map(lambda w: jnp.where(w > 0, w, jnp.ones_like(w)), jax.tree.broadcast(weight, x.value))
        longer: Any = jax.tree.map(jnp.divide, jax.tree.broadcast(size, x.value), weights)
        moved = tree_math.blend(x.sum, weights, project(tree_math.descend(x.sum, longer, direction).value))
    inside, residue = project(moved.value), moved.residue
    if residue is not None:  # the rounding error of an entry is meaningless once the projection has moved it
        same = jax.tree.map(jnp.equal, moved.value, inside)
        residue = jax.tree.map(lambda r, stays: jnp.where(stays, r, jnp.zeros_like(r)), residue, same)
    return MovedVariable(Sum(inside, residue), memory)


def wrapped_method(default: Method) -> Any:
    """A field for the method that a wrapper runs."""
    return checked(lambda what, method: check_method(method, what), default=default)


def check_projection(what: str, project: object) -> None:
    if project is not None and not callable(project):
        raise InputError(
            f"`{what}` must be a function from the variable to itself, got {type(project).__name__}; "
            "try `optax.projections.projection_non_negative`"
        )


def check_transformation(what: str, transform: object, variable: PyTree = None) -> None:
    """Refuse an invalid transformation, and one that turns descent into ascent.

    It is tried on a number, and on the variable once that is known: `optax.multi_transform` may fit no other.
    """
    if transform is None:
        return
    if not isinstance(transform, Transformation):
        raise InputError(
            f"`{what}` must be an optax transformation, got {type(transform).__name__}; try `optax.scale_by_adam()`"
        )
    with jax.ensure_compile_time_eval():
        given = jnp.ones(()) if variable is None else variable
        one = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), given)
        try:
            after = jax.tree.leaves(transform.update(one, transform.init(one), one)[0])
        except Exception as error:
            if variable is None:
                return
            why = f"{type(error).__name__}: {error}"
            raise InputError(f"`{what}` must fit its variable, and fails on it with {why:.150}") from error
        if any(bool(jnp.any(leaf < 0)) for leaf in after):
            raise InputError(
                f"`{what}` must keep the sign of a direction, and this one turns descent into ascent; "
                "the step size is the method's own, so write `optax.scale_by_adam()` for `optax.adam(…)`"
            )


def has_plain_moves(method: Standard | Fast) -> bool:
    """Whether θ and ω move by a step size times F, G or weighted means of them."""
    changed = method.transform_theta, method.transform_omega, method.project_theta, method.project_omega
    return all(change is None for change in changed)


@pytree
class StandardState(Both[MovedVariable]):
    pass


@pytree
class Standard(Method):
    """The standard method: both variables step along the noisy operators.

        θ ← θ − α_k F(θ, ω, X)
        ω ← ω − β_k G(θ, ω, X)        with F and G at the same, old (θ, ω)

    Args:
        alpha, beta: step sizes of the slow variable θ and of the fast variable ω; where ω is a tuple of levels ``beta``
            may be a tuple too, one per level.
        transform_theta, transform_omega: optax transformations of the directions F and G, ``optax.scale_by_adam()`` or
            ``optax.clip_by_global_norm(1.0)``, say, or a chain of such.
        project_theta, project_omega: functions onto the sets that θ and ω must stay in, such as
            ``optax.projections.projection_simplex``.

    >>> import twoclock as tc
    >>> method = tc.Standard(alpha=tc.Power(0.5), beta=tc.Power(1.0))

    Reference: Zeng & Doan, eq. (standard_SA); Borkar, *Stochastic Approximation*, ch. 6.
    """

    alpha: StepSize = step_size("2/(k+20)")
    beta: LevelSizes = step_size("8/(k+40)", levels=True)
    transform_theta: Transformation | None = checked(check_transformation, default=None, static=True)
    transform_omega: Transformation | None = checked(check_transformation, default=None, static=True)
    project_theta: Projection | None = checked(check_projection, default=None, static=True)
    project_omega: Projection | None = checked(check_projection, default=None, static=True)

    @property
    def stays_infinite(self) -> bool:
        return has_plain_moves(self)

    def init(self, theta: PyTree, omega: PyTree) -> StandardState:
        slow = start("theta", theta, self.transform_theta, self.project_theta)
        fast = start("omega", omega, self.transform_omega, self.project_omega)
        return StandardState(slow, fast)

    def step(self, F: Operator, G: Operator, state: StandardState, x: PyTree, k: Scalar) -> StandardState:
        f, g = F(state.theta, state.omega, x), G(state.theta, state.omega, x)
        slow = move(state.slow, self.alpha(k), f, self.transform_theta, self.project_theta)
        fast = move(state.fast, self.beta(k), g, self.transform_omega, self.project_omega)
        return StandardState(slow, fast)


def read_average(what: str, value: PyTree) -> PyTree:
    """The start of f or g as a tree of arrays; None stays None, and traced values stay unchanged."""

    def one(path: tuple[object, ...], leaf: object) -> object:
        traced = isinstance(leaf, jax.core.Tracer)
        return leaf if traced else as_array(what + jax.tree_util.keystr(path), leaf)

    leaves, structure = flatten_tree(what, value)
    return jax.tree.unflatten(structure, [one(path, leaf) for path, leaf in leaves])


def start_average(name: str, value: PyTree, of: str, variable: PyTree) -> PyTree:
    """The average before the first sample: zeros, or the value that was given, in the variable's precision."""
    if value is None:
        return jax.tree.map(jnp.zeros_like, variable)
    given, wanted = (jax.tree.map(jnp.shape, tree) for tree in (value, variable))
    if given != wanted or str(jax.tree.structure(value)) != str(jax.tree.structure(variable)):
        raise InputError(f"`Fast({name}=…)` must have the shapes of {of}, {wanted}, got {given}; None is 0")
    return jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), value, variable)


@pytree
class FastState(Both[MovedVariable]):
    mean_F: Sum
    mean_G: Sum

    @property
    def f(self) -> PyTree:
        return self.mean_F.value

    @property
    def g(self) -> PyTree:
        return self.mean_G.value


@pytree
class Fast(Method):
    """The fast two-time-scale stochastic gradient method.

        θ ← θ − α_k f
        ω ← ω − β_k g
        f ← (1 − λ_k) f + λ_k F(θ, ω, X)
        g ← (1 − λ_k) g + λ_k G(θ, ω, X)        with F and G at the old (θ, ω)

    f estimates ∇h(θ) and g estimates the mean of G: their squared norms are recorded as ``f_sq`` and ``g_sq``, a
    measure of progress that needs no known answer. With λ ≡ 1, ``order="fresh"`` is exactly the standard method, and
    "paper" is the same one step late.

    Args:
        alpha, beta: step sizes of θ and ω, as in ``Standard``.
        lam: averaging weight λ ≤ 1 of F, and of G unless ``lam_g`` is given. The theory needs α ≤ β ≤ λ ≤ ¼.
        lam_g: averaging weight of G, or one per level.
        order: "paper", Algorithm 1 as printed, moves with the *old* f and g; "fresh" blends first and moves with the
            new ones; "fresh-g" moves θ with the old f and ω with the new g.
        transform_theta, transform_omega: optax transformations of the directions f and g, as in ``Standard``.
        project_theta, project_omega: functions P onto the convex sets that θ and ω must stay in. The step is then
            θ ← (1 − λ)θ + λ P(θ − (α/λ) f), which is the step above where P changes nothing. With a large α, P(θ − α f)
            would jump between the walls of the set, since the mean f ignores that its last steps were clipped.
        f0, g0: where f and g start: trees of numbers like θ and ω. None is 0.

    >>> import twoclock as tc
    >>> method = tc.Fast(alpha=tc.Power(0.5, shift=10), beta=tc.Power(1.0, shift=10), lam=tc.Power(2.0, shift=10))

    Reference: Zeng & Doan, Algorithm 1, eqs. (alg:update_decision) and (eq:update_auxiliary); with more levels Zeng &
    Doan, *Accelerated multi-time-scale stochastic approximation*, 2024; with a projection Ghadimi, Ruszczyński & Wang,
    *A single timescale stochastic approximation method for nested stochastic optimization*, 2020, Algorithm 1.
    """

    alpha: StepSize = step_size("2/(k+20)")
    beta: LevelSizes = step_size("8/(k+40)", levels=True)
    lam: StepSize = step_size("40/(k+160)", most=1.0)
    lam_g: OptionalLevelSizes = step_size(None, most=1.0, levels=True)
    order: Literal["paper", "fresh", "fresh-g"] = checked(
        choice, ("paper", "fresh", "fresh-g"), default="paper", static=True
    )
    transform_theta: Transformation | None = checked(check_transformation, default=None, static=True)
    transform_omega: Transformation | None = checked(check_transformation, default=None, static=True)
    project_theta: Projection | None = checked(check_projection, default=None, static=True)
    project_omega: Projection | None = checked(check_projection, default=None, static=True)
    f0: PyTree = checked(read_average, default=None)
    g0: PyTree = checked(read_average, default=None)

    @property
    def stays_infinite(self) -> bool:
        return has_plain_moves(self)

    def init(self, theta: PyTree, omega: PyTree) -> FastState:
        slow = start("theta", theta, self.transform_theta, self.project_theta)
        fast = start("omega", omega, self.transform_omega, self.project_omega)
        f = start_average("f0", self.f0, "θ", slow.value)
        g = start_average("g0", self.g0, "ω", fast.value)
        # A relative error of a mean moves no root, so it needs no residue.
        return FastState(slow, fast, Sum(f, None), Sum(g, None))

    def step(self, F: Operator, G: Operator, state: FastState, x: PyTree, k: Scalar) -> FastState:
        theta, omega, f, g = state.theta, state.omega, state.mean_F, state.mean_G
        lam = self.lam(k)
        lam_g = lam if self.lam_g is None else self.lam_g(k)
        new_f = blend(f, lam, F(theta, omega, x))
        new_g = blend(g, lam_g, G(theta, omega, x))
        along_f = new_f if self.order == "fresh" else f
        along_g = g if self.order == "paper" else new_g
        slow = move(state.slow, self.alpha(k), along_f.value, self.transform_theta, self.project_theta, lam)
        fast = move(state.fast, self.beta(k), along_g.value, self.transform_omega, self.project_omega, lam_g)
        return FastState(slow, fast, new_f, new_g)

    def report(self, state: FastState) -> dict[str, Float[Array, ""]]:
        return {"f_sq": sqnorm(state.f), "g_sq": sqnorm(state.g)}
