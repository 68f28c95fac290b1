"""The tables of Gymnasium's toy-text environments as Markov decision processes."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from twoclock.models.mdp import Mdp
from twoclock.protocols import InputError
from twoclock.validation import number
from twoclock.validation.arrays import as_array


def from_gymnasium(env: object, gamma: float = 0.95, **options: Any) -> tuple[Mdp, Float[np.ndarray, " s"]]:
    """The MDP of an environment that publishes its table ``env.unwrapped.P``, and the distribution of its first state.

    FrozenLake, Taxi and CliffWalking do. A transition that ends an episode has discount 0, and the state it leads to
    is an end: it earns nothing, and the next episode begins after it. A limit on the number of steps is not part of the
    table and is ignored.

    Args:
        env: the environment, or its name for ``gymnasium.make``.
        gamma: the discount of transitions that do not terminate, in [0, 1].
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
    # Whether a reachable state ends the episode must not depend on the state before it.
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
