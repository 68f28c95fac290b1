"""The command `twoclock evaluate`: a report from a file, one-line errors, resumed passes."""

from importlib import import_module

import numpy as np
import pandas as pd
import pytest

import logged
import twoclock as tc
from twoclock import cli

MDP = logged.random_mdp(end=0.1)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(MDP.draw(episodes=200, steps=50)).to_parquet("log.parquet", row_group_size=300, index=False)
    np.save("pi.npy", MDP.pi)
    (tmp_path / "mine.py").write_text("import numpy as np\npi = np.load('pi.npy')\nuniform = np.full((6, 2), 0.5)\n")
    columns = "--next-state next_state --episode episode --step step --propensity propensity --bootstrap 20"
    return ["evaluate", "log.parquet", "--gamma", "0.9", *columns.split()]


def test_the_command_reads_a_file_and_writes_a_report(files, capsys, tmp_path):
    assert cli.main([*files, "--policy", "mine.py:pi", "mine.py:uniform", "--report", "out"]) == 0
    out = capsys.readouterr().out
    assert ", the policy 'pi' is worth" in out
    assert "uniform − pi:" in out
    assert out.index("If no kind of start rarer than") < out.index("┏"), "the condition is ahead of the table"
    assert {"report.html", "spec.json", "table.csv", "value.png"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert not (tmp_path / "out" / "passes").exists()
    again = tc.logs.load("out")
    log = logged.read("log.parquet")
    direct = tc.evaluate(log, {"pi": MDP.pi, "uniform": np.full((6, 2), 0.5)}, 0.9, bootstrap=20)
    pd.testing.assert_frame_equal(again.table, direct.table)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--policy", "mine.py:po"], "did you mean 'pi'"),
        (["--policy", "none.py:pi"], "`--policy` names the file none.py, which is not there"),
        (["--policy", "pi"], "`--policy` must be written file.py:name"),
        (["--policy", "mine.py:pi", "--state", "where"], "`state` names the column 'where', which is not there"),
        (["--policy", "mine.py:pi", "--estimator", "best"], "`estimator` has no 'best'"),
    ],
)
def test_a_wrong_argument_gives_one_line(files, capsys, extra, words):
    assert cli.main([*files, *extra]) == 2
    output = capsys.readouterr().err.strip().splitlines()[-1]
    assert words in output.replace("\n", " ")


def test_two_policies_of_one_name_are_both_evaluated(files, capsys, tmp_path):
    for folder, policy in (("x", MDP.pi), ("y", MDP.b)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.py").write_text(f"import numpy as np\npi = np.array({policy.tolist()})\n")
    assert cli.main([*files, "--policy", "x/p.py:pi", "y/p.py:pi", "--report", "out"]) == 0
    again, log = tc.logs.load("out"), logged.read("log.parquet")
    for name, policy in (("x/p.py:pi", MDP.pi), ("y/p.py:pi", MDP.b)):
        assert again[name].value == tc.evaluate(log, policy, 0.9, bootstrap=20).value
    assert cli.main([*files, "--policy", "x/p.py:pi", "x/p.py:pi"]) == 2
    assert "`--policy` must name each policy once" in capsys.readouterr().err


def test_a_killed_pass_resumes(files, tmp_path, monkeypatch):
    """A call that stopped in the middle of the second pass with sums resumes from the saved sums.

    The pass before these counts the pairs of a table; it has no sums and is done again.
    """
    log = logged.read("log.parquet")
    assert len(log.parts) > 3
    whole = tc.evaluate(log, MDP.pi, 0.9, bootstrap=0)
    monkeypatch.setattr(import_module("twoclock.logs.estimators"), "EVERY", 0.0)
    done = []

    def stop(part, parts):
        done.append(part)
        if len(done) == 2 * len(log.parts) + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tc.evaluate(log, MDP.pi, 0.9, bootstrap=0, checkpoint=tmp_path / "kept", progress=stop)
    rest = []
    again = tc.evaluate(
        log, MDP.pi, 0.9, bootstrap=0, checkpoint=tmp_path / "kept", progress=lambda part, parts: rest.append(part)
    )
    assert rest[len(log.parts)] in (2, 3), "the first pass with sums is not done again, the second resumes"
    pd.testing.assert_frame_equal(again.table, whole.table)
    other = tc.evaluate(log, MDP.b, 0.9, bootstrap=0, checkpoint=tmp_path / "kept")
    assert other.value == tc.evaluate(log, MDP.b, 0.9, bootstrap=0).value


def test_the_order_of_named_actions_is_an_option(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = MDP.draw(episodes=100, steps=30)
    names = np.array(["stay", "go"])
    pd.DataFrame({**data, "action": names[data["action"]]}).to_parquet("log.parquet", index=False)
    np.save("pi.npy", MDP.pi)
    (tmp_path / "mine.py").write_text("import numpy as np\npi = np.load('pi.npy')\n")
    call = ["evaluate", "log.parquet", "--gamma", "0.9", "--policy", "mine.py:pi", "--report", "out"]
    call += ["--next-state", "next_state", "--episode", "episode", "--step", "step", "--bootstrap", "0"]
    assert cli.main(call) == 2
    assert "nothing says which is which" in capsys.readouterr().err
    assert cli.main([*call, "--actions", "stay", "go"]) == 0
    assert "Actions: 'stay', 'go'." in " ".join(capsys.readouterr().out.split())
    assert tc.logs.load("out").value == pytest.approx(tc.evaluate(logged.read(data), MDP.pi, 0.9).value, abs=1e-9)
