"""Sparse transition tables: lists of successors, read from scipy.sparse, and linear equations of their chains.

A list gives for every state and action at most k successors with their probabilities, P[s, a, k] at
successors[s, a, k], so that a table takes S·A·k numbers instead of S·A·S.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int32

from twoclock.protocols import InputError
from twoclock.validation import check_memory, short_repr
from twoclock.validation.arrays import Array, as_array

Slots = Float[np.ndarray, "s a k"]
Successors = Int32[Array, "s a k"]

DENSE_REMEDY = "give the transitions as sparse ones, Mdp(P=[a scipy.sparse matrix per action], …)"
SMALL = 64  # residuals this many units in the last place of the solution are rounding
LOST = 1e6  # and residuals this many leave the answer unknown
_FILL = 20  # an incomplete factorisation has at most this many times the entries of its matrix
_DROPS = (1e-3, 1e-6)  # what it leaves out, relative to the size of a column; the finer if the coarser stalls
_STALLED = 0.05, 1e-3  # if a round leaves more of the residual, the next preconditioner is tried
_DECADE, _SLOW = 15, 1000  # a digit is slow if it takes more iterations; after this many slow ones A is factorised
_ROUNDS, _EACH = 9, 1e-8  # of refinement, and what each leaves of the residual


def is_sparse(value: object) -> bool:
    """Whether the value is a matrix of scipy.sparse, or a sequence of them."""
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return type(value).__module__.startswith("scipy.sparse")


def read_sparse(P: Any, r: Any, gamma: Any) -> tuple[Slots, np.ndarray, np.ndarray, Int32[np.ndarray, "s a k"]]:
    """Convert sparse matrices P[s, s'], one per action, with rewards and discounts, to lists of successors.

    Rewards are r[s, a] or sparse matrices like P; discounts a number, anything that broadcasts to (s, a, s'), or sparse
    matrices like P. Missing entries of a sparse matrix of rewards or discounts are 0.
    """
    matrices = _matrices("P", P)
    shape = matrices[0].shape
    if shape[0] != shape[1] or any(matrix.shape != shape for matrix in matrices) or not shape[0]:
        raise InputError(
            f"`P` must be square sparse matrices P[s, s'] of one size, one per action, got the shapes "
            f"{', '.join(str(matrix.shape) for matrix in matrices[:3])}"
        )
    states, actions = shape[0], len(matrices)
    width = max(1, max(int(np.diff(matrix.indptr).max()) for matrix in matrices))
    check_memory(
        40 * states * actions * width,
        f"`P` with up to {width} successors of a state and action, in {states} states,",
        "leave out the successors that hardly ever follow",
    )
    table = np.zeros((states, actions, width))
    successors = np.zeros((states, actions, width), np.int32)
    for a, matrix in enumerate(matrices):
        count = np.diff(matrix.indptr)
        rows = np.repeat(np.arange(states), count)
        slots = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], count)
        table[rows, a, slots], successors[rows, a, slots] = matrix.data, matrix.indices
    return table, _entries("r", r, successors), _entries("gamma", gamma, successors), successors


def _matrices(name: str, value: Any) -> list[Any]:
    matrices = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(is_sparse(matrix) for matrix in matrices):
        raise InputError(f"`{name}` must be one scipy.sparse matrix per action, got {short_repr(value)}")
    rows = [matrix.tocsr().copy() for matrix in matrices]
    for matrix in rows:
        matrix.sum_duplicates()
        as_array(name, matrix.data)
    return rows


def _entries(name: str, value: Any, successors: Int32[np.ndarray, "s a k"]) -> np.ndarray:
    """The numbers that belong to each listed transition, where they depend on it."""
    states, actions, _ = successors.shape
    if is_sparse(value):
        matrices = _matrices(name, value)
        if len(matrices) != actions or any(matrix.shape != (states, states) for matrix in matrices):
            raise InputError(f"`{name}` must have one sparse matrix of the shape {(states, states)} per action, as `P`")
        rows = np.arange(states)[:, None]
        return np.stack([np.asarray(m[rows, successors[:, a]].todense()) for a, m in enumerate(matrices)], axis=1)
    table = as_array(name, value)
    if table.ndim < 3 and (name == "r" or table.size == 1):
        return table
    try:
        full = np.broadcast_to(table, (states, actions, states))
    except ValueError:
        raise InputError(
            f"`{name}` must broadcast to (s, a, s'), {(states, actions, states)}, or be sparse as `P`, got the shape "
            f"{table.shape}"
        ) from None
    s, a = np.ogrid[:states, :actions]
    return full[s[:, :, None], a[:, :, None], successors]


def check_successors(value: Any, shape: tuple[int, ...]) -> Int32[np.ndarray, "s a k"]:
    """The numbers of the states that P[s, a, k] lead to."""
    try:
        given = np.asarray(value)
    except (ValueError, TypeError, RecursionError):  # rows of several lengths, lists in lists without end
        raise InputError(f"`successors` must be an array of whole numbers, got {short_repr(value)}") from None
    if given.shape != shape or given.dtype.kind not in "iu":
        raise InputError(
            f"`successors` must be whole numbers with the shape {shape} of `P`, got {given.dtype} of the shape "
            f"{given.shape}; where there are fewer of them repeat one with probability 0"
        )
    if given.size and not 0 <= given.min() <= given.max() < shape[0]:
        wrong = given.min() if given.min() < 0 else given.max()
        raise InputError(f"`successors` must be states from 0 to {shape[0] - 1}, got {wrong}")
    return given.astype(np.int32)


def pair_moves(table: Slots, successors: np.ndarray) -> Any:
    """The moves of a table from each pair (s, a) to the states, as a sparse matrix."""
    from scipy.sparse import csr_array  # slow to load, and seldom needed

    states, actions, width = table.shape
    starts = np.arange(0, table.size + 1, width)
    return csr_array((table.ravel(), successors.ravel(), starts), shape=(states * actions, states))


def sparse_chain(table: Slots, successors: Int32[np.ndarray, "s a k"]) -> Any:
    """The chain Σ over actions and successors of a table, as a sparse matrix."""
    chain = pair_moves(table.reshape(len(table), 1, -1), successors)
    chain.sum_duplicates()
    chain.eliminate_zeros()
    return chain


def identity(n: int) -> Any:
    from scipy.sparse import eye_array  # slow to load, and seldom needed

    return eye_array(n, format="csr")


class SparseEquations:
    """Ax = b for sparse matrices that differ little, each solved from a guess.

    By GMRES and, where that stalls, with an incomplete factorisation of A, which later matrices use as well. A residual
    above rounding error raises an error, so a returned x solves the equation.

    Args:
        what: the unknown, for the error.
    """

    def __init__(self, what: str) -> None:
        self.what, self._slow = what, 0
        self._factors: Any = None
        self._drops, self._drop = list(_DROPS), 0.0

    def solve(
        self,
        matrix: Any,
        right: np.ndarray,
        guess: np.ndarray | None = None,
        accuracy: float = 0.0,
        transposed: bool = False,
    ) -> np.ndarray:
        """x with Ax = b, or with Aᵀx = b.

        Args:
            matrix: A.
            right: b.
            guess: where to start.
            accuracy: the residual that is left may be as large as this fraction of b.
            transposed: whether the equation is that of Aᵀ.
        """
        x, apply = np.zeros(len(right)) if guess is None else guess, matrix.T if transposed else matrix
        eps, top, fresh = np.finfo(float).eps, np.abs(right).max(), False
        # What the constants can correct is taken out first: they are what a chain forgets last.
        mass = (apply @ np.ones(len(right))).sum()
        if mass > eps * len(right):
            x = x + (right - apply @ x).sum() / mass
        while True:
            progress = 0.0
            for _ in range(_ROUNDS):
                left = right - apply @ x
                size = np.abs(left).max()
                if size <= max(SMALL * eps * (np.abs(x).max() + top), accuracy * top):
                    return x
                if progress > _STALLED[self._factors is not None] or (self._factors is None and self._slow > _SLOW):
                    break
                step = self._step(apply, left, transposed, max(_EACH, accuracy / 4))
                progress = np.abs(left - apply @ step).max() / size
                x = x + step if progress < 1 else x
            if fresh and not self._drops:
                break
            self._factor(matrix, fresh or self._factors is None)
            fresh = True
        if size <= LOST * eps * np.abs(x).max():
            return x
        raise InputError(
            f"`mdp` mixes too slowly, or has parts that do not reach each other, for {self.what} of a sparse table; "
            "take a smaller discount or a dense table"
        )

    def _step(self, apply: Any, left: np.ndarray, transposed: bool, accuracy: float) -> np.ndarray:
        from scipy.sparse.linalg import LinearOperator, gmres  # slow to load, and seldom needed

        if self._factors is None:
            taken: list[float] = []
            x, _ = gmres(
                apply, left, rtol=accuracy, restart=30, maxiter=8, callback=taken.append, callback_type="pr_norm"
            )
            self._slow += len(taken) if len(taken) > _DECADE * -math.log10(accuracy) else 0
            return x
        how, factors = "T" if transposed else "N", self._factors
        near = LinearOperator(apply.shape, lambda v: factors.solve(v, how))
        return gmres(apply, left, rtol=accuracy, restart=40, maxiter=4, M=near)[0]

    def _factor(self, matrix: Any, finer: bool) -> None:
        """Factorise this matrix, as finely as the last one or one degree finer."""
        from scipy.sparse.linalg import spilu  # slow to load, and seldom needed

        self._drop = self._drops.pop(0) if finer and self._drops else self._drop
        try:
            self._factors = spilu(matrix.tocsc(), drop_tol=self._drop, fill_factor=_FILL)
        except RuntimeError:  # singular, perhaps only by what was left out
            self._factors = None


def solve_sparse(matrix: Any, right: np.ndarray, what: str) -> np.ndarray:
    """x with Ax = b for one or several columns b."""
    equations = SparseEquations(what)
    if right.ndim == 2:
        return np.column_stack([equations.solve(matrix, column) for column in right.T])
    return equations.solve(matrix, right)


class PolicyEquations:
    """Equations with the state chains P_π of one sparse table, discount included.

    Args:
        table: P[s, a, k], times the discount.
        successors: the states that it leads to.
    """

    def __init__(self, table: Slots, successors: Int32[np.ndarray, "s a k"]) -> None:
        self.table, self.successors = np.asarray(table), np.asarray(successors)
        self._moves = pair_moves(self.table, self.successors)
        self._equations = SparseEquations("the values")

    def ahead(self, V: np.ndarray) -> np.ndarray:
        """PV, the discounted mean of V at the next state, for each pair."""
        return (self._moves @ V).reshape(self.table.shape[:2])

    def potential(
        self, pi: np.ndarray, reward: np.ndarray, guess: np.ndarray | None = None, accuracy: float = 0.0
    ) -> np.ndarray:
        """(I − P_π)⁻¹r.

        Args:
            pi: π[s, a].
            reward: r[s].
            guess: where to start.
            accuracy: the residual that is left may be as large as this fraction of r.
        """
        return self._equations.solve(self._leave(pi), reward, guess, accuracy)

    def visits(
        self, pi: np.ndarray, start: np.ndarray, guess: np.ndarray | None = None, accuracy: float = 0.0
    ) -> np.ndarray:
        """ρ(I − P_π)⁻¹.

        Args:
            pi: π[s, a].
            start: ρ[s].
            guess: where to start.
            accuracy: the residual that is left may be as large as this fraction of ρ.
        """
        return self._equations.solve(self._leave(pi), start, guess, accuracy, transposed=True)

    def _leave(self, pi: np.ndarray) -> Any:
        return identity(len(pi)) - sparse_chain(pi[:, :, None] * self.table, self.successors)
