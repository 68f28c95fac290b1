"""Stationary distributions of finite chains: recurrent classes, elimination for dense chains, iteration for sparse
ones."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Int

from twoclock.models.successors import identity, solve_sparse
from twoclock.protocols import InputError

Chain = Annotated[Any, Float[np.ndarray, "s s"]]  # or a sparse matrix of scipy, where the MDP is sparse

_BLOCK = 64  # states that are eliminated together
_POLISH = 20  # steps of the lazy chain after the solve


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
