"""State chains of a policy, dense or sparse: linear equations in jnp, and stationary distributions in NumPy.

A dense chain is solved by elimination, a sparse one by iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from twoclock.models.successors import LOST, SMALL, Successors, identity, solve_sparse
from twoclock.protocols import InputError, pytree
from twoclock.validation.arrays import Array

Map = Callable[[jax.Array], jax.Array]
Refined = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # x, b − Ax, its previous size, and the number of rounds
States = Float[Array, " s"]
Pairs = Float[Array, "s a"]
Chain = Annotated[Any, Float[np.ndarray, "s s"]]  # or a sparse matrix of scipy, where the MDP is sparse

_ROUNDS, _ITERATIONS = 60, 100  # of refinement, and of BiCGSTAB in each
_BLOCK = 64  # states that are eliminated together
_POLISH = 20  # steps of the lazy chain after the solve


@pytree
class StateChain:
    """The state chain of a policy, a matrix or weights of successors, and equations with it.

    Args:
        weights: P_π[s, s'], or π(a|s)P(s'|s, a) of the listed successors.
        successors: the states that the weights lead to; None for a matrix.
    """

    weights: Float[Array, "s s"] | Float[Array, "s a k"]
    successors: Successors | None = None

    @classmethod
    def of_policy(cls, pi: jax.Array, P: Float[Array, "s a k"], successors: Successors | None) -> StateChain:
        if successors is None:
            return cls(jnp.einsum("sa,sat->st", pi, P))
        return cls(pi[:, :, None] * jnp.asarray(P), successors)

    def __matmul__(self, values: Float[Array, "s ..."]) -> Float[jax.Array, "s ..."]:
        """P_πv for one function of the states, or one in each column."""
        if self.successors is None:
            return jnp.asarray(self.weights) @ values
        if values.ndim == 2:
            return jax.lax.map(self.__matmul__, values.T).T
        return jnp.sum(ahead(self.weights, self.successors, values), axis=1)

    def potential(self, reward: States) -> States:
        """(I − P_π)⁻¹r of a chain with a discount in it."""
        return solve_krylov(lambda v: v - self @ v, lambda d: d - self._flow(d), reward, largest)

    def visits(self, start: States) -> States:
        """ρ(I − P_π)⁻¹ of a chain with a discount in it."""
        return solve_krylov(lambda d: d - self._flow(d), lambda v: v - self @ v, start, total)

    def bias(self, reward: States) -> States:
        """(I − P_π + 11ᵀ/n)⁻¹r: the bias of a chain without a discount, and its gain on top of every entry."""
        return solve_krylov(self._deflated, self._deflated_flow, reward, largest)

    def law(self) -> States:
        """The stationary distribution of a chain without a discount, given by successors."""
        n = self.weights.shape[0]
        return solve_krylov(self._deflated_flow, self._deflated, jnp.full(n, 1 / n, self.weights.dtype), total)

    def _flow(self, d: jax.Array) -> jax.Array:
        assert self.successors is not None
        return flow(self.weights, self.successors, d)

    def _deflated(self, v: jax.Array) -> jax.Array:
        return v - self @ v + jnp.mean(v)

    def _deflated_flow(self, d: jax.Array) -> jax.Array:
        return d - self._flow(d) + jnp.mean(d)


def largest(v: jax.Array) -> jax.Array:
    """The norm in which P_π is a contraction."""
    return jnp.max(jnp.abs(v))


def total(d: jax.Array) -> jax.Array:
    """The norm in which the transposed P_π is a contraction."""
    return jnp.sum(jnp.abs(d))


def ahead(table: Float[Array, "s a k"], successors: Int[Array, "s a k"], v: States) -> Float[jax.Array, "s a"]:
    """Σ_k table[s, a, k]·v(s'), the expectation of v at the next state."""
    return jnp.sum(jnp.asarray(table) * jnp.asarray(v)[jnp.asarray(successors)], axis=2)


def flow(table: Float[Array, "s a k"], successors: Int[Array, "s a k"], d: States) -> Float[jax.Array, " s"]:
    """Σ_{s, a} d(s)·table[s, a, k] gathered at s': the distribution d of the states after a step."""
    mass = jnp.asarray(table) * d[:, None, None]
    return jnp.zeros(d.shape, d.dtype).at[jnp.asarray(successors).reshape(-1)].add(mass.reshape(-1))


def solve_krylov(matvec: Map, transposed: Map, right: States, size: Map) -> jax.Array:
    """x with Ax = b in jnp, by refined BiCGSTAB; NaN if it does not converge. Derivatives solve with Aᵀ and A.

    ``size`` is the norm in which I − A is a contraction, and the transposed equation uses the other of the two norms.
    """

    def solve(apply: Map, b: jax.Array, size: Map) -> jax.Array:
        eps = jnp.finfo(b.dtype).eps

        def more(carry: Refined) -> jax.Array:
            x, left, before, i = carry
            rough = size(left) > SMALL * eps * (size(x) + size(b))
            # BiCGSTAB may stall, but the sweep below is a contraction: without progress the residual is at rounding
            # error.
            return rough & (i < _ROUNDS) & (size(left) < before)

        def refine(carry: Refined) -> Refined:
            x, left, _, i = carry
            step, _ = jax.scipy.sparse.linalg.bicgstab(apply, left, tol=1e-6, maxiter=_ITERATIONS)
            x = jnp.where(size(left - apply(step)) < size(left), x + step, x)
            x = x + (b - apply(x))
            return x, b - apply(x), size(left), i + 1

        begin = jnp.zeros_like(b), b, size(b) + jnp.inf, jnp.int32(0)
        x, left, _, _ = jax.lax.while_loop(more, refine, begin)
        return jnp.where(size(left) <= LOST * eps * (size(x) + size(b)), x, jnp.nan)

    other = total if size is largest else largest
    answer: jax.Array = jax.lax.custom_linear_solve(
        matvec, jnp.asarray(right), lambda apply, b: solve(apply, b, size), lambda _, b: solve(transposed, b, other)
    )
    return answer


def stationary_law(chain: Chain) -> Float[np.ndarray, " s"]:
    """The share of time that a chain spends in each state; see ``Mdp.stationary``."""
    classes = recurrent_classes(chain)
    if len(classes) > 1:
        a, b = classes[0][0], classes[1][0]
        raise InputError(
            f"the chain under `policy` has {len(classes)} recurrent classes (states {a} and {b} never meet), so it "
            "has no single stationary distribution; give `weights` or a policy that visits every state"
        )
    inside, law = classes[0], np.zeros(chain.shape[0])
    share = _eliminate(chain[np.ix_(inside, inside)]) if isinstance(chain, np.ndarray) else _iterate(chain, inside)
    law[inside] = share / share.sum()
    return law


def recurrent_classes(chain: Chain) -> list[Int[np.ndarray, " states"]]:
    """The closed communicating classes of a chain, each as an array of states."""
    from scipy.sparse import csr_matrix  # slow to load, and seldom needed
    from scipy.sparse.csgraph import connected_components

    count, label = connected_components(csr_matrix(chain > 0, dtype=np.int8), directed=True, connection="strong")
    s, t = chain.nonzero()
    left = set(label[s][label[s] != label[t]].tolist())
    return [np.flatnonzero(label == c) for c in range(count) if c not in left]


def solve_poisson(chain: Chain, law: Float[np.ndarray, " s"], drift: Float[np.ndarray, "s d"]) -> np.ndarray:
    """(I − P + 1dᵀ)⁻¹m of a sparse chain for m with mean 0 under its stationary distribution d, in each column."""
    centred = drift - law @ drift
    # With the first value fixed at 0 the equation is sparse; a constant is added so that dᵀx = dᵀm.
    rest = solve_sparse(identity(len(law) - 1) - chain[1:, 1:], centred[1:], "the Poisson equation")
    x = np.vstack([np.zeros((1, drift.shape[1])), rest])
    return x - law @ x + law @ drift


def _eliminate(P: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """The stationary weights of one recurrent class up to a factor, its states eliminated in blocks from the last."""
    for end in range(len(P), 1, -_BLOCK):
        first = max(end - _BLOCK, 1)
        for k in range(end - 1, first - 1, -1):
            P[:k, k] /= P[k, :k].sum()
            P[first:k, :k] += np.outer(P[first:k, k], P[k, :k])
            P[:first, first:k] += np.outer(P[:first, k], P[k, first:k])
        P[:first, :first] += P[:first, first:end] @ P[first:end, :first]
    share = np.ones(len(P))
    for k in range(1, len(P)):
        share[k] = share[:k] @ P[:k, k]
    return share


def _iterate(chain: Chain, inside: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The stationary weights of a recurrent class up to a factor: the flow into all but one state, whose share is 1."""
    if len(inside) == 1:
        return np.ones(1)
    within = chain[inside][:, inside].T.tocsr()
    rest = solve_sparse(
        identity(len(inside) - 1) - within[1:, 1:], within[1:, [0]].toarray()[:, 0], "the stationary distribution"
    )
    law = np.maximum(np.append(1.0, rest), 0.0)
    law /= law.sum()
    # The solve leaves the first state's share least certain; the lazy chain forgets such an error as fast as it mixes.
    for _ in range(_POLISH):
        law = (law + within @ law) / 2
    return law
