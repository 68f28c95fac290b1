"""The learners of a regulator: the Q critic and the model critic, on samples of a plant."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.online import Learner
from twoclock.problems.lqr.model_based import ModelCritic, steady_state
from twoclock.problems.lqr.operators import ActorCritic, Bounds, Guarded
from twoclock.protocols import Method, PyTree

Gain = Float[np.ndarray, "m n"]


def q_learner(kappa: float, sigma: float, K: Gain, bounds: Bounds | None, method: Method) -> Learner:
    """The actor-critic from the gain K, under a guard's bounds if there are any."""
    with jax.enable_x64(True):
        actor = ActorCritic(np.float64(kappa), np.float64(sigma), expected_action=True)
        theta, omega = jax.tree.map(np.asarray, actor.start(K))
    guarded = Guarded(actor, bounds)
    return Learner(guarded.F, guarded.G, method, theta, omega, measure=lambda theta, omega: {"cost": omega["J"]})


def model_learner(
    model: ModelCritic, sigma: float, effort: float, K: Gain, bounds: Bounds | None, method: Method
) -> Learner:
    """Least squares and Riccati steps from the gain K; ``effort`` is that of `steady_state`."""
    with jax.enable_x64(True):
        theta, omega = jax.tree.map(np.asarray, model.start(K))

    def measure(theta: PyTree, omega: PyTree) -> dict[str, jax.Array]:
        """The mean cost of the control law on the estimated plant."""
        (ab, offset), p = model.fit(omega), model.outputs
        Q, R = jnp.asarray(model.Q, ab.dtype), jnp.asarray(model.R, ab.dtype)
        P, B = theta["P"], ab[:, len(Q) :]
        cost = jnp.sum(P[:p, :p] * model.noise(omega)) + sigma**2 * (jnp.sum(B * (P @ B)) + jnp.trace(R))
        if model.intercept:
            x, u = steady_state(ab, offset, Q, R, effort, jnp)
            cost = cost + x @ Q @ x + u @ R @ u
        return {"cost": cost}

    guarded = Guarded(model, bounds)
    return Learner(guarded.F, guarded.G, method, theta, omega, measure=measure)


def resting_point(
    model: ModelCritic, omega: PyTree, effort: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]] | None:
    """The steady state and the steady action of a model with an intercept; None while there is no model."""
    M, p, n = omega["M"], model.outputs, len(model.Q)
    if omega["seen"] < model.enough / (model.enough + 1):
        return None
    try:
        rows = np.linalg.solve(M[:-p, :-p], M[:-p, -p:]).T
        ab = rows[:, :-1] if model.known is None else np.vstack([rows[:, :-1], model.known])
        x, u = steady_state(ab, np.pad(rows[:, -1], (0, n - p)), model.Q, model.R, effort)
    except np.linalg.LinAlgError:  # no steady state, or more than one
        return None
    return np.asarray(x), np.asarray(u)
