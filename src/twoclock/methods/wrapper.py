"""What methods around another method share: the other's iterates are theirs, and so is what it reports."""

from __future__ import annotations

from typing import Generic

from twoclock.protocols import PyTree, S


class Around(Generic[S]):
    """The state of a method that runs another one as it is."""

    inner: S

    @property
    def theta(self) -> PyTree:
        return self.inner.theta

    @property
    def omega(self) -> PyTree:
        return self.inner.omega
