"""How many samples a model of curved operators counts: those that later samples do not contradict."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twoclock.methods import forgetting, frozen_check, local_model
from twoclock.tree_math import start

# One lane, as NumPy's arrays.
Z, ONE = np.zeros((1, 2)), np.eye(2)[None]
GAINS = ONE[:, :1], ONE[:, 1:]


def begin(lanes=1):
    """An empty model and an empty check, for the given number of lanes."""
    with jax.enable_x64(True):
        z = jnp.zeros(2)
        empty = local_model.empty(z), frozen_check.begin(z)
    return jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * lanes), empty)


def model_of(off, count):
    """A model of (F, G) = z − (off, 0), with noise of variance 1."""
    empty, c = begin()[0], np.asarray([[-off, 0.0]])
    J, mean = replace(empty.J, value=ONE), replace(empty.c, value=c)
    return replace(empty, J=J, c=mean, cov=ONE, count=np.asarray([float(count)]), late_J=ONE, late_c=c)


def test_a_model_that_predicts_wrongly_counts_less():
    """Of variance 1 and 400 samples, wrong by 1 at 100 others: one sample with such an error is worth as much."""
    check, model = begin()[1], model_of(0, 400)

    def worth(off):
        since, before = np.asarray([100.0]), np.asarray([400.0])
        return forgetting.worth(model.count, np.asarray([off]), since, before, model, check, Z, GAINS)

    assert worth([0.0, 0.0]) == 400
    bias = 1 - 9 * (1 / 100 + 1 / 400)
    np.testing.assert_allclose(worth([1.0, 0.0]), 400 / (1 + 400 * bias), rtol=1e-5)


@pytest.mark.parametrize("power", [0.0, 0.25, 2.0])
def test_the_share_of_the_older_part_is_the_product_of_all_weights(power):
    """The older part says 7, the samples since then say 0."""
    with jax.enable_x64(True):
        z, J = jnp.zeros(2), 7 * jnp.eye(2)
        before = replace(local_model.empty(z), J=start(J), count=jnp.asarray(64.0))
        model = before
        for _ in range(64):
            model = local_model.learn(model, z, z, 0 * J, power)
        grown = forgetting.grown(forgetting.begin(before), before.count, model.count, jnp.asarray(power))
    np.testing.assert_allclose(grown.share * 7, model.J.value[0, 0], rtol=1e-3)


def halves(off):
    """64 samples that say 0, and 64 later ones that say ``off``."""
    older = replace(forgetting.begin(model_of(0, 64)), share=np.asarray([0.5]))
    return model_of(off / 2, 128), older


def test_an_older_part_that_later_samples_contradict_is_dropped():
    check = begin()[1]
    model, older = halves(20.0)
    found, left = forgetting.without_bias(model, older, check, Z, GAINS)
    assert 64 <= found.count < 66
    assert left.share < 0.03
    np.testing.assert_allclose(found.c.value[0, 0], -20, rtol=0.03)
    np.testing.assert_allclose(found.late_c[0, 0], -20, rtol=0.03)
    same, still = forgetting.without_bias(*halves(0.2), check, Z, GAINS)  # a standard error of the difference is .18
    assert same.count == 128
    assert still.share == 0.5


def test_noise_of_a_chain_is_no_contradiction():
    """Batch means that vary sixteen times as much as of independent samples: four times the difference is noise."""
    model, older = halves(0.7)
    check = begin()[1]
    rng = np.random.default_rng(1)
    sums = 4 * 8**0.5 * rng.normal(size=(1, 16, 2))  # of 8 samples a batch
    slow = replace(check, sums=sums, since=np.asarray([128.0]), count=np.asarray([256.0]))
    assert forgetting.without_bias(model, older, check, Z, GAINS)[0].count < 128
    assert forgetting.without_bias(model, older, slow, Z, GAINS)[0].count == 128


def test_many_lanes_at_once_are_as_one_by_one():
    lanes = [halves(off) for off in (0.0, 1.0, 5.0)]
    one_by_one = [forgetting.without_bias(*lane, begin()[1], Z, GAINS)[0].count for lane in lanes]
    model, older = jax.tree.map(lambda *leaves: np.concatenate(leaves), *lanes)
    z, *gains = (np.concatenate([part] * 3) for part in (Z, *GAINS))
    found, _ = forgetting.without_bias(model, older, begin(3)[1], z, tuple(gains))
    np.testing.assert_allclose(found.count, np.concatenate(one_by_one), rtol=1e-12)
