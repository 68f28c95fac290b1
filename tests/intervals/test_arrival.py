"""The squared mean without its bias, and the rule for arrival, against what normal samples must show."""

import numpy as np
import pytest

from twoclock.intervals.arrival import ONE_SEED, SquaredMean, judge, score_limit, squared_mean, surprise


def test_the_squared_mean_is_unbiased_and_its_noise_is_that_of_the_mean():
    rng = np.random.default_rng(0)
    mean = np.array([0.3, -0.2, 0.0])
    batches = mean + rng.normal(size=(4000, 16, 3))
    found = squared_mean(batches, np.ones(16))
    assert abs(found.value.mean() - np.sum(mean**2)) < 4 * found.value.std() / np.sqrt(4000)
    np.testing.assert_allclose(found.noise.mean(), 3 / 16, rtol=0.02)


def test_batches_without_samples_do_not_count():
    rng = np.random.default_rng(1)
    batches = rng.normal(size=(6, 2))
    filled = np.concatenate([batches, np.full((10, 2), 7.0)])
    weights = np.r_[np.ones(6), np.zeros(10)]
    np.testing.assert_allclose(squared_mean(filled, weights), squared_mean(batches, np.ones(6)))
    assert np.isinf(squared_mean(batches, np.r_[1.0, 1.0, np.zeros(4)]).noise)


def test_an_estimate_from_as_many_samples_arrives_99_times_in_100():
    """Its own error has the variance of the batches' mean; in one dimension, the hardest."""
    rng = np.random.default_rng(2)
    error = rng.normal(size=(20_000, 1, 1)) / 4
    found = squared_mean(error + rng.normal(size=(20_000, 16, 1)), np.ones(16))
    share = judge(found, np.full(20_000, 1e3)).within_noise.mean()
    assert 0.975 < share < 0.995


def test_a_start_that_cannot_be_distinguished_from_the_estimate_is_no_arrival():
    here = SquaredMean(np.asarray([0.0, 0.0, 20.0]), np.ones(3))
    found = judge(here, np.asarray([5.0, 20.0, 20.0]))
    assert found.within_noise.tolist() == [True, True, False]
    assert found.tells_from_start.tolist() == [False, True, True]


@pytest.mark.parametrize("size", [1, 3, 20])
def test_a_right_estimate_surprises_as_seldom_as_a_normal_variable(size):
    """In any number of directions; one that is wrong by three standard errors in each of 20 does so nearly always."""
    rng = np.random.default_rng(size)
    error = rng.normal(size=(20_000, 1, size)) / 4
    means, none = error + rng.normal(size=(20_000, 16, size)), np.zeros(20_000)
    score = surprise(means, np.ones(16), none).score
    assert 0.003 < (score > ONE_SEED).mean() < 0.01  # .0067
    assert (score > score_limit(20)).mean() < 0.001
    if size == 20:
        wrong = surprise(means + 3 / 4, np.ones(16), none).score
        assert (wrong > score_limit(20)).mean() > 0.95
        judged = judge(squared_mean(means + 3 / 4, np.ones(16)), none + 1e3)
        assert judged.within_noise.mean() > 0.5  # the same factor in all dimensions would not see it
