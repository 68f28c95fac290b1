"""The model over states: against a recurrence by hand, and where LSTD-Q is refused."""

import numpy as np
import pytest
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import spsolve

import logged
import twoclock as tc

BARE = {"bootstrap": 0, "compare": False}
MDP = logged.random_mdp(states=5, actions=3, seed=2, end=0.1)
MDP.b = np.random.default_rng(0).dirichlet(np.full(3, 3.0), size=5)
DATA = MDP.draw(episodes=200, steps=30)


def test_the_value_is_that_of_averages_with_normalised_ratios():
    ratio = MDP.pi[DATA["state"], DATA["action"]] / DATA["propensity"]
    P, r = np.zeros((5, 5)), np.zeros(5)
    for s in range(5):
        rows = DATA["state"] == s
        share = ratio[rows] / ratio[rows].sum()
        r[s] = share @ DATA["reward"][rows]
        P[s] = np.bincount(DATA["next_state"][rows], share * ~DATA["terminated"][rows], minlength=5)
    V = np.linalg.solve(np.eye(5) - MDP.gamma * P, r)
    starts = DATA["state"][DATA["step"] == 0]
    v = tc.evaluate(logged.read(DATA), MDP.pi, MDP.gamma, estimator="state_model", **BARE)
    assert v.value == pytest.approx(V[starts].mean(), abs=1e-12)
    here = tc.evaluate(logged.read(DATA), MDP.pi, MDP.gamma, estimator="state_model", start=[3], **BARE)
    assert here.value == pytest.approx(V[3], abs=1e-12)


def test_its_interval_covers():
    truth, hits, spread, errors = MDP.worth(), 0, [], []
    for seed in range(60):
        log = logged.read(MDP.draw(episodes=60, steps=30, seed=seed))
        v = tc.evaluate(log, MDP.pi, MDP.gamma, estimator="state_model", **BARE)
        hits += v.low <= truth <= v.high
        spread.append(v.value)
        errors.append(v.se)
    assert hits >= 52
    assert 0.75 < np.mean(errors) / np.std(spread) < 1.35


def sparse_log(states, actions, episodes, steps, seed=0, *, never=None):
    """A random graph with five ways on from each pair; its true values for a sharp policy, and the behaviour."""
    rng = np.random.default_rng(seed)
    to = rng.integers(states, size=(states, actions, 5))
    P, r = rng.dirichlet(np.ones(5), size=(states, actions)), rng.random((states, actions))
    pi = rng.dirichlet(np.full(actions, 0.5), size=states)
    b = 0.5 * rng.dirichlet(np.ones(actions), size=states) + 0.5 / actions
    if never is not None:
        b[:, never] = 0.0
        b /= b.sum(axis=1, keepdims=True)

    def worth(policy, gamma):
        entries = (policy[:, :, None] * P).ravel(), (np.repeat(np.arange(states), actions * 5), to.ravel())
        chain = csr_array(entries, shape=(states, states))
        return spsolve((eye_array(states) - gamma * chain).tocsc(), (policy * r).sum(axis=1)).mean()

    s, rows = rng.integers(states, size=episodes), []
    for t in range(steps):
        a = (b[s].cumsum(axis=1) < rng.random(episodes)[:, None]).sum(axis=1).clip(max=actions - 1)
        way = (P[s, a].cumsum(axis=1) < rng.random(episodes)[:, None]).sum(axis=1).clip(max=4)
        earned = r[s, a] + 0.5 * rng.standard_normal(episodes)
        rows.append((np.arange(episodes), np.full(episodes, t), s, a, earned, to[s, a, way], b[s, a]))
        s = to[s, a, way]
    names = ("episode", "step", "state", "action", "reward", "next_state", "propensity")
    columns = {
        name: np.stack(column, axis=1).ravel() for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    return logged.read(columns, terminated=None), pi, b, worth


def test_a_table_too_large_for_pairs_is_answered_by_states():
    log, pi, _, worth = sparse_log(500, 6, 100, 150)
    v = tc.evaluate(log, pi, 0.9, bootstrap=0)
    assert v.table["estimator"][0] == "state_model"
    assert v.value == pytest.approx(worth(pi, 0.9), rel=0.02)
    assert v.low < worth(pi, 0.9) < v.high
    assert not v.warnings
    why = v.table.set_index("estimator").loc["lstdq", "note"]
    assert "of the policy's discounted path leads to pairs that the log has no data for" in why
    assert np.isnan(v.table.set_index("estimator").loc["lstdq", "value"])


def test_a_large_table_that_lacks_few_pairs_is_answered_by_states():
    """LSTD-Q has an answer too, with a longer interval, and is taken if a check of the model warns."""
    log, pi, _, worth = sparse_log(500, 6, 150, 150)
    pairs = tc.evaluate(log, pi, 0.9, estimator="lstdq", **BARE)
    assert 0.05 < pairs.diagnostics.set_index("name").loc["outside", "value"] < 0.1
    v = tc.evaluate(log, pi, 0.9, **BARE)
    assert v.table["estimator"][0] == "state_model"
    assert v.low < worth(pi, 0.9) < v.high
    assert v.se < 0.8 * pairs.se


def test_a_behaviour_that_never_does_what_the_policy_does_is_seen():
    """Normalised ratios hide it: the other actions would stand for the one that is missing."""
    log, pi, _, _ = sparse_log(100, 6, 100, 60, never=0)
    v = tc.evaluate(log, pi, 0.9, estimator="state_model", **BARE)
    assert np.isnan(v.value)
    assert "of the policy's discounted path does what the behaviour never does" in v.verdict


def test_the_policy_that_wrote_the_log_is_always_answered():
    answered, took = 0, set()
    for seed in range(9):
        log, _, b, worth = sparse_log(15, 8, [20, 40, 100][seed % 3], 20, seed)
        v = tc.evaluate(log, {"behaviour": b, "other": b[::-1]}, 0.95, bootstrap=0)
        answered += np.isfinite(v["behaviour"].value)
        took.add(v["behaviour"].table["estimator"].iloc[0])
        assert abs(v["behaviour"].value - worth(b, 0.95)) < 5 * v["behaviour"].se
    assert answered == 9
    assert "state_model" in took


def test_it_says_what_it_needs():
    with pytest.raises(tc.InputError, match="needs the behaviour's probability of each action; name its column"):
        tc.evaluate(logged.read(DATA, propensity=None), MDP.pi, 0.9, estimator="state_model")


def test_a_large_table_is_solved_without_a_factorisation(monkeypatch):
    """With random successors LU fills in: 1,200 pairs take a second for each of the resamples, 12,000 take minutes."""
    log, pi, _, worth = sparse_log(200, 6, 200, 150)
    monkeypatch.setattr("scipy.sparse.linalg.splu", lambda *_: pytest.fail("LU of a matrix that fills in"))
    v = tc.evaluate(log, pi, 0.9, bootstrap=20)
    assert v.table["estimator"][0] == "lstdq"
    assert "state_model" in set(v.table["estimator"][v.table["value"].notna()])
    assert v.low < worth(pi, 0.9) < v.high


def test_the_iteration_agrees_with_the_factorisation(monkeypatch):
    log, pi, _, _ = sparse_log(120, 6, 150, 100)
    found = [tc.evaluate(log, pi, 0.9, estimator="lstdq", **BARE)]
    monkeypatch.setattr("twoclock.logs.linear_systems._iterate", lambda *_: None)
    found.append(tc.evaluate(log, pi, 0.9, estimator="lstdq", **BARE))
    assert found[0].value == pytest.approx(found[1].value, rel=1e-9)
    assert found[0].se == pytest.approx(found[1].se, rel=1e-9)
    condition = [v.diagnostics.set_index("name").loc["condition", "value"] for v in found]
    assert condition[0] == pytest.approx(condition[1], rel=1e-9)


def test_actions_that_a_state_lacks_are_part_of_the_error():
    """State 1 has ten equal rows of one of two actions: alone they would have no error."""
    state, reward = np.repeat([0, 1], [40, 10]), np.repeat([0.0, 1.0, 2.0], [20, 20, 10])
    columns = {"state": state, "action": np.arange(50) % 2 * (state == 0), "reward": reward, "b": np.full(50, 0.5)}
    log = tc.logs.read({**columns, "terminated": np.ones(50)}, propensity="b")
    v = tc.evaluate(log, np.full((2, 2), 0.5), 0.9, estimator="state_model", start=[1], **BARE)
    assert v.table["value"][0] == pytest.approx(2.0)
    # Half of the policy's actions there, and half a row beside ten, with residuals of mean square 40 · .25/50.
    assert v.table["se"][0] == pytest.approx(np.sqrt((0.5**2 + 0.5 / 10**2) * 0.2), rel=1e-9)


def test_a_state_where_the_policy_does_what_the_log_lacks_is_no_answer():
    """In state 1 the log has one action, and the policy takes the other."""
    n = 400
    state, action = np.arange(n) % 2, np.zeros(n, int)
    columns = {"state": state, "action": action, "reward": np.full(n, -1.0), "episode": np.arange(n) // 10}
    log = tc.logs.read({**columns, "b": np.full(n, 0.5)}, episode="episode", propensity="b", terminated=None)
    for share, grade in ((0.02, "fine"), (0.1, "warning"), (0.9, "fatal")):
        policy = np.array([[1.0, 0.0], [1 - share, share]])
        v = tc.evaluate(log, policy, 0.9, estimator="state_model", **BARE)
        assert v.diagnostics.set_index("name").loc["gaps", "grade"] == grade
        assert np.isnan(v.value) == (grade == "fatal")


def test_policies_of_different_estimators_are_compared():
    """The behaviour is answered by states, the other policy by pairs or not at all."""
    for seed in range(3):
        log, pi, b, _ = sparse_log(15, 4, 60, 20, seed)
        v = tc.evaluate(log, {"behaviour": b, "mixed": 0.5 * b + 0.5 * pi, "other": pi}, 0.95, bootstrap=0)
        assert v.ranking is None or np.isfinite(v.ranking["value"]).all()
