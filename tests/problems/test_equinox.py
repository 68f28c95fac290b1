"""An Equinox module as θ or ω, in samples, and back from disk."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

OPTIONS = {"steps": 20, "seeds": 2}


class Pair(eqx.Module):
    x: jax.Array
    y: jax.Array


class Line(eqx.Module):
    slope: jax.Array
    name: str = eqx.field(static=True, default="line")

    def __call__(self, x):
        return self.slope @ x


def sample(key):
    x = jax.random.normal(key, (3,))
    return Pair(x, x[:1] - x[1:2])


def loss(model, pair):
    return jnp.sum((model(pair.x) - pair.y) ** 2)


def regression(theta, omega=0.0, whole=lambda model: model):
    return tc.problems.custom(
        F=lambda theta, omega, pair: eqx.filter_grad(lambda model: loss(whole(model), pair))(theta),
        G=lambda theta, omega, pair: omega,
        noise=sample, theta=theta, omega=omega,
        measure=lambda theta, omega: {"at one": jnp.sum(whole(theta)(jnp.ones(3)))},
    )  # fmt: skip


@pytest.fixture(scope="module")
def network():
    return eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0), dtype=jnp.float32)


@pytest.fixture(scope="module")
def learned(network):
    return tc.solve(regression(network), tc.Standard(0.05, 0.1), **OPTIONS)


def test_a_network_with_its_activation_is_learned_as_its_arrays_alone_are(network, learned):
    """Equinox's own split, by hand, gives the same bits."""
    arrays, rest = eqx.partition(network, eqx.is_inexact_array)
    by_hand = tc.solve(
        regression(arrays, whole=lambda part: eqx.combine(part, rest)), tc.Standard(0.05, 0.1), **OPTIONS
    )
    assert isinstance(learned.theta, eqx.nn.MLP)
    assert eqx.tree_equal(learned.theta, by_hand.theta)
    assert learned.history.equals(by_hand.history)


def test_a_network_is_read_back_from_disk(network, learned, tmp_path):
    learned.save(tmp_path)
    whole = tc.load(tmp_path, like=network).theta
    assert whole.activation is network.activation
    assert eqx.tree_equal(eqx.filter(whole, eqx.is_inexact_array), learned.theta)
    seed = jax.tree.map(lambda leaf: leaf[1] if eqx.is_array_like(leaf) else leaf, whole)
    np.testing.assert_allclose(seed(jnp.ones(3)).sum(), learned.history["at one"].iloc[-1], rtol=1e-6)
    assert isinstance(tc.load(tmp_path).theta, dict)
    again = tc.load(tmp_path, like=regression(network))
    assert again == learned


def test_a_network_that_does_not_fit_is_named(network, learned, tmp_path):
    learned.save(tmp_path)
    wide, deep = (eqx.nn.MLP(3, 1, *size, key=jax.random.key(0)) for size in ((5, 1), (4, 2)))
    with pytest.raises(
        tc.InputError, match=r"`theta\.layers\[0\]\.weight` has shape \(5, 3\), saved is shape \(4, 3\)"
    ):
        tc.load(tmp_path, like=wide)
    with pytest.raises(tc.InputError, match=r"`like` must have the structure of theta"):
        tc.load(tmp_path, like=deep)
    with pytest.raises(tc.InputError, match=r"it lacks `theta\['layers'\]\[1\]\['bias'\]`"):
        tc.load(tmp_path, like=eqx.tree_at(lambda m: m.layers, network, network.layers[:1]))


def test_a_network_may_be_the_fast_variable(tmp_path):
    """A module of plain arrays, which tracks the slope 2θ."""
    problem = tc.problems.custom(
        F=lambda theta, omega, u: omega.slope.sum() - 2,
        G=lambda theta, omega, u: Line(omega.slope - 2 * theta + u),
        noise=lambda key: 0.1 * jax.random.normal(key, (1,)),
        theta=0.0, omega=Line(jnp.zeros(1)), measure=lambda theta, omega: {"error": (theta - 1) ** 2},
    )  # fmt: skip
    result = tc.solve(problem, tc.Fast(), steps=2000, seeds=2)
    np.testing.assert_allclose(result.omega.slope, 2.0, atol=0.1)
    result.save(tmp_path)
    assert tc.load(tmp_path, like=problem) == result
