"""`agents.run`: bit-for-bit identical seeds in any process and after a stop; every fault in one line."""

import functools
import os
import signal
import subprocess
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest

import twoclock as tc
from an_agent import Averager, Walk, dies, hangs, plant, slow, walk
from twoclock.engine.loop import Interrupted

STEPS = {"steps": 200, "marks": [0, 50, 100, 200]}
X0 = np.zeros(1)


def test_records_equal_a_handwritten_loop():
    """A loop written by hand with the same random numbers of agent and plant; means over the later half."""
    result = tc.agents.run(Averager(), plant, seeds=[3, 5], x0=X0, processes=1, **STEPS)
    for row, seed in enumerate((3, 5)):
        agent, rng = Averager(seed=seed), np.random.default_rng([0x706C616E74, seed])
        x, rewards = X0, []
        for _ in range(200):
            u = agent.act(x)
            x_next, reward = plant(x, u, rng)
            agent.observe(x, u, x_next, reward)
            x = x_next
            rewards.append(reward)
        assert np.array_equal(result.theta[row], agent.mean)
        mine = result.history[result.history["seed"] == seed]
        assert mine["mean_reward"].tolist()[1:] == pytest.approx([np.mean(rewards[m // 2 : m]) for m in (50, 100, 200)])
        known = tc.agents.run(Averager(), plant, seeds=[seed], x0=X0, **STEPS)  # alone
        assert known.history["error"].tolist() == mine["error"].tolist()
    found = result.interval().set_index("seed").loc[5]
    assert found["estimate"] == pytest.approx(np.mean(rewards[100:]))
    y = np.cumsum(rewards[100:]) / np.arange(1, 101)  # random scaling, by its definition
    V = np.sum(np.arange(1, 101) ** 2 * (y - y[-1]) ** 2) / 100**2
    assert found["high"] - found["estimate"] == pytest.approx(6.747 * np.sqrt(V / 100), rel=1e-3)
    assert result.plot("mean_reward").axes[0].get_yscale() == "linear"  # no logarithm of what is negative


def test_processes_change_nothing(tmp_path):
    """Nor does Ctrl-C while they are at work."""
    one = tc.agents.run(Averager(), walk, seeds=3, processes=1, **STEPS)
    call, once = {"seeds": 3, "checkpoint": tmp_path / "a", **STEPS}, iter([signal.SIGINT])
    with pytest.raises(Interrupted, match=r"stopped at step \d+ of 200; the same call"):
        tc.agents.run(
            Averager(), slow, processes=2, progress=lambda tick: [signal.raise_signal(n) for n in once], **call
        )
    two = tc.agents.run(Averager(), slow, processes=2, **call)
    assert two.history.equals(one.history)
    assert np.array_equal(two.theta, one.theta)
    assert tc.agents.run(Averager(), slow, processes=1, **call) == two  # from what lies there
    two.save(tmp_path / "b")
    assert tc.load(tmp_path / "b") == two
    for env in (Walk, Walk(), functools.partial(Walk, "", 3)):  # a class, one for all seeds, a function with defaults
        assert np.array_equal(tc.agents.run(Averager(), env, seeds=3, processes=1, **STEPS).theta, one.theta)


@pytest.mark.parametrize(("env", "x0"), [(plant, X0), (walk, None)])
def test_a_stopped_run_resumes_to_the_identical_result(env, x0, tmp_path, monkeypatch):
    whole = tc.agents.run(Averager(), env, seeds=2, x0=x0, processes=1, **STEPS)
    monkeypatch.setattr("twoclock.agents.seed_runner._LOOKS", 0.0)
    looks = iter(range(10_000))

    def stop(tick):
        if next(looks) in (137, 260):
            signal.raise_signal(signal.SIGINT)

    call = {"seeds": 2, "x0": x0, "processes": 1, "checkpoint": tmp_path / "a", "progress": stop, **STEPS}
    for _ in range(2):
        with pytest.raises(Interrupted, match=r"stopped at step .* resumes there"):
            tc.agents.run(Averager(), env, **call)
    assert tc.agents.run(Averager(), env, **call) == whole
    with pytest.raises(tc.InputError, match=r"another run: its method differs: sigma is 1\.0 there and 2\.0 here"):
        tc.agents.run(Averager(sigma=2.0), env, **call)


def test_a_regulator_resumes_with_its_guard(tmp_path, monkeypatch):
    """An agent of the library: stopped in the middle of its guard's log, and behind it."""
    agent = tc.agents.Regulator([[1.0]], [[1.0]], guard=tc.problems.Guard(log=100))
    call = {"steps": 160, "x0": X0, "marks": [30, 120, 160]}
    whole = tc.agents.run(agent, plant, **call)
    assert whole.metrics == ["cost", "mean_reward", "mean_cost", "mean_return"]
    monkeypatch.setattr("twoclock.agents.seed_runner._LOOKS", 0.0)
    for at in (50, 130):
        with pytest.raises(Interrupted):
            tc.agents.run(agent, plant, progress=_interrupt_at(at), checkpoint=tmp_path / "a", **call)
    assert tc.agents.run(agent, plant, checkpoint=tmp_path / "a", **call) == whole
    again = tc.agents.Regulator.load(tmp_path / "a" / "seed-0")
    assert np.array_equal(again.gain, whole.theta["K"][0])
    assert agent.steps == 0


def _interrupt_at(step):
    return lambda tick: signal.raise_signal(signal.SIGINT) if tick.step == step else None


@pytest.mark.parametrize("mode", [gym.vector.AutoresetMode.NEXT_STEP, gym.vector.AutoresetMode.SAME_STEP])
def test_a_vectorised_environment_serves_a_seed_per_part(mode):
    """Each part serves a seed. Up to the end of its first episode it is the run of that seed alone."""
    env = gym.vector.SyncVectorEnv([walk] * 3, autoreset_mode=mode)
    result = tc.agents.run(Averager(), env, **STEPS)
    assert len(result.spec["seeds"]) == 3
    assert result.history["mean_return"].iloc[-1] < 0
    short = {"steps": 3, "seeds": [7, 9, 10]}  # none of these walks ends so soon
    alone = tc.agents.run(Averager(), walk, processes=1, **short)
    assert np.array_equal(tc.agents.run(Averager(), env, **short).theta, alone.theta)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("raises", "the environment raised OSError: the cable is loose"),
        ("nan", "the state must be finite, got .nan"),
        ("shape", r"the state must have the shape of the first state, \(1,\), got \(2,\)"),
        ("reward", "the reward must be a number, got 'much'"),
    ],
)
def test_faults_in_one_line(trouble, words, tmp_path, monkeypatch):
    """Seed, step, what came back; once the environment is repaired the same call ends as if without a fault."""
    env = functools.partial(Walk, trouble)
    with pytest.raises(tc.agents.EnvironmentFault, match=f"seed 0, step 59: {words}.*resumes there") as caught:
        tc.agents.run(Averager(), env, checkpoint=tmp_path / "a", **STEPS)
    assert (caught.value.seed, caught.value.step) == (0, 59)
    assert "\n" not in str(caught.value)
    kept = Averager()
    kept.restore(tmp_path / "a" / "seed-0")
    assert kept.steps == 59
    monkeypatch.setenv("MENDED", "1")
    again = tc.agents.run(Averager(), env, checkpoint=tmp_path / "a", **STEPS)
    assert again == tc.agents.run(Averager(), env, **STEPS)


def test_hung_and_killed_processes_are_faults(tmp_path):
    with pytest.raises(
        tc.agents.EnvironmentFault, match=r"seed 0, step 59: .* more than step_timeout=2 seconds and was ended"
    ):
        tc.agents.run(Averager(), hangs, step_timeout=2.0, checkpoint=tmp_path / "a", checkpoint_every=0.0, **STEPS)
    with pytest.raises(tc.agents.EnvironmentFault, match=r"seed 0, step 59: its process ended with status 7"):
        tc.agents.run(Averager(), dies, step_timeout=60.0, **STEPS)


def test_a_main_program_without_a_guard_is_one_line(tmp_path):
    file = tmp_path / "main.py"
    file.write_text(
        "import twoclock as tc\nfrom an_agent import Averager, walk\n"
        "try:\n    tc.agents.run(Averager(), walk, 10, step_timeout=60.0)\n"
        "except tc.InputError as error:\n    print(error)\n"
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False, env=paths)
    assert "`if __name__ == '__main__':` in a file, or pass processes=1" in ran.stdout
    assert ran.stdout.count("\n") == 1


def test_an_unstable_plant_is_recorded_as_diverged():
    def explodes(x, u, rng):
        return 1e30 * (x + 1)

    result = tc.agents.run(Averager(), explodes, x0=X0, steps=20)
    assert result.diverged.tolist() == [True]
    assert result.last_step.tolist() == [4]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tc.agents.run(Averager, plant, x0=X0), "`agent` must be an agent .* got the class Averager; call it"),
        (lambda: tc.agents.run(3, plant, x0=X0), "`agent` must be an agent .* got 3, which has no `settings`"),
        (lambda: tc.agents.run(Averager(), plant), "`x0` must be given for a step function"),
        (lambda: tc.agents.run(Averager(), walk, x0=X0), "`x0` is for a step function"),
        (
            lambda: tc.agents.run(Averager(), plant, x0=functools.reduce(lambda x, _: [x], range(2000), 1.0)),
            "`x0` must be",
        ),
        (lambda: tc.agents.run(Averager(), lambda a, b: a), "`env` must be a Gymnasium environment"),
        (lambda: tc.agents.run(Averager(), functools.reduce(lambda e, _: [e], range(2000), 1.0)), "`env` must be a"),
        (lambda: tc.agents.run(Averager(), "NoSuch-v0"), "`env` must be the id of a Gymnasium environment"),
        (lambda: tc.agents.run(Averager(), Walk(), step_timeout=1.0), "`step_timeout` needs an environment .* already"),
        (lambda: tc.agents.run(Averager(), lambda: Walk(), seeds=2, processes=2), "`processes` needs an environment"),
        (lambda: tc.agents.run(Averager(), plant, x0=X0, step_timeout=0), "`step_timeout`"),
        (
            lambda: tc.agents.run(Averager(), gym.vector.SyncVectorEnv([walk] * 2), seeds=3),
            "`seeds` must be as many as the vectorised environment has parts, 2, got 3",
        ),
        (
            lambda: tc.agents.run(Averager(), gym.vector.SyncVectorEnv([walk]), checkpoint="x"),
            "`checkpoint` is for environments that are made one by one",
        ),
    ],
)
def test_one_line(call, words):
    with pytest.raises(tc.InputError, match=words):
        call()


def test_tune_finds_what_costs_least():
    """Without exploration this plant earns most: −σ²·4/3 and what the noise takes. Its seeds are not those of a run."""
    found = tc.tune(plant, Averager(), {"sigma": (0.1, 10.0)}, steps=100, rungs=2, budget=20_000, x0=X0, processes=1)
    assert found.settings["sigma"] < 0.3
    assert found.metric == "−mean_reward"
    assert isinstance(found.method, Averager)
    assert found.method.settings["sigma"] == found.settings["sigma"]
    worst = found.ranking["sigma"].idxmax()
    assert found.ranking["score"][worst] > 10 * found.ranking["score"][0]
    assert found.plot() is not None
    with pytest.raises(tc.InputError, match=r"`metric` of an agent must be one of mean_cost, .* got 'error'"):
        tc.tune(plant, Averager(), {"sigma": (0.1, 10.0)}, metric="error", x0=X0)
    with pytest.raises(tc.InputError, match="`space` must be given for an agent; it has sigma, rate"):
        tc.tune(plant, Averager(), x0=X0)


def test_killed_during_a_save(tmp_path):
    """Between any two calls that write: what lies there is whole, and the run ends as if nothing had been."""
    script = (
        "import os, sys, signal\nimport numpy as np\nimport twoclock as tc\nfrom an_agent import Averager, plant\n"
        "from twoclock.agents import seed_runner\nseed_runner._LOOKS = 0.0\nreal, left = os.fsync, [int(sys.argv[2])]\n"
        "def fsync(handle):\n    left[0] -= 1\n    left[0] or os.kill(os.getpid(), signal.SIGKILL)\n    real(handle)\n"
        "os.fsync = fsync\n"
        "tc.agents.run(Averager(), plant, 200, x0=np.zeros(1), marks=[0, 50, 100, 200], checkpoint=sys.argv[1],\n"
        "              checkpoint_every=0.0)\n"
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path / "a"), "101"]  # in the middle of the 34th save
    assert subprocess.run(command, env=paths, check=False).returncode == -signal.SIGKILL
    kept = Averager()
    kept.restore(tmp_path / "a" / "seed-0")
    assert 30 <= kept.steps <= 34
    again = tc.agents.run(Averager(), plant, x0=X0, checkpoint=tmp_path / "a", **STEPS)
    assert again == tc.agents.run(Averager(), plant, x0=X0, **STEPS)


def _plant_with(c):
    def plant(x, u, rng):
        return c * x + u + rng.normal(size=1), float(-(x[0] ** 2))

    return plant


def _slippery(slips):
    return lambda: gym.make("FrozenLake-v1", is_slippery=slips)


def _lake(**settings):
    return tc.agents.EntropyActorCritic(16, 4, 0.1, **settings)


@pytest.mark.parametrize(
    ("first", "other", "words"),
    [
        ((Averager, _plant_with(0.5), X0), (Averager, _plant_with(0.6), X0), "its problem differs"),
        ((Averager, lambda x, u, rng: x + u, X0), (Averager, lambda x, u, rng: x - u, X0), "its problem differs"),
        ((Averager, plant, X0), (Averager, plant, X0 + 1), r"x0 is \[0.0\] there and \[1.0\] here"),
        ((Averager, plant, lambda rng: X0), (Averager, plant, lambda rng: X0 + 1), "its problem differs"),
        ((_lake, _slippery(True), None), (_lake, _slippery(False), None), "its problem differs"),
        (
            (_lake, gym.make("FrozenLake-v1", is_slippery=True), None),
            (_lake, gym.make("FrozenLake-v1", is_slippery=False), None),
            "its problem differs",
        ),
    ],
)
def test_another_environment_is_refused(first, other, words, tmp_path):
    """Also one of the same name, whether the first run has ended or was stopped."""

    def run(agent, env, x0, steps):
        return tc.agents.run(agent(), env, steps, x0=x0, processes=1, checkpoint=tmp_path / "a")

    ended = run(*first, 20)
    assert run(*first, 20) == ended
    for steps in (20, 40):
        with pytest.raises(tc.InputError, match=words):
            run(*other, steps)


def _evaluator(ratio, features):
    return tc.agents.Evaluator(ratio, features, 0.9, at=[X0], behaviour=lambda x, rng: rng.normal(size=1))


def test_other_functions_of_an_agent_are_refused(tmp_path):
    call = {"steps": 20, "x0": X0, "processes": 1, "checkpoint": tmp_path / "a"}

    def ratio(c):
        return lambda x, u: c

    def features(c):
        return lambda x: np.array([1.0, c * x[0]])

    tc.agents.run(_evaluator(ratio(1.0), features(1.0)), plant, **call)
    for other in (_evaluator(ratio(0.5), features(1.0)), _evaluator(ratio(1.0), features(2.0))):
        with pytest.raises(tc.InputError, match="its method differs"):
            tc.agents.run(other, plant, **call)


def test_what_cannot_be_identified_is_not_resumed_from(tmp_path):
    lock = threading.Lock()

    def locked(x, u, rng):
        with lock:
            return x + u

    for number, (env, x0) in enumerate([(locked, X0), (Walk(), None)]):
        call = {"steps": 20, "x0": x0, "checkpoint": tmp_path / str(number)}
        with pytest.warns(UserWarning, match="this checkpoint cannot be resumed from"):
            tc.agents.run(Averager(), env, **call)
        with (
            pytest.warns(match="resumed"),
            pytest.raises(tc.InputError, match=r"seed-0 cannot be resumed from: .*; use"),
        ):
            tc.agents.run(Averager(), env, **call)


@pytest.mark.parametrize("at", [1, 60, 199])
def test_a_fault_in_a_step_function_spends_no_draws(at, tmp_path, monkeypatch):
    """Before or after the plant has drawn, in a state that it changes in place."""

    def faulty(x, u, rng):
        before = os.environ.get("WHEN") == "early"
        count = os.path.getsize(log) + 1
        log.write_text("x" * count)
        if before and count == at and "MENDED" not in os.environ:
            raise OSError("the cable is loose")
        x *= 0.5
        x += u + rng.normal(size=1)
        if count == at and "MENDED" not in os.environ:
            raise OSError("the cable is loose")
        return x

    log = tmp_path / "log"
    agent = tc.agents.Regulator([[1.0]], [[1.0]])
    call = {"steps": 200, "x0": X0, "marks": STEPS["marks"]}
    monkeypatch.setenv("MENDED", "1")
    log.write_text("")
    whole = tc.agents.run(agent, faulty, **call)
    for when in ("early", "late"):
        monkeypatch.setenv("WHEN", when)
        monkeypatch.delenv("MENDED", raising=False)
        log.write_text("")
        with pytest.raises(tc.agents.EnvironmentFault, match=f"step {at - 1}: the environment raised OSError"):
            tc.agents.run(agent, faulty, checkpoint=tmp_path / when, **call)
        monkeypatch.setenv("MENDED", "1")
        assert tc.agents.run(agent, faulty, checkpoint=tmp_path / when, **call) == whole


def test_a_state_that_the_plant_changes_in_place_is_learnt_from_as_it_was():
    def in_place(x, u, rng):
        x *= 0.9
        x += 0.5 * u + rng.normal(size=1)
        return x

    def fresh(x, u, rng):
        return 0.9 * x + 0.5 * u + rng.normal(size=1)

    agent = tc.agents.Regulator([[1.0]], [[1.0]])
    one, two = (tc.agents.run(agent, env, 100, x0=X0) for env in (in_place, fresh))
    assert one.theta["K"] == pytest.approx(two.theta["K"])


@pytest.mark.parametrize(("env", "x0"), [(plant, X0), (walk, None)])
def test_more_steps_prolong_a_run(env, x0, tmp_path):
    call = {"seeds": 2, "x0": x0, "processes": 1}
    whole = tc.agents.run(Averager(), env, 500, **call)
    tc.agents.run(Averager(), env, 100, checkpoint=tmp_path / "a", **call)
    tc.agents.run(Averager(), env, 120, checkpoint=tmp_path / "a", **call)
    longer = tc.agents.run(Averager(), env, 500, checkpoint=tmp_path / "a", **call)
    assert longer == whole
    assert longer.interval().equals(whole.interval())
    with pytest.raises(tc.InputError, match=r"its steps differ: 500 there, 100 here; write `steps=500`"):
        tc.agents.run(Averager(), env, 100, checkpoint=tmp_path / "a", **call)
    with pytest.raises(tc.InputError, match="its marks differ"):
        tc.agents.run(Averager(), env, 600, marks=[0, 77, 600], checkpoint=tmp_path / "a", **call)
    little = tc.agents.run(Averager(), env, 600, checkpoint=tmp_path / "a", **call)
    assert little.interval()["output"].tolist() == longer.interval()["output"].tolist()  # they continue from step 251


def test_a_run_that_is_prolonged_to_twice_its_steps_has_their_later_half(tmp_path):
    """Of 300 steps that begins where the first 150 end, which is half of no usual mark."""
    call = {"seeds": 2, "x0": X0, "processes": 1}
    tc.agents.run(Averager(), plant, 150, checkpoint=tmp_path / "a", **call)
    longer = tc.agents.run(Averager(), plant, 300, checkpoint=tmp_path / "a", **call)
    assert longer == tc.agents.run(Averager(), plant, 300, **call)


def test_a_masked_state_is_refused():
    masked = lambda x, u, rng: np.ma.array([0.5], mask=[True])  # noqa: E731
    with pytest.raises(tc.InputError, match="must have no masked entries"):
        tc.agents.run(Averager(), masked, 10, x0=X0)


def test_a_diverged_seed_stays_so_when_the_run_is_prolonged(tmp_path):
    def explodes(x, u, rng):
        return 1e30 * (x + 1)

    for steps in (20, 50):
        result = tc.agents.run(Averager(), explodes, steps, x0=X0, checkpoint=tmp_path / "a")
        assert result.last_step.tolist() == [4]
        assert result.history["step"].iloc[-1] == steps
