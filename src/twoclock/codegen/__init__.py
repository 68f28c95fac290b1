"""Code generation from a jaxpr to C or CUDA. It imports nothing else of twoclock and can be used alone.

1. ``build.generate`` takes a function of one *lane* (one of many equal runs) and the shapes of its inputs.
2. JAX traces the function to a jaxpr: a list of equations such as ``c = add a b``.
3. ``lower`` visits the equations in order, inlines calls, and applies to each the rule of its name.
4. The rules of ``elementwise`` (with random bits), ``indexing`` and ``reductions`` compute arrays.
5. An array is a number for each entry, a buffer with strides, or a rule that computes an entry on demand (``arrays``).
6. The rules append statements to a ``Builder``: assignments, loads, stores, loops and branches (``ir``).
7. For a GPU, ``passes`` drops the mirrored half of symmetric matrices and splits off what does not depend on the state.
8. ``c_printer`` prints the statements as C, with lanes side by side in loops that the compiler turns into vectors.
9. ``templates`` adds the code around the step: which lanes run, what they load before the steps and store after them.
10. ``compiler`` calls the machine's compiler, caches the library on disk, and loads the function.

``scan`` is the loop of ``jax.lax.scan`` built from these parts: ``scan_program`` writes its code, and XLA calls it.

Read the files in the order ir, arrays, elementwise, indexing, reductions, lower, c_printer, templates, passes, build,
compiler, self_check, scan_program, scan_loop, scan. What cannot be generated raises ``Unsupported``, what cannot be
compiled ``CompilerError``; both are a ``CodegenError``. Programs use the functions of ``special.h``. A GPU kernel is
source code for NVRTC.
"""

from twoclock.codegen.build import Example, ProgramSource, UncheckedStep, generate, generate_few
from twoclock.codegen.compiler import CompilerError, compile_text
from twoclock.codegen.ir import CodegenError, Unsupported
from twoclock.codegen.templates import CodeTarget

__all__ = ["CodeTarget", "Example", "ProgramSource", "UncheckedStep", "generate", "generate_few"]
__all__ += ["CodegenError", "CompilerError", "Unsupported", "compile_text"]
