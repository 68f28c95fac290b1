"""Finite Markov decision processes, dense or sparse, and their exact answers."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float, Int32
from numpy.typing import ArrayLike

from twoclock.models.average_reward import AverageReward
from twoclock.models.soft_mdp import LEAST, SoftMdp
from twoclock.models.state_chain import Chain, recurrent_classes, stationary_law
from twoclock.models.successors import (
    DENSE_REMEDY,
    check_successors,
    identity,
    is_sparse,
    read_sparse,
    solve_sparse,
    sparse_chain,
)
from twoclock.protocols import InputError, Scalar, pytree
from twoclock.validation import check_memory, number, short_repr
from twoclock.validation.arrays import as_array, check_distribution, check_distributions, shaped

Policy = Float[np.ndarray, "s a"]
States = Float[np.ndarray, " s"]


@pytree
class Mdp:
    """A finite Markov decision process.

    An episode ends with a transition of discount 0: P says where the next one begins, and γ = 0 that it does not count.

    Args:
        P: transition probabilities P[s, a, s']; or one scipy.sparse matrix P[s, s'] per action; or those of the listed
            successors, P[s, a, k].
        r: rewards r[s, a], or one per transition, in the format of P.
        gamma: the discount, a number or an array that broadcasts to P, in [0, 1]; with scipy.sparse also matrices.
        successors: the states that P[s, a, k] lead to, where P is a list of successors; shorter lists are padded with
            any state at probability 0.

    A sparse table is exact too: its linear equations are solved by iteration, until the residual is at rounding error.

    >>> import numpy as np, scipy.sparse as sp
    >>> walk = Mdp(P=np.array([[[0.0, 1.0]], [[1.0, 0.0]]]), r=[[1.0], [0.0]], gamma=0.5)
    >>> walk.values(np.ones((2, 1))).round(4).tolist()
    [1.3333, 0.6667]
    >>> sparse = Mdp(P=[sp.csr_array([[0.0, 1.0], [1.0, 0.0]])], r=[[1.0], [0.0]], gamma=0.5)
    >>> sparse.values(np.ones((2, 1))).round(4).tolist()
    [1.3333, 0.6667]
    """

    P: Annotated[Any, Float[np.ndarray, "s a k"]]
    r: Annotated[Any, Float[np.ndarray, "s a"] | Float[np.ndarray, "s a k"]]
    gamma: Annotated[Any, Float[np.ndarray, "*shape"]]
    successors: Annotated[Any, Int32[np.ndarray, "s a k"]] | None = None

    def __post_init__(self) -> None:
        if is_sparse(self.P):
            if self.successors is not None:
                raise InputError("`successors` go with an array `P[s, a, k]`, not with sparse matrices; leave them out")
            for name, value in zip(
                ("P", "r", "gamma", "successors"), read_sparse(self.P, self.r, self.gamma), strict=True
            ):
                object.__setattr__(self, name, value)
        if isinstance(self.P, np.ndarray):
            check_memory(16 * self.P.size, f"`P` of {self.P.size} numbers", DENSE_REMEDY)
        P, r, gamma = (as_array(name, getattr(self, name)) for name in ("P", "r", "gamma"))
        listed = self.successors is not None
        if P.ndim != 3 or 0 in P.shape or (P.shape[0] != P.shape[2] and not listed):
            wanted = "(states, actions, successors)" if listed else "(states, actions, states)"
            raise InputError(
                f"`P` must have the shape {wanted}, got {P.shape}; index it P[s, a, {'k' if listed else 's' + chr(39)}]"
            )
        P = check_distributions("P", P, "P[s, a]")
        if listed:
            object.__setattr__(self, "successors", check_successors(self.successors, P.shape))
        r = shaped("r", r, P.shape[:2], P.shape, which=" to go with `P`")
        try:
            np.broadcast_to(gamma, P.shape)
        except ValueError:
            raise InputError(
                f"`gamma` must be a number or broadcast to P's shape {P.shape}, got the shape {gamma.shape}"
            ) from None
        if not ((gamma >= 0) & (gamma <= 1)).all():
            worst = gamma[~((gamma >= 0) & (gamma <= 1))].flat[0]
            raise InputError(f"`gamma` must lie in [0, 1], got {worst:g}; write 0 where an episode ends")
        for name, value in (("P", P), ("r", r), ("gamma", gamma)):
            object.__setattr__(self, name, value)
        self._check_end(np.ones(P.shape[:2]) / P.shape[1], "")

    @property
    def states(self) -> int:
        """The number of states."""
        return int(self.P.shape[0])

    @property
    def actions(self) -> int:
        """The number of actions."""
        return int(self.P.shape[1])

    @property
    def mean_reward(self) -> Policy:
        """The expected reward of each pair, r[s, a]."""
        return self.r if self.r.ndim == 2 else np.einsum("sat,sat->sa", self.P, self.r)

    def dense(self, what: str) -> Mdp:
        """The same MDP with the dense table P[s, a, s']; an error if it does not fit in memory."""
        if self.successors is None:
            return self
        shape = self.states, self.actions, self.states
        check_memory(6 * 8 * math.prod(shape), f"{what} needs the dense table P[s, a, s'], which", "take fewer states")
        s, a = np.ogrid[: self.states, : self.actions]
        at = s[:, :, None], a[:, :, None], self.successors
        P, r, gamma = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        np.add.at(P, at, self.P)
        np.add.at(r, at, self.P * (self.r if self.r.ndim == 3 else self.r[:, :, None]))
        np.add.at(gamma, at, self.P * self.gamma)
        mean = [np.divide(table, P, out=np.zeros(shape), where=P > 0) for table in (r, gamma)]
        return Mdp(P, *mean)

    def policy(self, policy: ArrayLike, name: str = "policy") -> Policy:
        """The policy as an array π[s, a]; an error names the wrong row.

        Args:
            policy: π[s, a].
            name: its name in the error.
        """
        return check_distributions(name, self._pairs(name, policy), f"{name}[s]")

    def chain(self, policy: Policy) -> Chain:
        """The state chain under a policy, P_π[s, s'] = Σ_a π(a|s) P(s'|s, a)."""
        return self._mix(policy, self.P)

    def discounted_chain(self, policy: Policy) -> Chain:
        """The chain with the discount in it, Σ_a π(a|s) P(s'|s, a) γ(s, a, s')."""
        return self._mix(policy, self.P * self.gamma)

    def _mix(self, policy: Policy, table: Float[np.ndarray, "s a k"]) -> Chain:
        pi = self._pairs("policy", policy)
        if self.successors is None:
            return np.einsum("sa,sat->st", pi, table)
        return sparse_chain(pi[:, :, None] * table, self.successors)

    def reward(self, policy: Policy) -> States:
        """The expected reward of a step, r_π[s]."""
        return np.einsum("sa,sa->s", self._pairs("policy", policy), self.mean_reward)

    def stationary(self, policy: ArrayLike) -> States:
        """The stationary distribution of the state chain under a policy: the share of time in each state.

        By elimination without subtraction, so that periodic and nearly decomposable chains have full precision;
        by iteration where the table is sparse, which solves μP = μ to rounding. A chain with several recurrent classes
        has no unique one and is refused.

        Reference: Grassmann, Taksar & Heyman, *Regenerative analysis and steady state distributions*, 1985.
        """
        return stationary_law(self.chain(self.policy(policy)))

    def values(self, policy: ArrayLike) -> States:
        """The value of a policy, V = (I − (γP)_π)⁻¹ r_π."""
        pi = self.policy(policy)
        self._check_end(pi, " under `policy`")
        chain, reward = self.discounted_chain(pi), self.reward(pi)
        if self.successors is not None:
            return solve_sparse(identity(self.states) - chain, reward, "the values")
        return np.linalg.solve(np.eye(self.states) - chain, reward)

    def start_law(self, start: ArrayLike | None = None) -> States:
        """The distribution ρ of the first state as an array: uniform if none is given, concentrated on a given
        state."""
        return read_start(start, self.states)

    @property
    def over(self) -> Bool[np.ndarray, " s"]:
        """The states where an episode is over: no reward follows, there or later."""
        seen = self.P > 0
        earns = (seen & (self.r != 0) if self.r.ndim == 3 else (self.r != 0)[:, :, None]).any(axis=(1, 2))
        ahead = np.arange(self.states)[None, None, :] if self.successors is None else self.successors
        moves = ahead != np.arange(self.states)[:, None, None]
        goes_on = (seen & moves & (self.gamma > 0)).any(axis=(1, 2))
        return ~(earns | goes_on)

    def soft(self, temp: Scalar, start: ArrayLike | None = None) -> SoftMdp:
        """This MDP with the bonus −temp·log π(a|s) on every reward, for its exact answers in jnp.

        A state where the episode is over has no choice and no bonus.

        Args:
            temp: the temperature τ.
            start: the distribution ρ of the first state, or a state; uniform by default.
        """
        tau = np.where(self.over, 0.0, number("temp", temp, 0))
        return SoftMdp(self.P * self.gamma, self.mean_reward, tau, self.start_law(start), self.successors)

    def soft_values(self, temp: Scalar, policy: ArrayLike | None = None) -> States:
        """V_τ of a policy or, if none is given, the optimum: V*(s) = τ log Σ_a exp(Q*(s, a)/τ).

        Args:
            temp: the temperature τ.
            policy: π[s, a]; None for the optimum.

        >>> import numpy as np
        >>> bandit = Mdp(P=np.ones((1, 2, 1)), r=[[1.0, 0.0]], gamma=0.5)
        >>> [float(bandit.soft_values(temp)[0].round(4)) for temp in (0, 1)]
        [2.0, 2.6265]
        """
        soft = self.soft(temp)
        return np.asarray(soft.solve()[1] if policy is None else soft.evaluate(self._logits(policy)).V)

    def soft_policy(self, temp: Scalar) -> Policy:
        """The optimal soft policy π*(a|s) = exp((Q* − V*)/τ); at temperature 0 even among the best actions."""
        return np.exp(self.soft(temp).solve()[0])

    def soft_return(self, policy: ArrayLike, temp: Scalar, start: ArrayLike | None = None) -> float:
        """J_τ = Σ_s ρ(s)V_τ(s) of a policy.

        Args:
            policy: π[s, a].
            temp: the temperature τ.
            start: the distribution ρ of the first state, or a state; uniform by default.
        """
        return float(self.soft(temp, start).J(self._logits(policy)))

    def soft_gradient(self, logits: ArrayLike, temp: Scalar, start: ArrayLike | None = None) -> Policy:
        """∂J_τ/∂θ(s, a) of π = softmax θ at θ = logits.

        Args:
            logits: θ(s, a).
            temp: the temperature τ.
            start: the distribution ρ of the first state, or a state; uniform by default.
        """
        return self.soft(temp, start).gradient(self._pairs("logits", logits))

    def average_reward(self, temp: Scalar = 0.0) -> AverageReward:
        """The long-run reward of a step, with the bonus −temp·log π(a|s), for its exact answers in jnp.

        The discount is ignored: where an episode ends the next one begins, at the s' of P.
        """
        classes = recurrent_classes(self.chain(np.full((self.states, self.actions), 1 / self.actions)))
        if len(classes[0]) < self.states:
            lost = min(set(range(self.states)) - set(classes[0].tolist()))
            raise InputError(
                f"`mdp` must let every state reach every other, or the average reward depends on the start: state "
                f"{lost} cannot be reached from state {classes[0][0]}; leave such states out of the table"
            )
        tau = np.full(self.states, number("temp", temp, 0))
        return AverageReward(SoftMdp(self.P, self.mean_reward, tau, self.start_law(), self.successors))

    def gain(self, policy: ArrayLike) -> float:
        """The average reward of a policy, Σ_s μ(s)r_π(s) with μ its stationary distribution."""
        return float(self.stationary(policy) @ self.reward(self.policy(policy)))

    def visitation(self, policy: ArrayLike, start: ArrayLike | None = None) -> States:
        """The discounted visitation distribution d = η/Ση, η = ρ(I − (γP)_π)⁻¹: of episodes that continue with
        probability γ.

        Args:
            policy: π[s, a].
            start: the distribution ρ of the first state, or a state; uniform by default.
        """
        visits = np.asarray(self.soft(0.0, start).evaluate(self._logits(policy)).visits)
        return visits / visits.sum()

    def _pairs(self, name: str, value: ArrayLike) -> Policy:
        return shaped(name, value, (self.states, self.actions), which=" (states, actions)")

    def _logits(self, policy: ArrayLike) -> Policy:
        pi = self.policy(policy)
        self._check_end(pi, " under `policy`")
        return np.log(pi, out=np.full_like(pi, LEAST), where=pi > 0)

    def _check_end(self, policy: Policy, where: str) -> None:
        """Require that every state reaches some discounted transition; else returns are infinite."""
        mass = policy[:, :, None] * self.P
        ends = ((mass > 0) & (self.gamma < 1)).any(axis=(1, 2))
        reach = ends if ends.all() else ends | self._leads_to(ends, policy)
        if not reach.all():
            raise InputError(
                f"`gamma` is 1 and no end is in reach from state {int(np.argmin(reach))}{where}; take gamma < 1, or "
                "an array with 0 on the transitions that end an episode"
            )

    def _leads_to(self, goal: Bool[np.ndarray, " s"], policy: Policy) -> Bool[np.ndarray, " s"]:
        """The states from which the policy reaches the goal, by a backward search from an extra state behind it."""
        from scipy.sparse import coo_array  # slow to load, and seldom needed
        from scipy.sparse.csgraph import breadth_first_order

        s, t = self.chain(policy).nonzero()
        last = np.flatnonzero(goal)
        rows, columns = np.append(t, np.full(len(last), self.states)), np.append(s, last)
        back = coo_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(self.states + 1,) * 2)
        found = np.zeros(self.states + 1, bool)
        found[breadth_first_order(back.tocsr(), self.states, return_predecessors=False)] = True
        return found[:-1]


def check_mdp(mdp: object) -> Mdp:
    if not isinstance(mdp, Mdp):
        raise InputError(f"`mdp` must be a `tc.models.Mdp(P, r, gamma)`, got {type(mdp).__name__}")
    return mdp


def read_start(start: ArrayLike | None, states: int) -> States:
    """The distribution of the first state: uniform if none is given, concentrated on a given state."""
    if start is None:
        return np.full(states, 1 / states)
    if isinstance(start, (int, np.integer)) and not isinstance(start, bool):
        if not 0 <= start < states:
            raise InputError(
                f"`start` must be a state from 0 to {states - 1} or a distribution over them, got {short_repr(start)}"
            )
        return (np.arange(states) == start).astype(float)
    return check_distribution("start", start, states, "leave it out for the uniform distribution")


def read_policies(
    mdp: object, target: ArrayLike, behaviour: ArrayLike | None, weights: ArrayLike | None, sampling: str
) -> tuple[Policy, Policy, States]:
    """Check π, b and the state weights D: the given ones, or the behaviour's stationary distribution."""
    mdp = check_mdp(mdp)
    pi = mdp.policy(target, "target")
    b = pi if behaviour is None else mdp.policy(behaviour, "behaviour")
    if weights is None:
        return pi, b, mdp.stationary(b)
    if sampling == "markov":
        raise InputError(
            "`weights` are for sampling 'iid': a chain has its own stationary distribution; leave them out"
        )
    remedy = "leave them out for the behaviour's stationary distribution"
    return pi, b, check_distribution("weights", weights, mdp.states, remedy)


def read_features(name: str, features: Any, *leading: int) -> Float[np.ndarray, "... d"]:
    """Check features, an array or a sparse matrix with one vector per state, or an array with one per pair."""
    if is_sparse(features):
        check_memory(24 * math.prod(features.shape), f"`{name}` as a dense table", "take fewer features")
        features = features.toarray()
    table = as_array(name, features)
    if table.ndim != len(leading) + 1 or table.shape[:-1] != leading or not table.size:
        what = "states" if len(leading) == 1 else "states and actions"
        wanted = " × ".join(map(str, leading))
        raise InputError(f"`{name}` must have one vector for each of the {wanted} {what}, got the shape {table.shape}")
    if not table.any():
        raise InputError(f"`{name}` must not all be zero: all parameters would give the same; try np.eye(states)")
    return table


def check_dense(mdp: Mdp) -> None:
    """Raise an error where a dense table, its copies and the factors of its chains do not fit in memory."""
    if mdp.successors is None:
        needed = 8 * mdp.states**2 * (6 * mdp.actions + 3)
        check_memory(needed, f"`mdp`: a dense table of {mdp.states} states and {mdp.actions} actions", DENSE_REMEDY)
