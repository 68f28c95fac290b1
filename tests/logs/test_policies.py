"""Every form of a policy means the same, and columns are never read in an order that was not given."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.tree import DecisionTreeClassifier

import logged
import twoclock as tc

BARE = {"bootstrap": 0, "compare": False}
MDP = logged.random_mdp(end=0.1)
DATA = MDP.draw(episodes=150, steps=30)
PLACES = np.array(["north", "south", "east", "west", "up", "down"])
ACTS = np.array(["stay", "go"])  # not in the order of the alphabet
TEXT = {
    **DATA, "state": PLACES[DATA["state"]], "next_state": PLACES[DATA["next_state"]], "action": ACTS[DATA["action"]],
}  # fmt: skip
LOG = logged.read(TEXT)
NUMBER = {name: i for i, name in enumerate(PLACES)}
TRUTH = tc.evaluate(logged.read(DATA), MDP.pi, 0.9, **BARE).value
GREEDY = np.eye(2)[MDP.pi.argmax(axis=1)]
GREEDY_TRUTH = tc.evaluate(logged.read(DATA), GREEDY, 0.9, **BARE).value


def rows(states):
    return MDP.pi[[NUMBER[state] for state in states]]


def chosen(states):
    return ACTS[rows(states).argmax(axis=1)]


FRAME = pd.DataFrame(MDP.pi, index=PLACES, columns=ACTS)


@pytest.mark.parametrize(
    "policy",
    [
        FRAME, FRAME[["go", "stay"]], FRAME.iloc[::-1],
        lambda s: pd.DataFrame(rows(s), columns=ACTS), lambda s: FRAME.loc[s],
        lambda s: pl.DataFrame(rows(s), schema=list(ACTS)),
        lambda s: dict(zip(ACTS, rows(s).T, strict=True)),
        lambda s: [dict(zip(ACTS, row, strict=True)) for row in rows(s)],
        {place: dict(zip(ACTS, row, strict=True)) for place, row in zip(PLACES, MDP.pi, strict=True)},
    ],
)  # fmt: skip
def test_probabilities_by_name_do_not_depend_on_an_order(policy):
    assert tc.evaluate(LOG, policy, 0.9, **BARE).value == pytest.approx(TRUTH, abs=1e-9)
    both = tc.evaluate(LOG, {"mine": policy, "same": FRAME}, 0.9, **BARE)
    assert both["mine"].value == pytest.approx(TRUTH, abs=1e-9)


@pytest.mark.parametrize(
    "policy",
    [
        chosen, lambda s: pd.Series(chosen(s)), lambda s: list(chosen(s)),
        dict(zip(PLACES, chosen(PLACES), strict=True)), pd.Series(chosen(PLACES), index=PLACES),
        DecisionTreeClassifier().fit(np.arange(6)[:, None], chosen(PLACES)),
    ],
)  # fmt: skip
def test_one_action_a_state(policy):
    log = LOG if not hasattr(policy, "predict") else logged.read({**DATA, "action": TEXT["action"]})
    assert tc.evaluate(log, policy, 0.9, **BARE).value == pytest.approx(GREEDY_TRUTH, abs=1e-9)


def test_an_array_over_named_actions_needs_their_order_once():
    with pytest.raises(
        tc.InputError, match=r"nothing says which is which of the actions 'go', 'stay'.*in `read\(…, actions=\["
    ) as e:
        tc.evaluate(LOG, rows, 0.9)
    assert "\n" not in str(e.value)
    numbered = logged.read({**DATA, "action": TEXT["action"]})
    with pytest.raises(tc.InputError, match="nothing says which is which"):
        tc.evaluate(numbered, MDP.pi, 0.9)
    in_order = logged.read(TEXT, actions=["stay", "go"])
    assert tc.evaluate(in_order, rows, 0.9, **BARE).value == pytest.approx(TRUTH, abs=1e-9)


def test_classifiers_get_the_columns_they_were_fitted_on_in_their_order():
    grid = {**DATA, "x": DATA["state"] % 2, "y": DATA["state"] // 2, "x2": DATA["next_state"] % 2}
    grid["y2"] = DATA["next_state"] // 2
    states = pd.DataFrame({"y": np.arange(6) // 2, "x": np.arange(6) % 2})
    model = DecisionTreeClassifier().fit(states, MDP.pi.argmax(axis=1))
    log = logged.read(grid, state=["x", "y"], next_state=["x2", "y2"])
    assert tc.evaluate(log, model, 0.9, **BARE).value == pytest.approx(GREEDY_TRUTH, abs=1e-9)
    with pytest.raises(tc.InputError, match="was fitted on the columns 'y', 'x' and the state has 'state'"):
        tc.evaluate(logged.read(DATA), model, 0.9)
    by_pair = {(x, y): int(MDP.pi.argmax(axis=1)[x + 2 * y]) for x in (0, 1) for y in (0, 1, 2)}
    assert tc.evaluate(log, by_pair, 0.9, **BARE).value == pytest.approx(GREEDY_TRUTH, abs=1e-9)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (lambda s: {"go": np.ones(len(s)), "Stay": np.zeros(len(s))}, "names 'Stay', which is no action of the log"),
        (lambda s: {"go": np.full(len(s), 0.4)}, "probabilities that sum to 1"),
        (lambda s: np.full(len(s), "left"), "must choose among the actions 'go', 'stay', got 'left'"),
        (lambda s: np.zeros(len(s), int), "must choose among the actions 'go', 'stay', got 0"),
        ({"north": "go"}, "which is not there; add it"),
        ({0: "go"}, "must have states as the log has them, such as"),
        (lambda s: np.random.default_rng().choice(ACTS, len(s)), "differs from call to call"),
        (lambda s: np.ma.array(rows(s), mask=rows(s) < 0.5), "must have no masked entries"),
        (DecisionTreeClassifier(), "it has no list `classes_`; fit it first"),
        (pd.DataFrame(MDP.pi, index=PLACES, columns=["a", "b"]), "names 'a', which is no action"),
    ],
)
def test_what_is_no_policy_is_refused_in_one_line(policy, words):
    with pytest.raises(tc.InputError, match=words) as error:
        tc.evaluate(LOG, policy, 0.9)
    assert "\n" not in str(error.value)


def test_the_actions_are_shown():
    assert "2 actions: 'go', 'stay'" in repr(LOG)
    v = tc.evaluate(LOG, FRAME, 0.9)
    assert "'go', 'stay'" in v.verdict
    assert v.settings["actions"] == ["go", "stay"]


STATE_DEPENDENT = logged.random_mdp(states=6, actions=3, seed=1, end=0.1)
STATE_DEPENDENT.b = np.random.default_rng(2).dirichlet(np.ones(3), size=6)


def test_a_policy_that_claims_to_be_the_behaviour_is_compared_with_it():
    log, b = logged.read(STATE_DEPENDENT.draw(episodes=150, steps=30)), STATE_DEPENDENT.b
    v = tc.evaluate(log, {"behaviour": b, "wrong order": b[:, [2, 0, 1]], "logged": STATE_DEPENDENT.pi}, 0.9)
    checks = v.diagnostics[v.diagnostics["name"] == "behaviour"].set_index("policy")
    assert checks["grade"].to_dict() == {"behaviour": "fine", "wrong order": "warning", "logged": "warning"}
    assert "stand for 2, 0, 1" in checks.loc["wrong order", "sentence"]
    assert any("wrong order: its columns are the log's propensities" in warning for warning in v.warnings)
    other = tc.evaluate(log, STATE_DEPENDENT.pi, 0.9)
    assert "behaviour" not in set(other.diagnostics["name"]), "a policy of another kind claims nothing"


def test_a_coin_turned_round_is_a_policy_and_no_wrong_order():
    flat = logged.random_mdp(end=0.1)
    flat.b = np.tile([0.8, 0.2], (6, 1))
    v = tc.evaluate(logged.read(flat.draw(episodes=150, steps=30)), flat.b[:, ::-1], 0.9)
    assert "behaviour" not in set(v.diagnostics["name"])
