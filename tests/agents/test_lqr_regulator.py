"""A regulator on plants that it sees only through samples."""

import numpy as np
import pytest

import twoclock as tc
from twoclock.storage import sealed_folder

PAPER = tc.problems.paper_lqr().lqr


def drive(agent, steps, seed=0, lqr=PAPER, x=None):
    rng = np.random.default_rng(seed)
    x = np.zeros(len(lqr.Q)) if x is None else x
    for _ in range(steps):
        u = agent.act(x)
        after = lqr.A @ x + lqr.B @ u + rng.standard_normal(len(x))
        agent.observe(x, u, after)
        x = after
    return x


def gap(K, lqr=PAPER):
    return float(lqr.J(K, 1.0) - lqr.J(lqr.gain, 1.0))


def test_model_critic_learns_on_an_external_plant(tmp_path):
    """As good as the same operators in ``solve``; resumes bit-for-bit identical; the interval covers the cost."""
    agent = tc.agents.Regulator(PAPER.Q, PAPER.R, seed=3)
    drive(agent, 1500)
    assert 1500 * gap(agent.gain) < 20  # 4.44 in the mean
    value, low, high = agent.cost()
    assert low < PAPER.J(agent.gain, 1.0) < high
    assert low < value < high
    agent.save(tmp_path / "a")
    again = tc.agents.Regulator.load(tmp_path / "a")
    for one in (agent, again):
        drive(one, 100, seed=1)
    assert np.array_equal(again.gain, agent.gain)
    assert again.cost() == agent.cost()
    assert again.history.equals(agent.history)
    assert again.history["cost"].iloc[-1] == pytest.approx(PAPER.J(agent.gain, 1.0), rel=0.1)


def test_exploration_differs_from_a_plant_with_the_same_seed():
    """Exploration that equals the plant's noise would make a wrong model: a gain of 0.97 instead of 0.62."""
    plant = tc.models.Lqr([[0.9]], [[0.5]], [[1.0]], [[1.0]])
    agent = tc.agents.Regulator(plant.Q, plant.R, seed=0)
    drive(agent, 2000, seed=0, lqr=plant)
    assert agent.gain == pytest.approx(plant.gain, abs=0.05)


def test_q_critic_learns():
    agent = tc.agents.Regulator(PAPER.Q, PAPER.R, critic="q")
    drive(agent, 4000)
    assert gap(agent.gain) < gap(np.zeros((2, 3))) / 10
    assert agent.steps == 4000


def test_guard_holds_a_plant_that_steps_would_lose(tmp_path):
    """Steps that are too large: without the guard it diverges and K0 acts; with it no state leaves, saved or not."""
    steps = tc.Standard(0.2, 0.2)
    bare = tc.agents.Regulator(PAPER.Q, PAPER.R, critic="q", method=steps)
    with (
        np.errstate(all="ignore"),
        pytest.warns(tc.agents.PlantWarning, match="K0 acts since"),
        pytest.warns(tc.DivergedWarning),
    ):
        x = drive(bare, 400)
    assert bare.diverged
    assert np.array_equal(bare.gain, bare.K0)
    assert np.abs(drive(bare, 300, x=x)).max() < 100  # though it was far out when it diverged
    agent = tc.agents.Regulator(PAPER.Q, PAPER.R, critic="q", method=steps, guard=tc.problems.Guard(log=200))
    x = drive(agent, 150)
    agent.save(tmp_path / "a")  # in the middle of the log
    agent = tc.agents.Regulator.load(tmp_path / "a")
    x = drive(agent, 350, x=x)
    agent.save(tmp_path / "a")
    again = tc.agents.Regulator.load(tmp_path / "a")
    assert again.interventions == agent.interventions
    for one in (agent, again):
        last = drive(one, 200, seed=5, x=x)
        assert np.abs(last).max() < 100
    assert np.array_equal(again.gain, agent.gain)
    assert agent.certified
    assert agent.steps == 500


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tc.agents.Regulator(PAPER.Q, -PAPER.R), "`R` must be symmetric positive definite"),
        (lambda: tc.agents.Regulator(PAPER.Q, PAPER.R, K0=np.zeros((3, 2))), "`K0` must have a row for each action"),
        (lambda: tc.agents.Regulator(np.eye(2), [[1.0]], K0=[1, 2]), r"got \(2,\); write it as \[\[1.0, 2.0\]\]"),
        (lambda: tc.agents.Regulator([[1.0]], np.eye(2), K0=[1, 2]), r"got \(2,\); write it as \[\[1.0\], \[2.0\]\]"),
        (lambda: tc.agents.Regulator([[1.0]], [[1.0]], reference=[1, 2]), r"`reference` must have an entry for each"),
        (lambda: tc.agents.Regulator([[1.0]], [[1.0]], critic="q", lags=2), "`lags` is for the model critic"),
        (lambda: tc.agents.Regulator(np.eye(3), [[1.0]], lags=2, outputs=1), "`Q` must be of the outputs"),
        (lambda: tc.agents.Regulator(PAPER.Q, PAPER.R, critic="p"), "`critic` must be 'model' or 'q'"),
        (lambda: tc.agents.Regulator(PAPER.Q, PAPER.R, sigma=0.0), "`sigma`"),
        (lambda: tc.agents.Regulator(PAPER.Q, PAPER.R, guard=3), "`guard` must be"),
        (lambda: tc.agents.Regulator(PAPER.Q, PAPER.R).act([1.0, 2.0]), r"`x` must have shape \(3,\)"),
        (lambda: tc.agents.Regulator(PAPER.Q, PAPER.R).act([np.nan, 0, 0]), "`x` must be finite"),
        (lambda: tc.agents.Regulator(PAPER.Q, PAPER.R).observe([0, 0, 0], "u", [0, 0, 0]), "`u` must be a vector"),
    ],
)
def test_one_line(call, words):
    with pytest.raises(tc.InputError, match=words):
        call()


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (("rest", "tuple", 0), None),
        (("past", "dict", "y"), "last_step"),
        (("notes", "dict", "recent"), "Q"),
        (("notes", "dict", "count"), "diverged"),
    ],
)
def test_a_saved_part_of_another_form_is_damage(tmp_path, place, other):
    """Sealed again with an array lost, or with one of another shape or kind in its place."""
    tc.agents.Regulator([[1.0]], [[1.0]]).save(tmp_path / "agent")
    file = tmp_path / "agent" / "spec.json"
    document = sealed_folder.unseal(file.read_bytes())
    inner = document["layout"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    file.write_text(sealed_folder.seal(document))
    with pytest.raises(tc.InputError, match="is damaged"):
        tc.agents.Regulator.load(tmp_path / "agent").act(np.zeros(1))
