"""The command `python -m reproduction`: its help and its errors."""

from types import SimpleNamespace

import pytest

import twoclock as tc
from reproduction import experiments, runner
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


def test_an_experiment_that_fails_does_not_stop_the_others(tmp_path):
    names = ["exact", "gone"]
    display = runner.ProgressDisplay(names, True)
    done, failed = runner.run_side_by_side(names, tmp_path, True, display)
    assert list(done) == ["exact"]
    assert done["exact"].claims
    assert list(failed) == ["gone"]
    assert failed["gone"].strip().endswith("KeyError: 'gone'")


def test_an_input_error_in_a_judgement_is_a_failure_of_that_experiment():
    """As one line for the user it would end the whole run."""

    def claims(records):
        raise tc.InputError("`interval` needs the state in which the run ended")

    with pytest.raises(RuntimeError, match="`claims` of the experiment: `interval` needs"):
        runner.hook(SimpleNamespace(claims=claims), "claims", {}, [])


def test_the_bar_goes_by_measured_costs():
    display = runner.ProgressDisplay(["exact", "paper"], True)
    costs = runner.measured_costs(["exact", "paper"], True)
    assert set(runner.measured_costs(list(experiments.discover()), False).values()) != {1.0}
    task = display.bars.tasks[display.task]
    for message, made in (
        (runner.ExperimentStarted("paper", "title", 100, 1, 3), 0.0),
        (runner.CaseAdvanced("paper", "a case", 5, 10), 0.95 * costs["paper"] / 2),
        (runner.ExperimentStarted("exact", "title", 0, 0, 0), 0.95 * costs["paper"] / 2),
        (runner.ExperimentJudged("paper"), costs["paper"]),
        (runner.ExperimentJudged("exact"), costs["paper"] + costs["exact"]),
    ):
        display.show(message)
        assert task.completed == pytest.approx(made)
    assert (display.kept, display.cases) == (1, 3)
    assert task.total == pytest.approx(sum(costs.values()))
