"""From a log to a value: exact identities, exact MDPs, coverage, and what a log cannot tell."""

import functools
import itertools

import numpy as np
import pytest

import logged
import twoclock as tc
from twoclock.intervals.batch_means import ALIKE, BLOCKS
from twoclock.logs import dataset
from twoclock.logs.standard_error import cluster_error, interval

BARE = {"bootstrap": 0, "compare": False}
MDP = logged.random_mdp(end=0.1)
LOG = logged.read(MDP.draw(episodes=300, steps=50))


def test_a_hand_computed_value_and_interval():
    """One state, one action: v̂ = Σr/Σ(1−γ·(1−terminated)), and the influence by hand."""
    reward, terminated = np.array([1.0, 2.0, 3.0, 5.0, 4.0]), np.array([False, True, True, False, True])
    log = tc.logs.read(
        {"state": np.zeros(5, int), "action": np.zeros(5, int), "reward": reward, "terminated": terminated}
    )
    gamma = 0.5
    denominator = 5 - gamma * 2
    value = reward.sum() / denominator
    v = tc.evaluate(log, np.ones((1, 1)), gamma, start=np.array([0]), **BARE)
    assert v.table["value"][0] == pytest.approx(value, abs=1e-13)
    assert not v.table["supported"][0], "one long stream of five rows is too short"
    delta = reward + gamma * ~terminated * value - value
    log = tc.logs.read(  # ten times the same, so that there are episodes enough
        {"state": np.zeros(50, int), "action": np.zeros(50, int), "reward": np.tile(reward, 10),
         "terminated": np.tile(terminated, 10)}
    )  # fmt: skip
    v = tc.evaluate(log, np.ones((1, 1)), gamma, **BARE)
    episodes = np.tile([delta[:2].sum(), delta[2], delta[3:].sum()], 10) / (10 * denominator)
    # Half a row more: it leads back, from where 2 of 5 did, or where any row leads.
    further = (0.6**2 + 0.4 * 0.6) / 4 * (gamma * value / (10 * denominator)) ** 2
    # Half an episode more like the largest error, and half of one like the smallest.
    more = (episodes.max() ** 2 + episodes.min() ** 2) / 2
    assert v.se == pytest.approx(np.sqrt(30 / 29 * (episodes**2).sum() + further + more), rel=1e-12)
    assert v.value == pytest.approx(value, rel=1e-12)


def test_results_do_not_depend_on_the_size_of_parts(tmp_path, monkeypatch):
    import pandas as pd

    whole = tc.evaluate(LOG, MDP.pi, MDP.gamma)
    path = tmp_path / "log.parquet"
    pd.DataFrame(MDP.draw(episodes=300, steps=50)).to_parquet(path, row_group_size=97, index=False)
    monkeypatch.setattr(dataset, "ROWS", 41)
    parts = tc.evaluate(logged.read(path), MDP.pi, MDP.gamma)
    for column in ("value", "se", "low", "high", "bootstrap_low", "bootstrap_high"):
        np.testing.assert_allclose(parts.table[column], whole.table[column], rtol=1e-10, err_msg=column)
    numbers = [v.diagnostics.set_index("name")["value"].drop("mspbe") for v in (parts, whole)]
    np.testing.assert_allclose(*numbers, rtol=1e-7, atol=1e-12)


@functools.cache
def finite(name):
    return {
        "random": lambda: logged.random_mdp(states=5, seed=3),
        "frozen lake": lambda: logged.of_gymnasium("FrozenLake-v1", 0.95, target=0.2, behaviour=0.5),
        "cliff": lambda: logged.of_gymnasium("CliffWalking-v1", 0.9, target=0.1, behaviour=0.6, starts=37),
        "boyan": logged.boyan,
    }[name]()


@pytest.mark.parametrize(
    ("name", "episodes", "steps"),
    [("random", 100, 12), ("frozen lake", 200, 60), ("cliff", 200, 15), ("boyan", 100, 14)],
)
def test_intervals_cover_the_truth(name, episodes, steps):
    problem, logs = finite(name), 50
    truth, columns = problem.worth(), problem.draw(logs * episodes, steps, seed=7)
    parts, found = np.searchsorted(columns["episode"], np.arange(logs + 1) * episodes), []
    for start, end in itertools.pairwise(parts):
        log = logged.read({key: column[start:end] for key, column in columns.items()})
        found.append(tc.evaluate(log, problem.pi, problem.gamma, **BARE))
    covered = np.mean([v.low <= truth <= v.high for v in found])
    assert covered >= 0.92, covered
    # From 50 logs the standard deviation has an error of 10 %. What a small log may lack is counted, so that intervals
    # are rather too wide.
    assert 0.8 < np.mean([v.se for v in found]) / np.std([v.value for v in found]) < 1.5
    # The size at which coverage is promised is one without warnings.
    assert np.mean([len(v.warnings) > 0 for v in found]) <= 0.1


def test_a_pair_without_data_is_worth_what_the_states_other_pairs_are():
    """So a number added to all rewards is added to the value, wherever the log has no data."""
    columns = logged.random_mdp(states=6, seed=2).draw(episodes=40, steps=6, seed=1)
    action = np.where(columns["state"] == 3, 0, columns["action"])
    v = {}
    for extra in (0.0, 100.0):
        log = tc.logs.read(
            {
                "state": columns["state"], "action": action, "reward": columns["reward"] + extra,
                "next_state": columns["next_state"], "episode": columns["episode"],
            }, next_state="next_state", episode="episode", terminated=None,
        )  # fmt: skip
        v[extra] = tc.evaluate(log, np.full((6, 2), 0.5), 0.9, estimator=["lstdq", "model"], bootstrap=0, compare=False)
    assert v[0.0].diagnostics.set_index("name")["value"]["outside"] > 0.01
    for row in range(2):
        assert v[100.0].table["value"][row] - v[0.0].table["value"][row] == pytest.approx(1000.0, rel=1e-9)
    assert v[0.0].table["value"][0] == pytest.approx(v[0.0].table["value"][1], rel=1e-9)


def test_taxi_is_solved_without_a_dense_matrix():
    """3,000 pairs: sparse sums, and the truth within four standard errors.

    A taxi can be in 400 states before its passenger is out; some are met rarely.
    """
    taxi = logged.of_gymnasium("Taxi-v4", 0.95, target=0.1, behaviour=0.3)
    log = logged.read(taxi.draw(episodes=3000, steps=100, noise=0.0))
    v = tc.evaluate(log, taxi.pi, taxi.gamma, bootstrap=0)
    assert abs(v.value - taxi.worth()) < 4 * v.se
    assert v.se < 0.5, "of which .43 are for pairs that the log has no data for"
    assert 390 <= len(v.support["policy"]) <= 400


def test_value_is_nan_where_the_log_has_no_data():
    never = np.hstack([np.zeros((6, 2)), np.ones((6, 1))])
    v = tc.evaluate(LOG, never, MDP.gamma)
    assert "cannot be estimated from this log: 100.0% of the policy's discounted path" in v.verdict
    assert np.isnan(v.value)
    assert (v.low, v.high) == (-np.inf, np.inf)
    rarely = np.hstack([MDP.pi * 0.95, np.full((6, 1), 0.05)])
    v = tc.evaluate(LOG, rarely, MDP.gamma)
    # The chance of the third action before the end, discounted: Σ γᵗ·.95ᵗ·.9ᵗ·.05.
    assert v.diagnostics.set_index("name")["value"]["outside"] == pytest.approx(0.05 / (1 - 0.9 * 0.95 * 0.9), rel=0.05)
    assert "cannot be estimated" in repr(v)


def test_differences_are_paired():
    """Two policies that differ little: the difference is known far better than either value."""
    near = 0.95 * MDP.pi + 0.05 * MDP.pi[:, ::-1]
    v = tc.evaluate(LOG, {"old": MDP.pi, "new": near}, MDP.gamma, **BARE)
    (row,) = v.differences.itertuples(index=False)
    truth = MDP.worth(near) - MDP.worth()
    assert row.low < truth < row.high
    assert row.se < 0.2 * v["old"].se
    with pytest.raises(tc.InputError, match=r"`v` has several policies; write v\[name\]"):
        _ = v.value


def test_one_long_stream_is_cut_into_blocks():
    """Scores with a memory: joined blocks cover, rows taken as independent do not."""
    rng = np.random.default_rng(0)
    n, rho = 4000, 0.8
    noise = rng.standard_normal((n, 400))
    scores = np.zeros_like(noise)
    for t in range(1, n):
        scores[t] = rho * scores[t - 1] + noise[t]
    covered = {}
    for stream in (True, False):
        bands = [interval(float(column.sum()), column, 0.95, stream=stream) for column in scores.T]
        covered[stream] = np.mean([band.low <= 0 <= band.high for band in bands])
    assert 0.92 <= covered[True] <= 0.975
    assert covered[False] < 0.6
    assert cluster_error(scores[:, 0], stream=False).correlation == pytest.approx(rho, abs=0.05)
    apart = [abs(cluster_error(column, stream=True).correlation) < ALIKE / BLOCKS**0.5 for column in scores.T]
    assert np.mean(apart) > 0.95


def test_a_stream_without_episodes():
    """The value of given starts from one stream, by blocks; a table is a martingale, so blocks need not be long."""
    chain = logged.random_mdp(states=5, seed=3)
    log = logged.read(chain.draw(episodes=1, steps=20_000))
    assert log.episodes == 1
    v = tc.evaluate(log, chain.pi, chain.gamma, start=np.full(5, 0.2))
    assert v.low < chain.worth() < v.high
    assert v.se < 0.05 * chain.worth()
    assert set(v.table[v.table["value"].isna()]["estimator"]) == {"naive", "pdis", "wis"}
    assert "it needs whole episodes" in v.table.set_index("estimator")["note"]["naive"]


def test_the_bootstrap_agrees_with_the_influence_function():
    v = tc.evaluate(LOG, MDP.pi, MDP.gamma, bootstrap=400)
    main = v.table.iloc[0]
    assert main["bootstrap_high"] - main["bootstrap_low"] == pytest.approx(main["high"] - main["low"], rel=0.15)


def test_a_saved_value_is_read_back(tmp_path):
    v = tc.evaluate(LOG, {"one": MDP.pi, "two": MDP.b}, MDP.gamma, bootstrap=0)
    v.save(tmp_path / "kept")
    again = tc.logs.load(tmp_path / "kept")
    assert repr(again) == repr(v)
    assert again["one"].value == v["one"].value
    page = v.report(tmp_path / "page").read_text()
    assert "<summary>Estimates</summary>" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert v._repr_html_().count("<tr>") == 1 + len(v.table)
    (tmp_path / "kept" / "table.parquet").write_bytes(b"other")
    with pytest.raises(tc.InputError, match="is damaged"):
        tc.logs.load(tmp_path / "kept")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": np.ones((6, 2))}, r"`policy\[0\]` must sum to 1"),
        ({"policy": MDP.pi[:3]}, "`policy` has 3 rows and the log has the state 5"),
        ({"policy": lambda s: np.ones((len(s), 2))}, "must give probabilities that sum to 1"),
        ({"policy": lambda s: s[0]}, "`policy` must give 2 probabilities per state"),
        ({"policy": lambda s: np.full(len(s), 7)}, "must choose among the actions"),
        ({"gamma": 1.5}, r"`gamma` must lie in \[0, 1\]"),
        ({"estimator": "lstd"}, "did you mean 'lstdq'"),
        ({"features": "one-hot"}, "did you mean 'onehot'"),
        ({"estimator": 3}, "`estimator` must be a name or a list of them"),
        (
            {"features": lambda s, a: 1 / 0},
            r"`features` fails on a batch of shape \(2,\) and \(2,\), ZeroDivisionError",
        ),
        ({"features": lambda s, a: np.zeros((len(s), 3))}, "`features` are 0 for every pair"),
        ({"features": tc.logs.features.Rbf}, r"must be an object, got the class Rbf; write Rbf\(…\)"),
        ({"start": [[1, 2], [3]]}, "`start` must be an array of states"),
        ({"start": [0, "a", None]}, "`start` must be states like the log's, such as "),
        ({"start": "nowhere"}, "`start` must be 'visited'"),
        ({"log": 3}, "`log` must be what `tc.logs.read"),
        ({"on": "moon"}, "`on` must be 'local' or 'ray'"),
    ],
)
def test_wrong_arguments(change, words):
    with pytest.raises(tc.InputError, match=words) as error:
        tc.evaluate(**{"log": LOG, "policy": MDP.pi, "gamma": MDP.gamma, **change})
    assert "\n" not in str(error.value)


def test_a_time_limit_written_as_a_termination_is_reported():
    rng = np.random.default_rng(0)
    state, action = rng.integers(3, size=600), rng.integers(2, size=600)
    columns = {
        "state": state, "action": action, "reward": 1.0 * state, "day": np.tile(np.arange(20), 30),
        "terminated": np.tile(np.arange(20) == 19, 30), "episode": np.repeat(np.arange(30), 20),
        "position": rng.normal(size=600),
    }  # fmt: skip
    policy = np.full((3, 2), 0.5)
    value = tc.evaluate(tc.logs.read(columns, episode="episode"), policy, gamma=0.9)
    assert any("each episode terminates after 20 rows whatever its state" in line for line in value.warnings)
    assert tc.logs.read(columns, episode="episode", state="position").time_limit == 20
    assert tc.logs.read(columns, episode="episode", state=["state", "day"]).time_limit == 0  # the state has the time
    assert tc.logs.read(columns, episode="episode", terminated=None, truncated="terminated").time_limit == 0
    other = columns | {"terminated": rng.random(600) < 0.05}
    assert tc.logs.read({k: v for k, v in other.items() if k != "episode"}).time_limit == 0
    goal = columns | {"state": np.where(columns["terminated"], 3, state)}  # only state 3 terminates
    assert tc.logs.read(goal, episode="episode").time_limit == 0
