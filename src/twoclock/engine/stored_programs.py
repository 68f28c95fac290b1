"""Functions that are compiled once on a machine instead of once in each process.

What XLA compiles is stored in the user's cache folder, and no setting of JAX changes for it. The name of a file is the
digest of all that decides the program: the text that XLA compiles, every number in it, the versions and the processor.
It is loaded only from a folder that is closed to other users, and only if its digest is the one beside it. The rest is
compiled as by ``jax.jit``: programs that call Python, hold large arrays, or are for several devices. Nothing is
stored while JAX's own cache is in use, since a program that came from that cache cannot be written a second time: what
is read back lacks some of its functions.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from twoclock.codegen import compiler
from twoclock.engine.tracing import OtherPrecision
from twoclock.protocols import InputError, PyTree

# Seconds from which a compilation is worth a file, and bytes of constants from which a program is not.
_WORTH_STORING, _LARGE = 0.005, 1 << 20
_MAX_LOADED = 16  # of a function: XLA maps up to 200 pieces of memory for one, and Linux allows 65,530 to a process
_FORMAT = "2"  # files of the first format may lack functions
# Earlier versions of JAX print alarms about the processor, without a cause, whenever they load a program.
_LOADS_SILENTLY = (0, 10, 2)


class StoredFunction:
    """Like ``jax.jit``, and a new process loads what an earlier one has compiled. Static arguments have names."""

    def __init__(self, function: Callable[..., PyTree], **options: Any) -> None:
        self.jitted = jax.jit(function, **options)
        self._options = repr(sorted(options.get("compiler_options", {}).items()))
        self._loaded: dict[Hashable, Callable[..., PyTree]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: PyTree, **static: Hashable) -> PyTree:
        leaves, structure = jax.tree.flatten((args, {}))
        if (
            jax.default_backend() != "cpu"
            or len(jax.devices()) > 1
            or any(isinstance(x, jax.core.Tracer) for x in leaves)
        ):
            return self.jitted(*args, **static)
        shapes = tuple((getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
        key = structure, shapes, *static.items(), jax.config.jax_enable_x64  # type: ignore[attr-defined]
        program = self._loaded.get(key)
        if program is None:
            program = self._compile(*args, **static)
            with self._lock:
                if len(self._loaded) >= _MAX_LOADED:
                    del self._loaded[next(iter(self._loaded))]
                self._loaded[key] = program
        return program(*args)

    def clear_cache(self) -> None:
        self._loaded.clear()
        self.jitted.clear_cache()  # type: ignore[attr-defined]

    def _compile(self, *args: PyTree, **static: Hashable) -> Callable[..., PyTree]:
        """Load the program for arguments of these shapes, or compile and store it."""
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            raise InputError("`jax_disable_jit` is on, and a run must be compiled; unset JAX_DISABLE_JIT")
        traced = self.jitted.trace(*args, **static)
        try:
            lowered = traced.lower()
        except ValueError as error:
            if "compatible" in str(error) or "type mismatch" in str(error):  # an index that JAX holds as int32
                raise OtherPrecision() from error
            raise
        if any(isinstance(array, np.ndarray) for array in traced.jaxpr.consts):
            # JAX rounds a NumPy array to its precision once for all traces that live, whatever the precision of the
            # next: the user's own call of the function in float32 would meet the array in float64.
            self.jitted.clear_cache()  # type: ignore[attr-defined]
        (device,), cache = jax.devices(), replace(compiler.open_cache(), suffix=".xla")
        held = 8 * sum(np.size(array) for array in traced.jaxpr.consts)  # some are keys of JAX, which have no bytes
        text = lowered.as_text() if held < _LARGE else "callback"
        if "callback" in text or cache.trouble is not None or jax.__version_info__ < _LOADS_SILENTLY:
            return lowered.compile()
        # Arguments without an effect are not in the text.
        shapes = " ".join(f"{arg.dtype}{arg.shape}" for arg in jax.tree.leaves(lowered.args_info))
        settings = {name: value for name, value in jax.config.values.items() if "cache" not in name}
        decides = (
            _FORMAT, text, shapes, self._options, repr(sorted(settings.items())), os.environ.get("XLA_FLAGS", ""),
            jax.__version__, device.client.platform_version, device.device_kind, compiler.processor(),
            str(os.cpu_count()),
        )  # fmt: skip
        key = hashlib.sha256("\n".join(decides).encode()).hexdigest()[:40]
        if cache.holds(key):
            with suppress(Exception):  # one that this version of JAX does not load after all
                return serialize_executable.deserialize_and_load(
                    cache.path(key).read_bytes(), lowered.in_tree, lowered.out_tree, execution_devices=[device]
                )
        began = time.perf_counter()
        compiled = lowered.compile()
        if time.perf_counter() - began > _WORTH_STORING and not jax.config.values["jax_compilation_cache_dir"]:
            with suppress(Exception):  # keys of JAX among the arguments, which cannot be written; a full disk
                cache.add_bytes(key, serialize_executable.serialize(compiled)[0])
        return compiled
