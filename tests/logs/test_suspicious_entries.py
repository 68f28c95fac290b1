"""Codes for missing numbers, actions spelt twice, and what a reader sees of notes."""

import numpy as np
import pandas as pd
import pytest

import logged
import twoclock as tc
from twoclock.logs import suspicious_entries

MDP = logged.random_mdp(end=0.1)
BARE = {"bootstrap": 0, "compare": False}


def columns(**changed):
    return {**MDP.draw(episodes=60, steps=20), **changed}


def found(log, name):
    law = pd.DataFrame(1 / len(log.actions), index=range(6), columns=log.actions)
    v = tc.evaluate(log, law, 0.9, **BARE)
    rows = v.diagnostics[v.diagnostics["name"] == name]
    assert set(rows["grade"]) <= {"warning"}
    assert all(any(sentence in warning for warning in v.warnings) for sentence in rows["sentence"])
    return rows["sentence"].tolist()


@pytest.mark.parametrize("code", [-999.0, 9999.0])
def test_a_code_for_a_missing_reward_is_asked_about(code, monkeypatch):
    monkeypatch.setattr("twoclock.logs.dataset.ROWS", 100)  # entries are compared with those of other batches
    monkeypatch.setattr(suspicious_entries, "_BATCHES", 10_000)
    reward = columns()["reward"]
    rows = len(reward[::50])
    reward[::50] = code
    (sentence,) = found(logged.read(columns(reward=reward)), "missing_codes")
    assert sentence.startswith(f"`reward` is {code:g} in {rows:,} rows and between ")


def test_a_code_for_a_missing_state_is_asked_about_by_its_column():
    rng = np.random.default_rng(0)
    place = rng.normal(20, 3, 900)
    place[7::90] = -9999
    table = {
        "warm": place, "wet": rng.uniform(size=900), "action": rng.integers(2, size=900), "reward": rng.normal(size=900)
    }  # fmt: skip
    log = tc.logs.read(table, state=["warm", "wet"], terminated=None)
    assert [sentence[:28] for sentence in log.codes] == ["`warm` is -9999 in 10 rows a"]
    log = tc.logs.read({**table, "state": np.column_stack([table["wet"], place])}, terminated=None)
    assert [sentence[:15] for sentence in log.codes] == ["`state[1]` is -"]


def test_numbers_of_nines_among_others_are_none():
    """A count that reaches 999, a constant −999, and a reward that is 999 once beside 0 and 500 are ordinary."""
    data = columns()
    n = len(data["reward"])
    for reward in (
        np.arange(n) % 1000.0,
        np.full(n, -999.0),
        np.arange(n) % 2 * 500.0 + (np.arange(n) == 5) * 499.0,
    ):
        assert found(logged.read(columns(reward=reward)), "missing_codes") == []


def test_an_action_that_is_spelt_twice_is_named():
    action = np.array(["left", "right"], dtype="U8")[columns()["action"]]
    action[::5] = np.char.add(np.char.upper(action[::5]), " ")
    (sentence,) = found(logged.read(columns(action=action)), "spelling")
    assert sentence == "actions differ only in blanks or capitals: 'LEFT ' and 'left', 'RIGHT ' and 'right'"
    assert found(logged.read(columns(action=np.array(["left", "right"])[columns()["action"]])), "spelling") == []


def test_the_note_on_missing_starts_is_read(tmp_path):
    v = tc.evaluate(logged.read(columns()), MDP.pi, 0.9, bootstrap=0)
    (note,) = v.notes
    assert note.startswith("a kind of start rarer than 0.05 may be missing among 60; ")
    assert f"\n  note: {note}" in repr(v)
    page = v.report(tmp_path).read_text(encoding="utf-8")
    assert v.verdict.startswith("If no kind of start rarer than 0.05 is worth less than "), "ahead of the number"
    assert page.index("These numbers hold if no kind of start rarer than 0.05 is worth less") < page.index("<h1")
    given = tc.evaluate(logged.read(columns()), MDP.pi, 0.9, start=[0], bootstrap=0)
    assert given.verdict.startswith("The policy is worth ")
    assert "<h2>Notes</h2>" in page
    assert "A kind of start rarer than 0.05 may be missing" in page
    assert "PDIS and WIS" not in page.split("<h2>Details")[0], "of an estimator that was not chosen"


@pytest.mark.parametrize("estimator", ["wis", "state_model", "snips"])
def test_every_estimator_from_the_logs_own_starts_has_the_condition(estimator):
    one_step = columns()["step"] == 0
    log = logged.read({name: column[one_step] for name, column in columns(terminated=one_step | True).items()})
    v = tc.evaluate(log, MDP.pi, 0.9, estimator=estimator, **BARE)
    assert v.verdict.startswith("If no kind of start rarer than 0.05 is worth less than ")
    assert v.notes[0].startswith("a kind of start rarer than 0.05 may be missing among 60")


def test_an_interval_without_length_is_no_certainty():
    """A log that never reached the prize: every reward is 0, and so are the value and its error."""
    v = tc.evaluate(logged.read(columns(reward=np.zeros(len(columns()["reward"])))), MDP.pi, 0.9, bootstrap=0)
    assert (v.value, v.low, v.high) == (0.0, 0.0, 0.0)
    assert any(warning.startswith("the interval has no length") for warning in v.warnings)
    v = tc.evaluate(logged.read(columns()), MDP.pi, 0.9, bootstrap=0)
    assert "length" not in set(v.diagnostics["name"])
