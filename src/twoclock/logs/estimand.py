"""What is evaluated: a policy on a log, with features and a discount; and the maps over the log's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Batch, Log
from twoclock.logs.features.protocol import Crossed, Features, Matrix
from twoclock.logs.policies import Policy

T = TypeVar("T")
_MOST_PRODUCTS = 256  # actions × columns
Mapper = Callable[[Callable[..., Any], tuple[Any, ...], range], Iterator[Any]]
"""``mapper(function, arguments, parts)`` gives ``function(*arguments, part)`` for each of the parts, in their order."""


@dataclass(frozen=True, eq=False)
class Target:
    """A policy to evaluate.

    Units are what is taken as independent: episodes, or in one long stream rows, of which blocks are made.

    Attributes:
        groups: contiguous groups of units whose sums are kept apart, for resampling and cross-fitting.
        clusters: contiguous groups of units whose scores are kept apart, for the standard error.
        stream: units are rows.
        start: φ̄₀ where it is given; else it is the mean over the first states of the episodes.
        visited: the value is the mean over all logged states, not over the first of each episode.
    """

    log: Log
    policy: Policy
    features: Features
    gamma: float
    groups: int
    clusters: int
    stream: bool = False
    start: Float[np.ndarray, " d"] | None = None
    visited: bool = False

    @property
    def units(self) -> int:
        return self.log.length if self.stream else self.log.episodes

    def group(self, batch: Batch) -> np.ndarray:
        return (batch.row if self.stream else batch.episode) * self.groups // self.units

    def cluster(self, batch: Batch) -> np.ndarray:
        return (batch.row if self.stream else batch.episode) * self.clusters // self.units

    def begins(self, batch: Batch) -> np.ndarray:
        """The rows whose states the value is a mean over."""
        if self.start is not None:
            return np.zeros(len(batch), bool)
        return np.ones(len(batch), bool) if self.visited else batch.first

    def rows(self, batch: Batch) -> tuple[Matrix, Matrix]:
        """φ(s, a) and φ̄'(s') = (1 − terminated) Σ_a' π(a'|s')φ(s', a')."""
        nodes, there = batch.nodes()
        encoded = self.features.encode(nodes)
        phi = self.features.pairs(encoded[: len(batch)], batch.action)
        after = self.features.mean(encoded[there], self.policy.acts(batch.next_state, (*batch.number, 0)))
        goes_on = 1.0 - batch.terminated
        if isinstance(after, np.ndarray):
            after *= goes_on[:, None]
            return phi, after
        return phi, after.multiply(goes_on[:, None]).tocsr()

    def products(self, batch: Batch, theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """φᵀθ, φ̄'ᵀθ and φᵀx of each row, for the columns of θ and x."""
        features, m = self.features, theta.shape[1]
        if not isinstance(features, Crossed) or features.actions * m > _MOST_PRODUCTS:
            phi, after = self.rows(batch)
            return phi @ theta, after @ theta, phi @ x
        nodes, there = batch.nodes()
        each = features.dots(features.encode(nodes), np.hstack([theta, x]))
        here = each[np.arange(len(batch)), batch.action]
        law = self.policy.acts(batch.next_state, (*batch.number, 0)).law * (1.0 - batch.terminated)[:, None]
        return here[:, :m], np.einsum("na,nam->nm", law, each[there, :, :m]), here[:, m:]

    def starts(self, batch: Batch) -> Matrix:
        """φ̄₀ of the starts in the batch."""
        states = batch.state[self.begins(batch)]
        return self.features.mean(self.features.encode(states), self.policy.acts(states, (*batch.number, 1)))

    def at(self, states: np.ndarray) -> Float[np.ndarray, "n d"]:
        """φ̄(s) of some states, dense."""
        found = self.features.mean(self.features.encode(states), self.policy.acts(states, (2**31, 0)))
        return found if isinstance(found, np.ndarray) else found.toarray()


def runs(labels: np.ndarray) -> np.ndarray:
    """Where each run of equal labels begins."""
    return np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]])) if len(labels) else np.zeros(0, int)
