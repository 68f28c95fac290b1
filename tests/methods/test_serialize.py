"""Methods are written to records and read back, every one that the registry finds."""

import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import registry
from twoclock.methods import serialize
from twoclock.protocols import IndexedBatch

FINITE = ("saba", "svrg")  # methods that need to know which items of finite data a sample holds
X = np.random.default_rng(0).normal(size=(12, 2))


def F(theta, omega, x):
    return 0.5 * theta + 0.1 * omega - x


def G(theta, omega, x):
    return omega - 0.2 * theta + x


def of_batches(operator):
    """The same operator on the means of an inner and an outer batch, each counted by its share."""

    def summed(theta, omega, parts):
        return sum(operator(theta, omega, part.batch.mean(axis=0)) / 2 for part in parts if part.index is not None)

    return summed


def samples(name):
    if name not in FINITE:
        return list(X)
    data, order = np.random.default_rng(1).normal(size=(64, 2)), np.random.default_rng(2).permutation(64)
    batches = order[: len(X) * 4].reshape(len(X), 4)
    return [tuple(IndexedBatch(jnp.asarray(data[i]), jnp.asarray(i), 64) for _ in range(2)) for i in batches]


@pytest.mark.parametrize("name", registry.methods())
def test_a_learner_of_every_method_is_saved_and_loaded(name, tmp_path):
    operators = (of_batches(F), of_batches(G)) if name in FINITE else (F, G)
    xs = samples(name)

    def learner():
        return tc.Learner(*operators, registry.methods()[name](), np.zeros(2), np.zeros(2), engine="xla")

    whole, first = learner(), learner()
    for x in xs:
        whole.update(x)
    for x in xs[:6]:
        first.update(x)
    again = tc.Learner.load(first.save(tmp_path / "a"), *operators, engine="xla")
    for x in xs[6:]:
        again.update(x)
    assert again.steps == whole.steps == len(xs)
    np.testing.assert_array_equal(again.theta, whole.theta)
    np.testing.assert_array_equal(again.omega, whole.omega)


@pytest.mark.parametrize("name", registry.methods())
def test_json_keeps_class_and_numbers(name):
    method = registry.methods()[name]()
    again = serialize.from_json(serialize.to_json(method))
    assert type(again) is type(method)
    assert repr(again) == repr(method)


def test_functions_and_strangers_are_not_written():
    class Stranger(tc.Standard):
        pass

    assert serialize.to_json(tc.Fast(alpha=lambda k: 0.1)) is None
    assert serialize.to_json(tc.Polyak(tc.Fast(alpha=lambda k: 0.1))) is None
    assert serialize.to_json(Stranger(0.1, 0.1)) is None
    with pytest.raises(tc.InputError, match="`method` Gone is not known"):
        serialize.from_json({"class": "Gone"})


def test_arrays_are_written_and_trees_of_them_are_not():
    again = serialize.from_json(serialize.to_json(tc.Polyak(tc.Fast(f0=np.array([[0.1, 1e-300]]), g0=2.0))))
    np.testing.assert_array_equal(again.method.f0, [[0.1, 1e-300]])
    assert again.method.g0 == 2
    assert again.method.f0.dtype == np.float64
    assert serialize.to_json(tc.Fast(f0={"a": np.ones(2)})) is None
