"""Policies: action probabilities in a batch of states, for discrete or continuous actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.logs.dataset import encode_labels
from twoclock.logs.row_checks import Label
from twoclock.protocols import InputError, list_names
from twoclock.validation import choice, function, seed_number, short_repr, whole
from twoclock.validation.arrays import as_array, matrix

_NODES, _SAMPLES = 9, 16
_LOOKED_AT = 64  # states on which a function is called again
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Actions:
    """The actions of a policy in each of n states.

    Attributes:
        law: the probability of each discrete action [n, actions], or the weight of each node [n, nodes].
        nodes: continuous actions [n, nodes, k] that represent the policy; None where actions are discrete.
    """

    law: Float[np.ndarray, "n m"]
    nodes: Float[np.ndarray, "n m k"] | None = None


@runtime_checkable
class Policy(Protocol):
    """Action probabilities in a batch of states, and the density of logged actions."""

    def acts(self, state: np.ndarray, number: tuple[int, ...]) -> Actions:
        """The actions in a batch; ``number`` identifies the batch, so that random draws are reproducible."""

    def density(self, state: np.ndarray, action: np.ndarray) -> Float[np.ndarray, " n"]:
        """π(a|s) of the actions of a log."""


@dataclass(frozen=True, eq=False)
class Discrete:
    """Probabilities of discrete actions, by a function of a batch of states."""

    name: str
    actions: tuple[Label, ...]
    function: Callable[[np.ndarray], object]  # its output is an argument of ``law``
    ordered: bool = True  # whether the columns of an array have a known order; those of named actions may have none

    def acts(self, state: np.ndarray, number: tuple[int, ...]) -> Actions:
        return Actions(self.law(state))

    def law(self, state: np.ndarray) -> Float[np.ndarray, "n a"]:
        """Return the probability of each action: named columns are put in order, a single action has probability 1."""
        n, k = len(state), len(self.actions)
        given = call_on_batch(self.name, self.function, state)
        named = named_columns(given, n)
        if named is not None:
            rows = self._by_name(*named)
        else:
            array = np.asarray(given)
            if array.shape == (n,):
                return np.eye(k)[self._chosen(array)]
            if array.shape != (n, k) or array.dtype.kind not in "iufb" or (k == n == 1 and array.dtype.kind == "i"):
                raise InputError(
                    f"`{self.name}` must give {k} probabilities per state, the shape {(n, k)}, or one action per "
                    f"state, the shape {(n,)}; got the shape {array.shape}"
                )
            if not self.ordered:
                raise InputError(
                    f"`{self.name}` gives an array of {k} columns and nothing says which is which of the actions "
                    f"{list_labels(self.actions)}; give a frame or a dict with a column for each, or list the actions "
                    "in the order of your columns once, in `read(…, actions=[…])`"
                )
            rows = as_array(self.name, array)
        wrong = (rows < -1e-9).any(axis=1) | ~(np.abs(rows.sum(axis=1) - 1) <= 1e-4)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(
                f"`{self.name}` must give probabilities that sum to 1, got {short_repr(rows[at].tolist())} for the "
                f"state {short_repr(np.asarray(state[at]).tolist())}"
            )
        clipped = np.maximum(rows, 0.0)
        return clipped / clipped.sum(axis=1, keepdims=True)

    def density(self, state: np.ndarray, action: np.ndarray) -> Float[np.ndarray, " n"]:
        return np.take_along_axis(self.law(state), action[:, None], axis=1)[:, 0]

    def most_actions(self, state: np.ndarray) -> int:
        """The number of actions 0, 1, … for which its output on these states has columns or names."""
        given = self.function(state)
        named = named_columns(given, len(state))
        if named is not None:
            return 1 + max((name for name in named[0] if isinstance(name, int)), default=-1)
        shape = np.asarray(given).shape
        return max(len(self.actions), shape[1] if len(shape) == 2 and shape[0] == len(state) else 0)

    def _by_name(self, names: list[Label], columns: np.ndarray) -> np.ndarray:
        """Put named columns in the order of the actions; an action without a column has probability 0."""
        places: dict[object, int] = {str(action): j for j, action in enumerate(self.actions)}
        places |= {action: j for j, action in enumerate(self.actions)}
        at = [places.get(name, -1) for name in names]
        if -1 in at:
            raise InputError(
                f"`{self.name}` names {short_repr(names[at.index(-1)])}, which is no action of the log; there "
                f"are: {list_labels(self.actions)}; rename it, or name all actions with `read(…, actions=[…])`"
            )
        rows = np.zeros((len(columns), len(self.actions)))
        rows[:, at] = as_array(self.name, columns)
        return rows

    def _chosen(self, labels: np.ndarray) -> np.ndarray:
        """Return the number of the chosen action in each state."""
        labels = np.asarray(labels.tolist())
        alike = (labels.dtype.kind == "U") == isinstance(self.actions[0], str) and labels.dtype.kind in "biufU"
        chosen = encode_labels(labels, self.actions) if alike else np.full(len(labels), -1)
        if (chosen < 0).any():
            raise InputError(
                f"`{self.name}` must choose among the actions {list_labels(self.actions)}, got "
                f"{short_repr(labels[int(np.argmax(chosen < 0))].item())}; name all actions with `read(…, actions=[…])`"
            )
        return chosen


def named_columns(given: object, rows: int) -> tuple[list[Label], np.ndarray] | None:
    """Return the names and the columns of a frame, of a dict of columns or of a list of dicts; None for others."""
    kind = type(given).__module__.split(".")[0]
    if kind in ("pandas", "polars") and hasattr(given, "columns"):
        return [_plain(name) for name in given.columns], given.to_numpy()  # type: ignore[attr-defined]
    if isinstance(given, Mapping):
        columns = [np.broadcast_to(np.asarray(column, float), rows) for column in given.values()]
        return [_plain(name) for name in given], np.column_stack(columns) if columns else np.zeros((rows, 0))
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, Mapping) for one in given):
        names = list(dict.fromkeys(name for one in given for name in one))
        return [_plain(name) for name in names], np.array([[one.get(name, 0.0) for name in names] for one in given])
    return None


def _plain(label: Any) -> Label:
    return label.item() if isinstance(label, np.generic) else label


def list_labels(labels: Sequence[Label]) -> str:
    """Write the names of actions; if there are many, the first few."""
    return list_names([repr(label) for label in labels])


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A Gaussian policy of continuous actions, a ~ N(mean(s), covariance).

    Means over its actions are by Gauss–Hermite quadrature for one or two actions, else by samples; the error of the
    samples is part of the interval, because each transition draws its own.

    Args:
        mean: a function of a batch of states that gives one action (or one row of actions) each.
        covariance: a number for one action, or a matrix.
        method: "auto", "quadrature" or "samples".
        samples: the number of samples per state.
        seed: of the samples.

    >>> policy = Gaussian(mean=lambda states: -0.5 * states[:, 0], covariance=0.1)
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
                f"`mean` must give {k} numbers per state to go with `covariance`, the shape {(n, k)}, got {given.shape}"
            )
        return given.reshape(n, k)


def call_on_batch(name: str, function: Callable[..., T], *batch: np.ndarray) -> T:
    """Call a user's function on a batch; report an error in one line, and an output that changes from call to call."""
    try:
        found = function(*batch)
    except InputError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        shapes = " and ".join(str(part.shape) for part in batch)
        raise InputError(
            f"`{name}` fails on a batch of shape {shapes}, {why:.150}; it must take a whole batch of states at once"
        ) from error
    if np.ma.is_masked(found):
        raise InputError(f"`{name}` must have no masked entries, which have no value; fill them first")
    if not _alike(*(_called(function, *(part[:_LOOKED_AT].copy() for part in batch)) for _ in range(2))):
        raise InputError(
            f"`{name}` must give the same for the same states, and differs from call to call: it draws random numbers, "
            "or a network is in training mode; give probabilities instead of draws"
        )
    return found


def _called(function: Callable[..., object], *batch: np.ndarray) -> object:
    """The output for a part of the batch; None if the function takes only all of it."""
    try:
        return function(*batch)
    except Exception:
        return None


def _alike(one: object, other: object) -> bool:
    """Whether two outputs are equal, up to what a GPU rounds in another order."""
    try:
        a, b = (np.asarray(list(x.values()) if isinstance(x, Mapping) else x) for x in (one, other))
        if a.dtype.kind not in "fiub":
            return a.shape != b.shape or bool((a == b).all())
        return a.shape != b.shape or bool(np.allclose(a, b, 1e-4, 1e-4, equal_nan=True))
    except Exception:  # an odd output is refused elsewhere
        return True
