"""From what a user calls features to features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from twoclock.logs.dataset import Log
from twoclock.logs.features.bases import Fourier, Rbf, Tiles
from twoclock.logs.features.onehot import OneHot
from twoclock.logs.features.protocol import Base, Crossed, Features, Joint, as_rows, vectors
from twoclock.logs.policies import called
from twoclock.protocols import InputError
from twoclock.validation import pick, shown

NAMES: dict[str, Callable[[], Any]] = {"onehot": lambda: None, "rbf": Rbf, "tiles": Tiles, "fourier": Fourier}


def build(given: object, log: Log, others: np.ndarray | None = None) -> Features:
    """The features of a log's pairs.

    Args:
        given: "onehot", "rbf", "tiles" or "fourier"; one of their classes with settings; a ``Network``; or a function
            of (states, actions), both batches, that gives a row each.
        log: its states scale the features; its actions, where discrete, each have a copy.
        others: states that the log may lack, such as a given start.
    """
    if isinstance(given, str):
        spec = pick(NAMES, given, "features")()
        if given == "onehot":
            if log.actions is None:
                raise InputError(
                    "`features` 'onehot' needs discrete actions; take 'rbf' or a function of (state, action)"
                )
            return Crossed(OneHot.of(log, others), len(log.actions), labels=True)
    else:
        spec = given
    states, actions = log.sample()
    if isinstance(spec, type):
        raise InputError(f"`features` must be an object, got the class {spec.__name__}; write {spec.__name__}(…)")
    if hasattr(spec, "fit"):
        if log.actions is not None:
            return Crossed(spec.fit(vectors(states)), len(log.actions))
        base: Base = spec.fit(_joined(states, actions))
        return Joint(lambda state, action: base(_joined(state, action)), base.size)
    if callable(spec):
        labels = None if log.actions is None else np.asarray(log.actions)
        some = actions[:2] if labels is None else labels[actions[:2]]
        first = as_rows(called("features", spec, states[:2], some))
        if first.ndim != 2 or not first.shape[1]:
            raise InputError(
                f"`features` must be a function of a batch of (states, actions) that gives a row of numbers for each, "
                f"got the shape {first.shape} for {len(some)} pairs"
            )
        return Joint(spec, int(first.shape[1]), labels)
    raise InputError(
        f"`features` must be a name ({', '.join(NAMES)}), a class with `fit`, or a function, got {shown(given)}"
    )


def _joined(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.hstack([vectors(state), action.astype(float).reshape(len(state), -1)])
