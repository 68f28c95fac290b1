import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twoclock import prng


def plain(seed, stream, k):
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), stream), k)


@pytest.mark.parametrize(("ours", "stream"), [(prng.instance_key, 0), (prng.step_stream, 2)])
def test_bits_are_those_of_jax(ours, stream):
    """Of the rounds in a loop, and of the rounds written out."""
    ours, theirs = jax.random.fold_in(ours(11), 123_456), plain(11, stream, 123_456)
    for draw in (
        lambda key: jax.random.uniform(key, (3, 2)),
        lambda key: jax.random.normal(key, (5,), jnp.float32),
        lambda key: jax.random.bits(key, (7,), jnp.uint8),
        lambda key: jax.random.randint(key, (9,), 0, 1000),
        lambda key: jax.random.key_data(jax.random.split(key, (2, 2))),
        lambda key: jax.random.permutation(key, 10),
    ):
        assert np.array_equal(draw(ours), draw(theirs))


def test_bits_are_the_same_under_vmap():
    together = jax.vmap(lambda k: jax.random.uniform(prng.step_key(3, k)))(jnp.arange(5))
    alone = [jax.random.uniform(prng.step_key(3, k)) for k in range(5)]
    assert together.tolist() == [float(u) for u in alone]


def test_streams_are_disjoint():
    data = [jax.random.key_data(k) for k in (prng.instance_key(0), prng.start_key(0), prng.step_stream(0))]
    assert len({tuple(d.tolist()) for d in data}) == 3
