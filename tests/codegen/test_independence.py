"""codegen alone: it imports nothing else of twoclock, and what it compiles computes what JAX computes."""

import subprocess
import sys

import pytest

from twoclock.codegen import compiler

ALONE = """
import importlib.abc, importlib.machinery, pathlib, sys, types

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("twoclock.") and not name.startswith("twoclock.codegen"):
            raise ImportError(f"{name} is blocked")

# An empty package instead of twoclock, so that its __init__ does not run.
package = types.ModuleType("twoclock")
package.__path__ = [sys.argv[1]]
sys.modules["twoclock"] = package
sys.meta_path.insert(0, Block())
try:
    import twoclock.protocols
except ImportError as error:
    assert "blocked" in str(error)
else:
    raise SystemExit("nothing is blocked")

import jax, jax.numpy as jnp, numpy as np
from twoclock import codegen
from twoclock.codegen import compiler

for file in pathlib.Path(sys.argv[1], "codegen").glob("*.py"):
    importlib.import_module(f"twoclock.codegen.{file.stem}" if file.stem != "__init__" else "twoclock.codegen")
others = [name for name in sys.modules if name.startswith("twoclock.") and not name.startswith("twoclock.codegen")]
assert not others, others

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
A, scale, SEEDS, STEPS = rng.normal(size=(3, 3)) / 3, np.array([[0.5], [0.25]]), 5, 20

def lane(A, scale, carry, words, k, bound):
    x, total = carry
    noise = jax.random.normal(jax.random.fold_in(jax.random.wrap_key_data(words), k), (3,))
    x = jnp.tanh(A @ x + scale * noise) + jnp.where(k % 2 == 0, x[::-1], jnp.cumsum(x)) / 4
    return x, total + jax.lax.cond(x[0] > 0, jnp.sum, jnp.max, x)

x, total = rng.normal(size=(2, SEEDS, 3)), np.zeros((2, SEEDS))
words = np.asarray(jax.vmap(lambda seed: jax.random.key_data(jax.random.key(seed)))(np.arange(SEEDS)))

def by_jax(scale, x, total, words):
    step = lambda k, carry: lane(A, scale, carry, words, k, None)
    return jax.lax.fori_loop(0, STEPS, step, (x, total))

over_seeds = jax.vmap(by_jax, in_axes=(None, 0, 0, 0))
expected = jax.vmap(over_seeds, in_axes=(0, 0, 0, None))(scale, x, total, words)

shapes = [jax.ShapeDtypeStruct(shape, np.float64) for shape in ((3, 3), (1,), (3,), ())]
example = codegen.Example(shapes[0], shapes[1], tuple(shapes[2:]))
for width, groups in ((1, 2 * SEEDS), (4, 2 * 2)):
    source = codegen.generate(lane, example, codegen.CodeTarget(width))
    function = codegen.compile_text(source.text, width, compiler.find()).function()
    leaves, tables = [x.copy(), total.copy()], [A, scale, *source.constants]
    pointers = compiler.pointers(tables), compiler.pointers(leaves), words.ctypes.data
    function(0, STEPS, 0, groups, 2, SEEDS, *pointers)
    for found, there in zip(leaves, expected):
        assert not np.array_equal(found, x if found.ndim == 3 else total)
        np.testing.assert_allclose(found, there, rtol=1e-10, atol=1e-12)

try:
    codegen.generate(lambda A, p, c, *rest: (jnp.sort(c[0]), c[1]), example, codegen.CodeTarget())
except codegen.CodegenError as error:
    assert isinstance(error, codegen.Unsupported) and "sort" in str(error)
else:
    raise SystemExit("a sort was generated")
print("alone")
"""


@pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")
def test_codegen_works_with_every_other_module_of_twoclock_blocked(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOCLOCK_CACHE", str(tmp_path))
    package = compiler.__file__.rpartition("/codegen/")[0]
    command = [sys.executable, "-c", ALONE, package]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert finished.stdout.strip() == "alone", finished.stderr[-2000:]
