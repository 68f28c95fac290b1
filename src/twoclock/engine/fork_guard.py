"""A child made by fork after JAX has started: JAX's threads are not in it, and it would wait for them for ever."""

from __future__ import annotations

import os

from twoclock.protocols import InputError

_too_late = False


def refuse_fork() -> None:
    """Complain in such a child, instead of hanging in it."""
    if _too_late:
        raise InputError(
            "this process was forked after JAX had started, whose threads a fork does not copy; "
            'make it with multiprocessing.get_context("spawn")'
        )


def _in_child() -> None:
    from jax._src import xla_bridge

    global _too_late
    _too_late = xla_bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
