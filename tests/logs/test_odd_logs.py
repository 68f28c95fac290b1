"""Logs that are not what they seem: changed since they were read, of odd types, damaged, larger than their file."""

import contextlib
import os
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import logged
import twoclock as tc

MDP = logged.random_mdp(end=0.1)
BARE = {"bootstrap": 0, "compare": False}
LARGE = 2**53


def columns(rows=40, **changed):
    """Episodes of two steps, states 0 and 1."""
    plain = {
        "state": np.tile([0, 1], rows // 2), "action": np.arange(rows) % 3 % 2, "reward": np.arange(rows) % 5 / 5,
        "terminated": np.tile([False, True], rows // 2),
    }  # fmt: skip
    return {**plain, **changed}


def uniform(state):
    return np.full((len(state), 2), 0.5)


def refused(source, words, **options):
    with pytest.raises(tc.InputError, match=words) as error:
        tc.logs.read(source, **options)
    assert "\n" not in str(error.value)


# --- the same log?


def test_a_checkpoint_is_of_every_reward_and_of_the_whole_policy(tmp_path):
    """Rewards, or the policy in one state that is seldom seen, changed after a finished pass: all is summed again."""
    data = MDP.draw(episodes=300, steps=50)
    better = {**data, "reward": data["reward"] + 100}
    rare = np.append(MDP.pi, [[0.5, 0.5]], axis=0)
    once = {**data, "state": data["state"].copy(), "next_state": data["next_state"].copy()}
    once["state"][0] = 6  # the first row of the log alone
    changed = rare.copy()
    changed[6] = [1.0, 0.0]
    asked = [(data, MDP.pi), (better, MDP.pi), (once, rare), (once, changed)]
    for source, policy in asked:
        log = logged.read(source)
        kept = tc.evaluate(log, policy, 0.9, checkpoint=tmp_path, **BARE)
        assert kept.value == tc.evaluate(log, policy, 0.9, **BARE).value
        for shift in (0.0, 1.0):  # a function's closure is part of it
            kept, fresh = (
                tc.evaluate(log, lambda s, shift=shift: np.tile([1 - shift, shift], (len(s), 1)), 0.9, **BARE, **where)
                for where in ({"checkpoint": tmp_path}, {})
            )
            assert kept.table["value"][0] == fresh.table["value"][0]


def test_a_policy_that_cannot_be_identified_is_not_resumed_from(tmp_path):
    log = logged.read(MDP.draw(episodes=50, steps=20))
    with open(os.devnull) as opened, pytest.warns(UserWarning, match="`checkpoint` is not used"):
        v = tc.evaluate(log, lambda s: MDP.pi[s + 0 * opened.fileno()], 0.9, checkpoint=tmp_path, **BARE)
    assert v.value == tc.evaluate(log, MDP.pi, 0.9, **BARE).value
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["dict", "pandas", "parquet", "shorter", "gone"])
def test_a_source_changed_since_it_was_read_is_refused(tmp_path, kind):
    data, path = columns(), tmp_path / "log.parquet"
    frame = pd.DataFrame(data)
    frame.to_parquet(path)
    log = tc.logs.read({"dict": data, "pandas": frame}.get(kind, path))
    before = tc.evaluate(log, uniform, 0.9, **BARE).value
    assert before == tc.evaluate(log, uniform, 0.9, **BARE).value
    data["reward"][3] += 1
    frame.loc[3, "reward"] += 1
    if kind == "gone":
        path.unlink()
    else:
        (frame[:20] if kind == "shorter" else frame).to_parquet(path)
    with pytest.raises(
        tc.InputError, match=r"changed since it was read; read it again|cannot be read as Parquet|lacks rows"
    ):
        tc.evaluate(log, uniform, 0.9, **BARE)


# --- what is in a column


def test_lists_of_different_lengths_are_refused(tmp_path):
    lists = [[0, 1, 2], [1]] * 20  # four entries on average two: a table of 40 × 2 could be made of them
    for name in ("state", "action"):
        table = pa.table(columns(**{name: lists}))
        pq.write_table(table, tmp_path / "log.parquet")
        for source in (
            table,
            pl.DataFrame(columns(**{name: lists})),
            tmp_path / "log.parquet",
            columns(**{name: lists}),
        ):
            refused(source, "lists of different lengths")
    missing = pa.table(columns(state=pa.array([[0, 1], None] * 20)))
    refused(missing, "lists of different lengths, or some missing")
    parts = [pa.table(columns(state=[[0.0] * n] * 40)) for n in (2, 3)]
    for i, part in enumerate(parts):
        (tmp_path / "folder").mkdir(exist_ok=True)
        pq.write_table(part, tmp_path / "folder" / f"{i}.parquet")
    refused(tmp_path / "folder", "`state` must be of one kind and length in all of `source`")
    refused(tmp_path / "folder", "`state` must be of one kind and length in all of `source`", terminated=None)


def test_whole_numbers_above_2_to_53_stay_apart(tmp_path):
    ids = LARGE + np.arange(4)[np.arange(40) // 2 % 4]
    two = tc.logs.read(columns(state=ids, other=np.zeros(40, int)), state=["state", "other"])
    assert len(np.unique(np.concatenate([batch.state[:, 0] for batch in two]))) == 4
    episodes = LARGE + np.arange(40) // 2
    with_gap = [*map(int, episodes[:38]), None, None]
    masked = np.ma.masked_array(episodes, mask=np.arange(40) >= 38)
    pq.write_table(pa.table(columns(id=with_gap)), tmp_path / "log.parquet")
    sources = [
        columns(id=with_gap), columns(id=masked), pa.table(columns(id=with_gap)), tmp_path / "log.parquet",
        pd.DataFrame(columns(id=pd.array(with_gap, "Int64"))), pl.DataFrame(columns(id=with_gap)),
    ]  # fmt: skip
    for source in sources:
        log = tc.logs.read(source, episode="id", on_bad="drop")
        assert (log.rows, log.episodes, log.dropped) == (38, 20, {"id is missing": 2})
    refused(columns(state=ids, x=np.ones(40)), "`state` has whole numbers from 2⁵³ on", state=["state", "x"])
    refused(columns(state=[2**63, -1] * 20), "64 bits")


def test_a_missing_action_does_not_make_actions_continuous(tmp_path):
    actions = [None, *columns()["action"].tolist()[1:]]
    for source in (pa.table(columns(action=actions)), columns(action=actions)):
        log = tc.logs.read(source, on_bad="drop")
        assert log.actions == (0, 1)
        assert tc.evaluate(log, uniform, 0.9, **BARE).value > 0
    (tmp_path / "folder").mkdir()
    for i, kind in enumerate((int, float)):
        pd.DataFrame(columns(action=columns()["action"].astype(kind))).to_parquet(tmp_path / "folder" / f"{i}.parquet")
    refused(tmp_path / "folder", "floats in some parts and whole numbers in others")


def test_decimals_are_numbers():
    """A database gives amounts of money as decimals, in a frame or in a Parquet file."""
    amounts = [Decimal(i % 7) / 100 for i in range(40)]
    as_floats = tc.logs.read(columns(reward=np.array([float(amount) for amount in amounts])))
    for source in (pd.DataFrame(columns(reward=amounts)), pa.table(columns(reward=pa.array(amounts)))):
        log = tc.logs.read(source)
        np.testing.assert_array_equal(next(iter(log)).reward, next(iter(as_floats)).reward)


def test_rewards_without_a_residual_have_a_value():
    for reward in (0.0, 1.0):
        v = tc.evaluate(tc.logs.read(columns(400, reward=np.full(400, reward))), uniform, 0.5, bootstrap=0)
        assert v.value == pytest.approx(1.5 * reward)


def test_an_array_with_too_few_columns_is_told_the_actions():
    log = tc.logs.read(columns(action=np.arange(40) % 2 + 1))
    with pytest.raises(tc.InputError, match=r"each of the 3 actions 0, 1, 2, got 2; .*actions=\[…\]"):
        tc.evaluate(log, np.full((4, 2), 0.5), 0.9)


def test_masked_entries_are_missing():
    for name in ("state", "action", "reward", "terminated"):
        masked = np.ma.masked_array(columns()[name], mask=np.arange(40) == 3)
        refused(columns(**{name: masked}), f"row [23], column `{name}`: (is|gives a next state that is) missing")
        log = tc.logs.read(columns(**{name: masked}), on_bad="drop")
        assert 1 <= 40 - log.rows <= 2
        tc.evaluate(log, uniform, 0.9, **BARE)
    wide = np.ma.masked_array(np.ones((40, 2)), mask=np.zeros((40, 2), bool))
    wide.mask[5, 1] = True
    refused(columns(state=wide), "row [45], column `state`: (is|gives a next state that is) missing")


@pytest.mark.parametrize(
    ("name", "entries", "words"),
    [
        ("state", ["a", "a\0"] * 20, "ends in a null character"),
        ("action", ["a", "a\0"] * 20, "ends in a null character"),
        ("state", ["a", "\ud800"] * 20, "no Unicode, a lone surrogate"),
        ("action", ["a", "\ud800"] * 20, "no Unicode, a lone surrogate"),
        ("state", ["a"] * 39 + ["b" * 100_000_000], "text of 100,000,000 characters"),
        ("state", [1, "a"] * 20, "`state` must be all numbers or all text"),
        ("action", [0, "go"] * 20, "`action` must be all numbers or all text"),
        ("action", [{"x": 1}, {"x": 2}] * 20, "`action` must be all numbers or all text"),
        ("state", [1, b"a"] * 20, "`state` must be all numbers or all text"),
    ],
)
def test_text_and_objects_that_would_merge_or_fail_are_refused(tmp_path, name, entries, words):
    refused(columns(**{name: entries}), words)
    refused(pd.DataFrame(columns(**{name: pd.Series(entries, dtype=object)})), words)
    if isinstance(entries[0], dict) or "null" in words or "characters" in words:
        table = pa.table(columns(**{name: entries}))
        refused(table, words)
        pq.write_table(table, tmp_path / "log.parquet")
        refused(tmp_path / "log.parquet", words)
        refused(pl.DataFrame(columns(**{name: entries})), words)


def test_parts_of_several_types_are_refused(tmp_path):
    for i, states in enumerate(([0, 1] * 20, ["0", "1"] * 20)):
        pd.DataFrame(columns(state=states)).to_parquet(tmp_path / f"{i}.parquet")
    refused(tmp_path, "`state` must be of one kind and length in all of `source`; write it alike")
    episodes = [[(0, 0, 1.0, 1, True, False)], [("a", 0, 1.0, "b", True, False)]]
    refused(episodes, "must have episodes alike")


def test_a_pipe_in_a_folder_is_refused(tmp_path):
    pd.DataFrame(columns()).to_parquet(tmp_path / "a.parquet")
    os.mkfifo(tmp_path / "b.parquet")
    refused(tmp_path, "b.parquet is neither a Parquet file nor a folder")


@pytest.mark.parametrize("kind", ["lists", "text"])
def test_a_small_file_does_not_fill_the_memory(tmp_path, kind):
    """Half a billion numbers, and half a gigabyte of text, in files of a few kilobytes."""
    rows = 500
    wide = {
        "lists": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(10**7, np.int8)), 10**7 // 10),
        "text": pa.DictionaryArray.from_arrays(np.zeros(10, np.int32), pa.array(["x" * 1_000_000])),
    }[kind]
    table = pa.table({**columns(10), "state": wide})
    path = tmp_path / "log.parquet"
    pq.write_table(pa.concat_tables([table] * (rows // 10)), path, compression="zstd", row_group_size=rows)
    assert path.stat().st_size < 200_000
    script = (
        "import sys, resource, twoclock as tc\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 << 30,) * 2)\n"
        "try: tc.logs.read(sys.argv[1])\n"
        "except tc.InputError as error: print(error)\n"
    )
    done = logged_process(script, path)
    assert "1,000,000" in done, done


def logged_process(script, *arguments):
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
    return done.stdout + done.stderr


def flipped(path, rng, bits=3):
    """The file with a few bits changed, anywhere in it."""
    content = bytearray(path.read_bytes())
    for at in rng.integers(8 * len(content), size=bits).tolist():
        content[at // 8] ^= 1 << at % 8
    other = path.with_name("flipped.parquet")
    other.write_bytes(content)
    return other


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path, codec):
    names = np.array(["north", "south"])
    data = columns(400, text=names[np.arange(400) % 2], vector=[[0.5, 1.5]] * 400)
    pq.write_table(pa.table(data), tmp_path / "log.parquet", compression=codec, row_group_size=100)
    rng = np.random.default_rng(0)
    for _ in range(20):
        path = flipped(tmp_path / "log.parquet", rng)
        for state in ("state", "text", "vector"):
            with contextlib.suppress(tc.InputError):
                log = tc.logs.read(path, state=state, on_bad="drop")
                tc.evaluate(log, uniform, 0.9, features="onehot" if state != "vector" else "rbf", **BARE)


# --- names of policies


def test_two_policies_of_one_name_are_refused():
    log = tc.logs.read(columns())
    with pytest.raises(tc.InputError, match="`policy` has two policies named '1'; rename one"):
        tc.evaluate(log, {1: uniform, "1": uniform}, 0.9)


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "@SUM(A1)", "\x1b[31mred", "a\nb", "\ud800"])
def test_a_name_that_a_terminal_or_a_spreadsheet_would_obey_is_refused(name):
    with pytest.raises(tc.InputError, match="`policy` must have names that can be printed") as error:
        tc.evaluate(tc.logs.read(columns()), {name: uniform, "other": uniform}, 0.9)
    assert str(error.value).isprintable()


FORK = """
import os, signal, numpy as np, twoclock as tc
state, flag = [0, 1] * 20, [False, True] * 20
log = tc.logs.read({"state": state, "action": [0, 1, 1, 0] * 10, "reward": [0.0, 1.0] * 20, "terminated": flag})
tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 10, 1)
child = os.fork()
if not child:
    signal.alarm(60)
    try:
        tc.evaluate(log, np.full((2, 2), 0.5), 0.9, estimator="all")
    except tc.InputError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_is_refused_and_does_not_hang():
    assert "this process was forked after JAX had started" in logged_process(FORK)
