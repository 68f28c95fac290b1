"""Error bars from one run: the recursion, its law, coverage, what a record keeps, and the notes."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import twoclock as tc
from twoclock.intervals import random_scaling
from twoclock.intervals.random_scaling import critical_value, exceeds
from twoclock.methods.averaging import scale_steps

STEP = tc.Power(2.0, p=0.6, shift=3.0)
SETTLED = tc.Standard(STEP, STEP)


def line(theta=0.0):
    """θ* = 0 under unit noise; ω tracks θ."""
    return tc.problems.custom(
        lambda t, w, x: t + x, lambda t, w, x: w - t, lambda key: jax.random.normal(key), theta, 0.0
    )


@pytest.fixture(scope="module")
def many():
    """A thousand runs that are long enough for their steps."""
    with jax.enable_x64(True):
        return tc.solve(line(), tc.Polyak(SETTLED, intervals=True), steps=30_000, seeds=1000)


@pytest.fixture(scope="module")
def few():
    with jax.enable_x64(True):
        problem = tc.problems.quadratic(dim=2)
        return problem, tc.solve(problem, tc.Polyak(SETTLED, skip=50, intervals=True), 2000, 3, engine="xla")


def path_of(values, dtype):
    """V/n of the means of the values, by the recursion."""

    @jax.jit
    def path(values):
        def step(carry, value):
            n, mean, path = carry
            after = mean + (value - mean) / n
            return (n + 1, after, random_scaling.advance(path, mean, after, n)), None

        zero = jnp.zeros(values.shape[1:], dtype)
        one = jnp.ones((), dtype)
        (n, _, path), _ = jax.lax.scan(step, (one, zero, random_scaling.begin(zero)), values)
        return random_scaling.scale(path, n - 1), random_scaling.effective(path, n - 1), path.value

    return [np.asarray(x, np.float64) for x in path(jnp.asarray(values, dtype))]


def by_definition(values):
    n = len(values)
    s = np.arange(1, n + 1)[:, None]
    means = np.cumsum(values, axis=0) / s
    V = np.sum(s**2 * (means - means[-1]) ** 2, axis=0) / n**2
    q = np.mean((values[1:] - means[:-1]) ** 2, axis=0)
    return np.sqrt(V / n), n * q / (6 * V)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float64, 1e-11), (jnp.float32, 2e-4)])
def test_recursion_equals_the_definition(dtype, tolerance):
    """Correlated values about 3: the published form has no digit left of this in float32."""
    noise = np.random.default_rng(0).standard_normal((20_000, 3))
    values = 3 + np.apply_along_axis(lambda x: np.convolve(x, 0.9 ** np.arange(60))[: len(x)], 0, noise)
    values = values.astype(np.dtype(dtype)).astype(float)
    scale, effective, mean = path_of(values, dtype)
    want_scale, want_effective = by_definition(values)
    np.testing.assert_allclose(scale, want_scale, rtol=tolerance)
    np.testing.assert_allclose(effective, want_effective, rtol=10 * tolerance)
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=max(tolerance / 10, 1e-13))


def test_law_of_the_ratio_equals_simulation_and_tables():
    levels, published = (0.8, 0.9, 0.95, 0.98, 0.99), (3.875, 5.323, 6.747, 8.613, 10.017)
    np.testing.assert_allclose([critical_value(level) for level in levels], published, atol=5e-4)
    # By simulation: given its bridge, V = Σ z²/(πk)² in the law, t is normal with variance 1/V.
    k, rng = np.arange(1, 101), np.random.default_rng(0)
    V = np.sum((rng.standard_normal((20_000, 100)) / (np.pi * k)) ** 2, axis=1)
    density = 2 * np.sqrt(V).mean() / np.sqrt(2 * np.pi)  # of |t| at 0
    assert critical_value(1e-12) == pytest.approx(1e-12 / density, rel=0.02)
    beyond = np.abs(rng.standard_normal(20_000) / np.sqrt(V)) > critical_value(0.9)
    assert beyond.mean() == pytest.approx(0.1, abs=0.008)
    for level in (1e-300, 1e-9, 0.3, 0.5, 1 - 1e-9, np.nextafter(1, 0)):
        assert exceeds(critical_value(level)) == pytest.approx(1 - level, rel=1e-6)
    assert exceeds(0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_intervals_cover(many, level):
    frame = many.interval(level)
    assert frame.columns.tolist() == ["seed", "output", "estimate", "low", "high", "note"]
    covered = ((frame["low"] < 0) & (frame["high"] > 0)).mean()
    # 3.3 standard errors, and the .006 that 30,000 steps are still short of the limit.
    assert abs(covered - level) < 3.3 * np.sqrt(level * (1 - level) / 1000) + 0.006
    np.testing.assert_array_equal(frame["estimate"], many.theta)


def test_a_settled_run_has_no_notes(many):
    assert (many.interval()["note"] != "").mean() < 0.005  # the halves disagree once in a thousand by chance
    assert "intervals: 1 output a seed" in repr(many)


def test_intervals_at_a_mark(many):
    at = many.interval(step=10_000)
    np.testing.assert_array_equal(at["estimate"], many.history.query("step == 10000")["interval:estimate:theta"])
    width = [(f["high"] - f["low"]).mean() for f in (at, many.interval())]
    assert 1.5 < width[0] / width[1] < 2.0  # √3


def test_the_mean_is_that_of_power_0(few):
    problem, result = few
    plain = tc.solve(problem, tc.Polyak(SETTLED, power=0.0, skip=50), 2000, 3, engine="xla")
    np.testing.assert_array_equal(result.theta, plain.theta)
    assert tc.Polyak(SETTLED).power == 0.5
    assert tc.Polyak(SETTLED, intervals=True).power == 0.0


def test_skip_leaves_out_the_first_iterates():
    problem, marks = line(5.0), range(401)
    iterates = tc.solve(problem, tc.Polyak(SETTLED, power=0.0, skip=400), 400, 1, marks=marks)  # follows the iterate
    assert iterates.theta[0] == tc.solve(problem, SETTLED, 400, 1).theta[0]
    tracked = tc.solve(problem, tc.Polyak(SETTLED, skip=400, intervals=True), 401, 1, marks=marks)
    theta = tracked.history["interval:estimate:theta"].to_numpy()[1:]
    got = tc.solve(problem, tc.Polyak(SETTLED, skip=100, intervals=True), 400, 1)
    scale, effective = by_definition(theta[100:400, None])
    at = got.history.iloc[-1]
    assert at["interval:n"] == 300
    np.testing.assert_allclose(at["interval:estimate:theta"], theta[100:400].mean(), rtol=1e-12)
    np.testing.assert_allclose(at["interval:scale:theta"], scale[0], rtol=1e-10)
    np.testing.assert_allclose(at["interval:effective:theta"], effective[0], rtol=1e-10)
    weighted = tc.solve(problem, tc.Polyak(SETTLED, power=2.0, skip=100), 400, 1)
    np.testing.assert_allclose(weighted.theta[0], np.average(theta[100:400], weights=np.arange(1, 301) ** 2.0))


def test_outputs_of_a_user_function(few):
    """f at the means: a linear one has the interval of its coordinate, a curved one that of the delta method."""
    problem, result = few

    def f(theta, omega):
        return {"linear": 2 * theta[:1], "curved": jnp.sum(theta**2) + omega[0]}

    own = tc.solve(problem, tc.Polyak(SETTLED, skip=50, intervals=f), 2000, 3, engine="xla")
    frame, plain = own.interval().set_index(["seed", "output"]), result.interval().set_index(["seed", "output"])
    assert frame.index.get_level_values("output").unique().tolist() == ["curved", "linear[0]"]
    for seed in range(3):
        np.testing.assert_allclose(
            frame.loc[seed, "linear[0]"][["low", "high"]].astype(float),
            2 * plain.loc[seed, "theta[0]"][["low", "high"]].astype(float), rtol=1e-10,
        )  # fmt: skip
        want = np.sum(own.theta[seed] ** 2) + own.omega[seed, 0]
        np.testing.assert_allclose(frame.loc[seed, "curved"]["estimate"], want, rtol=1e-12)


def test_every_engine_and_precision(few):
    problem, result = few
    method = tc.Polyak(SETTLED, skip=50, intervals=True)
    by_c = tc.solve(problem, method, 2000, 3, engine="c")
    pd.testing.assert_frame_equal(by_c.interval(), result.interval(), rtol=1e-9)
    # The two precisions draw different noise; other tests check the stored sums against the iterates.
    single = tc.solve(problem, method, 2000, 3, precision="float32").interval()
    near = np.tile(result.theta.mean(axis=0), 3)
    assert ((single["low"] < near + 0.05) & (single["high"] > near - 0.05) & (single["high"] > single["low"])).all()


def test_intervals_survive_a_record(few, tmp_path):
    """Saved and loaded, continued, and swept: the same intervals."""
    problem, result = few
    method = tc.Polyak(SETTLED, skip=50, intervals=True)
    pd.testing.assert_frame_equal(tc.load(result.save(tmp_path / "r")).interval(0.9), result.interval(0.9))
    half = tc.solve(problem, method, 1000, 3, marks=[m for m in result.spec["marks"] if m < 1000], engine="xla")
    longer = tc.solve(problem, method, 2000, 3, marks=result.spec["marks"], start=half)
    pd.testing.assert_frame_equal(longer.interval(), result.interval())
    kept = tc.solve(problem, method, 2000, 3, checkpoint=tmp_path / "c", engine="xla")
    again = tc.solve(problem, method, 2000, 3, checkpoint=tmp_path / "c", engine="xla")
    pd.testing.assert_frame_equal(kept.interval(), again.interval())
    swept = tc.sweep({"q": problem}, {"m": method}, 2000, 3, out=tmp_path / "s")
    pd.testing.assert_frame_equal(swept.result("q", "m").interval(), result.interval(), rtol=1e-9)
    assert swept.metrics == result.metrics


def notes(method, steps=3000, seeds=8, problem=None, **options):
    result = tc.solve(line() if problem is None else problem, method, steps, seeds, **options)
    frame = result.interval()
    noted = int((frame["note"] != "").sum())
    assert (f"{noted} of {len(frame)} with a note" in repr(result)) == (noted > 0)
    return frame


@pytest.mark.parametrize(
    ("alpha", "beta", "words"),
    [
        (0.1, 0.2, "constant steps (alpha, beta)"),
        ("max(2/(k+3)^0.6, 0.2)", "2/(k+3)^0.6", "constant steps (alpha)"),
        ("2/(k+3)", "2/(k+3)", "steps ~ 1/k (alpha, beta)"),
        (lambda k: 2 / (jnp.asarray(k, float) + 3), "2/(k+3)", "steps ~ 1/k"),
        ("2/(k+3)^0.4", "2/(k+3)^0.4", "k^-1/2 or slower (alpha, beta)"),
        ("2/(k+3)^0.6", "2/(k+3)^0.7", "alpha/beta is not constant"),
    ],
)
def test_notes_on_step_sizes(alpha, beta, words):
    note = notes(tc.Polyak(tc.Standard(alpha, beta), intervals=True))["note"]
    assert note.str.contains(words, regex=False).all()
    for other in ("constant steps", "~ 1/k", "or slower", "alpha/beta"):
        assert other in words or words.startswith("constant steps (alpha)") or not note.str.contains(other).any()


def test_an_averaging_weight_may_be_constant_but_not_1_over_k():
    assert not notes(tc.Polyak(tc.Fast(STEP, STEP, 0.5), intervals=True))["note"].str.contains("constant").any()
    note = notes(tc.Polyak(tc.Fast(STEP, STEP, "2/(k+3)"), intervals=True))["note"]
    assert note.str.contains(r"steps ~ 1/k \(lam\)").all()


def test_notes_on_runs_that_have_not_settled():
    """Steps far too small, from far away: nothing covers, and every interval says why."""
    small = tc.Power(0.02, p=0.6)
    frame = notes(tc.Polyak(tc.Standard(small, small), intervals=True), problem=line(5.0))
    assert not ((frame["low"] < 0) & (frame["high"] > 0)).any()
    assert frame["note"].str.contains("the halves of the mean disagree").all()
    assert frame["note"].str.contains("worth about 2 independent iterates, 60 are needed").all()


def test_few_effective_iterates_are_noted_with_any_marks():
    small = tc.Power(0.2, p=0.7)
    frame = notes(tc.Polyak(tc.Standard(small, small), intervals=True), marks=[3000])
    assert frame["note"].str.match("worth about [0-9]+ independent iterates").all()


def test_seeds_that_move_together_show_a_bias():
    """The mean settles near −0.45 E θ², which falls like the steps; a single run sees only noise."""
    curved = tc.problems.custom(
        lambda t, w, x: t + 0.9 * (1 - jnp.cos(t)) + x, lambda t, w, x: w, jax.random.normal, 0.0, 0.0
    )
    step = tc.Power(8.0, p=0.6, shift=200.0)
    method = tc.Polyak(tc.Standard(step, step), skip=200, intervals=True)
    frame = tc.solve(curved, method, 20_000, 60).interval()
    assert frame["note"].str.contains("the seeds move together, by 0.5").all()
    assert np.mean((frame["low"] < 0) & (frame["high"] > 0)) < 0.9
    assert not tc.solve(curved, method, 20_000, 5).interval()["note"].str.contains("together").any()
    assert not notes(tc.Polyak(SETTLED, intervals=True))["note"].str.contains("together").any()


def test_the_slowest_output_speaks_for_all():
    """One coordinate forgets within a step, the other within a hundred: neither's interval goes without a note."""
    rates = jnp.asarray([1.0, 0.01])
    two = tc.problems.custom(
        lambda t, w, x: rates * t + x, lambda t, w, x: w, lambda key: jax.random.normal(key, (2,)), np.zeros(2), 0.0
    )
    result = tc.solve(two, tc.Polyak(tc.Standard(STEP, STEP), intervals=True), 3000, 20)
    assert result.interval()["note"].str.contains("the slowest output is worth about").all()
    alone = tc.Polyak(tc.Standard(STEP, STEP), intervals=lambda theta, omega: theta[:1])
    assert (tc.solve(two, alone, 3000, 20).interval()["note"] == "").all()


def test_a_diverged_seed_has_no_interval():
    frame = notes(tc.Polyak(SETTLED, intervals=True), bound=2.0)
    lost = frame["note"].str.startswith("diverged after step ")
    assert 0 < lost.sum() < len(lost)
    assert frame.loc[lost, ["low", "high"]].isna().all(axis=None)
    assert frame.loc[~lost, ["low", "high"]].notna().all(axis=None)


def bent():
    """E[F] = e^θ − 1: constant steps settle near −α/4, for the curve and a variance of α/2."""
    return tc.problems.custom(
        lambda t, w, x: jnp.exp(t) - 1 + x, lambda t, w, x: w - t, lambda key: jax.random.normal(key), 0.0, 0.0
    )


def test_richardson_romberg_takes_away_the_bias_of_constant_steps():
    def methods(a):
        inner = tc.Standard(a, 2 * a)
        extrapolated = tc.RichardsonRomberg(inner, skip=1000, intervals=True)
        return {f"mean {a}": tc.Polyak(inner, 0.0, 1000, intervals=True), f"both {a}": extrapolated}

    results = tc.solve(bent(), methods(0.2) | methods(0.1) | methods(0.01), steps=100_000, seeds=64)
    bias = {label: float(result.theta.mean()) for label, result in results.items()}
    assert bias["mean 0.1"] == pytest.approx(-0.025, abs=0.004)
    assert 1.8 < bias["mean 0.2"] / bias["mean 0.1"] < 2.4  # O(α)
    assert 3 < bias["both 0.2"] / bias["both 0.1"] < 12  # O(α²), and O(α³) on top
    assert abs(bias["both 0.1"]) < abs(bias["mean 0.1"]) / 5
    frame = {label: result.interval() for label, result in results.items()}
    covered = {label: ((f["low"] < 0) & (f["high"] > 0)).mean() for label, f in frame.items()}
    assert covered["mean 0.1"] < 0.2
    assert covered["both 0.1"] > 0.8
    assert covered["both 0.01"] > 0.85
    assert frame["both 0.1"]["note"].str.startswith("the bias taken away is").all()
    assert (frame["both 0.01"]["note"] == "").all()


def test_richardson_romberg_is_two_runs_on_the_same_samples():
    """α and β doubled, λ not; also where a schedule is a function and where the method is inside another."""
    problem = tc.problems.quadratic(dim=2)
    one = tc.Fast(lambda k: jnp.full((), 0.02), 0.05, 0.3)
    two = tc.Fast(0.04, 0.1, 0.3)
    both = tc.solve(problem, tc.RichardsonRomberg(one, skip=10, intervals=True), 300, 2, engine="xla")
    single, double = (tc.solve(problem, tc.Polyak(m, 0.0, 10), 300, 2, engine="xla") for m in (one, two))
    np.testing.assert_allclose(both.theta, 2 * single.theta - double.theta, rtol=1e-12)
    np.testing.assert_allclose(both.omega, 2 * single.omega - double.omega, rtol=1e-12)
    inside = scale_steps(tc.PlugIn(two), 2.0).method
    assert [float(s(0)) for s in (inside.alpha, inside.beta, inside.lam)] == [0.08, 0.2, 0.3]


def test_plots_label_the_band(many):
    fig = many.plot(intervals=True, seed=7)
    words = " ".join(t.get_text() for t in fig.findobj(lambda a: hasattr(a, "get_text")))
    assert "95 % confidence band of this one run (seed 7)" in words
    assert "no spread over seeds is shown" in words
    band = many.interval().query("seed == 7").iloc[0]
    path = fig.axes[0].collections[0].get_paths()[0].vertices
    end = path[path[:, 0] == 30_000][:, 1]
    np.testing.assert_allclose([end.min(), end.max()], [band["low"], band["high"]])
    small = tc.solve(line(), tc.Polyak(tc.Standard(0.1, 0.1), intervals=True), 500, 2)
    titles = [ax.get_title(loc="left") for ax in small.plot("theta", intervals=0.8).axes]
    assert titles[0].startswith("not to be trusted")
    over_seeds = tc.solve(tc.problems.quadratic(dim=2), tc.Standard(), 50, 4).plot()
    assert "interval of the mean over seeds" in over_seeds.get_supxlabel()


def test_the_picture_of_coverage():
    frame = pd.DataFrame({"step": [10, 100] * 2, "level": [0.8, 0.8, 0.95, 0.95], "coverage": 0.9, "runs": 400})
    fig = tc.plot.coverage(frame.assign(label="TDC"))
    ax = fig.axes[0]
    assert ax.get_title() == "TDC"
    # Wilson's interval of 360 of 400.
    segment = ax.containers[0].lines[2][0].get_segments()[0][:, 1]
    np.testing.assert_allclose(segment, [0.8667, 0.9257], atol=2e-4)
