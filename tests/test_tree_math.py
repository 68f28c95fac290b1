"""Sums in float32 whose residues are short, since the array is large."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from twoclock import tree_math

MANY = 1 << 16


def test_large_arrays_have_short_residues():
    with jax.enable_x64(False):
        total = tree_math.start({"large": np.ones(MANY), "small": np.ones(MANY - 1)})
    assert total.residue["large"].dtype == jnp.uint16
    assert total.residue["small"].dtype == jnp.float32
    assert tree_math.start(jnp.ones(MANY, jnp.float64)).residue is None


def test_a_large_sum_grows_by_steps_far_below_its_last_digit():
    """Steps between half and one and a half of 2⁻³⁰ of each entry, one 128th of a unit in the last place."""
    begin = np.random.default_rng(0).standard_normal(MANY).astype(np.float32)
    steps, size = 4_000, np.abs(begin) * np.float32(2**-30)

    @jax.jit
    def walk(total):
        def one(k, total):
            factor = 0.5 + jax.random.uniform(jax.random.fold_in(jax.random.key(0), k), (MANY,))
            return tree_math.add(total, factor * size)

        return jax.lax.fori_loop(0, steps, one, total)

    with jax.enable_x64(False):
        total = walk(tree_math.start(begin))
    moved = (np.asarray(total.value, float) - begin) / (steps * size)
    np.testing.assert_allclose(moved.mean(), 1, atol=1e-3)
    np.testing.assert_allclose(moved, 1, atol=0.1)


def test_a_short_residue_is_rounded_to_the_nearest():
    rng = np.random.default_rng(1)
    numbers = np.concatenate([rng.standard_normal(1_000) * 10.0 ** rng.uniform(-30, 30, 1_000), [0, -0.0, 1 + 2**-8]])
    numbers = numbers.astype(np.float32)
    short = tree_math._round(jnp.asarray(numbers), jnp.zeros(0, jnp.uint16))
    np.testing.assert_array_equal(short, numbers.astype(ml_dtypes.bfloat16).view(np.uint16))
    np.testing.assert_array_equal(tree_math._read(short), numbers.astype(ml_dtypes.bfloat16).astype(np.float32))
