"""The MDP experiment's wiring, and the grid world it is about as a picture."""

import numpy as np
import pytest

import twoclock as tc
from reproduction.experiments import mdp
from twoclock import plot
from twoclock.protocols import InputError


def test_cases_are_what_was_promised():
    cases = mdp.cases(quick=False)
    compared = {where: case for where, case in cases.items() if not where.startswith(("around", "counted"))}
    assert set(compared) == {task.case for task in mdp.CENTRES}
    assert {tuple(case.methods) for where, case in cases.items() if where.startswith("counted")} == {
        (mdp.FAST, mdp.RIVAL)
    }
    assert {len(case.methods) for where, case in cases.items() if where.startswith("around")} == {3 * 32}
    for case in compared.values():
        assert (case.steps, case.seeds) == (1_000_000, 80)
        assert list(case.methods) == [mdp.FAST, mdp.SAME, mdp.TWO, mdp.BOLD]


@pytest.fixture(scope="module")
def records():
    cases = mdp.cases(quick=False)
    both = {where: cases[where] for where in ("lake 0.03", "counted lake 0.03")}
    return {where: tc.solve(case.problem, case.methods, 1000, 4) for where, case in both.items()}


def test_it_draws_and_judges_from_records_alone(records):
    assert set(mdp.draw(records)) == {"mdp"}
    colder = {where.replace("0.03", "0.01"): results for where, results in records.items()}
    assert set(mdp.draw({**records, **colder})) == set(mdp.ALT) - {"mdp-sensitivity"}
    verdicts = ("reproduced", "reproduced only where", "not reproduced", "not decidable from the paper")
    for claim in mdp.claims(records):
        assert claim.verdict.startswith(verdicts)
    assert all("nan" not in sentence for sentence in mdp.advice(records))


def test_a_grid_world_has_an_arrow_for_what_is_likely_and_none_for_what_is_not():
    policy = np.zeros((4, 4))
    policy[:, 2] = 1  # always right
    _, axes = plot.figure()
    plot.grid_world(axes[0, 0], np.array([0.1, 0.2, 0.0, 1.0]), policy, [b"SF", b"HG"])
    words = {text.get_text() for text in axes[0, 0].texts}
    assert {"start", "hole", "goal", "0.1", "0.2"} <= words
    arrows = [quiver for quiver in axes[0, 0].collections if hasattr(quiver, "U")]
    assert [len(quiver.U) for quiver in arrows] == [0, 0, 2, 0]
    assert (arrows[2].U > 0).all()
    assert (arrows[2].V == 0).all()


def test_a_grid_world_that_does_not_fit_is_refused():
    _, axes = plot.figure()
    with pytest.raises(InputError, match=r"must fit the 1×2 map and its 4 moves, got the shapes \(3,\) and \(2, 4\)"):
        plot.grid_world(axes[0, 0], np.zeros(3), np.zeros((2, 4)), ["SG"])
