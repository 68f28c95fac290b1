"""Nothing lost, nothing forged: what is read back is what was written, or one line says what is wrong."""

import hashlib
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import twoclock as tc
from twoclock import cli, storage
from twoclock.storage import atomic_file, sealed_folder
from twoclock.storage.sweep_store import Shards
from twoclock.sweeps.progress import status

BOWL = tc.problems.quadratic(dim=2)
SWEEP = {"problems": {"bowl": BOWL}, "methods": {"a": tc.Fast(), "b": tc.Standard()}, "steps": 60, "seeds": 3}
RUN = {"problem": BOWL, "method": tc.Fast(), "steps": 4000, "seeds": 2, "marks": range(0, 4000, 500), "block": 64}


@pytest.fixture(scope="module")
def result():
    with jax.enable_x64(True):
        return tc.solve(BOWL, tc.Fast(), steps=60, seeds=3)


@pytest.fixture(scope="module")
def whole():
    with jax.enable_x64(True):
        return tc.solve(**RUN)


def flip(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


def cut(path, rng):
    os.truncate(path, rng.integers(path.stat().st_size))


def lose(path, rng):
    path.unlink()


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("harm", [flip, cut, lose])
@pytest.mark.parametrize("name", ["spec.json", "history.parquet", "arrays.npz"])
def test_a_damaged_result_is_refused(result, tmp_path, name, harm):
    rng = np.random.default_rng(0)
    for trial in range(12 if harm is flip else 2):
        folder = result.save(tmp_path / str(trial))
        harm(folder / name, rng)
        with pytest.raises(tc.InputError, match=r"is damaged|has no spec\.json|another version") as error:
            tc.load(folder)
        one_line(error)


def test_an_edited_result_is_refused(result, tmp_path):
    one, other = result.save(tmp_path / "one"), result.save(tmp_path / "other")
    better = pd.read_parquet(one / "history.parquet").assign(error=lambda table: table["error"] * 1e-6)
    better.to_parquet(one / "history.parquet", index=False)
    spec = other / "spec.json"
    spec.write_text(spec.read_text().replace('"Fast"', '"Best"'))
    for folder in (one, other):
        with pytest.raises(tc.InputError, match="is damaged"):
            tc.load(folder)


def test_arrays_have_the_documented_keys(tmp_path):
    theta = {"w": np.zeros(2), "b/\0": 0.0, "a": {"b": 1.0}, "a.b": 2.0}

    def still(theta, omega, x):
        return jax.tree.map(jnp.zeros_like, theta)

    problem = tc.problems.custom(still, lambda theta, omega, x: omega, lambda key: key, theta, (0.0, np.ones(3)))
    result = tc.solve(problem, tc.Standard(), 5, 2)
    plain = tc.solve(tc.problems.quadratic(dim=3), tc.Fast(), 5, 2)
    with np.load(plain.save(tmp_path / "plain") / "arrays.npz") as arrays:
        assert arrays["theta"].shape == arrays["omega"].shape == (2, 3)
        assert arrays["diverged"].shape == arrays["last_step"].shape == (2,)
    folder = result.save(tmp_path / "tree")
    with np.load(folder / "arrays.npz") as arrays:
        assert arrays["theta.w"].shape == (2, 2)
        assert arrays["omega.1"].shape == (2, 3)
    loaded = tc.load(folder)
    assert loaded.theta["a"]["b"][0] == 1
    assert loaded.theta["a.b"][0] == 2
    assert loaded.theta["b/\0"][0] == 0
    np.testing.assert_array_equal(loaded.omega[1], np.ones((2, 3)) * result.omega[1])


def test_a_result_is_saved_beside_names_that_are_no_text(result, tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.mkdir()
    assert tc.load(result.save(tmp_path / "run")) == result
    assert odd.is_dir()
    assert tc.load(result.save(odd)) == tc.load(result.save(odd)) == result


def test_no_reader_or_writer_of_parquet_gets_a_path_that_is_no_text(result, tmp_path, monkeypatch):
    write = pd.DataFrame.to_parquet

    def pandas_2(table, path=None, **options):  # it takes the name of an open file, and Arrow opens that
        getattr(path, "name", "").encode()
        return write(table, path, **options)

    monkeypatch.setattr(pd.DataFrame, "to_parquet", pandas_2)
    odd = tmp_path / os.fsdecode(b"\xff")
    assert tc.load(result.save(odd / "run")) == result
    problem = tc.problems.quadratic(dim=2)
    sweep = tc.sweep({"a b/ü%": problem, "=": problem}, {"fast": tc.Fast()}, 20, 2, out=odd / "sweep")
    assert tc.Sweep.load(odd / "sweep").history.equals(sweep.history)
    assert sorted(set(sweep.history["problem"])) == ["=", "a b/ü%"]


def test_replacing_a_result_keeps_what_is_not_its_own(result, whole, tmp_path):
    folder = result.save(tmp_path / "run")
    (folder / "mine.txt").write_text("keep me")
    (folder / "deep").mkdir()
    (folder / "deep" / "mine.txt").write_text("me too")
    whole.save(folder)
    assert tc.load(folder).history.equals(whole.history)
    assert (folder / "mine.txt").read_text() == "keep me"
    assert (folder / "deep" / "mine.txt").read_text() == "me too"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("call", ["rename", "replace"])
@pytest.mark.parametrize("strike", [1, 2, 3])
def test_a_kill_at_any_move_leaves_the_old_result_or_the_new_one(result, whole, tmp_path, monkeypatch, call, strike):
    folder = result.save(tmp_path / "run")
    (folder / "mine.txt").write_text("keep me")
    move, calls = getattr(os, call), []

    def killed(source, target):
        calls.append(1)
        if len(calls) >= strike:  # a dead process makes no further moves
            raise KeyboardInterrupt
        move(source, target)

    monkeypatch.setattr(os, call, killed)
    ended = False
    try:
        whole.save(folder)
        ended = True
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    committed = call == "replace" or ended
    assert tc.load(folder).history.equals((whole if committed else result).history)
    whole.save(folder)
    assert tc.load(folder).history.equals(whole.history)
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.npz", "history.parquet", "mine.txt", "spec.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_nothing_of_the_users_beside_or_inside_a_record_is_lost(result, whole, tmp_path):
    """Names that earlier versions took for their own leftovers, in the parent, in the record and in a checkpoint."""
    stopped(tmp_path / "kept", 1)
    folder = result.save(tmp_path / "result")
    places = (tmp_path, folder, tmp_path / "kept")
    names = ("data.part-1", ".old-result", ".old-new", f".part-{'0' * 32}", f".twoclock-part-{'0' * 32}", "7", ".lock")
    for place in places:
        for name in names:
            (place / name).mkdir()
            (place / name / "mine.txt").write_text("keep me")
    inode = (folder / "7").stat().st_ino
    for target in (folder, tmp_path / "new"):
        for saved in (result, whole):
            saved.save(target)
    assert tc.load(folder).history.equals(whole.history)
    tc.solve(**RUN, checkpoint=tmp_path / "kept", checkpoint_every=0.0)
    storage.discard(tmp_path / "kept")
    with storage.lock(folder):
        pass
    for place in places:
        assert all((place / name / "mine.txt").read_text() == "keep me" for name in names)
    assert (folder / "7").stat().st_ino == inode
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == sorted(names)


@pytest.mark.parametrize("name", ["spec.json", "history.parquet", "arrays.npz"])
@pytest.mark.parametrize("before", ["nothing", "a result"])
def test_a_file_that_the_library_did_not_write_is_never_replaced(result, whole, tmp_path, name, before):
    if before == "a result":
        result.save(tmp_path)
    (tmp_path / name).write_text("mine")
    with pytest.raises(tc.InputError, match=r"did not write, or that was changed since; move it away") as error:
        whole.save(tmp_path)
    one_line(error)
    assert (tmp_path / name).read_text() == "mine"
    assert not list(tmp_path.glob(".*"))


def test_a_lock_that_the_library_did_not_write_is_left_alone(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / atomic_file.LOCK).write_text("mine")
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / atomic_file.LOCK).symlink_to(tmp_path / "notes")
    for folder in ("a", "b"):
        with pytest.raises(tc.InputError) as error, storage.lock(tmp_path / folder):
            pass
        one_line(error)
        assert (tmp_path / folder / atomic_file.LOCK).read_text() == "mine"


def test_a_sweep_leaves_other_files_in_its_folder_alone(tmp_path):
    tc.sweep(**SWEEP, out=tmp_path)
    (tmp_path / "shards" / "notes.json").write_text("mine")
    tc.sweep(**SWEEP, out=tmp_path)
    assert (tmp_path / "shards" / "notes.json").read_text() == "mine"


def test_saving_to_the_working_directory_replaces_files_not_the_folder(result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    for _ in range(2):
        result.save(".")
    assert os.stat(".").st_ino == tmp_path.stat().st_ino == before
    assert sorted(os.listdir(".")) == ["arrays.npz", "history.parquet", "spec.json"]
    assert tc.load(".").history.equals(result.history)


def test_saving_to_a_folder_with_other_files_moves_none_of_them(result, tmp_path):
    home = tmp_path / "home"
    (home / "photos").mkdir(parents=True)
    for i in range(1100):
        (home / "photos" / f"{i}.jpg").touch()
    before = home.stat().st_ino, (home / "photos").stat().st_ino
    result.save(home)
    (tmp_path / "link").symlink_to(home)
    result.save(tmp_path / "link")
    assert (home.stat().st_ino, (home / "photos").stat().st_ino) == before
    assert len(list((home / "photos").iterdir())) == 1100
    assert tc.load(home).history.equals(result.history)


def test_unfinished_writes_are_removed_and_never_counted(result, tmp_path, capsys):
    runs = tmp_path / "runs"
    result.save(runs / "good")
    shutil.copytree(runs / "good", atomic_file.new_part(runs))
    assert list(storage.results_below(runs)) == ["good"]
    assert cli.main(["check", str(runs)]) == 0
    assert "left by a kill" in capsys.readouterr().out
    result.save(runs / "next")
    assert sorted(path.name for path in runs.iterdir()) == ["good", "next"]


def write_folder(path):
    with sealed_folder.replacement(path) as part:
        (part / "note").write_text("all of it")


def write_file(path):
    path.mkdir()
    atomic_file.put(path / "note", "all of it", aside=path.parent)


@pytest.mark.parametrize("write", [write_folder, write_file])
def test_a_write_that_another_process_removed_before_its_lock_starts_again(tmp_path, monkeypatch, write):
    hold, first = atomic_file.hold, iter([True])

    def late(handle):
        if next(first, False):
            atomic_file.clean(tmp_path)
        return hold(handle)

    monkeypatch.setattr(atomic_file, "hold", late)
    write(tmp_path / "new")
    assert next(first, None) is None
    assert (tmp_path / "new" / "note").read_text() == "all of it"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_part_that_is_being_removed_cannot_be_locked(tmp_path, monkeypatch):
    """A writer that has just made it and comes second gives it up, also while it is still there."""
    atomic_file.new_part(tmp_path).touch()
    seen = []

    def slowly(path):
        with path.open() as file:
            seen.append((path.exists(), atomic_file.hold_new(file.fileno(), path)))

    monkeypatch.setattr(atomic_file, "remove", slowly)
    atomic_file.clean(tmp_path)
    assert seen == [(True, False)]


def stopped(folder, times):
    """A run that was stopped some times, so that it has a checkpoint and the one before."""
    for k in range(1, times + 1):

        def stop(tick, k=k):
            if tick.step >= 1000 * k:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tc.solve(**RUN, checkpoint=folder, checkpoint_every=0.0, progress=stop)


@pytest.mark.parametrize("harm", [flip, cut, lose])
def test_a_damaged_checkpoint_resumes_from_the_one_before(whole, tmp_path, harm):
    rng = np.random.default_rng(1)
    stopped(tmp_path / "kept", 1)
    older, newer = sorted((tmp_path / "kept").iterdir(), key=lambda path: int(path.name))
    for name in ("spec.json", "arrays.npz"):
        for trial in range(4 if harm is flip else 1):
            folder = tmp_path / f"{name}-{trial}"
            shutil.copytree(tmp_path / "kept", folder)
            harm(folder / newer.name / name, rng)
            seen = []
            again = tc.solve(**RUN, checkpoint=folder, progress=lambda tick, seen=seen: seen.append(tick.step))
            assert int(older.name) <= seen[0] <= int(newer.name)
            assert again.history.equals(whole.history)
            assert np.array_equal(again.theta, whole.theta)


def test_only_damaged_checkpoints_are_refused_in_one_line(tmp_path):
    stopped(tmp_path, 1)
    for path in tmp_path.glob("*/arrays.npz"):
        flip(path, np.random.default_rng(2))
    with pytest.raises(tc.InputError, match=r"cannot be used: .*; remove the folder to start again") as error:
        tc.solve(**RUN, checkpoint=tmp_path)
    one_line(error)


def test_a_second_run_into_the_same_checkpoint_is_refused(tmp_path):
    def again(tick):
        tc.solve(**RUN, checkpoint=tmp_path)

    with pytest.raises(
        tc.InputError, match=rf"another run writes to .* \(process {os.getpid()} on .*\); wait"
    ) as error:
        tc.solve(**RUN, checkpoint=tmp_path, progress=again)
    one_line(error)
    tc.solve(**RUN, checkpoint=tmp_path)


def test_a_killed_process_holds_no_lock(tmp_path):
    code = "import os, sys, pathlib, twoclock.storage as r\nwith r.lock(pathlib.Path(sys.argv[1])): os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / atomic_file.LOCK).exists()
    with storage.lock(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def contents(out):
    return {path.relative_to(out): hashlib.sha256(path.read_bytes()).hexdigest() for path in out.glob("history/*/*/*")}


@pytest.mark.parametrize("harm", [flip, cut, lose])
def test_a_damaged_shard_is_computed_again(tmp_path, harm):
    tc.sweep(**SWEEP, out=tmp_path)
    good, rng = contents(tmp_path), np.random.default_rng(3)
    for pattern in ("shards/*.json", "history/*/*/*.parquet"):
        victim = sorted(tmp_path.glob(pattern))[0]
        others = {path: path.stat().st_mtime_ns for path in tmp_path.glob("shards/*.json") if path.stem != victim.stem}
        harm(victim, rng)
        if harm is not lose or pattern.startswith("history"):
            with pytest.raises(tc.InputError, match=r"is damaged: shards/.*computes that shard again") as error:
                tc.Sweep.load(tmp_path)
            one_line(error)
        tc.sweep(**SWEEP, out=tmp_path)
        assert contents(tmp_path) == good
        assert {path: path.stat().st_mtime_ns for path in others} == others


def test_a_method_deleted_from_a_sweep_is_noticed(tmp_path, capsys):
    found = tc.sweep(**SWEEP, out=tmp_path)
    shutil.rmtree(tmp_path / "history" / "problem=bowl" / "method=b")
    assert (status(tmp_path).done, status(tmp_path).shards) == (1, 2)
    assert cli.main(["check", str(tmp_path)]) == 1
    with pytest.raises(tc.InputError, match="is missing"):
        tc.Sweep.load(tmp_path)
    assert tc.sweep(**SWEEP, out=tmp_path).history.equals(found.history)
    assert cli.main(["check", str(tmp_path)]) == 0


def test_a_damaged_specification_of_a_sweep(tmp_path):
    tc.sweep(**SWEEP, out=tmp_path)
    flip(tmp_path / "sweep.json", np.random.default_rng(4))
    with pytest.raises(tc.InputError, match=r"sweep\.json.*the same sweep into this folder repairs it"):
        status(tmp_path)
    with pytest.raises(tc.InputError, match="holds another sweep"):
        tc.sweep(**{**SWEEP, "steps": 70}, out=tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("shards/*.json")}
    tc.sweep(**SWEEP, out=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert status(tmp_path).done == 2


def test_a_sweep_killed_while_writing_its_specification_can_be_restarted(tmp_path):
    atomic_file.new_part(tmp_path).write_text('{"identity"')
    (tmp_path / atomic_file.LOCK).touch()
    tc.sweep(**SWEEP, out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history", "progress.json", "shards", "sweep.json"]


def test_a_second_sweep_into_the_same_folder_is_refused(tmp_path):
    def again(watch):
        tc.sweep(**SWEEP, out=tmp_path)

    with pytest.raises(tc.InputError, match="another run writes to"):
        tc.sweep(**SWEEP, out=tmp_path, progress=again)
    tc.sweep(**SWEEP, out=tmp_path)


def test_a_damaged_progress_file_is_ignored(tmp_path):
    tc.sweep(**SWEEP, out=tmp_path)
    for content in ("", "[]", "{}", '{"ended": 3}', "[" * 100_000, "\x00"):
        (tmp_path / "progress.json").write_text(content)
        assert status(tmp_path).done == 2
    assert Shards(tmp_path).progress() == {}


def test_check_verifies_results_checkpoints_and_sweeps(result, tmp_path, capsys):
    result.save(tmp_path / "runs" / "one")
    stopped(tmp_path / "runs" / "two" / "checkpoint", 1)
    tc.sweep(**SWEEP, out=tmp_path / "swept")
    assert cli.main(["check", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert all(word in output for word in ("result", "checkpoint", "sweep, 2 of 2", "shard", "as it was written"))
    flip(tmp_path / "runs" / "one" / "arrays.npz", np.random.default_rng(5))
    assert cli.main(["check", str(tmp_path)]) == 1
    assert "1 of 6 damaged" in capsys.readouterr().out
    assert cli.main(["check", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "empty").mkdir()
    assert cli.main(["check", str(tmp_path / "empty")]) == 2


def _paths(document, above=()):
    for key, value in document.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))


def test_odd_values_in_a_sealed_record_are_one_line(result, tmp_path):
    """A record that another program sealed again: each entry in turn is lost, or of another kind, or nested deeply."""
    deep = []
    for _ in range(500):
        deep = [deep]
    result.save(tmp_path / "result")
    F, G = (lambda t, o, x: o - 1), (lambda t, o, x: o - t + x)
    learner = tc.Learner(F, G, tc.Standard(0.1, 0.1), 0.0, 0.0)
    learner.update_many(np.arange(20.0))
    learner.save(tmp_path / "learner")
    agent = tc.agents.Evaluator(1.0, np.eye(2), 0.5)
    agent.observe(0, None, 1, 1.0)
    agent.save(tmp_path / "agent")
    tc.sweep(**SWEEP, out=tmp_path / "sweep")
    readers = {
        "result/spec.json": lambda: tc.solve(BOWL, tc.Fast(), 80, 3, start=tc.load(tmp_path / "result")),
        "learner/spec.json": lambda: tc.Learner.load(tmp_path / "learner", F, G),
        "agent/spec.json": lambda: repr(tc.agents.Evaluator.load(tmp_path / "agent")),
        "sweep/sweep.json": lambda: tc.Sweep.load(tmp_path / "sweep"),
    }
    rng = np.random.default_rng(0)
    refused = 0
    for name, read in readers.items():
        path = tmp_path / name
        document = path.read_bytes()
        for keys in list(_paths(sealed_folder.unseal(document))):
            content = sealed_folder.unseal(document)
            inner = content
            for key in keys[:-1]:
                inner = inner[key]
            odd = [None, -1, 1e308, 2**70, "x", [], {}, [[1]], {"a": 1}, deep][rng.integers(10)]
            inner.pop(keys[-1]) if rng.random() < 0.2 else inner.update({keys[-1]: odd})
            path.write_text(sealed_folder.seal(content))
            said = ""
            try:
                read()
            except tc.InputError as error:
                said = str(error)
            refused += said != ""
            assert "\n" not in said
            assert len(said) < 500
        path.write_bytes(document)
        read()
    assert refused > 50


def test_a_record_names_no_files_outside_its_folder(result, tmp_path):
    """Those that it names are removed when a newer one takes its place."""
    result.save(tmp_path / "a")
    spec = tmp_path / "a" / "spec.json"
    content = sealed_folder.unseal(spec.read_bytes())
    victim = tmp_path / "victim"
    victim.write_text("mine")
    content["files"]["../victim"] = sealed_folder.checksum(b"mine")
    spec.write_text(sealed_folder.seal(content))
    sealed_folder.remove_record(tmp_path / "a")
    assert victim.exists()
    with pytest.raises(tc.InputError, match="names files outside its folder"):
        tc.load(tmp_path / "a")


def test_a_name_that_the_system_does_not_take_is_one_line(result, tmp_path):
    for name in ("a\0b", "x" * 300):
        with pytest.raises(tc.InputError, match=r"cannot be (written|used)") as error:
            result.save(tmp_path / name)
        one_line(error)
    assert not list(tmp_path.iterdir())


LIMITED = """
import resource, sys, tempfile
import numpy as np
import twoclock as tc
sys.dont_write_bytecode = True
result = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 200, 2, engine="xla")
result.save(sys.argv[2] + "/before")
kind, number = (resource.RLIMIT_FSIZE, 3000) if sys.argv[1] == "size" else (resource.RLIMIT_NOFILE, 3)
resource.setrlimit(kind, (number, resource.getrlimit(kind)[1]))
calls = [lambda: result.save(sys.argv[2] + "/r"), lambda: tc.storage.put_note(sys.argv[2], "n", {"a": "x" * 4000})]
if sys.argv[1] == "files":
    calls.append(lambda: tc.load(sys.argv[2] + "/before"))
for call in calls:
    try:
        call()
    except tc.InputError as error:
        assert isinstance(error, OSError) and "cannot be" in str(error), error
        continue
    raise SystemExit("no error")
"""


@pytest.mark.parametrize("limit", ["size", "files"])
def test_limits_of_the_system_are_one_line(limit, tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, limit, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["before"]


def test_a_result_sealed_again_with_other_seeds_or_engine_is_refused(result, tmp_path):
    spec = result.save(tmp_path / "run") / "spec.json"
    content = sealed_folder.unseal(spec.read_bytes())
    for changed, line in (
        ({"seeds": [0, 7, 2]}, "its table has other seeds"),
        ({"engine": -1}, "its engine has no name"),
        ({"precision": "double"}, "its precision is unknown"),
        ({"method": {**content["method"], "name": ["Fast"]}}, "the name of its method is no text"),
    ):
        spec.write_text(sealed_folder.seal({**content, **changed}))
        with pytest.raises(tc.InputError, match=line):
            tc.load(spec.parent)


def test_an_interval_needs_every_part_of_the_state_at_the_end(tmp_path):
    tc.solve(BOWL, tc.Zap(), 50, 2).save(tmp_path / "run")
    spec = tmp_path / "run" / "spec.json"
    document = spec.read_bytes()
    assert len(tc.load(spec.parent).interval())
    for change in (lambda carry: carry.pop(3), lambda carry: carry.__setitem__(3, None), lambda carry: carry.clear()):
        content = sealed_folder.unseal(document)
        change(content["layout"]["carry"]["tuple"])
        spec.write_text(sealed_folder.seal(content))
        with pytest.raises(tc.InputError, match="the state in which the run ended is damaged"):
            tc.load(spec.parent).interval()


def test_a_sweep_sealed_again_without_what_its_tables_need_is_refused(tmp_path):
    tc.sweep(**SWEEP, out=tmp_path / "sweep")
    path = tmp_path / "sweep" / "sweep.json"
    document = path.read_bytes()
    assert len(tc.Sweep.load(tmp_path / "sweep").best("error"))

    def change(spec, keys, value):
        *above, last = keys
        for key in above:
            spec = spec[key]
        spec.pop(last) if value is None else spec.update({last: value})

    problem, method = next(iter(SWEEP["problems"])), next(iter(tc.Sweep.load(tmp_path / "sweep").spec["methods"]))
    for keys, value in (
        (("methods", method), None),
        (("methods", method, "numbers"), "x"),
        (("methods", method, "numbers", "alpha.c"), [1.0]),
        (("methods", method, "family"), {"a": 1}),
        (("methods", method, "family"), "\udcff"),
        (("methods", method, "name"), None),
        (("problems", problem), "x"),
        (("problems", problem, "name"), None),
        (("identity", "steps"), None),
        (("identity", "marks"), [0, 1]),
        (("identity", "seeds"), None),
        (("identity", "seeds"), [7]),
        (("identity", "precision"), "double"),
        (("identity", "bound"), "x"),
    ):
        content = sealed_folder.unseal(document)
        change(content, keys, value)
        path.write_text(sealed_folder.seal(content))
        with pytest.raises(tc.InputError, match="is damaged: it holds odd values"):
            tc.Sweep.load(tmp_path / "sweep")


def test_an_agent_whose_state_is_a_text_is_refused(tmp_path):
    spec = tc.agents.Regulator(np.eye(1), np.eye(1)).save(tmp_path / "agent") / "spec.json"
    spec.write_text(sealed_folder.seal({**sealed_folder.unseal(spec.read_bytes()), "Regulator": "x"}))
    with pytest.raises(tc.InputError, match="is damaged"):
        tc.agents.Regulator.load(spec.parent)
