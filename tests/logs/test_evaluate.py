"""From a log to a value: exact identities, exact MDPs, coverage, and what a log cannot tell."""

import functools

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import logged
import twoclock as tc
from twoclock.intervals.batch_means import ALIKE, BLOCKS
from twoclock.logs import dataset
from twoclock.logs.linear_systems import fill_empty_rows
from twoclock.logs.policy_sources import as_policy
from twoclock.logs.standard_error import block_statistics, interval
from twoclock.logs.sufficient_stats import Estimand, Moments, part_moments

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
    assert not v.table["told"][0], "one long stream of five rows tells nothing"
    delta = reward + gamma * ~terminated * value - value
    log = tc.logs.read(  # ten times the same, so that there are episodes enough
        {"state": np.zeros(50, int), "action": np.zeros(50, int), "reward": np.tile(reward, 10),
         "terminated": np.tile(terminated, 10)}
    )  # fmt: skip
    v = tc.evaluate(log, np.ones((1, 1)), gamma, **BARE)
    episodes = np.tile([delta[:2].sum(), delta[2], delta[3:].sum()], 10) / (10 * denominator)
    # One row more: it ends or leads back, γ·value; here residuals are larger than what that moves.
    further = 10 * (delta**2).sum() / 49 / (10 * denominator) ** 2
    assert v.se == pytest.approx(np.sqrt(30 / 29 * (episodes**2).sum() + further), rel=1e-12)
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


def of_many(finite, logs, episodes, steps, features=None):
    """The estimate and the interval of many logs at once: sums are additive, so a log is a group of one great log.

    The influence is computed from tables, by other code than the library's.
    """
    columns = finite.draw(logs * episodes, steps, seed=7)
    log = logged.read(columns)
    policy = as_policy("policy", finite.pi, log)
    built = tc.logs.features.build("onehot", log)
    estimand = Estimand(log, policy, built, finite.gamma, groups=logs, clusters=logs)
    sums = Moments.zeros(estimand, range(logs))
    for part in range(len(log.parts)):
        sums.add(part_moments(estimand, part))
    A = fill_empty_rows(sums.A)
    phi0 = sums.phi0 / sums.starts[:, None]
    with threadpool_limits(1, user_api="blas"):  # hundreds of small systems: threads would only wait for each other
        theta, x = (
            np.linalg.solve(A, sums.b[..., None])[..., 0],
            np.linalg.solve(np.swapaxes(A, 1, 2), phi0[..., None])[..., 0],
        )
    value = (phi0 * theta).sum(axis=1)
    of, code = columns["episode"] // episodes, {s: i for i, s in enumerate(built.base.states)}
    place = np.array([code.get(s, 0) for s in range(finite.states)])
    Q = theta.reshape(logs, -1, finite.pi.shape[1])
    V = np.einsum("lsa,sa->ls", Q, finite.pi[built.base.states])
    s, a, after = place[columns["state"]], columns["action"], place[columns["next_state"]]
    delta = columns["reward"] + finite.gamma * ~columns["terminated"] * V[of, after] - Q[of, s, a]
    w = x.reshape(Q.shape)[of, s, a]
    first = np.append(True, np.diff(columns["episode"]) != 0)
    influence = np.bincount(columns["episode"], w * delta) + (V[of, s][first] - np.repeat(value, episodes)) / episodes
    later = finite.gamma * ~columns["terminated"] * V[of, after]
    added = thin_by_hand(logs, of, s, a, delta, later, x.reshape(Q.shape), Q, finite.gamma * V)
    each = zip(value, influence.reshape(logs, episodes), added, strict=True)
    return value, [interval(v, i, 0.95, added=extra) for v, i, extra in each], columns


def thin_by_hand(logs, of, s, a, delta, later, x, Q, V):
    """√Σ(xσ₀)² of each log; ``later`` is γV(s') of each row and V has γV of each state.

    σ₀² of a pair is half the mean of (γV'' − mean γV')², where s'' is the next state of a row of the same state or the
    state itself, at evens; at least the mean of δ² over the rows of the state, and over all rows.
    """

    def mean(values, *at):
        sums, rows = np.zeros((2, *(Q.shape[: len(at)])))
        np.add.at(sums, at, values)
        np.add.at(rows, at, 1.0)
        return sums / np.maximum(rows, 1)

    seen = np.zeros(Q.shape, bool)
    seen[of, s, a] = True
    everywhere = np.bincount(of, delta**2, logs) / (np.bincount(of, minlength=logs) - seen.sum(axis=(1, 2)))
    own = mean(later, of, s, a)
    led = np.stack([mean((later - own[of, s, action]) ** 2, of, s) for action in range(Q.shape[2])], axis=2)
    noise = np.maximum(mean(delta**2, of, s), everywhere[:, None])[:, :, None]
    spread = np.maximum((led + (V[:, :, None] - own) ** 2) / 4, noise)
    return np.sqrt((np.where(seen, x, 0) ** 2 * spread).sum(axis=(1, 2)))


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
    problem, logs = finite(name), 500
    value, bands, columns = of_many(problem, logs, episodes, steps)
    truth = problem.worth()
    covered = np.mean([band.low <= truth <= band.high for band in bands])
    assert 0.93 <= covered <= 0.985, covered
    spread, se = value.std(), np.mean([band.se for band in bands])
    assert 0.9 < se / spread < 1.2
    one = {key: column[columns["episode"] < episodes] for key, column in columns.items()}
    v = tc.evaluate(logged.read(one), problem.pi, problem.gamma, **BARE)
    assert v.value == pytest.approx(value[0], rel=1e-9)
    assert (v.low, v.high) == pytest.approx((bands[0].low, bands[0].high), rel=1e-9)
    assert not v.warnings, "the size at which coverage is promised is one without warnings"


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
    assert "cannot be told from this log: 100.0% of the policy's discounted path" in v.verdict
    assert np.isnan(v.value)
    assert (v.low, v.high) == (-np.inf, np.inf)
    rarely = np.hstack([MDP.pi * 0.95, np.full((6, 1), 0.05)])
    v = tc.evaluate(LOG, rarely, MDP.gamma)
    # The chance of the third action before the end, discounted: Σ γᵗ·.95ᵗ·.9ᵗ·.05.
    assert v.diagnostics.set_index("name")["value"]["outside"] == pytest.approx(0.05 / (1 - 0.9 * 0.95 * 0.9), rel=0.05)
    assert "cannot be told" in repr(v)


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
    assert block_statistics(scores[:, 0], stream=False).correlation[0] == pytest.approx(rho, abs=0.05)
    apart = [abs(block_statistics(column, stream=True).correlation[0]) < ALIKE / BLOCKS**0.5 for column in scores.T]
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
        ({"policy": lambda s: s[0]}, "`policy` must give 2 probabilities a state"),
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
        ({"start": [0, "a", None]}, r"`start` must be states like the log's \(int64\)"),
        ({"start": "nowhere"}, "`start` must be 'visited'"),
        ({"log": 3}, "`log` must be what `tc.logs.read"),
        ({"on": "moon"}, "`on` must be 'local' or 'ray'"),
    ],
)
def test_wrong_arguments(change, words):
    with pytest.raises(tc.InputError, match=words) as error:
        tc.evaluate(**{"log": LOG, "policy": MDP.pi, "gamma": MDP.gamma, **change})
    assert "\n" not in str(error.value)
