"""Two private functions of JAX replaced so that tests compile faster; nothing else here touches ``jax._src``.

JAX has no public name for either: its cache of compiled programs can only be kept in files, which take as long to write
as they save, and each program is lowered in a new context. Without them tests take longer.
"""

import contextlib
import threading


def install():
    with contextlib.suppress(ImportError, AttributeError):
        _keep_programs_in_memory()
    with contextlib.suppress(ImportError, AttributeError):
        _share_contexts()


def _keep_programs_in_memory():
    """A third of the programs were compiled before: for closures that differ in a number, after caches were cleared."""
    from jax._src import compilation_cache

    programs = {}
    assert compilation_cache.get_executable_and_time
    assert compilation_cache.put_executable_and_time
    compilation_cache.get_executable_and_time = lambda key, *_: programs.get(key, (None, None))
    compilation_cache.put_executable_and_time = lambda key, name, program, backend, seconds: programs.update(
        {key: (program, seconds)}
    )


def _share_contexts(programs=300):
    """JAX loads all dialects of MLIR into a new context for each of nine thousand programs, which takes longer than to
    write a short one down. One does for many; not for all, since it keeps their constants.
    """
    from jax._src.interpreters import mlir

    new_context, contexts = mlir.make_ir_context, threading.local()

    def make_ir_context():
        if not getattr(contexts, "left", 0):
            contexts.one, contexts.left = new_context(), programs
        contexts.left -= 1
        return contexts.one

    mlir.make_ir_context = make_ir_context
