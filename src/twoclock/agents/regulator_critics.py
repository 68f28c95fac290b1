"""The learners of a regulator, the Q critic and the model critic, and the state that they see of a plant."""

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
Vector = Float[np.ndarray, " d"]


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


class OutputHistory:
    """The last L outputs and L − 1 actions as a state, s = (y_t, …, y_{t−L+1}, u_{t−1}, …, u_{t−L+1}).

    An output other than the last one begins a new episode, which is taken to start at rest there.

    Args:
        p, m: sizes of output and action.
        lags: L; with 1 the state is the output.
    """

    def __init__(self, p: int, m: int, lags: int) -> None:
        self.p, self.m, self.lags = p, m, lags
        self.size = lags * p + (lags - 1) * m
        self.last: Vector | None = None  # the last output
        self.y, self.u = np.zeros((lags, p)), np.zeros((lags, m))  # earlier outputs, newest first
        self.length = 0  # how many of them were observed

    @property
    def known(self) -> Float[np.ndarray, "k d"]:
        """The rows of [A B] that shift the state."""
        p, m, L = self.p, self.m, self.lags
        rows = np.zeros((self.size - p, self.size + m))
        rows[: (L - 1) * p, : (L - 1) * p] = np.eye((L - 1) * p)
        if L > 1:
            rows[(L - 1) * p : (L - 1) * p + m, self.size :] = np.eye(m)
            rows[(L - 1) * p + m :, L * p : L * p + (L - 2) * m] = np.eye((L - 2) * m)
        return rows

    def state(self, y: Vector) -> tuple[Vector, bool]:
        """The state at an output, and whether all of it was observed."""
        if not self._follows(y):
            return np.concatenate([np.tile(y, self.lags), np.zeros((self.lags - 1) * self.m)]), self.lags == 1
        return np.concatenate([y, self.y[:-1].ravel(), self.u[:-1].ravel()]), self.length >= self.lags - 1

    def older(self, y: Vector) -> Vector | None:
        """The output and the action that the state at y has just lost; None where there are none."""
        return np.concatenate([self.y[-1], self.u[-1]]) if self._follows(y) and self.length >= self.lags else None

    def push(self, y: Vector, u: Vector, after: Vector) -> None:
        """Record that u was applied at the output y."""
        if not self._follows(y):
            self.y[:], self.u[:], self.length = y, 0.0, 0
        self.y[1:], self.u[1:] = self.y[:-1].copy(), self.u[:-1].copy()
        self.y[0], self.u[0], self.last = y, u, after
        self.length = min(self.length + 1, self.lags)

    def _follows(self, y: Vector) -> bool:
        return self.last is not None and np.array_equal(y, self.last)

    def snapshot(self) -> dict[str, PyTree]:
        """All of it as arrays."""
        return {"last": self.last, "y": self.y, "u": self.u, "length": np.asarray(self.length)}

    def restore(self, snapshot: dict[str, PyTree]) -> None:
        self.last, self.length = snapshot["last"], int(snapshot["length"])
        self.y, self.u = snapshot["y"].copy(), snapshot["u"].copy()
