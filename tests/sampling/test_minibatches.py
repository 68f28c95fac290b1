"""Every item exactly once an epoch, whatever the sizes; and orders that look like any other order."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import twoclock as tc
from twoclock import prng, sampling

SIZES = [(1, 1), (2, 1), (5, 2), (7, 7), (12, 4), (10, 3), (100, 32), (1024, 64), (455, 32), (3, 2)]


def walk(sampler, steps, seed=0, see=lambda batch, env: batch):
    def step(env, k):
        batch, after = sampler.draw(sampler.noise(prng.step_key(seed, k)), env)
        return after, see(batch, env)

    return jax.lax.scan(step, sampler.init(prng.start_key(seed)), jnp.arange(steps))[1]


@pytest.mark.parametrize(("items", "size"), SIZES)
def test_every_item_comes_once_per_epoch(items, size):
    """Over five epochs and more: cut at multiples of the number of items, the indices are five permutations."""
    sampler = sampling.Minibatches(np.arange(items), size)
    steps = math.ceil(5 * items / size)
    seen = jax.jit(lambda seed: walk(sampler, steps, seed, see=lambda batch, env: (batch, env[-1])))
    for drawn, indices in (map(np.asarray, seen(np.uint32(seed))) for seed in (0, 7)):
        # JAX silently clamps an index out of range, so check the indices themselves and the items that they fetch.
        assert indices.min() >= 0
        assert indices.max() < items
        assert (drawn == indices).all()
        assert drawn.shape == (steps, size)
        epochs = drawn.ravel()[: 5 * items].reshape(5, items)
        assert (np.sort(epochs, axis=1) == np.arange(items)).all()
        if items >= 12:
            assert len({tuple(epoch) for epoch in epochs}) == 5


def test_the_orders_are_all_equally_likely():
    words = jax.random.bits(jax.random.key(1), (60_000,), jnp.uint32)
    for items in (2, 3, 4):
        orders = jax.jit(jax.vmap(lambda word, n=items: sampling.shuffle(word, jnp.arange(n), n)))(words)
        code = np.asarray(orders) @ (items ** np.arange(items))
        _, counts = np.unique(code, return_counts=True)
        assert len(counts) == math.factorial(items)
        assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("items", [37, 1000, 1024])
def test_shuffled_orders_show_no_pattern(items):
    """First and second item are jointly uniform in cells, and the mean of a batch has the variance it must have."""
    words = jax.random.bits(jax.random.key(2), (40_000,), jnp.uint32)
    size = 16
    orders = np.asarray(jax.jit(jax.vmap(lambda word: sampling.shuffle(word, jnp.arange(size), items)))(words))
    gaps = np.bincount((orders[:, 1] - orders[:, 0]) % items, minlength=items)[1:]
    assert chisquare(gaps).pvalue > 1e-3
    assert chisquare(np.bincount(orders[:, 0], minlength=items)).pvalue > 1e-3
    want = (items**2 - 1) / 12 / size * (items - size) / (items - 1)
    assert np.var(orders.mean(axis=1)) == pytest.approx(want, rel=0.03)


def test_what_is_drawn_depends_on_seed_and_step_alone(tmp_path):
    """Blocks, marks and resuming cut a run elsewhere and change nothing, though the sampler carries its place along."""
    data = np.random.default_rng(0).normal(size=(50, 3))
    problem = tc.problems.minimax(
        loss=lambda x, y, batch: jnp.mean((batch @ x - 1) ** 2) + x @ y - y @ y / 2,
        sampler=sampling.Minibatches(data, 7),
        x=np.zeros(3),
        y=np.zeros(3),
    )
    method = tc.Standard(0.01, 0.1)
    whole = tc.solve(problem, method, steps=100, seeds=[3, 4], checkpoint=tmp_path / "whole")
    pieces = tc.solve(problem, method, steps=100, seeds=[4, 3], marks=[1, 37, 80], block=8)
    np.testing.assert_array_equal(whole.theta, pieces.theta[::-1])


def test_a_batch_may_be_any_pytree():
    data = {"a": np.arange(10.0), "b": (np.arange(20).reshape(10, 2),)}
    batch = walk(sampling.Minibatches(data, 4), 3)
    assert batch["a"].shape == (3, 4)
    assert batch["b"][0].shape == (3, 4, 2)
    np.testing.assert_array_equal(batch["b"][0][..., 0], 2 * batch["a"].astype(int))


def test_two_levels_draw_independently():
    sampler = sampling.as_sampler((sampling.Minibatches(np.arange(64), 8), sampling.Minibatches(np.arange(64), 8)))
    inner, outer = walk(sampler, 8)
    assert (np.sort(np.ravel(inner)) == np.arange(64)).all()
    assert np.mean(np.asarray(inner) == np.asarray(outer)) < 0.2


@pytest.mark.parametrize(("items", "size"), [(12, 4), (10, 4)])
def test_an_epoch_holds_every_item_equally_often(items, size):
    found = np.asarray(sampling.Minibatches(np.arange(items), size).epoch())
    assert found.shape[1] == size
    assert len(set(np.bincount(found.ravel(), minlength=items))) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sampling.Minibatches((np.zeros((4, 2)), np.zeros(3)), 2), "got 3 and 4"),
        (lambda: sampling.Minibatches(np.zeros(4), 5), "`size` must be a whole number from 1 to 4"),
        (lambda: sampling.Minibatches(np.zeros(4), 0), "`size` must be a whole number from 1 to 4"),
        (lambda: sampling.Minibatches(np.zeros((0, 2)), 1), "at least one item"),
        (lambda: sampling.as_sampler(3), "must be a function of a key"),
    ],
)
def test_bad_input_is_refused(make, words):
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
