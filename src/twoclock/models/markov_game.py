"""Zero-sum Markov games of two players in closed form: the saddle, best responses, exploitability and the means."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.models.float64 import in_float64
from twoclock.models.mdp import read_start
from twoclock.models.soft_mdp import LEAST, SoftMdp, log_softmax
from twoclock.protocols import InputError, Scalar, pytree
from twoclock.validation import number
from twoclock.validation.arrays import Array, Number, as_array, check_distributions, shaped

States = Float[Array, " s"]
First = Float[Array, "s a"]
Second = Float[Array, "s b"]

Games = Float[np.ndarray, "n a b"]
# log π and log φ of each game's saddle, and its value.
Saddles = tuple[Float[np.ndarray, "n a"], Float[np.ndarray, "n b"], Float[np.ndarray, " n"]]

_IMPROVEMENTS = 200
_RESIDUAL = 1e-11  # of the Bellman equation, relative to the size of V
_EPS = np.finfo(float).eps
_NEWTON = 100
_ROUGH = 1e-3  # the step size that ends the work at an intermediate temperature
_GAP = 1e-9  # the duality gap of an answer, relative to the size of the game


class Saddle(NamedTuple):
    """V* in every state, and the two policies of a saddle as log-probabilities."""

    V: Float[np.ndarray, " s"]
    log_pi: Float[np.ndarray, "s a"]
    log_phi: Float[np.ndarray, "s b"]

    @property
    def pi(self) -> Float[np.ndarray, "s a"]:
        return np.exp(self.log_pi)

    @property
    def phi(self) -> Float[np.ndarray, "s b"]:
        return np.exp(self.log_phi)


@pytree
class MarkovGame:
    """A finite zero-sum game: π chooses a and maximises, φ chooses b at the same time and minimises.

        V(s) = E[Σ_k γ^k (r_k − τ log π(a_k|s_k) + τ log φ(b_k|s_k))],        J(π, φ) = Σ_s ρ(s)V(s)

    With a temperature τ > 0 each player earns the entropy of its own policy, and the saddle is unique. Against a fixed
    opponent a player has an MDP, so its best response is that of a `SoftMdp`. Policies come as logits or
    log-probabilities.

    Args:
        P: transition probabilities P[s, a, b, s'].
        R: rewards of the maximiser, R[s, a, b] or R[s, a, b, s'].
        gamma: the discount, in [0, 1).
        start: the distribution ρ of the first state, or the number of one state; uniform by default.

    >>> import numpy as np
    >>> game = MarkovGame(P=np.ones((1, 2, 2, 1)), R=[[[3.0, -1.0], [-1.0, 1.0]]], gamma=0.0)
    >>> saddle = game.saddle()
    >>> saddle.V.round(4).tolist(), saddle.pi.round(4).tolist(), saddle.phi.round(4).tolist()
    ([0.3333], [[0.3333, 0.6667]], [[0.3333, 0.6667]])

    Reference: Shapley, *Stochastic games*, 1953; Cen, Wei & Chi, *Fast policy extragradient methods for competitive
    games with entropy regularization*, 2021.
    """

    P: Annotated[Any, Float[np.ndarray, "s a b s"]]
    R: Annotated[Any, Float[np.ndarray, "s a b"] | Float[np.ndarray, "s a b s"]]
    gamma: Annotated[Any, Float[np.ndarray, ""]]
    start: Annotated[Any, Float[np.ndarray, " s"]] = None

    def __post_init__(self) -> None:
        P = as_array("P", self.P)
        if P.ndim != 4 or P.shape[0] != P.shape[3] or 0 in P.shape:
            raise InputError(
                f"`P` must have the shape (states, actions, actions of the minimiser, states), got {P.shape}; a matrix "
                "game has one state, np.ones((1, a, b, 1))"
            )
        for name, value in (
            ("P", check_distributions("P", P, "P[s, a, b]")),
            ("R", shaped("R", self.R, P.shape[:3], P.shape, which=" to go with `P`")),
            ("gamma", np.float64(number("gamma", self.gamma, 0, 1, below=True))),
            ("start", read_start(self.start, len(P))),
        ):
            object.__setattr__(self, name, value)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its methods' arguments."""
        s, a, b, _ = self.P.shape
        return {"theta": (s, a), "phi": (s, b), "V": (s,), "temp": ()}

    @property
    def mean_R(self) -> Float[Array, "s a b"]:
        """The expected reward of each (s, a, b)."""
        return self.R if self.R.ndim == 3 else (self.P * self.R).sum(axis=-1)

    def for_maximiser(self, phi: Second, temp: Scalar) -> SoftMdp:
        """The MDP of π against softmax(phi), with the bonus of φ in its rewards.

        Args:
            phi: the logits of φ[s, b].
            temp: the temperature of both entropy bonuses.
        """
        log_phi = jax.nn.log_softmax(phi)
        reward = self.mean_R + jnp.asarray(temp) * log_phi[:, None, :]
        return self._mdp("sab,sb->sa", "sabt,sb->sat", reward, jnp.exp(log_phi), temp)

    def for_minimiser(self, theta: First, temp: Scalar) -> SoftMdp:
        """The MDP of φ against softmax(theta), which earns −r: its value is −V.

        Args:
            theta: the logits of π[s, a].
            temp: the temperature of both entropy bonuses.
        """
        log_pi = jax.nn.log_softmax(theta)
        reward = jnp.asarray(temp) * log_pi[:, :, None] - self.mean_R
        return self._mdp("sab,sa->sb", "sabt,sa->sbt", reward, jnp.exp(log_pi), temp)

    def _mdp(self, rewards: str, moves: str, reward: Array, policy: Array, temp: Scalar) -> SoftMdp:
        moved = jnp.asarray(self.gamma) * jnp.einsum(moves, self.P, policy)
        tau = jnp.full(len(self.start), temp, policy.dtype)
        return SoftMdp(moved, jnp.einsum(rewards, reward, policy), tau, jnp.asarray(self.start))

    @in_float64
    @jax.jit
    def evaluate(self, theta: First, phi: Second, temp: Scalar) -> States:
        """V of two policies.

        Args:
            theta: the logits of π[s, a].
            phi: the logits of φ[s, b].
            temp: the temperature of both entropy bonuses.
        """
        return self.for_maximiser(phi, temp).evaluate(theta).V

    @in_float64
    @jax.jit
    def answer(self, theta: First, temp: Scalar) -> tuple[Second, States]:
        """log φ of the minimiser's best response to softmax(theta), and V of the two.

        Args:
            theta: the logits of π[s, a].
            temp: the temperature of both entropy bonuses.
        """
        log_phi, V = self.for_minimiser(theta, temp).solve()
        return log_phi, -V

    @in_float64
    @jax.jit
    def exploitability(self, theta: First, phi: Second, temp: Scalar) -> Number:
        """max_π J(π, φ) − min_φ J(π, φ): what both could gain by best responses; 0 only at a saddle.

        With ``temp`` 0 it is the NashConv of the game itself. Example: ``game.exploitability(log_pi, log_phi, 0.0)``.

        Args:
            theta: the logits of π[s, a].
            phi: the logits of φ[s, b].
            temp: the temperature of both entropy bonuses.
        """
        highest = self.for_maximiser(phi, temp).solve()[1]
        return jnp.sum(self.start * (highest - self.answer(theta, temp)[1]))

    @in_float64
    @jax.jit
    def means(self, theta: First, phi: Second, V: States, temp: Scalar) -> tuple[States, States, First, Second]:
        """The discounted visits of each state, and its means of δ, δ·∇log π and δ·∇log φ, for any V.

        Args:
            theta: the logits of π[s, a].
            phi: the logits of φ[s, b].
            V: the value of each state.
            temp: the temperature of both entropy bonuses.
        """
        first, second = self.for_maximiser(phi, temp), self.for_minimiser(theta, temp)
        Q, log_pi = first.q(V), jax.nn.log_softmax(theta)
        delta = jnp.sum(jnp.exp(log_pi) * (Q - jnp.asarray(temp) * log_pi), axis=1) - V
        visits = first.evaluate(theta).visits
        return visits, delta, first.advantage(theta, Q, V), -second.advantage(phi, second.q(-V), -V)

    def saddle(self, temp: float = 0.0) -> Saddle:
        """The saddle, by minimax policy iteration: π of the matrix games at V, then V of its best response.

        V rises to V* at least as fast as under Shapley's value iteration, whose equation V(s) = val[r + γPV](s) is
        checked at the end. Each matrix game is solved by Newton's method or, at temperature 0, by LP.

        Reference: Hoffman & Karp, *On nonterminating stochastic games*, 1966.
        """
        temp = number("temp", temp, 0)
        V = self.answer(np.zeros(self.P.shape[:2]), temp)[1]
        for _ in range(_IMPROVEMENTS):
            log_pi, log_phi, better = solve_matrix_games(self.mean_R + self.gamma * self.P @ V, temp)
            if np.abs(better - V).max() <= _RESIDUAL * (1 + np.abs(V).max()):
                return Saddle(better, log_pi, log_phi)
            V = self.answer(log_pi, temp)[1]
        raise InputError(
            f"`R` and `P` make a game whose saddle was not found: the Bellman equation is off by "
            f"{np.abs(better - V).max():.2g} after {_IMPROVEMENTS} improvements; scale the rewards to about 1"
        )


# Zero-sum matrix games in batches: with an entropy bonus by Newton's method, without it by LP.


def solve_matrix_games(M: Games, temp: float) -> Saddles:
    """The saddle of max_π min_φ πᵀMφ + τH(π) − τH(φ), where H is the entropy and M[a, b] the reward of π.

    At temperature 0 π and φ come from a basic solution of the linear programme and its dual.
    """
    if temp == 0:
        return _solve_linear(M)
    too_small = InputError(
        f"`temp` = {temp:g} is too small beside rewards of {np.abs(M).max():.3g} to be solved; write 0"
    )
    if np.ptp(M, axis=(1, 2)).max() * _EPS > temp:
        raise too_small
    try:
        log_pi, log_phi, value, gap = _solve_soft(M, temp)
    except np.linalg.LinAlgError:
        raise too_small from None
    if not (gap <= _GAP * (1 + np.abs(M).max(axis=(1, 2)))).all():
        raise too_small
    return log_pi, log_phi, value


def _solve_soft(M: Games, temp: float) -> tuple[*Saddles, Float[np.ndarray, " n"]]:
    """The saddle and its duality gap.

    Minimise f(φ) = τ log Σ exp(Mφ/τ) − τH(φ), which is strictly convex, at temperatures that halve down to τ.
    A Newton step d solves (MᵀCov(π)M/τ + τ/φ)d = −(Mᵀπ + τ log φ) + λ, π = softmax(Mφ/τ). Written for √φ it is well
    conditioned where φ is nearly 0, and log φ + d/φ = −(Mᵀπ + MᵀCov(π)Md/τ)/τ needs no division by φ.
    """
    n, _, b = M.shape
    spread = float(np.ptp(M, axis=(1, 2)).max())
    halvings = max(0, int(np.ceil(np.log2(max(spread, temp) / temp))))
    log_phi = np.full((n, b), -np.log(b))
    for tau in temp * 2.0 ** np.arange(halvings, -1, -1):
        # The gradient of f has an error of its rounding, eps·spread, which τ divides in d.
        least = 8 * _EPS * (1 + spread / tau) if tau == temp else _ROUGH
        for _ in range(_NEWTON):
            log_phi, moved = _newton(M, log_phi, tau)
            if moved <= least:
                break
    log_pi = _answer(M, log_phi, temp)
    upper = _objective(M, log_phi, temp)
    lower = -_objective(-M.swapaxes(1, 2), log_pi, temp)
    return log_pi, log_phi, (upper + lower) / 2, np.abs(upper - lower)


def _answer(M: Games, log_phi: np.ndarray, tau: float) -> np.ndarray:
    """log π of the best answer to φ."""
    return log_softmax(np.einsum("nab,nb->na", M, np.exp(log_phi)) / tau)


def _newton(M: Games, log_phi: np.ndarray, tau: float) -> tuple[np.ndarray, float]:
    """log φ after a step, halved in each game until f falls, and the largest entry of all full steps d."""
    log_pi = _answer(M, log_phi, tau)
    pi, root, (n, b) = np.exp(log_pi), np.exp(log_phi / 2), log_phi.shape
    against = np.einsum("nab,na->nb", M, pi)
    centred = (M - against[:, None, :]) * np.sqrt(pi)[:, :, None]
    curvature = np.einsum("nab,nac->nbc", centred, centred) / tau  # MᵀCov(π)M/τ
    slope = against + tau * log_phi
    system = np.zeros((n, b + 1, b + 1))
    system[:, :b, :b] = root[:, :, None] * curvature * root[:, None, :] + tau * np.eye(b)
    system[:, :b, b] = system[:, b, :b] = root
    right = np.concatenate([-root * slope, np.zeros((n, 1))], axis=1)
    d = root * np.linalg.solve(system, right[:, :, None])[:, :b, 0]
    whole = log_softmax(-(against + np.einsum("nbc,nc->nb", curvature, d)) / tau)
    now, fall = _objective(M, log_phi, tau), np.sum(slope * d, axis=1)
    step, rounding = np.ones(n), 4 * _EPS * (np.abs(M).max(axis=(1, 2)) + tau * np.log(b))
    for _ in range(40):
        new = log_softmax(log_phi + step[:, None] * (whole - log_phi))
        worse = _objective(M, new, tau) > now + 1e-4 * step * fall + rounding
        if not worse.any():
            break
        step = np.where(worse, step / 2, step)
    return np.where(worse[:, None], log_phi, new), float(np.abs(d).max())


def _objective(M: Games, log_phi: np.ndarray, tau: float) -> np.ndarray:
    """f(φ), the most that φ concedes."""
    phi = np.exp(log_phi)
    scores = np.einsum("nab,nb->na", M, phi) / tau
    most = scores.max(axis=1)
    conceded = most + np.log(np.exp(scores - most[:, None]).sum(axis=1))
    return tau * (conceded + np.sum(phi * log_phi, axis=1))


def _solve_linear(M: Games) -> Saddles:
    """Maximise v with Mᵀπ ≥ v, game by game; φ is the dual."""
    from scipy.optimize import linprog  # slow to load

    (n, a, b), floor = M.shape, np.exp(LEAST)
    log_pi, log_phi, values = np.empty((n, a)), np.empty((n, b)), np.empty(n)
    for i, game in enumerate(M):
        found = linprog(
            np.append(np.zeros(a), -1.0),
            A_ub=np.column_stack([-game.T, np.ones(b)]),
            b_ub=np.zeros(b),
            A_eq=np.append(np.ones(a), 0.0)[None, :],
            b_eq=[1.0],
            bounds=[(0, None)] * a + [(None, None)],
        )
        if found.x is None:
            raise InputError(f"`R` makes a matrix game that the linear programme does not solve: {found.message}")
        for log, law in ((log_pi, found.x[:a]), (log_phi, -found.ineqlin.marginals)):
            law = np.maximum(law, 0)
            log[i] = np.log(law / law.sum(), out=np.full(len(law), LEAST), where=law > floor)
        values[i] = found.x[a]
    return log_pi, log_phi, values
