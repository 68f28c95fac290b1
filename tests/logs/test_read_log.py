"""Reading a log: every source gives the same transitions, and a bad row is named."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import logged
import twoclock as tc
from twoclock.logs import NO_NEXT, dataset

MDP = logged.random_mdp(end=0.1)
COLUMNS = MDP.draw(episodes=40, steps=30)


def transitions(log):
    """All batches as one, by name."""
    batches = list(log)
    names = ("state", "action", "reward", "next_state", "terminated", "episode", "first")
    return {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_every_source_gives_the_same_transitions(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "ROWS", 7)  # every seam of two batches is tried
    wanted = transitions(logged.read(COLUMNS))
    frame = pd.DataFrame(COLUMNS)
    same(transitions(logged.read(frame)), wanted)
    same(transitions(logged.read(pl.DataFrame(COLUMNS))), wanted)
    same(transitions(logged.read(pa.table(COLUMNS))), wanted)
    pq.write_table(pa.table(COLUMNS), tmp_path / "log.parquet", row_group_size=11)
    same(transitions(logged.read(tmp_path / "log.parquet")), wanted)
    half = len(frame) // 2 + 3
    (tmp_path / "folder").mkdir()
    for i, part in enumerate((frame[:half], frame[half:])):
        part.to_parquet(tmp_path / "folder" / f"part-{i}.parquet", index=False)
    same(transitions(logged.read(tmp_path / "folder")), wanted)


def test_episodes_of_gymnasium_are_read():
    wanted = transitions(logged.read(COLUMNS))
    episodes = []
    for _, rows in pd.DataFrame(COLUMNS).groupby("episode"):
        last = rows["next_state"].to_numpy()[-1:]
        episodes.append(
            {
                "observations": np.concatenate([rows["state"].to_numpy(), last]),
                "actions": rows["action"].to_numpy(),
                "rewards": rows["reward"].to_numpy(),
                "terminations": rows["terminated"].to_numpy(),
                "truncations": ~rows["terminated"].to_numpy() & (rows["step"].to_numpy() == 29),
                "infos": {"action_log_prob": np.log(np.append(1.0, rows["propensity"].to_numpy()))},
            }
        )
    log = tc.logs.read(episodes)
    same(transitions(log), wanted)
    assert log.propensities == log.rows
    np.testing.assert_allclose(np.concatenate([batch.propensity for batch in log]), COLUMNS["propensity"])
    names = ("state", "action", "reward", "next_state", "terminated")
    steps = [
        [(*row, False) for row in rows[list(names)].itertuples(index=False)]
        for _, rows in pd.DataFrame(COLUMNS).groupby("episode")
    ]
    same(transitions(tc.logs.read(steps)), wanted)


def test_a_next_state_is_taken_from_the_following_row(monkeypatch):
    monkeypatch.setattr(dataset, "ROWS", 7)
    log = logged.read(COLUMNS, next_state=None)
    cut = sum(1 for _, rows in pd.DataFrame(COLUMNS).groupby("episode") if not rows["terminated"].iloc[-1])
    assert cut > 0
    assert log.dropped == {NO_NEXT: cut}
    assert log.rows == len(COLUMNS["state"]) - cut
    found, wanted = transitions(log), pd.DataFrame(COLUMNS)
    last = (wanted["episode"] != wanted["episode"].shift(-1)) & ~wanted["terminated"]
    np.testing.assert_array_equal(found["next_state"], wanted["next_state"][~last])


def test_flags_separate_episodes():
    flags = {**COLUMNS, "truncated": np.append(np.diff(COLUMNS["episode"]) != 0, True) & ~COLUMNS["terminated"]}
    log = logged.read(flags, truncated="truncated", episode=None)
    same(transitions(log), transitions(logged.read(COLUMNS)))


def test_text_and_several_columns():
    names = np.array(["north", "south", "east", "west", "up", "down"])
    text = {**COLUMNS, "state": names[COLUMNS["state"]], "next_state": names[COLUMNS["next_state"]]}
    text["action"] = np.array(["stay", "go"])[COLUMNS["action"]]
    assert logged.read(pd.DataFrame(text)).actions == ("go", "stay")
    log = logged.read(pd.DataFrame(text), actions=["go", "stay"])
    grid = {**COLUMNS, "x": COLUMNS["state"] % 2, "y": COLUMNS["state"] // 2, "x2": COLUMNS["next_state"] % 2}
    grid["y2"] = COLUMNS["next_state"] // 2
    both = logged.read(grid, state=["x", "y"], next_state=["x2", "y2"])
    policy = MDP.pi
    plain = tc.evaluate(logged.read(COLUMNS), policy, MDP.gamma, bootstrap=0, compare=False).value
    by_name = {name: i for i, name in enumerate(names)}
    for each, function in (
        (log, lambda s: policy[[by_name[name] for name in s]][:, ::-1]),
        (both, lambda s: policy[(s[:, 0] + 2 * s[:, 1]).astype(int)]),
    ):
        assert tc.evaluate(each, function, MDP.gamma, bootstrap=0, compare=False).value == pytest.approx(
            plain, abs=1e-10
        )


def bad(name, row, value):
    floats = ("state", "reward", "step") + (() if isinstance(value, bool) else ("terminated",))
    changed = {key: column.astype(float) if key in floats else column.copy() for key, column in COLUMNS.items()}
    changed[name][row] = value
    return changed


INSIDE = int(np.flatnonzero((COLUMNS["step"][:-1] == 2) & (COLUMNS["episode"][1:] == COLUMNS["episode"][:-1]))[0])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (bad("reward", INSIDE, np.nan), rf"row {INSIDE}, column `reward`: is missing, not finite"),
        (bad("reward", INSIDE, 1e88), rf"row {INSIDE}, column `reward`: is missing, not finite or larger than 1e70"),
        (bad("state", INSIDE, np.nan), rf"row {INSIDE}, column `state`: is missing, not finite"),
        (bad("action", INSIDE, 5), rf"row {INSIDE}, column `action`: is not among `actions`"),
        (
            bad("next_state", INSIDE, (COLUMNS["next_state"][INSIDE] + 1) % 6),
            rf"row {INSIDE}, column `next_state`: is not",
        ),
        (bad("propensity", INSIDE, 0.0), rf"row {INSIDE}, column `propensity`: must be above 0"),
        (bad("propensity", INSIDE, 1.5), rf"row {INSIDE}, column `propensity`: must be a probability"),
        (bad("step", INSIDE, 1.0), rf"row {INSIDE}, column `step`: is a duplicate"),
        (bad("step", INSIDE, 0.0), rf"row {INSIDE}, column `step`: is smaller"),
        (bad("step", INSIDE + 1, 9.0), rf"row {INSIDE}, column `step`: is not followed"),
        (
            bad("terminated", INSIDE, np.nan),
            rf"row {INSIDE}, column `terminated`: is missing, or neither true nor false",
        ),
        (bad("terminated", INSIDE, 2.0), rf"row {INSIDE}, column `terminated`: is missing, or neither true nor false"),
        (bad("terminated", INSIDE, True), rf"row {INSIDE + 1}, column `episode`: continues after its end"),
    ],
)
def test_a_bad_row_is_named_and_can_be_dropped(columns, words):
    with pytest.raises(tc.InputError, match=words) as error:
        logged.read(columns, actions=[0, 1])
    assert "\n" not in str(error.value)
    log = logged.read(columns, actions=[0, 1], on_bad="drop")
    assert log.rows == len(COLUMNS["state"]) - sum(log.dropped.values())
    assert 1 <= sum(log.dropped.values()) <= 2
    assert log.broken == {int(COLUMNS["episode"][INSIDE])}


def test_flags_that_are_text_are_refused():
    """bool("False") is True: every step would be an end, and the value one reward."""
    flags = np.where(COLUMNS["terminated"], "True", "False")
    with pytest.raises(tc.InputError, match="`terminated` must have true and false, or 1 and 0, got text such as"):
        logged.read({**COLUMNS, "terminated": flags})


def test_an_unused_episode_column_gives_a_warning():
    with pytest.warns(UserWarning, match='`episode` that nothing reads.*write episode="episode" if'):
        logged.read(COLUMNS, episode=None, step=None, on_bad="drop")


def test_sources_that_cannot_be_read_are_refused():
    n = len(COLUMNS["state"])
    with pytest.raises(tc.InputError, match=r"column `reward` must have one entry per row, got the shape"):
        logged.read({**COLUMNS, "reward": np.ones((n, 2))})
    with pytest.raises(tc.InputError, match=r"column `state` must have a number in each row"):
        logged.read({**COLUMNS, "state": np.ones((n, 2, 2))})
    with pytest.raises(tc.InputError, match="`next_state` must have states as `state` has them"):
        logged.read({**COLUMNS, "next_state": COLUMNS["next_state"].astype(str)})
    frame = pd.DataFrame(COLUMNS)
    with pytest.raises(tc.InputError, match="two columns named 'state'"):
        logged.read(pd.concat([frame, frame[["state"]]], axis=1))
    with pytest.raises(tc.InputError, match="`state` must be the name of a column, or a list of them"):
        logged.read(COLUMNS, state=[], next_state=None)
    with pytest.raises(tc.InputError, match="`actions` must be a list of numbers or one of text, each action once"):
        logged.read(COLUMNS, actions=[0, 0, 1])
    mixed = {name: np.concatenate([column, column[:3]]) for name, column in COLUMNS.items()}
    with pytest.raises(tc.InputError, match="the episode 0 comes back after others; sort the rows"):
        logged.read(mixed)
    with pytest.raises(tc.InputError, match=r"`state` names the column 'pos', which is not there; there are: episode"):
        logged.read(COLUMNS, state="pos")
    with pytest.raises(tc.InputError, match="write terminated=None if episodes never terminate"):
        tc.logs.read({"state": [0], "action": [0], "reward": [1.0]})
    with pytest.raises(tc.InputError, match="`source` has no rows"):
        tc.logs.read({"state": [], "action": [], "reward": [], "terminated": []})
    with pytest.raises(tc.InputError, match="columns of one length"):
        tc.logs.read({"state": [0, 1], "action": [0], "reward": [1.0], "terminated": [True]})
    with pytest.raises(tc.InputError, match="`source` must be a pandas"):
        tc.logs.read(3)
    with pytest.raises(tc.InputError, match="neither a Parquet file nor a folder"):
        tc.logs.read("nowhere.parquet")


# --- what users' tables look like


def test_csv_is_read(tmp_path):
    wanted, frame = transitions(logged.read(COLUMNS)), pd.DataFrame(COLUMNS)
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_csv(tmp_path / "log.csv.gz", index=False)
    frame.to_csv(tmp_path / "log.tsv", index=False, sep="\t")
    frame.to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    for path in sorted(tmp_path.iterdir()):
        same(transitions(logged.read(path)), wanted)
    text = pd.DataFrame({**COLUMNS, "state": np.array(list("abcdef"))[COLUMNS["state"]]}).drop(columns="next_state")
    text.loc[3, "state"] = None
    text.to_csv(tmp_path / "text.csv", index=False)
    with pytest.raises(tc.InputError, match=r"row [23], column `state`: (is|gives a next state that is) missing"):
        logged.read(tmp_path / "text.csv", next_state=None)
    (tmp_path / "bad.csv").write_text("state,action\n1\n2,3,4\n")
    with pytest.raises(tc.InputError, match="cannot be read as CSV"):
        logged.read(tmp_path / "bad.csv")


def test_shuffled_rows_are_sorted_by_episode_and_step(tmp_path):
    frame = pd.DataFrame(COLUMNS)
    mixed = frame.sample(frac=1, random_state=1)
    found, wanted = logged.read(mixed), transitions(logged.read(frame))
    assert "sorted by episode and step" in repr(found)
    names = ("state", "action", "reward", "next_state", "terminated")
    rows = [sorted(zip(*(part[name].tolist() for name in names), strict=True)) for part in (transitions(found), wanted)]
    assert rows[0] == rows[1]
    policy = {"bootstrap": 0, "compare": False}
    assert tc.evaluate(found, MDP.pi, 0.9, **policy).value == pytest.approx(
        tc.evaluate(logged.read(frame), MDP.pi, 0.9, **policy).value, rel=1e-12
    )
    mixed.to_parquet(tmp_path / "log.parquet", row_group_size=100, index=False)
    same(transitions(logged.read(tmp_path / "log.parquet")), transitions(found))
    place = int(np.flatnonzero(mixed["reward"].to_numpy() == frame["reward"][7])[0])
    mixed = mixed.reset_index(drop=True)
    mixed.loc[place, "reward"] = np.nan
    with pytest.raises(
        tc.InputError, match=rf"row {place}, column `reward`: is missing, not finite or larger than 1e70, got nan"
    ):
        logged.read(mixed)
    assert "sorted" not in repr(logged.read(frame))


def test_times_are_steps():
    frame = pd.DataFrame(COLUMNS)
    hours = pd.Timestamp("2024-03-01") + pd.to_timedelta(frame["step"] ** 2, unit="h")
    wanted = transitions(logged.read(frame))
    for times in (hours, hours.dt.tz_localize("UTC"), [moment.to_pydatetime() for moment in hours]):
        same(transitions(logged.read(frame.assign(step=times))), wanted)
    same(transitions(logged.read(pl.DataFrame(frame.assign(step=hours)))), wanted)
    twice = hours.copy()
    twice[INSIDE] = twice[INSIDE - 1]
    with pytest.raises(tc.InputError, match=f"row {INSIDE}, column `step`: is a duplicate"):
        logged.read(frame.assign(step=twice))


@pytest.mark.parametrize(
    ("name", "entries", "words"),
    [
        ("reward", COLUMNS["reward"].astype(str), "`reward` must have numbers, got text such as '"),
        ("reward", list(map(str, COLUMNS["reward"])), "`reward` must have numbers, got text such as '"),
        ("propensity", COLUMNS["propensity"].astype(str), "`propensity` must have numbers, got text"),
        ("step", COLUMNS["step"].astype(str), "`step` must have numbers or timestamps, got text such as '0'"),
        ("reward", np.full(len(COLUMNS["reward"]), "2024-01-01", "datetime64[D]"), "must have numbers, got timestamps"),
    ],
)
def test_a_column_of_the_wrong_kind_gets_the_right_reason(name, entries, words):
    for on_bad in ("raise", "drop"):
        with pytest.raises(tc.InputError, match=words):
            logged.read({**COLUMNS, name: entries}, on_bad=on_bad)


def test_states_of_text_and_numbers():
    letters = np.array(list("abcdef"))
    both = {**COLUMNS, "name": letters[COLUMNS["state"]], "place": np.array(["here", "there"])[COLUMNS["state"] % 2]}
    with pytest.raises(tc.InputError, match=r"columns `name` and `state` are text and numbers.*frame\['state'\]"):
        logged.read(both, state=["state", "name"], next_state=None)
    for column in ("name", "place"):
        missing = {**both, column: [None if i == INSIDE else entry for i, entry in enumerate(both[column])]}
        log = logged.read(missing, state=["name", "place"], next_state=None, on_bad="drop")
        assert sum(n for why, n in log.dropped.items() if why != NO_NEXT) == 2
        assert tc.evaluate(log, lambda s: np.zeros(len(s), int), 0.9, bootstrap=0).value > 0
