"""Alias tables hold the law they were made from, and draws follow it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from twoclock.protocols import InputError
from twoclock.sampling.alias import alias_table, lookup, numpy_alias_table


def build(law):
    return numpy_alias_table(np.asarray(law, float))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 50, 100, 1000, 65535, 65536, 100_000])
@pytest.mark.parametrize("spread", [0.1, 1.0, 100.0])
def test_a_table_holds_its_law(n, spread, sampled_law):
    law = np.random.default_rng(n).dirichlet(np.full(n, spread), 3 if n < 1000 else 1)
    assert np.abs(sampled_law(build(law)) - law).sum(axis=-1).max() <= n * 2.0**-30


@pytest.mark.parametrize("n", [1, 2, 50, 1000])
def test_a_table_is_the_same_inside_a_compiled_function(n):
    draws = np.random.default_rng(n)
    law = np.stack([draws.dirichlet(np.full(n, spread), 50) for spread in (0.1, 1.0, 100.0)])
    np.testing.assert_array_equal(jax.jit(alias_table)(law), numpy_alias_table(law))


def test_certain_and_impossible_outcomes_are_exact(sampled_law):
    law = np.array([[0, 1, 0, 0], [0.25] * 4, [0, 0.5, 0.5, 0], [1, 0, 0, 0], [0, 0, 0, 1]], float)
    np.testing.assert_array_equal(sampled_law(build(law)), law)


def test_draws_follow_the_law():
    law = np.array([0.05, 0.0, 0.4, 0.3, 0.2, 0.05])
    bits = jax.random.bits(jax.random.key(1), (200_000,), jnp.uint32)
    table = jnp.asarray(build(law))
    drawn = np.bincount(np.asarray(jax.jit(jax.vmap(lambda b: lookup(table, (), b)))(bits)), minlength=6)
    assert drawn[1] == 0
    assert stats.chisquare(drawn[law > 0], 200_000 * law[law > 0]).pvalue > 0.01


def test_every_word_of_bits_lands_inside():
    table = jnp.asarray(build(np.full(7, 1 / 7)))
    edge = jnp.asarray([0, 1, 2**16, 2**31, 2**32 - 1], jnp.uint32)
    assert np.asarray(jax.vmap(lambda b: lookup(table, (), b))(edge)).tolist() == [0, 0, 0, 3, 6]


@pytest.mark.parametrize("make", [alias_table, numpy_alias_table])
def test_too_many_outcomes_are_refused(make):
    with pytest.raises(InputError, match="at most 1048576 outcomes"):
        make(np.ones(2**20 + 1))
