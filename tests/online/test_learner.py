"""Samples from outside: the numbers of a loop by hand and of ``solve``, whatever comes in, killed or read meanwhile."""

import copy
import pickle
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import prng

X = np.random.default_rng(0).normal(size=3000)
STEP = tc.Power(0.5, p=0.7)
STANDARD = tc.Standard(STEP, STEP)


def F(theta, omega, x):
    return omega - 1


def G(theta, omega, x):
    return omega - theta + x


def learner(method=STANDARD, **options):
    return tc.Learner(F, G, method, 0.0, 0.0, **options)


@pytest.fixture(scope="module")
def one_by_one():
    """With C, what the tests compare with: learnt one by one, with intervals."""
    with jax.enable_x64(True):
        found = learner(intervals=True)
        for x in X:
            found.update(x)
    return found


@pytest.mark.parametrize("engine", ["c", "xla"])
def test_learner_matches_steps_by_hand(engine):
    """θ ← θ − α(ω − 1), ω ← ω − α(ω − θ + x), in plain Python; one by one and in batches of odd sizes, bit for bit."""
    theta = omega = 0.0
    for k, x in enumerate(X[:200].tolist()):
        alpha = 0.5 / (k + 1.0) ** 0.7
        theta, omega = theta - alpha * (omega - 1), omega - alpha * (omega - theta + x)
    single, batch = learner(engine=engine), learner(engine=engine, example=0.0)
    for x in X[:200]:
        single.update(x)
    for part in (X[:1], X[1:4], X[4:4], X[4:150], X[150:200]):
        batch.update_many(part)
    assert single.engine.startswith(engine)
    assert single.steps == batch.steps == 200
    assert single.theta == batch.theta
    assert single.omega == batch.omega
    np.testing.assert_allclose((single.theta, single.omega), (theta, omega), rtol=1e-13)


def test_learner_matches_solve():
    """A problem's own samples, handed in, give the metrics, marks and intervals of ``solve`` on their seed."""
    problem = tc.problems.custom(
        F, G, lambda key: jax.random.normal(key), 0.0, 0.0, measure=lambda t, o: {"error": (t - 1) ** 2}
    )
    method = tc.Polyak(STANDARD, intervals=True)
    found = tc.solve(problem, method, steps=200, seeds=1)
    stream = prng.step_stream(np.uint32(0))
    live = tc.Learner(problem, method)
    live.update_many(jax.vmap(lambda k: problem.noise(jax.random.fold_in(stream, k)))(jnp.arange(200)))
    np.testing.assert_allclose(live.theta, found.theta[0], rtol=1e-10)
    mine, its = live.result(), found
    assert mine.history.columns.tolist() == its.history.columns.tolist()
    np.testing.assert_allclose(mine.history, its.history, rtol=1e-7, atol=1e-12)
    columns = ["estimate", "low", "high"]
    np.testing.assert_allclose(live.interval(0.9)[columns], its.interval(0.9)[columns], rtol=1e-8)
    assert live.metrics["error"] == pytest.approx(its.history["error"].iloc[-1], rel=1e-8)


def test_interval_narrows_with_samples(one_by_one):
    at = [one_by_one.interval(step=step).iloc[0] for step in (100, 1000)] + [one_by_one.interval().iloc[0]]
    assert at[-1]["high"] - at[-1]["low"] < (at[0]["high"] - at[0]["low"]) / 3
    assert at[-1]["low"] < at[-1]["estimate"] < at[-1]["high"]
    assert at[-1]["output"] == "theta"
    assert abs(at[-1]["estimate"] - 1) < 0.1
    assert one_by_one.history["step"].tolist()[:4] == [0, 1, 2, 3]
    assert one_by_one.history["step"].iloc[-1] == 3000
    assert "interval" not in "".join(one_by_one.history.columns)


def test_diverged_stays_at_its_last_finite_state():
    """Steps of 10 explode: what is left is the state before the overflow, and later samples change nothing."""
    found = learner(tc.Standard(10.0, 10.0))
    with pytest.warns(tc.DivergedWarning, match="diverged at sample"):
        found.update_many(X)
    steps, theta = found.steps, found.theta
    assert found.diverged
    assert 100 < steps < 3000
    assert np.isfinite(theta)
    assert abs(theta) > 1e250
    found.update(0.0)  # without another warning
    assert (found.steps, found.theta) == (steps, theta)
    again = learner(tc.Standard(10.0, 10.0))
    again.update_many(X[:steps])
    assert not again.diverged
    assert again.theta == theta
    bounded = tc.Learner(F, G, tc.Standard(10.0, 10.0), np.float32(0), 0.0, bound=1e3, intervals=True)
    with pytest.warns(tc.DivergedWarning):
        bounded.update_many(X)
    (row,) = bounded.interval().itertuples()
    assert np.isnan(row.low)
    assert row.note.startswith("diverged after step")
    assert abs(bounded.theta) <= 1e3
    assert bounded.theta.dtype == np.float64
    assert bounded.steps < 20


def test_sample_with_nan_is_refused_and_changes_nothing():
    found, clean = learner(), learner()
    clean.update_many(X[:20])
    found.update_many(X[:10])
    with pytest.raises(tc.InputError, match="must be finite, got x = nan"):
        found.update(np.nan)
    with pytest.raises(tc.InputError, match=r"got in sample 4 of the batch x = inf"):
        found.update_many([*X[10:14], np.inf, *X[14:20]])
    assert found.steps == 14
    assert not found.diverged
    found.update_many(X[14:20])
    assert found.theta == clean.theta


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({"a": np.zeros(3), "n": 1}, r"`x\['a'\]` must have shape \(2,\)"),
        ({"a": np.zeros(2)}, "structure of the first sample"),
        ({"a": np.zeros(2), "n": 1.5}, r"`x\['n'\]` must be int64, as in the first sample, got float"),
        ({"a": np.zeros(2), "n": "1"}, r"`x\['n'\]` must be int64"),
    ],
)
def test_samples_unlike_the_first_are_refused(x, words):
    found = _of_pairs()
    before = found.theta, found.steps
    with pytest.raises(tc.InputError, match=words):
        found.update(x)
    assert (found.theta, found.steps) == before


def _of_pairs(made=[]):  # noqa: B006
    if not made:
        made.append(
            tc.Learner(
                lambda t, o, x: o + 0 * t, lambda t, o, x: o - x["a"].sum() - x["n"].astype(float), STANDARD, 0.0, 0.0
            )
        )
        made[0].update({"a": jnp.ones(2), "n": 3})  # JAX arrays and plain numbers as well
        assert made[0].omega == 0.5 * 5
    return made[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tc.Learner(F, G, tc.Fast, 0.0, 0.0), "`method` must be a method, got the class"),
        (lambda: tc.Learner(F, G, STANDARD, 0.0, 0.0, precision="half"), "`precision`"),
        (lambda: tc.Learner(F, G, STANDARD, 0.0, 0.0, engine="cuda"), "`engine` of a learner"),
        (lambda: tc.Learner(F, G, STANDARD, np.nan, 0.0), "finite"),
        (lambda: tc.Learner(F, G, tc.Polyak(STANDARD), 0.0, 0.0, intervals=True), "`intervals` is for a plain method"),
        (lambda: tc.Learner(tc.problems.quadratic(dim=2), STANDARD, theta=1.0), "leave out the rest"),
        (lambda: tc.Learner(tc.problems.quadratic(dim=2), STANDARD, example=1.0), "as the problem draws it"),
        (lambda: learner().update("a"), "`x` must be a number"),
        (lambda: learner().update_many(1.0), "leading axis"),
        (lambda: tc.Learner(lambda t, o, x: o[None], G, STANDARD, 0.0, 0.0).update(1.0), "`F` must return the shapes"),
        (lambda: tc.Learner(lambda t, o, x: np.sin(t), G, STANDARD, 0.0, 0.0).update(1.0), "jax.numpy"),
        (lambda: tc.Learner(lambda t, o, x: o + time.perf_counter(), G, STANDARD, 0.0, 0.0).update(1.0), "alone"),
        (lambda: tc.Learner(_calls_back, G, STANDARD, 0.0, 0.0).update(1.0), "hand its outcome over in the sample"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(call, words):
    with pytest.raises(tc.InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def _calls_back(theta, omega, x):
    return jax.pure_callback(lambda o: o - 1, jax.ShapeDtypeStruct((), theta.dtype), omega)


def test_loaded_learner_continues_to_the_same_numbers(tmp_path, one_by_one):
    """Bit-for-bit identical to one that never stopped, with its history; also a second time, and read as a result."""
    first = learner(intervals=True)
    first.update_many(X[:700])
    first.save(tmp_path / "a")
    again = tc.Learner.load(tmp_path / "a", F, G)
    assert again.steps == 700
    assert again.theta == first.theta
    again.save(tmp_path / "a")  # before it has seen a sample
    again = tc.Learner.load(tmp_path / "a", F, G)
    again.update_many(X[700:])
    assert again.theta == one_by_one.theta
    assert again.history.equals(one_by_one.history)
    assert again.interval().equals(one_by_one.interval())
    assert tc.load(tmp_path / "a").interval()["estimate"].tolist() == [float(first.theta)]


def test_loading_with_another_method_or_operators_is_refused(tmp_path):
    found = learner()
    found.update_many(X[:5])
    found.save(tmp_path / "a")
    for F_, method in ((lambda theta, omega, x: omega - 2, None), (F, tc.Standard(STEP, tc.Power(0.4, p=0.7)))):
        other = tc.Learner.load(tmp_path / "a", F_, G, method)
        with pytest.raises(tc.InputError, match="must compute what they did when the learner was saved"):
            other.update(0.0)
    with pytest.raises(tc.InputError, match="other variables or another method"):
        tc.Learner.load(tmp_path / "a", F, G, tc.Fast())
    tc.Learner(F, G, tc.Standard(lambda k: 0.1, 0.1), 0.0, 0.0).save(tmp_path / "b")
    with pytest.raises(tc.InputError, match="`method` must be given"):
        tc.Learner.load(tmp_path / "b", F, G)
    with pytest.raises(tc.InputError, match=r"no spec\.json"):
        tc.Learner.load(tmp_path / "c", F, G)


def test_loading_with_another_measure_or_none_is_refused(tmp_path):
    found = tc.Learner(F, G, tc.Standard(STEP, STEP), 0.0, 0.0, measure=lambda theta, omega: {"gap": theta - omega})
    found.update_many(X[:5])
    found.save(tmp_path / "a")
    for measure in (None, lambda theta, omega: {"gap": omega - theta}, lambda theta, omega: {"other": theta - omega}):
        with pytest.raises(tc.InputError, match="`measure` must compute what it did"):
            tc.Learner.load(tmp_path / "a", F, G, measure=measure)
    again = tc.Learner.load(tmp_path / "a", F, G, measure=lambda theta, omega: {"gap": theta - omega})
    assert again.history.equals(found.history)


FINITE = tc.problems.quadratic_bilevel(dim_x=3, dim_y=4, samples=20, batch=4, replace=False)


@pytest.mark.parametrize(
    ("problem", "method"),
    [
        (FINITE, tc.methods.SVRG(0.05, 0.1, moves=2.0)),
        (FINITE, tc.methods.SABA(0.05, 0.1, items=(20, 20))),
        (tc.problems.boyan("td"), tc.methods.Lstd()),
        (tc.problems.boyan("td"), tc.methods.BatchMeans(tc.Standard(0.1, 0.1))),
        (tc.problems.boyan("td"), tc.Auto()),
    ],
)
def test_every_method_of_the_library_can_be_saved(problem, method, tmp_path):
    found = tc.Learner(problem, method)
    found.save(tmp_path / "a")
    assert str(tc.Learner.load(tmp_path / "a", problem)) == str(found)


SAVING = """
import sys, numpy as np, twoclock as tc
x = np.random.default_rng(0).normal(size=3000)
step = tc.Power(0.5, p=0.7)
found = tc.Learner(lambda t, o, x: o - 1, lambda t, o, x: o - t + x, tc.Standard(step, step), 0.0, 0.0)
for i in range(300):
    found.update_many(x[10 * i : 10 * i + 10])
    found.save(sys.argv[1])
    print(found.steps, flush=True)
"""


def test_a_kill_during_save_leaves_a_readable_record(tmp_path, kill):
    """What is there afterwards is one of the saves, whole, and no older than the last that returned."""
    process = subprocess.Popen([sys.executable, "-c", SAVING, tmp_path / "a"], stdout=subprocess.PIPE, text=True)
    printed = [process.stdout.readline() for _ in range(8)][-1]
    time.sleep(0.011)
    kill(process)
    again = tc.Learner.load(tmp_path / "a", F, G)
    assert again.steps >= int(printed)
    assert again.steps % 10 == 0
    clean = learner()
    clean.update_many(X[: again.steps])
    assert again.theta == clean.theta
    again.save(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_other_threads_can_read_while_it_learns():
    """θ and ω are moved alike, so a reader that sees them differ has seen half a step."""
    found = tc.Learner(lambda t, o, x: t - x, lambda t, o, x: o - x, tc.Standard(0.1, 0.1), np.zeros(50), np.zeros(50))
    found.update(X[:50])
    work = [
        lambda: [found.update(X[:50] + i) for i in range(3000)],
        lambda: found.update_many(np.broadcast_to(X[:50], (200_000, 50))),
    ]
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    reads = []
    while any(thread.is_alive() for thread in threads):
        state = found.state
        assert np.array_equal(state.theta, state.omega)
        reads.append(found.steps)
    assert found.steps == 203_001
    assert len(set(reads)) > 5


@pytest.mark.parametrize("engine", ["c", "xla"])
def test_single_precision_and_large_arrays(engine):
    """float32; an array that is part of F goes along as a table, and counts as it is when a learner begins."""
    weights = np.linspace(-1, 1, 300).astype(np.float32)

    def towards(theta, omega, x):
        return theta - weights * x

    share = 1 - np.prod([1 - 0.5 / (k + 1) ** 0.7 for k in range(50)])
    for _ in range(2):
        options = {"precision": "float32", "engine": engine}
        found = tc.Learner(towards, lambda t, o, x: o, STANDARD, np.zeros(300), 0.0, **options)
        found.update_many(np.ones(50, np.float32))
        assert found.theta.dtype == np.float32
        np.testing.assert_allclose(found.theta, share * weights, rtol=1e-5, atol=1e-6)
        weights *= 2


def test_learn_one_and_predict_one_are_normalised_least_mean_squares(tmp_path):
    """θ ← θ − α(θᵀx − y)x/ω and ω ← ω − β(ω − ‖x‖²), by hand; features are dicts, as River's data sets have them."""

    def F(theta, omega, sample):
        x, y = sample
        error = theta["slope"] * x["size"] + theta["level"] - y
        return {"slope": error * x["size"] / omega, "level": error / omega}

    def G(theta, omega, sample):
        return omega - (sample[0]["size"] ** 2 + 1)

    def predict(theta, x):
        return theta["slope"] * x["size"] + theta["level"]

    rng = np.random.default_rng(3)
    sizes = rng.normal(1.0, 2.0, 300)
    targets = 2 * sizes - 1 + 0.1 * rng.normal(size=300)
    found = tc.Learner(F, G, tc.Standard(0.3, 0.1), {"slope": 0.0, "level": 0.0}, 4.0, predict=predict)
    slope, level, omega = 0.0, 0.0, 4.0
    for size, y in zip(sizes.tolist(), targets.tolist(), strict=True):
        ahead = slope * size + level
        np.testing.assert_allclose(found.predict_one({"size": size}), ahead, rtol=1e-10, atol=1e-12)
        found.learn_one({"size": size}, y)
        slope, level = slope - 0.3 * (ahead - y) * size / omega, level - 0.3 * (ahead - y) / omega
        omega = omega - 0.1 * (omega - (size**2 + 1))
    np.testing.assert_allclose(found.predict_one({"size": 3.0}), 5.0, atol=0.3)

    again = tc.Learner.load(found.save(tmp_path / "saved"), F, G, predict=predict)
    assert again.predict_one({"size": 3.0}) == found.predict_one({"size": 3.0})


def test_learn_one_without_a_target_is_update_and_predict_one_needs_a_function():
    one, other = learner(), learner()
    for x in X[:20]:
        one.learn_one(x)
        other.update(x)
    assert one.theta == other.theta
    with pytest.raises(tc.InputError, match=r"`predict_one` needs .* `predict=lambda theta, x"):
        one.predict_one(0.0)
    with pytest.raises(tc.InputError, match=r"`predict` must be a function of \(theta, x\)"):
        learner(predict=lambda theta: theta)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_and_pickles_are_refused_in_one_line(copied):
    learner = tc.Learner(lambda t, w, x: t - x, lambda t, w, x: w - t, tc.Fast(), 0.0, 0.0)
    for made in (learner, tc.agents.Regulator(np.eye(1), np.eye(1)), tc.agents.Evaluator(1.0, np.eye(3), 0.9)):
        with pytest.raises(tc.InputError, match="has no copies"):
            copied(made)
