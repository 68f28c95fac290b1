"""Policies to evaluate: a table, a function, a Gaussian."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.logs.dataset import Log, encode_labels
from twoclock.logs.row_checks import Label
from twoclock.protocols import InputError
from twoclock.validation import choice, function, seed_number, short_repr, whole
from twoclock.validation.arrays import as_array, check_distributions, matrix

_NODES, _SAMPLES = 9, 16
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Actions:
    """What a policy would do in each of n states.

    Attributes:
        law: the probability of each discrete action [n, actions], or the weight of each node [n, nodes].
        nodes: continuous actions [n, nodes, k] that stand for the policy; None where actions are discrete.
    """

    law: Float[np.ndarray, "n m"]
    nodes: Float[np.ndarray, "n m k"] | None = None


@runtime_checkable
class Policy(Protocol):
    """What a policy does in a batch of states, and how likely it is to do what was done."""

    def acts(self, state: np.ndarray, number: tuple[int, ...]) -> Actions:
        """``number`` says which batch it is, so that what is drawn at random is the same each time."""

    def density(self, state: np.ndarray, action: np.ndarray) -> Float[np.ndarray, " n"]:
        """π(a|s) of the actions of a log."""


@dataclass(frozen=True, eq=False)
class Discrete:
    """Probabilities of discrete actions, by a function of a batch of states."""

    name: str
    actions: tuple[Label, ...]
    function: Callable[[np.ndarray], ArrayLike]

    def acts(self, state: np.ndarray, number: tuple[int, ...]) -> Actions:
        return Actions(self.law(state))

    def law(self, state: np.ndarray) -> Float[np.ndarray, "n a"]:
        given = call_on_batch(self.name, lambda state: np.asarray(self.function(state)), state)
        n, k = len(state), len(self.actions)
        if given.shape == (n, k) and given.dtype.kind in "iufb" and not (k == 1 and n == 1 and given.dtype.kind == "i"):
            rows = as_array(self.name, given)
            wrong = (rows < -1e-9).any(axis=1) | (np.abs(rows.sum(axis=1) - 1) > 1e-4)
            if wrong.any():
                at = int(np.argmax(wrong))
                raise InputError(
                    f"`{self.name}` must give probabilities that sum to 1, got {short_repr(rows[at].tolist())} for the "
                    f"state {short_repr(np.asarray(state[at]).tolist())}"
                )
            clipped = np.maximum(rows, 0.0)
            return clipped / clipped.sum(axis=1, keepdims=True)
        if given.shape == (n,):
            chosen = encode_labels(given, self.actions)
            if (chosen < 0).any():
                raise InputError(
                    f"`{self.name}` must choose among the actions {short_repr(list(self.actions))}, got "
                    f"{short_repr(given[int(np.argmax(chosen < 0))].item())}; "
                    "name all actions with `read(…, actions=[…])`"
                )
            return np.eye(k)[chosen]
        raise InputError(
            f"`{self.name}` must give {k} probabilities a state, the shape {(n, k)}, or one action a state, the shape "
            f"{(n,)}; got the shape {given.shape}"
        )

    def density(self, state: np.ndarray, action: np.ndarray) -> Float[np.ndarray, " n"]:
        return np.take_along_axis(self.law(state), action[:, None], axis=1)[:, 0]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A Gaussian policy of continuous actions, a ~ N(mean(s), covariance).

    Means over its actions are by Gauss–Hermite quadrature for one or two actions, else by samples; the error of the
    samples is part of the interval, because each transition draws its own.

    Args:
        mean: a function of a batch of states that gives one action (or one row of actions) each.
        covariance: a number for one action, or a matrix.
        method: "auto", "quadrature" or "samples".
        samples: how many per state.
        seed: of the samples.
    """

    mean: Callable[[np.ndarray], ArrayLike]
    covariance: Any
    method: str = "auto"
    samples: int = _SAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        choice("method", self.method, ("auto", "quadrature", "samples"))
        object.__setattr__(self, "samples", whole("samples", self.samples, 1, 100_000))
        function("mean", self.mean, "states")
        Sigma = matrix("covariance", np.atleast_2d(as_array("covariance", self.covariance, "a number or a matrix")))
        if Sigma.shape[0] != Sigma.shape[1] or not np.allclose(Sigma, Sigma.T) or np.linalg.eigvalsh(Sigma)[0] <= 0:
            raise InputError(
                "`covariance` must be symmetric and positive definite; for no noise take a small one, 1e-6"
            )
        seed_number("seed", self.seed)
        object.__setattr__(self, "covariance", Sigma)

    def acts(self, state: np.ndarray, number: tuple[int, ...]) -> Actions:
        centre, root = self._mean(state), np.linalg.cholesky(self.covariance)
        k = len(root)
        if self.method == "quadrature" or (self.method == "auto" and k <= 2):
            z, weight = np.polynomial.hermite_e.hermegauss(_NODES)
            grid = np.stack(np.meshgrid(*[z] * k, indexing="ij"), -1).reshape(-1, k)
            weights = np.prod(np.stack(np.meshgrid(*[weight / weight.sum()] * k, indexing="ij"), -1).reshape(-1, k), 1)
            steps = np.broadcast_to(grid @ root.T, (len(centre), len(grid), k))
            law = np.broadcast_to(weights, (len(centre), len(grid)))
        else:
            rng = np.random.default_rng([self.seed, *number])
            steps = rng.standard_normal((len(centre), self.samples, k)) @ root.T
            law = np.full(steps.shape[:2], 1 / self.samples)
        return Actions(law, centre[:, None, :] + steps)

    def density(self, state: np.ndarray, action: np.ndarray) -> Float[np.ndarray, " n"]:
        off = (action.reshape(len(state), -1) - self._mean(state)).T
        off = np.linalg.solve(np.linalg.cholesky(self.covariance), off)
        k = len(off)
        return np.exp(-0.5 * (off**2).sum(axis=0)) / np.sqrt((2 * np.pi) ** k * np.linalg.det(self.covariance))

    def _mean(self, state: np.ndarray) -> Float[np.ndarray, "n k"]:
        given = as_array("policy.mean", call_on_batch("policy.mean", self.mean, state))
        n, k = len(state), len(self.covariance)
        if given.shape != (n, k) and not (k == 1 and given.shape == (n,)):
            raise InputError(
                f"`mean` must give {k} numbers a state to go with `covariance`, the shape {(n, k)}, got {given.shape}"
            )
        return given.reshape(n, k)


def call_on_batch(name: str, function: Callable[..., T], *batch: np.ndarray) -> T:
    """Call a user's function on a batch; what it raises becomes one line."""
    try:
        return function(*batch)
    except InputError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        shapes = " and ".join(str(part.shape) for part in batch)
        raise InputError(
            f"`{name}` fails on a batch of shape {shapes}, {why:.150}; it must take a whole batch of states at once"
        ) from error


def as_policies(given: object, log: Log) -> dict[str, Policy]:
    """Return the policies by name; one alone is called "policy"."""
    named = given if isinstance(given, Mapping) else {"policy": given}
    if not named:
        raise InputError("`policy` must name at least one policy, got an empty mapping")
    names = [str(name) for name in named]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"`policy` has two policies named {short_repr(name)}; rename one")
        if not name.isprintable() or name[:1] in "=+-@":  # a terminal or a spreadsheet would obey it
            raise InputError(
                f"`policy` must have names that can be printed and do not begin with =, +, - or @, got {name!r:.60}"
            )
    return {name: as_policy(name, entry, log) for name, entry in zip(names, named.values(), strict=True)}


def as_policy(name: str, given: object, log: Log) -> Policy:
    """Return what a user calls a policy as one, for the actions of the log."""
    if isinstance(given, Policy):
        if (log.actions is None) != isinstance(given, Gaussian):
            raise InputError(
                f"`{name}` is for {'discrete' if log.actions is None else 'continuous'} actions, the log's are not"
            )
        return given
    if log.actions is None:
        raise InputError(
            f"`{name}` must be a `tc.logs.Gaussian(mean, covariance)` where actions are continuous; if the floats "
            "stand for discrete actions, name them with `read(…, actions=[…])`"
        )
    if callable(given):
        return Discrete(name, log.actions, given)
    return _table_policy(name, given, log.actions)


def _table_policy(name: str, given: Any, actions: tuple[Label, ...]) -> Policy:
    """Make a policy of an array [state, action], or of a frame with the states as its index and actions as columns."""
    labels: np.ndarray | None = None
    if type(given).__module__.split(".")[0] == "pandas":
        if lacking := set(actions) - set(given.columns):
            raise InputError(f"`{name}` must have a column for each action of the log, it lacks {short_repr(lacking)}")
        if actions != tuple(given.columns):
            raise InputError(f"`{name}` must have its columns in the order of the actions, {short_repr(list(actions))}")
        given, labels = given.to_numpy(float), np.asarray(given.index)
    pi = as_array(name, given, "an array [state, action], or a function of a batch of states")
    if pi.ndim != 2:
        raise InputError(f"`{name}` must be an array [state, action], got the shape {pi.shape}")
    if actions == tuple(range(len(actions))):
        actions = tuple(range(max(pi.shape[1], len(actions))))
    if pi.shape[1] != len(actions):
        raise InputError(f"`{name}` must have a column for each of the {len(actions)} actions, got {pi.shape[1]}")
    pi = check_distributions(name, pi, f"{name}[s]")

    def rows(state: np.ndarray) -> np.ndarray:
        one = state[:, 0] if state.ndim == 2 and state.shape[1] == 1 else state
        if labels is None and (one.ndim != 1 or one.dtype.kind not in "iufb" or (one != np.floor(one)).any()):
            raise InputError(
                f"`{name}` is an array, so states must be whole numbers from 0; for others give a function of a batch "
                "of states, or a DataFrame with the states as its index"
            )
        found = encode_labels(one.ravel(), np.arange(len(pi)) if labels is None else labels)
        if (found < 0).any():
            lost = short_repr(max(one[found < 0].tolist()))
            raise InputError(
                f"`{name}` has {len(pi)} rows and the log has the state {lost}, which is not there; add it"
            )
        return pi[found]

    return Discrete(name, actions, rows)
