"""What a regulator learns with: the operators of its critic, in a learner, and its guard's part in each step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.online import Learner
from twoclock.problems.lqr.model_based import GuardedModel, ModelCritic
from twoclock.problems.lqr.operators import ActorCritic, Bounds, Guarded
from twoclock.protocols import Method, PyTree


def begun(
    critic: str,
    Q: np.ndarray,
    R: np.ndarray,
    K0: np.ndarray,
    sigma: float,
    kappa: float,
    method: Method,
    bounds: Bounds | None,
) -> Learner:
    """A learner at the first gain, under a guard's bounds if there are any; arguments as for `Regulator`."""
    with jax.enable_x64(True):
        if critic == "q":
            actor = ActorCritic(np.float64(kappa), np.float64(sigma), expected_action=True)
            theta, omega = jax.tree.map(np.asarray, actor.start(K0))
            guarded = Guarded(actor, bounds)
            return Learner(
                guarded.F, guarded.G, method, theta, omega, measure=lambda theta, omega: {"cost": omega["J"]}
            )
        model = ModelCritic(Q, R)
        theta, omega = jax.tree.map(np.asarray, model.start(K0))

    def told(theta: PyTree, omega: PyTree) -> dict[str, jax.Array]:
        """The mean cost of the gain on the plant as it is estimated."""
        ab = model.plant(omega)
        d, B = ab.shape[1], ab[:, len(Q) :]
        noise = omega["M"][d:, d:] - ab @ omega["M"][:d, d:]
        explored = jnp.asarray(sigma**2, ab.dtype)
        return {"cost": jnp.sum(theta["P"] * (noise + explored * B @ B.T)) + explored * jnp.trace(jnp.asarray(R))}

    operators = GuardedModel(model, bounds)
    return Learner(operators.F, operators.G, method, theta, omega, measure=told)


@jax.jit
def supervise(bounds: Bounds, K: PyTree, x: PyTree, watch: PyTree) -> tuple[PyTree, PyTree]:
    """The gain that acts in x, and what the guard remembers."""
    return bounds.supervise(K, x, watch)


@jax.jit
def judge(bounds: Bounds, sample: PyTree, watch: PyTree) -> tuple[PyTree, PyTree]:
    """The sample with how much of it may be learnt, and what the guard remembers."""
    return bounds.judge(sample, watch)
