"""Features and policies of other kinds: vectors, networks, continuous actions."""

import jax
import numpy as np
import pytest

import logged
import twoclock as tc
from twoclock.logs import sufficient_stats
from twoclock.logs.dataset import Log
from twoclock.logs.estimators.least_squares import with_alike
from twoclock.logs.feature_check import SideBySide
from twoclock.logs.features import build
from twoclock.logs.policies import Actions

BARE = {"bootstrap": 0, "compare": False}


def linear_log(episodes=400, steps=10, seed=0):
    """x' = .8x + .3a + noise, a ~ N(.2x, 1) or its sign, r = x; V of a linear policy is linear in x."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(episodes)
    rows = []
    for t in range(steps):
        a = 0.2 * x + rng.standard_normal(episodes)
        after = 0.8 * x + 0.3 * a + 0.1 * rng.standard_normal(episodes)
        rows.append((np.arange(episodes), np.full(episodes, t), x, a, x, after))
        x = after
    columns = [np.stack(column, 1).ravel() for column in zip(*rows, strict=True)]
    return dict(zip(("episode", "step", "x", "a", "r", "x2"), columns, strict=True))


def read(columns, **options) -> Log:
    return tc.logs.read(
        columns,
        state="x",
        action="a",
        reward="r",
        next_state="x2",
        episode="episode",
        step="step",
        terminated=None,
        **options,
    )


def line(state, action):
    return np.column_stack([np.ones(len(state)), np.ravel(state), np.ravel(action)])


@pytest.mark.parametrize("method", ["quadrature", "samples"])
def test_a_gaussian_policy(method):
    """Under a ~ N(−.5x, .25) the state shrinks by .65 a step: Q = x + γ(.8x + .3a)/(1 − .65γ)."""
    log = read(linear_log())
    assert log.actions is None
    pi = tc.logs.Gaussian(lambda s: -0.5 * s, 0.25, method=method, samples=4)
    v = tc.evaluate(log, pi, 0.9, features=line, start=np.array([1.0]), **BARE)
    truth = 1 / (1 - 0.9 * 0.65)
    assert v.low < truth < v.high
    assert v.se < 0.05 * truth
    exact = tc.evaluate(
        log,
        tc.logs.Gaussian(lambda s: -0.5 * s, 0.25, method="quadrature"),
        0.9,
        features=line,
        start=np.array([1.0]),
        **BARE,
    )
    assert v.se >= 0.98 * exact.se, "the error of the samples is part of the interval"
    with pytest.raises(tc.InputError, match=r"must be a `tc.logs.Gaussian\(mean, covariance\)`"):
        tc.evaluate(log, np.ones((1, 1)), 0.9, features=line)


def test_every_basis_estimates_a_value_of_vectors():
    """A random walk on a line, two actions: every basis comes near the value from a fine table."""
    rng = np.random.default_rng(1)
    episodes, x, rows = 600, None, []
    x = rng.uniform(-1, 1, episodes)
    for t in range(8):
        a = rng.integers(2, size=episodes)
        after = np.clip(x + 0.3 * (2 * a - 1), -1, 1)
        rows.append((np.arange(episodes), np.full(episodes, t), x, a, np.cos(x), after))
        x = after
    columns = [np.stack(column, 1).ravel() for column in zip(*rows, strict=True)]
    log = read(dict(zip(("episode", "step", "x", "a", "r", "x2"), columns, strict=True)))

    def home(state):
        return np.column_stack([np.ravel(state) > 0, np.ravel(state) <= 0]).astype(float)

    found = {
        name: tc.evaluate(log, home, 0.8, features=features, **BARE).value
        for name, features in {
            "rbf": "rbf",
            "tiles": tc.logs.features.Tiles(4, 12),
            "fourier": tc.logs.features.Fourier(8),
        }.items()
    }
    base = tc.logs.features.Rbf().fit(log.sample[0][:, None])

    def copies(state, action):  # the same features as a function, which is not summed by actions
        psi = base(np.asarray(state)[:, None])
        return (psi[:, :, None] * (np.asarray(action)[:, None] == np.arange(2))[:, None, :]).reshape(len(psi), -1)

    both = [tc.evaluate(log, home, 0.8, features=features, **BARE).table.iloc[0] for features in ("rbf", copies)]
    assert both[0][["value", "se"]].tolist() == pytest.approx(both[1][["value", "se"]].tolist(), rel=1e-6)
    y = rng.uniform(-1, 1, 4000)
    truth = 0.0
    for t in range(60):
        truth += 0.8**t * np.cos(y).mean()
        y = np.clip(y + np.where(y > 0, -0.3, 0.3), -1, 1)
    for name, value in found.items():
        assert value == pytest.approx(truth, rel=0.02), name


def test_a_network_as_features():
    eqx = pytest.importorskip("equinox")
    log = read({**linear_log(100), "a": (linear_log(100)["a"] > 0).astype(int)})
    model = eqx.nn.MLP(1, "scalar", 8, 2, key=jax.random.key(0))
    pi = np.tile([0.5, 0.5], (1, 1))
    for part, size in (("last", 2 * 9), ("whole", 2 * (8 + 8 + 64 + 8 + 8 + 1))):
        v = tc.evaluate(
            log, lambda s: np.repeat(pi, len(s), 0), 0.5, features=tc.logs.features.Network(model, part), **BARE
        )
        assert v.settings["size"] == size
        assert np.isfinite(v.table["value"][0])
    by_hand = np.asarray(jax.nn.relu(model.layers[1](jax.nn.relu(model.layers[0](np.array([0.3]))))))
    encoded = tc.logs.features.Network(model).fit(np.zeros((1, 1)))(np.array([[0.3]]))
    np.testing.assert_allclose(encoded[0, 1:], by_hand, rtol=1e-5)


def test_a_table_given_as_a_frame():
    import pandas as pd

    mdp = logged.random_mdp(end=0.1)
    names = np.array(list("abcdef"))
    columns = mdp.draw(100, 20)
    log = logged.read({**columns, "state": names[columns["state"]], "next_state": names[columns["next_state"]]})
    v = tc.evaluate(log, pd.DataFrame(mdp.pi, index=names), 0.9, **BARE)
    assert v.value == tc.evaluate(logged.read(columns), mdp.pi, 0.9, **BARE).value


def test_features_that_do_not_fit_give_a_warning():
    """Two features for a value that they cannot represent: richer ones move it, and that is said."""
    mdp = logged.random_mdp(states=8, end=0.1, seed=5)
    log = logged.read(mdp.draw(1500, 30, noise=0.1))
    coarse = tc.evaluate(
        log, mdp.pi, 0.9, features=lambda s, a: np.column_stack([np.ones(len(s)), np.asarray(s) == 0]), bootstrap=0
    )
    assert coarse.diagnostics.set_index("name")["grade"]["features"] == "warning"
    assert any("take richer features" in warning for warning in coarse.warnings)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_changed_constant_in_a_model_is_seen(compiled):
    size = [1.0]

    def model(x):
        return size[0] * x

    network = tc.logs.features.Network(jax.jit(model) if compiled else model)
    states = np.array([[2.0]])
    assert network.fit(states)(states).tolist() == [[1.0, 2.0]]
    size[0] = 5.0
    assert network.fit(states)(states).tolist() == [[1.0, 10.0]]


def plane(seed=0, episodes=60, steps=30, actions=4):
    """A walk on a line whose second coordinate is half the first, so that tiles of both are alike."""
    rng = np.random.default_rng(seed)
    x, place = np.zeros((episodes, steps)), rng.random(episodes)
    action = rng.integers(0, actions, size=(episodes, steps))
    for t in range(steps):
        x[:, t] = place
        place = np.clip(place + 0.1 * rng.normal(size=episodes) + 0.05 * (action[:, t] / (actions - 1) - 0.5), 0, 1)
    columns = {"x": x.ravel(), "y": 0.5 * x.ravel(), "action": action.ravel(), "reward": -((x.ravel() - 0.5) ** 2)}
    columns["episode"] = np.repeat(np.arange(episodes), steps)
    return tc.logs.read(columns, state=["x", "y"], terminated=None, episode="episode")


def steer(states):
    return np.where(states[:, 0] < 0.5, 3, 0)


def test_tiles_that_are_alike_are_answered_sparse_and_dense(monkeypatch, capfd):
    """Combinations of tiles that are 0 on all of the log are dropped; the sparse path gives the dense path's answer."""
    log, found = plane(), {}
    for name, limit in (("dense", 10_000), ("sparse", 100)):
        monkeypatch.setattr(sufficient_stats, "OVERLAPPING_FROM", limit)
        v = tc.evaluate(log, steer, 0.9, features=tc.logs.features.Tiles(4, 4), bootstrap=5, compare=False)
        checks = v.diagnostics.set_index("name")["value"]
        found[name] = [v.value, v.se, checks["radius"], v.table["bootstrap_low"][0]]
        assert checks["condition"] < 1e4
    np.testing.assert_allclose(found["sparse"], found["dense"], rtol=1e-3)
    assert found["sparse"][0] == pytest.approx(found["dense"][0], rel=1e-6)
    tiles = tc.logs.features.Tiles(3, 4)
    assert tc.evaluate(log, steer, 0.9, features=tiles, estimator=["lstdq", "fqe"], bootstrap=0).value < 0
    assert capfd.readouterr() == ("", "")


def test_states_that_never_come_back_get_the_remedy_at_once():
    with pytest.raises(
        tc.InputError, match=r"needs states that come back, and of .* are different.*take features='rbf'"
    ):
        tc.evaluate(plane(), steer, 0.9)


@pytest.mark.parametrize("kind", ["table", "tiles", "function", "side by side"])
def test_products_with_coefficients_are_those_of_the_rows(kind):
    columns = linear_log(60)
    columns["a"] = (columns["a"] > 0).astype(int)
    columns["x"], columns["x2"] = columns["x"].round(1), columns["x2"].round(1)
    log = read(columns)
    some = {
        "table": with_alike(build("onehot", log), log, lambda f, arguments, parts: (f(*arguments, i) for i in parts)),
        "tiles": build(tc.logs.features.Tiles(2, 3), log),
        "function": build(line, log),
    }
    features = some.get(kind) or SideBySide((some["tiles"], some["function"], build("rbf", log)))
    batch, rng = next(log.batches(0)), np.random.default_rng(0)
    c, law = rng.standard_normal((features.size, 3)), Actions(rng.dirichlet(np.ones(2), size=len(batch)))
    encoded = features.encode(batch.state)
    pairs, mean = features.pairs(encoded, batch.action), features.mean(encoded, law)
    assert pairs.shape == (len(batch), features.size)
    np.testing.assert_allclose(features.pairs_times(encoded, batch.action, c), pairs @ c, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(features.mean_times(encoded, law, c), mean @ c, rtol=1e-9, atol=1e-9)


def test_numbers_that_are_text_get_their_own_reason():
    x = np.random.default_rng(0).normal(size=400)
    columns = {"state": x.astype(str), "action": np.zeros(400, int), "reward": x, "terminated": np.ones(400)}
    for features in ("onehot", "rbf"):
        with pytest.raises(tc.InputError, match=r"numbers written as text: convert them, as with `pandas.to_numeric`"):
            tc.evaluate(tc.logs.read(columns), np.ones((1, 1)), 0.9, features)
    with pytest.raises(tc.InputError, match="`state` has numbers written as text: convert it"):
        tc.logs.read({**columns, "other": x}, state=["state", "other"])


def test_a_sum_without_end_is_refused():
    columns = {"state": np.zeros(400, int), "action": np.zeros(400, int), "reward": np.ones(400)}
    with pytest.raises(tc.InputError, match="`gamma` is 1 and no episode of the log terminates"):
        tc.evaluate(tc.logs.read(columns, terminated=None), np.ones((1, 1)), 1.0)


def test_a_start_of_another_kind_is_refused():
    columns = {"state": np.tile(["a", "b"], 200), "action": np.zeros(400, int), "reward": np.ones(400)}
    with pytest.raises(tc.InputError, match="`start` must be states like the log's, such as 'a'"):
        tc.evaluate(tc.logs.read(columns, terminated=None), lambda s: np.ones((len(s), 1)), 0.9, start=[0])
