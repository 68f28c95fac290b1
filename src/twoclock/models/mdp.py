"""Finite Markov decision processes, what is known of them exactly, and those of Gymnasium's toy-text environments."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from twoclock.models.average_reward import AverageReward
from twoclock.models.soft_mdp import LEAST, SoftMdp
from twoclock.protocols import InputError, Scalar, pytree
from twoclock.validation import number, short_repr
from twoclock.validation.arrays import as_array, check_distribution, check_distributions

Policy = Float[np.ndarray, "s a"]
States = Float[np.ndarray, " s"]
Chain = Float[np.ndarray, "s s"]


@pytree
class Mdp:
    """A finite Markov decision process.

    An episode ends with a transition of discount 0: P says where the next one begins, γ that nothing of it counts.

    Args:
        P: transition probabilities P[s, a, s'].
        r: rewards r[s, a] or r[s, a, s'].
        gamma: the discount, a number or an array that broadcasts to P, in [0, 1].

    >>> import numpy as np
    >>> walk = Mdp(P=np.array([[[0.0, 1.0]], [[1.0, 0.0]]]), r=[[1.0], [0.0]], gamma=0.5)
    >>> walk.values(np.ones((2, 1))).round(4).tolist()
    [1.3333, 0.6667]
    """

    P: Annotated[Any, Float[np.ndarray, "s a s"]]
    r: Annotated[Any, Float[np.ndarray, "s a"] | Float[np.ndarray, "s a s"]]
    gamma: Annotated[Any, Float[np.ndarray, "*shape"]]

    def __post_init__(self) -> None:
        P, r, gamma = (as_array(name, getattr(self, name)) for name in ("P", "r", "gamma"))
        if P.ndim != 3 or P.shape[0] != P.shape[2] or 0 in P.shape:
            raise InputError(f"`P` must have the shape (states, actions, states), got {P.shape}; index it P[s, a, s']")
        P = check_distributions("P", P, "P[s, a]")
        if r.shape not in (P.shape[:2], P.shape):
            raise InputError(f"`r` must have the shape {P.shape[:2]} or {P.shape} to go with `P`, got {r.shape}")
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

    def policy(self, policy: ArrayLike, name: str = "policy") -> Policy:
        """The policy as an array π[s, a]; an error names the wrong row."""
        return check_distributions(name, self._pairs(name, policy), f"{name}[s]")

    def chain(self, policy: Policy) -> Chain:
        """The state chain under a policy, P_π[s, s'] = Σ_a π(a|s) P(s'|s, a)."""
        return np.einsum("sa,sat->st", self._pairs("policy", policy), self.P)

    def discounted_chain(self, policy: Policy) -> Chain:
        """The chain with the discount in it, Σ_a π(a|s) P(s'|s, a) γ(s, a, s')."""
        return np.einsum("sa,sat->st", self._pairs("policy", policy), self.P * self.gamma)

    def reward(self, policy: Policy) -> States:
        """The expected reward of a step, r_π[s]."""
        r = self.r if self.r.ndim == 2 else np.einsum("sat,sat->sa", self.P, self.r)
        return np.einsum("sa,sa->s", self._pairs("policy", policy), r)

    def stationary(self, policy: ArrayLike) -> States:
        """The stationary law of the state chain under a policy: the share of time that the chain spends in each state.

        By elimination without subtraction, so that periodic and nearly decomposable chains come out to full precision.
        A chain with several recurrent classes has no single such law and is refused.

        Reference: Grassmann, Taksar & Heyman, *Regenerative analysis and steady state distributions*, 1985.
        """
        chain = self.chain(self.policy(policy))
        classes = recurrent_classes(chain)
        if len(classes) > 1:
            a, b = classes[0][0], classes[1][0]
            raise InputError(
                f"the chain under `policy` has {len(classes)} recurrent classes (states {a} and {b} never meet), so it "
                "has no single stationary law; give `weights` or a policy that visits every state"
            )
        P = chain[np.ix_(classes[0], classes[0])]
        for k in range(len(P) - 1, 0, -1):
            P[:k, k] /= P[k, :k].sum()
            P[:k, :k] += np.outer(P[:k, k], P[k, :k])
        share = np.ones(len(P))
        for k in range(1, len(P)):
            share[k] = share[:k] @ P[:k, k]
        law = np.zeros(self.states)
        law[classes[0]] = share / share.sum()
        return law

    def values(self, policy: ArrayLike) -> States:
        """The value of a policy, V = (I − (γP)_π)⁻¹ r_π."""
        pi = self.policy(policy)
        self._check_end(pi, " under `policy`")
        return np.linalg.solve(np.eye(self.states) - self.discounted_chain(pi), self.reward(pi))

    def start_law(self, start: ArrayLike | None = None) -> States:
        """The law ρ of the first state as an array: uniform where none is given, all on one state for its number."""
        return read_start(start, self.states)

    @property
    def over(self) -> Bool[np.ndarray, " s"]:
        """The states where an episode is over: no action earns anything, there or later."""
        seen = self.P > 0
        earns = (seen & (self.r != 0) if self.r.ndim == 3 else (self.r != 0)[:, :, None]).any(axis=(1, 2))
        stays = np.eye(self.states, dtype=bool)[:, None, :]
        goes_on = (seen & ~stays & (self.gamma > 0)).any(axis=(1, 2))
        return ~(earns | goes_on)

    def soft(self, temp: Scalar, start: ArrayLike | None = None) -> SoftMdp:
        """This MDP with the bonus −temp·log π(a|s) on every reward, for its exact answers in jnp.

        A state where the episode is over offers no choice and earns no bonus.
        """
        tau = np.where(self.over, 0.0, number("temp", temp, 0))
        r = self.r if self.r.ndim == 2 else np.einsum("sat,sat->sa", self.P, self.r)
        return SoftMdp(self.P * self.gamma, r, tau, self.start_law(start))

    def soft_values(self, temp: Scalar, policy: ArrayLike | None = None) -> States:
        """V_τ of a policy or, where none is given, the best there is: V*(s) = τ log Σ_a exp(Q*(s, a)/τ).

        >>> import numpy as np
        >>> bandit = Mdp(P=np.ones((1, 2, 1)), r=[[1.0, 0.0]], gamma=0.5)
        >>> [float(bandit.soft_values(temp)[0].round(4)) for temp in (0, 1)]
        [2.0, 2.6265]
        """
        return self.soft(temp).solve()[1] if policy is None else self.soft(temp).evaluate(self._logits(policy)).V

    def soft_policy(self, temp: Scalar) -> Policy:
        """The optimal soft policy π*(a|s) = exp((Q* − V*)/τ); at temperature 0 even among the best actions."""
        return np.exp(self.soft(temp).solve()[0])

    def soft_return(self, policy: ArrayLike, temp: Scalar, start: ArrayLike | None = None) -> float:
        """J_τ = Σ_s ρ(s)V_τ(s) of a policy."""
        return float(self.soft(temp, start).J(self._logits(policy)))

    def soft_gradient(self, logits: ArrayLike, temp: Scalar, start: ArrayLike | None = None) -> Policy:
        """∂J_τ/∂θ(s, a) of π = softmax θ at θ = logits."""
        return self.soft(temp, start).gradient(self._pairs("logits", logits))

    def average_reward(self, temp: Scalar = 0.0) -> AverageReward:
        """The long-run reward of a step, with the bonus −temp·log π(a|s), for its exact answers in jnp.

        The discount plays no part: where an episode ends the next one begins, at P's s'.
        """
        classes = recurrent_classes(self.chain(np.full((self.states, self.actions), 1 / self.actions)))
        if len(classes[0]) < self.states:
            lost = min(set(range(self.states)) - set(classes[0].tolist()))
            raise InputError(
                f"`mdp` must let every state reach every other, or the average reward depends on the start: state "
                f"{lost} cannot be reached from state {classes[0][0]}; leave such states out of the table"
            )
        r = self.r if self.r.ndim == 2 else np.einsum("sat,sat->sa", self.P, self.r)
        tau = np.full(self.states, number("temp", temp, 0))
        return AverageReward(SoftMdp(self.P, r, tau, self.start_law()))

    def gain(self, policy: ArrayLike) -> float:
        """The average reward of a policy, Σ_s μ(s)r_π(s) with μ its stationary law."""
        return float(self.stationary(policy) @ self.reward(self.policy(policy)))

    def visitation(self, policy: ArrayLike, start: ArrayLike | None = None) -> States:
        """The discounted visitation law d = η/Ση, η = ρ(I − (γP)_π)⁻¹: where episodes are that go on with chance γ."""
        visits = self.soft(0.0, start).evaluate(self._logits(policy)).visits
        return visits / visits.sum()

    def _pairs(self, name: str, value: ArrayLike) -> Policy:
        pairs, shape = as_array(name, value), (self.states, self.actions)
        if pairs.shape != shape:
            raise InputError(f"`{name}` must have the shape {shape} (states, actions), got {pairs.shape}")
        return pairs

    def _logits(self, policy: ArrayLike) -> Policy:
        pi = self.policy(policy)
        self._check_end(pi, " under `policy`")
        return np.log(pi, out=np.full_like(pi, LEAST), where=pi > 0)

    def _check_end(self, policy: Policy, where: str) -> None:
        """Every state must reach some transition that is discounted, or returns add up for ever."""
        mass = policy[:, :, None] * self.P
        ends = ((mass > 0) & (self.gamma < 1)).any(axis=(1, 2))
        step = (mass > 0).any(axis=1)
        reach = ends
        while (wider := reach | (step & reach).any(axis=1)).sum() > reach.sum():
            reach = wider
        if not reach.all():
            raise InputError(
                f"`gamma` is 1 and no end is in reach from state {int(np.argmin(reach))}{where}; take gamma < 1, or "
                "an array with 0 on the transitions that end an episode"
            )


def check_mdp(mdp: object) -> Mdp:
    if not isinstance(mdp, Mdp):
        raise InputError(f"`mdp` must be a `tc.models.Mdp(P, r, gamma)`, got {type(mdp).__name__}")
    return mdp


def read_start(start: ArrayLike | None, states: int) -> States:
    """The law of the first state: uniform where none is given, all on one state for its number."""
    if start is None:
        return np.full(states, 1 / states)
    if isinstance(start, (int, np.integer)) and not isinstance(start, bool):
        if not 0 <= start < states:
            raise InputError(
                f"`start` must be a state from 0 to {states - 1} or a law over them, got {short_repr(start)}"
            )
        return np.eye(states)[start]
    return check_distribution("start", start, states, "leave it out for the uniform law")


def read_policies(
    mdp: object, target: ArrayLike, behaviour: ArrayLike | None, weights: ArrayLike | None, sampling: str
) -> tuple[Policy, Policy, States]:
    """Check what is evaluated, π, b and the state weights D: those given, or the behaviour's stationary law."""
    mdp = check_mdp(mdp)
    pi = mdp.policy(target, "target")
    b = pi if behaviour is None else mdp.policy(behaviour, "behaviour")
    if weights is None:
        return pi, b, mdp.stationary(b)
    if sampling == "markov":
        raise InputError("`weights` are for sampling 'iid': a chain has its own stationary law; leave them out")
    remedy = "leave them out for the behaviour's stationary law"
    return pi, b, check_distribution("weights", weights, mdp.states, remedy)


def read_features(name: str, features: ArrayLike, *leading: int) -> Float[np.ndarray, "... d"]:
    """Check features, an array with one vector per state, or per state and action."""
    table = as_array(name, features)
    if table.ndim != len(leading) + 1 or table.shape[:-1] != leading or not table.size:
        what = "states" if len(leading) == 1 else "states and actions"
        wanted = " × ".join(map(str, leading))
        raise InputError(f"`{name}` must have one vector for each of the {wanted} {what}, got the shape {table.shape}")
    if not table.any():
        raise InputError(f"`{name}` must not all be zero: all parameters would give the same; try np.eye(states)")
    return table


def recurrent_classes(chain: Chain) -> list[Int[np.ndarray, " states"]]:
    """The closed communicating classes of a chain, each as an array of states."""
    from scipy.sparse import csr_matrix  # slow to load, and seldom needed
    from scipy.sparse.csgraph import connected_components

    count, label = connected_components(csr_matrix(chain > 0, dtype=np.int8), directed=True, connection="strong")
    s, t = np.nonzero(chain)
    left = set(label[s][label[s] != label[t]].tolist())
    return [np.flatnonzero(label == c) for c in range(count) if c not in left]


def from_gymnasium(env: object, gamma: float = 0.95, **options: Any) -> tuple[Mdp, Float[np.ndarray, " s"]]:
    """The MDP of an environment that publishes its table ``env.unwrapped.P``, and the law of its first state.

    FrozenLake, Taxi and CliffWalking do. A transition that ends an episode has discount 0, and the state it leads to
    is an end: it earns nothing, and the next episode begins after it. A limit on the number of steps is no part of the
    table, and is left out.

    Args:
        env: the environment, or its name for ``gymnasium.make``.
        gamma: the discount of the transitions that go on, in [0, 1].
        options: for ``gymnasium.make``.

    >>> class Coin:  # anything with such a table will do
    ...     P = {0: {0: [(0.5, 0, 0.0, False), (0.5, 1, 1.0, True)]}, 1: {0: [(1.0, 1, 0.0, True)]}}
    ...     initial_state_distrib = [1.0, 0.0]
    >>> mdp, start = from_gymnasium(Coin(), gamma=0.5)
    >>> mdp.soft_values(temp=0).round(4).tolist()
    [0.6667, 0.0]
    """
    if isinstance(env, str):
        name = env
        try:
            import gymnasium
        except ImportError:
            raise InputError(f"`{name}` needs Gymnasium, which is not installed; try `pip install gymnasium`") from None
        try:
            env = gymnasium.make(name, **options)
        except gymnasium.error.Error as error:
            raise InputError(f"`env` must be a name that Gymnasium knows: {' '.join(str(error).split())}") from None
    table, start = (getattr(getattr(env, "unwrapped", env), name, None) for name in ("P", "initial_state_distrib"))
    if table is None or start is None:
        raise InputError(
            f"`env` must have a table `unwrapped.P` and an `initial_state_distrib`, as Gymnasium's toy-text "
            f"environments have, got {type(env).__name__}; for others give `Mdp(P, r, gamma)`"
        )
    gamma = number("gamma", gamma, 0, 1)
    rho = as_array("env.initial_state_distrib", start)
    states, actions = len(table), len(table[0])
    P, earned, ended = (np.zeros((states, actions, states)) for _ in range(3))
    for s, row in table.items():
        for a, outcomes in row.items():
            for p, t, reward, done in outcomes:
                P[s, a, t] += p
                earned[s, a, t] += p * reward
                ended[s, a, t] += p * done
    ends = np.any(ended > 0, axis=(0, 1))
    # Whether entering a state ends the episode must not depend on where one comes from, among what can be reached.
    reach, going_on = rho > 0, np.any(P - ended > 1e-12, axis=1)
    while (wider := reach | going_on[reach].any(axis=0)).sum() > reach.sum():
        reach = wider
    both = ends & going_on[reach].any(axis=0)
    if both.any():
        raise InputError(
            f"`env` ends some episodes in state {int(np.argmax(both))} and continues others there; a finite MDP needs "
            "a separate terminal state: add one to the table"
        )
    r = np.divide(earned, P, out=np.zeros_like(P), where=P > 0)
    discount = np.where(ended > 0, 0.0, gamma)
    P[ends], r[ends], discount[ends] = rho, 0.0, 0.0
    return Mdp(P, r, discount), rho
