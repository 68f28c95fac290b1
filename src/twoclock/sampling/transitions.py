"""Transitions of an MDP under a behaviour policy, drawn at a cost that does not grow with the number of states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32

from twoclock.models.mdp import Mdp
from twoclock.models.successors import Successors
from twoclock.protocols import InputError, Key, PyTree, Scalar, pytree, static
from twoclock.sampling.alias import lookup, numpy_alias_table
from twoclock.validation.arrays import Array, Number, State, Words


class Transition(NamedTuple):
    """One sample: the states s and s', the importance ratio ρ = π(a|s)/b(a|s), the reward and the discount."""

    s: PyTree  # the number of a state, or the input of a value function
    next_state: PyTree
    rho: Scalar
    r: Scalar
    gamma: PyTree  # one number, or None if the sampler has a constant one

    @classmethod
    def read(cls, sample: object) -> Transition:
        """Read the transition that a dict, or any object, with these names holds."""
        if isinstance(sample, cls):
            return sample
        known = {name: read_name(sample, name) for name in cls._fields}
        if missing := [name for name, value in known.items() if value is None]:
            raise InputError(
                f"`x` must be a sample with {', '.join(cls._fields)}, by name or as a dict; it has no {missing[0]}"
            )
        return cls(**known)


def read_name(sample: object, name: str) -> PyTree:
    """What a dict, or any object, holds under a name; None if it has no such name."""
    return sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)


@pytree
class Transitions:
    """Alias tables for s ∼ D, a ∼ b(·|s), s' ∼ P(·|s, a), with rewards and discounts.

    ``r`` and ``gamma`` have the axes (s, a, s'), each of length 1 if they do not depend on it. With ``successors`` the
    last axis, also of the table ``next``, is the position in their list. With reward noise, ``reward_noise`` times a
    draw of Student's t with ``nu`` degrees of freedom is added to r.
    """

    start: UInt32[Array, " s"]
    action: UInt32[Array, "s a"]
    next: UInt32[Array, "s a k"]
    rho: Float[Array, "s a"]
    r: Float[Array, "#s #a #k"]
    gamma: Float[Array, "#s #a #k"]
    markov: bool = static(default=False)
    reward_noise: Scalar | None = None
    nu: Scalar | None = None
    successors: Successors | None = None

    def noise(self, key: Key) -> Words:
        """One word of random bits per choice: a, s', s (unless a chain says it), and two for the reward's noise."""
        words = (2 if self.markov else 3) + (0 if self.reward_noise is None else 2)
        return jax.random.bits(key, (words,), jnp.uint32)

    def first(self, key: Key) -> State | None:
        """The chain's first state, or None where samples are independent."""
        return lookup(jnp.asarray(self.start), (), jax.random.bits(key, (), jnp.uint32)) if self.markov else None

    def draw(self, u: Words, env: PyTree) -> tuple[Transition, PyTree]:
        """The transition from the random words, and the next state of the chain."""
        s = env if self.markov else lookup(jnp.asarray(self.start), (), u[2])
        a = lookup(jnp.asarray(self.action), (s,), u[0])
        k = lookup(jnp.asarray(self.next), (s, a), u[1])
        t = next_state(self.successors, s, a, k)
        gamma = None if self.gamma.size == 1 else entry(self.gamma, s, a, k)
        r = entry(self.r, s, a, k)
        if self.reward_noise is not None and self.nu is not None:
            r = r + jnp.asarray(self.reward_noise, r.dtype) * student(u[-2], u[-1], jnp.asarray(self.nu, r.dtype))
        return Transition(s, t, jnp.asarray(self.rho)[s, a], r, gamma), t if self.markov else env

    def discount(self, x: Transition) -> Scalar:
        """The discount of a sample."""
        return jnp.asarray(self.gamma).reshape(()) if x.gamma is None else x.gamma


def student(radius: UInt32[Array, "*shape"], angle: UInt32[Array, "*shape"], nu: Number) -> Float[jax.Array, "*shape"]:
    """Student's t with ν degrees of freedom from two words of random bits: √(ν(U^(−2/ν) − 1))·cos 2πV.

    Reference: Bailey, *Polar generation of random variates with the t-distribution*, 1994.
    """
    U, V = ((word.astype(nu.dtype) + 0.5) / 2**32 for word in (radius, angle))
    return jnp.sqrt(nu * (U ** (-2 / nu) - 1)) * jnp.cos(2 * jnp.pi * V)


def transitions(
    mdp: Mdp,
    target: Float[np.ndarray, "s a"],
    behaviour: Float[np.ndarray, "s a"],
    weights: Float[np.ndarray, " s"],
    sampling: str,
) -> Transitions:
    """The sampler of an MDP: independent draws with s from the state weights, or one chain under the behaviour."""
    uncovered = np.argwhere((target > 0) & (behaviour == 0))
    if len(uncovered):
        s, a = map(int, uncovered[0])
        raise InputError(
            f"`behaviour` must take every action that `target` takes: in state {s} it never takes action {a}, which "
            f"the target takes with probability {target[s, a]:g}"
        )
    rho = np.divide(target, behaviour, out=np.zeros_like(target), where=behaviour > 0)
    r = mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None]
    gamma = mdp.gamma.reshape((1,) * (3 - mdp.gamma.ndim) + mdp.gamma.shape)
    start, action, after = map(numpy_alias_table, (weights, behaviour, mdp.P))
    return Transitions(start, action, after, rho, r, gamma, sampling == "markov", successors=mdp.successors)


def next_state(successors: Successors | None, s: State, a: State, k: State) -> State:
    """The state at position k among the successors of a pair; k itself if all states are listed."""
    return k if successors is None else jnp.asarray(successors)[s, a, k]


def entry(table: Float[Array, "#s #a #k"], s: State, a: State, k: State) -> Number:
    """The entry of a table with axes (s, a, s'), some of length 1, for a transition."""
    index = tuple(i if n > 1 else 0 for n, i in zip(table.shape, (s, a, k), strict=True))
    return jnp.asarray(table)[index]
