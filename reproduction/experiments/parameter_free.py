"""Parameter-free methods of optax alone, one on each level: what else needs no step size."""

import functools
from typing import TYPE_CHECKING

import jax

import twoclock as tc
from twoclock.protocols import Operator, PyTree, Scalar, pytree, static

if TYPE_CHECKING:
    import optax

NAMES = ("cocob", "dog", "dowg", "prodigy", "schedule-free")


@functools.cache  # a transformation is part of the program: the same one is not compiled again
def _optimizer(name: str) -> "optax.GradientTransformation":
    """Make an optimizer as its authors set it; schedule-free averaging has DoG's steps inside."""
    from optax import contrib  # a quick run does without

    if name == "schedule-free":
        return contrib.schedule_free(contrib.dog(), learning_rate=1.0)
    made: optax.GradientTransformation = getattr(contrib, name)()
    return made


@pytree
class OptaxState:
    theta: PyTree
    omega: PyTree
    memory: tuple[PyTree, PyTree]


@pytree
class ParameterFree(tc.Method):
    """θ and ω each by an optimizer of optax.contrib, as if F and G were its gradients."""

    name: str = static()

    def init(self, theta: PyTree, omega: PyTree) -> OptaxState:
        start = _optimizer(self.name).init
        return OptaxState(theta, omega, (start(theta), start(omega)))

    def step(self, F: Operator, G: Operator, state: OptaxState, x: PyTree, k: Scalar) -> OptaxState:
        import optax

        here = state.theta, state.omega
        moved, memories = [], []
        for variable, operator, memory in zip(here, (F, G), state.memory, strict=True):
            change, after = _optimizer(self.name).update(operator(*here, x), memory, variable)
            moved.append(optax.apply_updates(variable, change))
            memories.append(jax.tree.map(lambda new, old: new.astype(old.dtype), after, memory))
        return OptaxState(moved[0], moved[1], (memories[0], memories[1]))

    def estimate(self, state: OptaxState) -> tuple[PyTree, PyTree]:
        if self.name != "schedule-free":
            return state.theta, state.omega
        from optax import contrib

        theta, omega = (
            contrib.schedule_free_eval_params(memory, variable)
            for memory, variable in zip(state.memory, (state.theta, state.omega), strict=True)
        )
        return theta, omega
