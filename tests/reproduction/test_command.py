"""The command `python -m reproduction`: its help and its errors."""

import pytest

from reproduction import experiments
from reproduction.__main__ import main


def test_help_lists_every_experiment(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in experiments.discover())
    assert {"table1", "fig1", "fig2", "hard_policy_evaluation"} <= set(experiments.discover())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["fig9"], "`EXPERIMENT` has no 'fig9'; did you mean 'fig"),
        (["nothing"], "`EXPERIMENT` has no 'nothing'"),
        (["--quickly"], "--quickly; did you mean --quick?"),
        (["fig1", "--resume", "--out", "empty"], "`--resume` needs a folder"),
        (["fig1", "--engine", "gpu"], "--engine"),
        (["--report"], "--report: expected one argument"),
        (["--report", "."], "`--report` must be a reproduction's `full` or `quick` folder"),
        (["--report", ".", "--quick"], "`--report` takes a folder and nothing else"),
        (["fig1", "--report", "."], "`--report` takes a folder and nothing else"),
        (["quadratic", "--quick", "--out", "/proc/nowhere"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_line(args, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    output = capsys.readouterr().err.strip()
    assert words in output
    assert output.startswith("reproduction: ")
    assert "\n" not in output
    assert not list(tmp_path.iterdir())
