"""Algorithm 2 as it may be read: as printed, and with each of its two slips mended."""

from __future__ import annotations

import jax.numpy as jnp

from twoclock.problems.lqr.operators import ActorCritic, outer
from twoclock.protocols import PyTree, Scalar, pytree, static


@pytree
class Reading(ActorCritic):
    """The critic of Algorithm 2 by a reading of its last line: with its sign or the other, with z' or without."""

    sign: Scalar = 1.0
    bootstrap: bool = static(default=True)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        zz, surprise = outer(x["z"]), omega["J"] - x["c"]
        delta = jnp.sum(omega["Omega"] * (zz - outer(x["next"]) if self.bootstrap else zz)) + surprise
        return {"J": self.kappa * surprise, "Omega": self.sign * delta * zz}


READINGS = {
    "as printed": Reading(kappa=1.0, sign=-1.0, bootstrap=False),
    "sign mended": Reading(kappa=1.0, sign=1.0, bootstrap=False),
    "z' put in": Reading(kappa=1.0, sign=-1.0, bootstrap=True),
    "both, κ = 1": Reading(kappa=1.0),
    "both, κ = 2": Reading(kappa=2.0),
}
