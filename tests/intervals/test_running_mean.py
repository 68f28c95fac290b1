"""The running mean of a stream against the compiled recursion and against independent numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from twoclock.intervals.random_scaling import RecentMean, RunningMean, advance, begin, critical_value, scale


def test_running_mean_equals_the_compiled_path():
    x = np.random.default_rng(0).normal(size=150)
    mean, path = RunningMean(), begin(jnp.asarray(0.0))
    for n, value in enumerate(x, 1):
        mean.add(value)
        path = advance(path, jnp.asarray(x[: n - 1].mean() if n > 1 else 0.0), jnp.asarray(x[:n].mean()), n)
    value, low, high = mean.estimate(0.9)
    assert value == pytest.approx(x.mean())
    assert (high - low) / 2 == pytest.approx(critical_value(0.9) * float(scale(path, 150)), rel=1e-9)


def test_recent_mean_forgets_the_first_half():
    mean = RecentMean()
    for i in range(3000):
        mean.add(100.0 if i < 1024 else 1.0 + 0.1 * (i % 2))
    again = RecentMean(mean.numbers)
    assert again.estimate() == mean.estimate()
    assert mean.estimate().value == pytest.approx(1.05)
