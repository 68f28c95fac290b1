"""Algorithm 2 as it may be read: as printed, and with each of its two slips mended."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from twoclock.core import PyTree, pytree, static
from twoclock.problems.lqr.operators import ActorCritic, outer


@pytree
class Literal(ActorCritic):
    """The critic of Algorithm 2 by a reading of its last line: with its sign or the other, with z' or without."""

    sign: Any = 1.0
    bootstrap: bool = static(default=True)

    def G(self, theta: Any, omega: PyTree, x: PyTree) -> PyTree:
        zz, surprise = outer(x["z"]), omega["J"] - x["c"]
        delta = jnp.sum(omega["Omega"] * (zz - outer(x["next"]) if self.bootstrap else zz)) + surprise
        return {"J": self.kappa * surprise, "Omega": self.sign * delta * zz}


READINGS = {
    "as printed": Literal(kappa=1.0, sign=-1.0, bootstrap=False),
    "sign mended": Literal(kappa=1.0, sign=1.0, bootstrap=False),
    "z' put in": Literal(kappa=1.0, sign=-1.0, bootstrap=True),
    "both, κ = 1": Literal(kappa=1.0),
    "both, κ = 2": Literal(kappa=2.0),
}
