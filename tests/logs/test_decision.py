"""The sentence for a decision and the page that shows it: what is said of known differences, and what is not."""

import re

import numpy as np
import pandas as pd
import pytest

import logged
import twoclock as tc
from twoclock.logs.decision import decide

MDP = logged.random_mdp(end=0.15, seed=4)
DATA = MDP.draw(episodes=400, steps=200)
BEST = np.eye(2)[MDP.r.argmax(axis=1)] * 0.9 + 0.05
WORST = 1 - BEST
NAMES = np.array(["wait", "buy"])
LOG = logged.read({**DATA, "action": NAMES[DATA["action"]]})


def by_name(law):
    return pd.DataFrame(law, columns=NAMES)


def test_the_policy_to_take_stands_in_the_first_sentence():
    v = tc.evaluate(LOG, {"today": by_name(MDP.b), "lean": by_name(BEST)}, 0.9, unit="€")
    gain = v.differences.iloc[0]
    numbers = f"{gain['difference']:.3g} € [{gain['low']:.3g}, {gain['high']:.3g}]"
    assert v.decision == f"Take lean: it beats today by {numbers}."
    assert repr(v).startswith(v.decision)
    turned = tc.evaluate(LOG, {"lean": by_name(BEST), "today": by_name(MDP.b)}, 0.9, unit="€")
    assert turned.decision == v.decision, "whatever the order of the policies"
    kept = tc.evaluate(LOG, {"today": by_name(MDP.b), "worse": by_name(WORST)}, 0.9)
    assert kept.decision.startswith("Keep today: it beats worse by ")


def test_one_policy_is_held_against_what_the_log_did():
    v = tc.evaluate(LOG, by_name(BEST), 0.9)
    gain, low, high = v.settings["gains"]["policy"]
    assert v.decision == f"Take the policy: it beats what the log did by {gain:.3g} [{low:.3g}, {high:.3g}]."
    truth = MDP.worth(BEST) - MDP.worth(MDP.b)
    assert low < truth < high
    worse = tc.evaluate(LOG, by_name(WORST), 0.9)
    assert worse.decision.startswith("Do not take the policy: it is worse than what the log did by ")
    assert "Evaluate another policy beside it" in tc.evaluate(LOG, by_name(MDP.b), 0.9).decision
    cut = logged.read(MDP.draw(episodes=200, steps=5))
    assert tc.evaluate(cut, BEST, 0.9).settings["gains"] == {}, (
        "returns that were cut off are no value of the behaviour"
    )


def test_nothing_is_recommended_that_is_not_shown():
    small = {name: column[DATA["episode"] < 40] for name, column in DATA.items()}
    like = MDP.b + 0.02 * np.array([[1.0, -1.0], [-1.0, 1.0]] * 3)
    v = tc.evaluate(logged.read(small), {"today": MDP.b, "other": like}, 0.9)
    assert v.differences["low"].iloc[0] < 0 < v.differences["high"].iloc[0]
    best, rest = ("other", "today") if v["other"].value > v["today"].value else ("today", "other")
    keep = "keep today" if best == "other" else "today and other may be equally good"
    assert v.decision.startswith(f"No policy is shown to be the best, so {keep}: {best} − {rest} is ")
    never = np.hstack([np.zeros((6, 2)), np.ones((6, 1))])
    refused = tc.evaluate(logged.read(DATA), never, 0.9)
    assert refused.decision.startswith("Do not decide by this log. It cannot say what the policy is worth: 100.0%")
    assert decide(refused).grade == "no"
    part = tc.evaluate(logged.read(DATA), {"never": never, "lean": np.hstack([BEST, np.zeros((6, 1))])}, 0.9)
    assert part.decision.startswith("Take lean: it beats what the log did by ")
    assert "Of never it can say nothing." in part.decision


def test_the_report_begins_with_the_decision_and_has_remedies_only_beside_what_failed(tmp_path):
    v = tc.evaluate(LOG, {"today": by_name(MDP.b), "<b>lean": by_name(BEST)}, 0.9, unit="€")
    page = v.report(tmp_path).read_text()
    assert re.search(r"<h1[^>]*><span[^>]*>✓</span> Take &lt;b&gt;lean: it beats today by", page)
    assert "'buy', 'wait'" in page.replace("&#39;", "'")
    assert "in €" in page
    assert not v.warnings
    noted = v.diagnostics["name"] == "starts"
    assert set(v.diagnostics["grade"][noted]) == {"note"}
    assert page.split("<h2>Details")[0].count("give the states and their shares with `start`") == 2
    remedies = v.diagnostics["remedy"][~noted].unique()
    assert not any(remedy.replace("'", "&#39;") in page for remedy in remedies)
    few = {name: column[DATA["episode"] < 20] for name, column in DATA.items()}
    warned = tc.evaluate(logged.read(few), {"today": MDP.b, "lean": BEST}, 0.9)
    assert re.search(r"(But|Also,) (one check warns|\d+ checks warn): read the warnings first", warned.decision)
    page = warned.report(tmp_path / "few").read_text()
    assert "<h2>Warnings</h2>" in page
    assert page.split("<details>")[0].count("an interval from fewer than 30 is rough") == 1, "once for both policies"


def test_a_unit_that_is_no_text_is_refused():
    with pytest.raises(tc.InputError, match="`unit` must be a short text such as '€', got 3"):
        tc.evaluate(LOG, by_name(BEST), 0.9, unit=3)
