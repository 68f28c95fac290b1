"""Zero-sum Markov games: a maximiser on the slow clock, a minimiser and a critic on faster ones, and known cases."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import ArrayLike

from twoclock.models.markov_game import First, MarkovGame, Saddle, Second, States
from twoclock.models.soft_mdp import soft_truth
from twoclock.problems.entropy_mdp import check_sampling
from twoclock.protocols import InputError, Key, Problem, Scalar, Schedule, pytree, static
from twoclock.sampling.alias import choose, lookup, numpy_alias_table, unit_point
from twoclock.schedules import Constant, Power, ScheduleLike, as_schedule
from twoclock.tree_math import sqnorm
from twoclock.validation import number, whole
from twoclock.validation.arrays import Array, Number, State, Words, shaped

__all__ = ["MarkovGameProblem", "markov_game", "matrix_game", "pursuit"]

Omega = tuple[Second, States]  # logits of φ, and V
Env = tuple[State | None, State | None]  # the state of the chain, and k if the temperature falls
SAMPLINGS = {"restart": 5, "iid": 4}  # with the random words that a step takes
_LAST = 2**31 - 2  # the step number stops here instead of overflowing


class GameStep(NamedTuple):
    """One sample: the state, both actions, the next state and the reward; τ if it falls."""

    s: State
    a: State
    b: State
    next_state: State
    r: Number
    temp: Number | None


def _row(s: State, values: Float[Array, " n"], like: Float[Array, "s n"]) -> Float[Array, "s n"]:
    """Zeros except in the row of s."""
    return jnp.where(jnp.arange(like.shape[0], dtype=jnp.int32)[:, None] == s, values[None, :], jnp.zeros_like(like))


@pytree
class MarkovGameProblem(Problem):
    """The game as operators on three levels; see `markov_game`."""

    theta0: First
    phi0: Second
    first: UInt32[Array, " s"]
    next: UInt32[Array, "s a b s"]
    temp: Schedule
    limit: Scalar
    game: MarkovGame
    truth: Saddle
    sampling: str = static(default="restart")

    # A sample's derivatives omit that other policies visit other states and actions: on the matrix game Zap ended at
    # exploitabilities of 1.4 to 4 after a million samples.
    instead_of_roots = "steps for each level, tc.Standard(alpha, (beta_minimiser, beta_critic)); see markov_game.md"

    def init(self, key: Key) -> tuple[First, Omega, Env]:
        theta, phi = jnp.asarray(self.theta0), jnp.asarray(self.phi0)
        s = lookup(jnp.asarray(self.first), (), jax.random.bits(key, (), jnp.uint32))
        k = jnp.zeros((), jnp.int32) if self.falls else None
        return theta, (phi, jnp.zeros(len(theta), theta.dtype)), (None if self.sampling == "iid" else s, k)

    @property
    def falls(self) -> bool:
        """Whether the temperature depends on k."""
        return not isinstance(self.temp, Constant)

    def noise(self, key: Key) -> Words:
        """A word of random bits for each choice: both actions, s', a start, and whether to restart."""
        return jax.random.bits(key, (SAMPLINGS[self.sampling],), jnp.uint32)

    def draw(self, u: Words, theta: First, omega: Omega, env: Env) -> tuple[GameStep, Env]:  # type: ignore[override]
        fresh = lookup(jnp.asarray(self.first), (), u[3])
        s, k = fresh if env[0] is None else env[0], env[1]
        a, b = choose(jax.nn.softmax(theta[s]), u[0]), choose(jax.nn.softmax(omega[0][s]), u[1])
        t = lookup(jnp.asarray(self.next), (s, a, b), u[2])
        R = jnp.asarray(self.game.R)
        r = R[s, a, b] if R.ndim == 3 else R[s, a, b, t]
        x = GameStep(s, a, b, t, r, None if k is None else self.temp(k).astype(theta.dtype))
        if env[0] is not None:
            over = unit_point(u[4], theta.dtype) >= jnp.asarray(self.game.gamma, theta.dtype)
            s = jnp.where(over, fresh, t)
        return x, (None if env[0] is None else s, None if k is None else jnp.minimum(k, _LAST) + 1)

    def F(self, theta: First, omega: Omega, x: GameStep) -> First:
        return _row(x.s, -self._scaled_delta(theta, omega, x) * _score(theta[x.s], x.a), theta)

    def G(self, theta: First, omega: Omega, x: GameStep) -> Omega:
        phi, V = omega
        level = _row(x.s, self._scaled_delta(theta, omega, x) * _score(phi[x.s], x.b), phi)
        here = jnp.arange(len(V), dtype=jnp.int32) == x.s
        return level, jnp.where(here, -self._delta(theta, omega, x), jnp.zeros_like(V))

    def _delta(self, theta: First, omega: Omega, x: GameStep) -> Number:
        phi, V = omega
        temp = jnp.asarray(self.limit, V.dtype) if x.temp is None else x.temp
        bonus = temp * (jax.nn.log_softmax(phi[x.s])[x.b] - jax.nn.log_softmax(theta[x.s])[x.a])
        return x.r + bonus + jnp.asarray(self.game.gamma, V.dtype) * V[x.next_state] - V[x.s]

    def _scaled_delta(self, theta: First, omega: Omega, x: GameStep) -> Number:
        return self._delta(theta, omega, x) / (1 - jnp.asarray(self.game.gamma, theta.dtype))

    def h(self, theta: First) -> Number:
        """−min_φ J(π_θ, φ) at the limit of the temperature; by Danskin's theorem φ counts as fixed in ∇h."""
        phi = jax.lax.stop_gradient(self.omega_star(theta)[0])
        return -jnp.sum(self.game.start * self.game.evaluate(theta, phi, self.limit))

    def omega_star(self, theta: First) -> Omega:
        """The minimiser's best response, as log-probabilities, and V of the two."""
        return self.game.answer(theta, self.limit)

    def field(self, theta: First) -> First:
        """The mean of F at ω*(θ): ∇h itself under restarts."""
        return self.mean_F(theta, self.omega_star(theta))

    def mean_F(self, theta: First, omega: Omega) -> First:
        weights, _, advantage, _ = self._means(theta, omega)
        return -weights[:, None] * advantage / (1 - jnp.asarray(self.game.gamma))

    def mean_G(self, theta: First, omega: Omega) -> Omega:
        weights, delta, _, advantage = self._means(theta, omega)
        return weights[:, None] * advantage / (1 - jnp.asarray(self.game.gamma)), -weights * delta

    def _means(self, theta: First, omega: Omega) -> tuple[States, States, First, Second]:
        """The weights of the states in samples, and the means of δ, δ·∇log π and δ·∇log φ in each."""
        visits, *rest = self.game.means(theta, *omega, self.limit)
        return (jnp.asarray(self.game.start) if self.sampling == "iid" else visits / jnp.sum(visits), *rest)

    def knows(self, member: str) -> bool:
        """Exact means are known for a fixed temperature alone."""
        return super().knows(member) and not (self.falls and member in ("mean_F", "mean_G"))

    def measure(self, theta: First, omega: Omega) -> dict[str, Number]:
        (phi, V), game = omega, self.game
        chain = jnp.einsum("sabt,sa->sbt", game.P, jax.nn.softmax(theta))
        answer, _ = soft_truth(game.for_minimiser(theta, self.limit), chain).measure(phi)
        lowest = jnp.sum(game.start * game.answer(theta, self.limit)[1])
        return {
            "gap": jnp.sum(game.start * jnp.asarray(self.truth.V)) - lowest,
            "exploitability": game.exploitability(theta, phi, self.limit),
            "nash_conv": game.exploitability(theta, phi, jnp.zeros((), theta.dtype)),
            "tracking_1": answer["error"],
            "tracking_2": sqnorm(V - game.evaluate(theta, phi, self.limit)),
        }

    def report(self, env: Env) -> dict[str, Number]:
        """The temperature of the last sample, if it falls."""
        return {} if env[1] is None else {"temp": self.temp(jnp.maximum(env[1] - 1, 0))}


def _score(logits: Float[Array, " n"], action: State) -> Float[Array, " n"]:
    """∇log softmax(logits)[action]."""
    chosen = jnp.arange(len(logits), dtype=jnp.int32) == action
    return chosen.astype(logits.dtype) - jax.nn.softmax(logits)


def markov_game(
    P: ArrayLike,
    R: ArrayLike,
    gamma: float,
    temp: ScheduleLike = 0.1,
    start: ArrayLike | None = None,
    sampling: str = "restart",
    *,
    theta0: ArrayLike | None = None,
    phi0: ArrayLike | None = None,
) -> MarkovGameProblem:
    """Learn the saddle of a finite zero-sum Markov game from play, as a maximiser, a minimiser and a critic.

        δ = r − τ log π(a|s) + τ log φ(b|s) + γV(s') − V(s)
        F = −δ·∇log π(a|s)/(1 − γ)                            θ: logits of π, who maximises
        G = (δ·∇log φ(b|s)/(1 − γ), −δ·e_s)                   ω: logits of φ, who minimises, and V

    with a ∼ π, b ∼ φ and s' ∼ P(·|s, a, b). At the solution V is the value of both policies, φ is the best response to
    π, and θ minimises h(θ) = −min_φ J_τ(π_θ, φ). ``tc.Standard(alpha, (beta_1, beta_2))`` has a step size per level.

    Metrics, exact and at the temperature that the run ends with (0 where τ falls to 0): ``gap`` J* − min_φ J(π, φ);
    ``exploitability`` max_π J(π, φ) − min_φ J(π, φ), 0 only at the saddle; ``nash_conv``, the same for the game without
    bonus; ``tracking_1``, the squared distance of φ to its nearest best response, averaged over the states that it
    visits; ``tracking_2`` ‖V − V_{π, φ}‖²; and ``temp``, τ_k, where it falls.

    Args:
        P: transition probabilities P[s, a, b, s']; a matrix game has one state, np.ones((1, a, b, 1)).
        R: rewards of the maximiser, R[s, a, b] or R[s, a, b, s'].
        gamma: the discount, in [0, 1).
        temp: the temperature τ: a number; or, for one that falls, a `Power` or its text, "0.5/(k+100)^0.33", perhaps
            with a floor. The sample contains τ_k.
        start: the distribution ρ of the first state, or the number of one state; uniform by default.
        sampling: "restart" plays on from s' with probability γ and from a fresh start otherwise, so that states have
            the discounted visitation distribution and the means are exact gradients of J; "iid" draws every s from
            ``start``, which must then have every state. This weighs the states differently, with the same zeros.
        theta0, phi0: the start of the logits; 0, the uniform policies, by default.

    >>> import numpy as np, twoclock as tc
    >>> problem = tc.problems.markov_game(np.ones((1, 2, 2, 1)), [[[3.0, -1.0], [-1.0, 1.0]]], gamma=0.0, temp=0.5)
    >>> result = tc.solve(problem, tc.Standard("20/(k+400)", ("40/(k+400)", "100/(k+400)")), steps=20_000, seeds=4)
    >>> bool(result.summary("exploitability")["mean"].iloc[-1] < 0.05)
    True

    Reference: Zeng, Doan & Romberg, *Regularized gradient descent ascent for two-player zero-sum Markov games*, 2022.
    """
    game = MarkovGame(P, R, gamma, start)
    check_sampling(sampling, SAMPLINGS, game.start)
    schedule = as_schedule(temp, "temp")
    if isinstance(schedule, Power) and schedule.p == 0:
        schedule = Constant(float(schedule(0)))
    if not isinstance(schedule, (Constant, Power)):
        raise InputError(
            f"`temp` must be a number or a `Power`, whose limit is known, got {schedule}; try Power(0.5, 1/3)"
        )
    limit = number("temp", schedule.c if isinstance(schedule, Constant) else schedule.floor, 0)
    theta, phi = (
        np.zeros(shape) if given is None else shaped(name, given, shape, which=" (states, actions)")
        for name, given, shape in (("theta0", theta0, game.shapes["theta"]), ("phi0", phi0, game.shapes["phi"]))
    )
    first, after = numpy_alias_table(game.start), numpy_alias_table(game.P)
    truth = game.saddle(limit)
    return MarkovGameProblem(theta, phi, first, after, schedule, np.float64(limit), game, truth, sampling)


def matrix_game(temp: float | str = "0.1", sampling: str = "iid") -> MarkovGameProblem:
    """The matrix game [[3, −1], [−1, 1]]. At temperature 0 its value is 1/3, and both play the first with probability
    1/3.

    Args:
        temp: the temperature, or its schedule as text.
        sampling: as for ``markov_game``; with one state both are the same.

    >>> import jax
    >>> matrix_game().init(jax.random.key(0))[0].shape  # logits of one state and two actions
    (1, 2)
    """
    return markov_game(np.ones((1, 2, 2, 1)), [[[3.0, -1.0], [-1.0, 1.0]]], 0.0, temp, sampling=sampling)


def pursuit(
    size: int = 3, slip: float = 0.2, gamma: float = 0.9, temp: float | str = "0.1", sampling: str = "restart"
) -> MarkovGameProblem:
    """Pursuit on a grid: both move at once, up, down, left, right or not at all, and a catch earns the pursuer 1.

    The evader is caught where both meet or change places; then both restart in two different cells, all such pairs
    equally likely, as they do at the start. A move into a wall stays, and one of the evader's fails with probability
    ``slip``; on 3×3 cells and more an evader that never slips is never caught. Neither may be predictable, so both mix.

    Args:
        size: cells along each side of the square, 2 or more; there are size²(size² − 1) states.
        slip: the probability that the evader's move fails, in [0, 1).
        gamma: the discount.
        temp: the temperature, or its schedule as text.
        sampling: as for ``markov_game``.

    >>> import jax
    >>> pursuit(size=2).init(jax.random.key(0))[0].shape
    (12, 5)
    """
    cells = whole("size", size, 2, 5) ** 2
    pairs = [(p, e) for p in range(cells) for e in range(cells) if p != e]
    number_of = {pair: s for s, pair in enumerate(pairs)}
    moves = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))

    def move(cell: int, step: tuple[int, int]) -> int:
        row, column = np.clip(np.add(divmod(cell, size), step), 0, size - 1)
        return int(row * size + column)

    slip, n = number("slip", slip, 0, 1, below=True), len(pairs)
    P, R = np.zeros((n, 5, 5, n)), np.zeros((n, 5, 5))
    for s, a, b in np.ndindex(n, 5, 5):
        p, e = pairs[s]
        for chance, step in ((1 - slip, moves[b]), (slip, moves[0])):
            at = move(p, moves[a]), move(e, step)
            if at[0] == at[1] or at == (e, p):
                P[s, a, b] += chance / n
                R[s, a, b] += chance
            else:
                P[s, a, b, number_of[at]] += chance
    return markov_game(P, R, gamma, temp, sampling=sampling)
