"""What ``Auto`` chose for a run, and how the run went by its own account: in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from twoclock import tree_math
from twoclock.methods.auto import Auto
from twoclock.methods.matrix_free_zap import MatrixFreeZap
from twoclock.methods.zap import FAR, Zap
from twoclock.protocols import InputError, PyTree

if TYPE_CHECKING:
    import pandas as pd


def method(spec: Mapping[str, Any], theta: PyTree, omega: PyTree) -> Zap | MatrixFreeZap:
    """The ordinary method that a run with ``Auto`` came down to; θ and ω have a leading seed axis."""
    described = spec["method"]
    if described.get("name") != "Auto":
        raise InputError(
            f"`method` and `chosen` are for runs without a method; this one was given {described.get('name')}"
        )
    if theta is None:
        raise InputError("`method`: the run has not ended and kept no iterates yet")
    return Auto(described["most"]).chosen(*_one((theta, omega)))


def words(spec: Mapping[str, Any], theta: PyTree, omega: PyTree, history: pd.DataFrame) -> str:
    """Which method, why, at what cost, and whether it arrived."""
    chosen = method(spec, theta, omega)
    slow, fast = (tree_math.size(part) for part in _one((theta, omega)))
    most, sizes = spec["method"]["most"], f"θ and ω have {slow} + {fast} = {slow + fast:,} entries"
    if isinstance(chosen, Zap):
        why = f"Zap, a matrix gain: {sizes}, at most the {most:,} for which its matrices are kept"
    else:
        why = f"MatrixFreeZap, a matrix gain by products with vectors: {sizes}, more than the {most:,} for matrices"
    cost = f"no step size was set and no pilot run, all {spec['steps']:,} samples went into the estimate"
    return f"{why}; {cost}{_arrived(history)}"


def _arrived(history: pd.DataFrame) -> str:
    if "newton_sq" not in history:
        return ""
    last = history.groupby("seed").tail(1)
    far, noise = (np.sqrt(last[name].to_numpy(float)) for name in ("newton_sq", "noise_sq"))
    told = f"; by its own account θ is known to ±{np.median(noise):.2g} (norm, one standard error, independent samples)"
    on_the_way = int(np.count_nonzero(~(far <= FAR * noise)))
    return told + (
        f"; {on_the_way} of {len(last)} seeds are still on their way: run longer"
        if on_the_way
        else "; every seed arrived"
    )


def _one(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)
