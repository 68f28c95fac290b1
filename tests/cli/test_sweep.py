"""`twoclock sweep` and `twoclock status` as a user meets them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import twoclock as tc
from twoclock import cli
from twoclock.cli.commands.sweep import read_spec
from twoclock.sweeps.progress import status

SPEC = """
steps = 300
seeds = 3

[problems.bowl]
name = "quadratic"
dim = 2

[methods.fast]
name = "fast"
grid = { "alpha.c" = [0.5, 1, 2], "lam.c" = [20, 40] }

[methods.averaged]
name = "polyak"
power = 1
method = { name = "standard", alpha = "2/(k+20)^0.7" }
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)


def test_a_spec_file_runs_a_sweep(tmp_path, capsys):
    assert cli.main(["sweep", "spec.toml"]) == 0
    output = capsys.readouterr().out
    assert "best by error" in output
    names = {p.name for p in (tmp_path / "runs" / "spec").iterdir()}
    assert names >= {"history", "sweep.json", "error-best.png", "error-sensitivity.svg", "error-map.png"}
    found = tc.Sweep.load("runs/spec")
    assert list(found.spec["methods"]) == [f"fast {label}" for label in tc.grid(
        tc.Fast(), **{"alpha.c": [0.5, 1, 2], "lam.c": [20, 40]})] + ["averaged"]  # fmt: skip
    by_hand = tc.solve(tc.problems.quadratic(dim=2), tc.Polyak(tc.Standard(alpha="2/(k+20)^0.7"), power=1), 300, 3)
    ours = found.result("bowl", "averaged").history
    assert ours["error"].to_numpy() == pytest.approx(by_hand.history["error"].to_numpy(), rel=1e-9)


def test_status_of_a_finished_sweep(capsys):
    cli.main(["sweep", "spec.toml", "--out", "here"])
    capsys.readouterr()
    assert cli.main(["status", "here"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "done │ 2 of 2 shards, 21 of 21 runs" in output
    assert "none, it is finished" in output


def test_status_while_it_runs_and_after_it_was_stopped(tmp_path, capsys):
    text = SPEC.replace("steps = 300", "steps = 300_000\nlanes = 3").replace("[0.5, 1, 2]", "[0.5, 1, 2, 3, 4, 5]")
    (tmp_path / "long.toml").write_text(text)
    command = [sys.executable, "-m", "twoclock", "sweep", "long.toml", "--out", "here"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as child:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.02)
            if (tmp_path / "here" / "sweep.json").exists() and (now := status("here")).done and now.running:
                break
        child.send_signal(signal.SIGINT)
        _, output = child.communicate(timeout=60)
    assert now.alive
    assert now.running == 1
    assert 1 <= now.done < now.shards == 13
    assert now.seconds_left > 0
    assert child.returncode == 130, output
    assert output.strip().splitlines()[-1].endswith("to resume: twoclock sweep long.toml --out here")
    now = status("here")
    assert not now.alive
    assert now.running == 0
    assert cli.main(["status", "here"]) == 0
    assert "resumes it" in " ".join(capsys.readouterr().out.split())


def test_status_after_a_kill(tmp_path):
    cli.main(["sweep", "spec.toml", "--out", "here"])
    note = json.loads((tmp_path / "here" / "progress.json").read_text())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale = {**note, "ended": False, "pid": gone.pid, "running": {"a": 1}, "failed": {"b": "no room"}}
    (tmp_path / "here" / "progress.json").write_text(json.dumps(stale))
    assert (status("here").alive, status("here").running, status("here").failed) == (False, 0, {"b": "no room"})
    (tmp_path / "here" / "progress.json").write_text(json.dumps({**stale, "pid": os.getpid()}))
    assert (status("here").alive, status("here").running) == (True, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("steps = 300", "stepz = 300"), "`SPEC` has no 'stepz'; did you mean 'steps'?"),
        (('name = "quadratic"', 'name = "quadratik"'), "did you mean 'quadratic'?"),
        (("dim = 2", "dims = 2"), "`problems.bowl` has no 'dims'; did you mean 'dim'?"),
        (("dim = 2", 'dim = "two"'), "`problems.bowl.dim` must be of the kind of its default"),
        (('name = "fast"', 'name = "fats"'), "did you mean 'fast'?"),
        (('name = "fast"', "size = 1"), "`methods.fast` needs a `name`: one that"),
        (("power = 1", "powr = 1"), "`methods.averaged` has no 'powr'; did you mean 'power'?"),
        (("alpha.c", "alpa.c"), "`alpa.c` is not a setting of Fast; did you mean `alpha.c`?"),
        (("[0.5, 1, 2]", "[]"), "`methods.fast.grid` needs a list with at least one value for 'alpha.c'"),
        (('{ "alpha.c" = [0.5, 1, 2], "lam.c" = [20, 40] }', "{}"), "`methods.fast.grid` is empty"),
        (("seeds = 3", "seeds = 100_000"), "asks for 700,000 runs (settings × problems × seeds), more than 100,000; "),
        (("seeds = 3", "seeds = true"), "`seeds` in spec.toml has the wrong type"),
        (("steps = 300", "steps = "), "is not valid TOML"),
        (("[problems.bowl]", "[problem.bowl]"), "`SPEC` has no 'problem'; did you mean 'problems'?"),
    ],
)
def test_a_mistake_is_one_line(change, words, tmp_path, capsys):
    (tmp_path / "spec.toml").write_text(SPEC.replace(*change))
    assert cli.main(["sweep", "spec.toml"]) == 2
    output = capsys.readouterr().err.strip()
    assert words in output
    assert output.startswith("twoclock: ")
    assert "\n" not in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["sweep", "nothing.toml"], "nothing.toml cannot be read"),
        (["sweep", "spec.toml", "--on", "dask"], "--on"),
        (["sweep", "spec.toml", "--shared"], '`shared` needs on="ray"'),
        (["status", "nowhere"], "nowhere has no sweep.json"),
    ],
)
def test_a_wrong_option_is_one_line(args, words, tmp_path, capsys):
    assert cli.main(args) == 2
    output = capsys.readouterr().err.strip()
    assert words in output
    assert "\n" not in output
    assert not (tmp_path / "runs").exists()


def test_yes_allows_a_large_grid(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC.replace("seeds = 3", "seeds = 100_000"))
    assert read_spec(tmp_path / "spec.toml", however_many=True)["seeds"] == 100_000


def test_failed_shards_are_one_line(tmp_path, capsys, monkeypatch):
    def fail(self, shard, look):
        raise MemoryError("no room for it")

    monkeypatch.setattr("twoclock.sweeps.Worker.compute", fail)
    assert cli.main(["sweep", "spec.toml"]) == 1
    output = capsys.readouterr().err.strip().splitlines()[-1]
    assert output.startswith("twoclock: 2 of 2 shards failed, the first with: no room for it; the same call")


def test_the_folder_of_another_sweep_is_refused(tmp_path, capsys):
    cli.main(["sweep", "spec.toml", "--out", "here"])
    (tmp_path / "spec.toml").write_text(SPEC.replace("steps = 300", "steps = 400"))
    assert cli.main(["sweep", "spec.toml", "--out", "here"]) == 2
    assert "holds another sweep: its steps differ" in capsys.readouterr().err
