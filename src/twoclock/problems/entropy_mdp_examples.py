"""Entropy-regularised MDPs by name: a forest, a frozen lake, and random ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.models.mdp import Mdp
from twoclock.models.soft_mdp import SoftMdp, soft_truth
from twoclock.problems.entropy_mdp import SAMPLINGS, EntropyMdp, entropy_mdp
from twoclock.protocols import InputError, Key
from twoclock.sampling.alias import alias_table
from twoclock.validation import check_key, check_size, choice, flag, number, short_repr, whole

__all__ = ["forest", "frozen_lake", "random_entropy_mdp"]

_LAKES = {
    4: ("SFFF", "FHFH", "FFFH", "HFFG"),
    8: ("SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"),
}


def forest(temp: float = 0.1, gamma: float = 0.9, sampling: str = "restart") -> EntropyMdp:
    """Forest management: wait for an old forest that a fire may burn, or cut it now.

    Three ages. Waiting earns 4 in the oldest and a fire sets it back with probability 0.1; cutting earns 0, 1 or 2.

    Reference: Chadès et al., *MDPtoolbox*, 2014.
    """
    P = np.zeros((3, 2, 3))
    P[:, 0] = [[0.1, 0.9, 0.0], [0.1, 0.0, 0.9], [0.1, 0.0, 0.9]]
    P[:, 1, 0] = 1
    return entropy_mdp(Mdp(P, [[0.0, 0.0], [0.0, 1.0], [4.0, 2.0]], gamma), temp, sampling=sampling)


def frozen_lake(
    temp: float = 0.01, size: int = 4, gamma: float = 0.95, slippery: bool = True, sampling: str = "restart"
) -> EntropyMdp:
    """Gymnasium's FrozenLake on its 4×4 or 8×8 map: reach the goal over slippery ice, past the holes.

    Left, down, right and up; on slippery ice a step goes where it aims, or to either side of it, a third of the time
    each. Episodes end in a hole or at the goal, which alone earns 1; there is no limit on the number of steps.

    Reference: Towers et al., *Gymnasium*, 2024; the table is the same as ``from_gymnasium`` reads there.
    """
    if not isinstance(size, int) or size not in _LAKES:
        raise InputError(f"`size` must be 4 or 8, the maps that Gymnasium names, got {short_repr(size)}")
    gamma, slippery = number("gamma", gamma, 0, 1), flag("slippery", slippery)
    letters = "".join(_LAKES[size])
    P, r = np.zeros((size**2, 4, size**2)), np.zeros((size**2, 4, size**2))
    discount = np.full(P.shape, gamma)
    for s, a in np.ndindex(size**2, 4):
        for turn in (-1, 0, 1) if slippery else (0,):
            down, right = ((0, -1), (1, 0), (0, 1), (-1, 0))[(a + turn) % 4]
            row, col = (min(max(at + by, 0), size - 1) for at, by in ((s // size, down), (s % size, right)))
            t = row * size + col
            P[s, a, t] += 1 / 3 if slippery else 1
            r[s, a, t], discount[s, a, t] = letters[t] == "G", 0 if letters[t] in "GH" else gamma
    ends = [s for s, letter in enumerate(letters) if letter in "GH"]
    P[ends], r[ends], discount[ends] = np.eye(size**2)[0], 0, 0
    return entropy_mdp(Mdp(P, r, discount), temp, 0, sampling)


def random_entropy_mdp(
    key: Key, states: int = 10, actions: int = 4, gamma: float = 0.9, temp: float = 0.1, sampling: str = "restart"
) -> EntropyMdp:
    """A random MDP: P(·|s, a) ∝ Unif(0, 1)ˢ, r ~ Unif(0, 1), and a uniform start.

    Args:
        key: draws the instance; a solver that gets this function hands each seed its own.
        states, actions: the sizes |S| and |A|.
        gamma: the discount, in [0, 1).
        temp, sampling: as for ``entropy_mdp``.

    >>> import jax
    >>> from functools import partial
    >>> draw = partial(random_entropy_mdp, states=5, actions=3)
    >>> jax.eval_shape(draw, jax.random.key(0)).truth.pi_star.shape  # to have numbers, call jax.jit(draw)
    (5, 3)
    """
    states, actions = whole("states", states), whole("actions", actions)
    check_size("`states`, `actions`", 3 * states * states * actions)
    number("gamma", gamma, 0, 1, below=True, remedy="a random MDP has no end")
    choice("sampling", sampling, SAMPLINGS)
    check_key(key)
    key_P, key_r = jax.random.split(key)
    P = jax.random.uniform(key_P, (states, actions, states))
    P = P / P.sum(axis=-1, keepdims=True)
    r = jax.random.uniform(key_r, (states, actions))
    start, tau = jnp.full(states, 1 / states), jnp.full(states, number("temp", temp, 0))
    return EntropyMdp(
        theta0=jnp.zeros((states, actions)),
        temp=tau,
        start=alias_table(start),
        next=alias_table(P),
        r=r[:, :, None],
        gamma=jnp.full((1, 1, 1), gamma),
        scale=jnp.asarray(1 / (1 - gamma)),
        truth=soft_truth(SoftMdp(gamma * P, r, tau, start), P),
        sampling=sampling,
    )
