"""Every estimator that is found: identities between them, and truth on exact MDPs."""

import sys

import numpy as np
import pytest

import logged
import twoclock as tc
from twoclock.logs.estimators import fqe_network, two_time_scale

BARE = {"bootstrap": 0, "compare": False}
MDP = logged.random_mdp(end=0.1)
LOG = logged.read(MDP.draw(episodes=150, steps=50))


def value(log, estimator, **options):
    return tc.evaluate(log, MDP.pi, MDP.gamma, estimator=estimator, **BARE, **options)


@pytest.fixture(scope="module")
def lstdq():
    return value(LOG, "lstdq")


def test_every_estimator_has_a_title_and_a_docstring():
    found = tc.logs.estimators()
    least_squares, ratios = {"dice", "dr", "fast_tdc", "fqe", "fqe_network", "lstdq", "model"}, {"pdis", "wis"}
    bandit = {"bandit_dr", "ips", "snips", "switch"}
    assert set(found) == least_squares | ratios | bandit | {"naive", "state_model"}
    assert all(one.title and one.estimate.__doc__ for one in found.values())


@pytest.mark.parametrize(("name", "tolerance"), [("model", 1e-12), ("fqe", 1e-9), ("dice", 1e-8)])
def test_model_fqe_and_dice_agree_with_lstdq(lstdq, name, tolerance):
    other = value(LOG, name)
    assert other.value == pytest.approx(lstdq.value, abs=tolerance)
    assert other.se == pytest.approx(lstdq.se, rel=0.01)


def test_dice_with_dense_features_that_cannot_represent_the_value(monkeypatch):
    def phi(state, action):
        return np.column_stack([np.ones(len(state)), np.asarray(state) == 3, np.asarray(action) == 1])

    one, other = (value(LOG, name, features=phi) for name in ("lstdq", "dice"))
    assert other.table["value"][0] == pytest.approx(one.table["value"][0], abs=1e-8)
    assert abs(one.table["value"][0] - MDP.worth()) > 1e-3
    monkeypatch.setattr(two_time_scale, "NUMBERS", 3 * 600)  # half of the rows at a time
    monkeypatch.setattr(two_time_scale, "DICE_STEPS", 2000)
    drawn = value(LOG, "dice", features=phi)
    assert int(drawn.table["note"][0].split()[0]) > 2, "one sample alone does not have the log's solution"
    assert drawn.table["value"][0] == pytest.approx(one.table["value"][0], abs=1e-8)


def test_fast_tdc_converges_to_lstdq(lstdq, monkeypatch):
    monkeypatch.setattr(two_time_scale, "TDC_SEEDS", 1)
    other = value(LOG, "fast_tdc")
    assert abs(other.value - lstdq.value) < 0.5 * lstdq.se
    assert "from its fixed point" in other.table["note"][0]
    monkeypatch.setattr(two_time_scale, "TDC_STEPS", 300)
    with pytest.raises(tc.InputError, match="'fast_tdc' does not apply to this log: it has not converged"):
        value(LOG, "fast_tdc")


def test_importance_sampling_by_hand():
    """Two episodes, ratios by hand; weights by their own formula."""
    columns = {
        "state": [0, 1] * 6, "action": [0, 1] * 3 + [1, 1] * 3, "reward": [1.0, 2.0] * 3 + [0.0, 4.0] * 3,
        "terminated": [False, True] * 6, "p": [0.5, 0.25] * 6,
    }  # fmt: skip
    log = tc.logs.read({name: column * 2 for name, column in columns.items()}, propensity="p")
    pi = np.array([[0.8, 0.2], [0.5, 0.5]])
    gamma, a, b = 0.5, (0.8 / 0.5, 0.5 / 0.25), (0.2 / 0.5, 0.5 / 0.25)
    first = a[0] * 1.0 + gamma * a[0] * a[1] * 2.0
    second = gamma * b[0] * b[1] * 4.0
    v = tc.evaluate(log, pi, gamma, estimator="pdis", **BARE)
    assert v.table["value"][0] == pytest.approx((first + second) / 2, rel=1e-12)
    v = tc.evaluate(log, pi, gamma, estimator="wis", **BARE)
    weights = np.array([a[0] * a[1], b[0] * b[1]])
    assert v.table["value"][0] == pytest.approx(weights @ [1 + gamma * 2, gamma * 4] / weights.sum(), rel=1e-12)
    v = tc.evaluate(log, pi, gamma, estimator="naive", **BARE)
    assert v.table["value"][0] == pytest.approx((1 + gamma * 2 + gamma * 4) / 2, rel=1e-12)


def test_importance_sampling_and_doubly_robust_find_the_truth():
    """Short episodes, all of them ended, so that ratios stay tame; with propensities given, partly given and not."""
    short = logged.random_mdp(end=0.5, seed=2)
    columns = short.draw(episodes=4000, steps=200)
    partly = {**columns, "propensity": np.where(columns["step"] == 0, np.nan, columns["propensity"])}
    for log in (logged.read(columns), logged.read(partly), logged.read(columns, propensity=None)):
        v = tc.evaluate(log, short.pi, short.gamma, estimator=["lstdq", "dr", "pdis", "wis"], bootstrap=0)
        for row in v.table[v.table["estimator"] != "naive"].itertuples(index=False):
            assert abs(row.value - short.worth()) < 4 * row.se, row.estimator
        assert not v.warnings
        given = log.propensities == log.rows
        assert ("estimated by a cross-fitted logit" in v.table["note"][2]) != given
    naive = v.table.set_index("estimator")["value"]["naive"]
    assert abs(naive - short.worth()) > 0.02


def test_a_network_corrected_by_the_weights_finds_the_truth(lstdq, monkeypatch):
    pytest.importorskip("equinox")
    monkeypatch.setattr(fqe_network, "TARGETS", 30)
    monkeypatch.setattr(fqe_network, "STEPS", 30)
    v = value(LOG, "fqe_network")
    assert abs(v.value - lstdq.value) < lstdq.se
    assert "the networks alone say" in v.table["note"][0]


def test_fitted_q_is_refused_where_it_diverges():
    """Two states, one feature, Q(second) = 2·Q(first): Tsitsiklis and Van Roy's example."""

    def phi(state, action):
        return 1.0 + np.asarray(state)[:, None]

    n = 400
    columns = {
        "state": np.arange(n) % 2, "action": np.zeros(n, int), "reward": np.ones(n),
        "next_state": np.ones(n, int), "terminated": np.zeros(n, bool), "episode": np.arange(n),
    }  # fmt: skip
    columns["state"] = np.where(np.arange(n) % 10 == 0, 1, 0)  # the second state is seldom left
    log = tc.logs.read(columns, next_state="next_state", episode="episode")
    with pytest.raises(tc.InputError, match=r"`estimator` 'fqe' does not apply to this log: it diverges, the spectral"):
        tc.evaluate(log, np.ones((2, 1)), 0.95, features=phi, estimator="fqe", **BARE)
    v = tc.evaluate(log, np.ones((2, 1)), 0.95, features=phi, **BARE)
    assert v.diagnostics.set_index("name")["grade"]["radius"] == "warning"


def test_dice_keeps_to_a_budget_where_nobody_asked_for_it(monkeypatch):
    monkeypatch.setattr(two_time_scale, "DICE_BUDGET", 1)
    for module, name in ((fqe_network, "TARGETS"), (fqe_network, "STEPS"), (two_time_scale, "TDC_SEEDS")):
        monkeypatch.setattr(module, name, 1)  # of the others it is only asked that they run
    with_all = tc.evaluate(LOG, MDP.pi, MDP.gamma, estimator="all", bootstrap=0, compare=False).table
    note = with_all.set_index("estimator").loc["dice", "note"]
    assert "not converged within its budget" in note
    assert "ask for estimator='dice'" in note


def test_all_estimators_show_which_one_runs(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    short = ["lstdq", "naive"]
    found = {name: tc.logs.estimators()[name] for name in short}
    monkeypatch.setattr(sys.modules["twoclock.logs.evaluate"], "estimators", lambda: found)
    tc.evaluate(LOG, MDP.pi, MDP.gamma, estimator="all", bootstrap=0, compare=False)
    assert "naive" in capsys.readouterr().err
    tc.evaluate(LOG, MDP.pi, MDP.gamma, estimator=short, bootstrap=0, compare=False)
    assert capsys.readouterr().err == ""
