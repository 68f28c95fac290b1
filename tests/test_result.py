import dataclasses
import json
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

import twoclock as tc
from twoclock import plot, storage
from twoclock.engine.protocol import history_columns
from twoclock.intervals.bootstrap import bootstrap_mean, interquartile_mean, resampled_means


@pytest.fixture(scope="module")
def result():
    return tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), steps=200, seeds=[3, 8, 11])


def test_history_is_tidy(result):
    assert result.history.columns[:2].tolist() == ["seed", "step"]
    assert {"error", "gap", "gradient", "tracking", "f_sq", "g_sq"} <= set(result.history.columns)
    assert not result.history.duplicated(["seed", "step"]).any()
    assert result.history["seed"].unique().tolist() == [3, 8, 11]
    assert result.history["step"].max() == 200


def test_final_rows_are_of_the_final_estimates(result):
    problem = tc.problems.quadratic(dim=2)
    last = result.history.query("step == 200").set_index("seed")["error"]
    np.testing.assert_allclose(last, ((result.theta - problem.theta_star) ** 2).sum(axis=1), rtol=1e-12)


def test_summary_against_numpy(result):
    table = result.summary("error").set_index("step").loc[200]
    values = result.history.query("step == 200")["error"].to_numpy()
    np.testing.assert_allclose([table["mean"], table["median"]], [values.mean(), np.median(values)], rtol=1e-12)
    assert table["low"] <= table["mean"] <= table["high"]
    assert table["seeds"] == 3


def test_interquartile_mean():
    assert interquartile_mean(np.arange(8.0)[None])[0] == np.mean([2, 3, 4, 5])


@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 7, 20, 101])
def test_interquartile_mean_is_that_of_scipy(seeds):
    values = np.random.default_rng(seeds).lognormal(size=(30, seeds))
    values[3, 0], values[5, -1] = np.nan, np.inf
    np.testing.assert_array_equal(interquartile_mean(values), scipy_stats.trim_mean(values, 0.25, axis=-1))


def test_bootstrap_covers():
    """95 % intervals of the mean of 40 normals cover the true mean about 95 % of the time."""
    draws = np.random.default_rng(0).standard_normal((400, 40))
    low, high = bootstrap_mean(draws)
    covered = ((low < 0) & (high > 0)).sum()
    assert scipy_stats.binom.sf(covered, 400, 0.92) < 1 - 1e-4  # the percentile interval is a little short at 40
    assert covered > 400 * 0.88


def test_bootstrap_of_infinities_and_of_one():
    assert bootstrap_mean(np.asarray([[1.0, np.inf, 2.0]]))[1] == np.inf
    assert np.isnan(bootstrap_mean(np.ones((2, 1)))[0]).all()


def test_save_and_load(result, tmp_path):
    result.save(tmp_path / "run")
    again = tc.load(tmp_path / "run")
    assert np.array_equal(again.theta, result.theta)
    assert again.history.equals(result.history)
    assert again.spec == json.loads(json.dumps(result.spec))
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"spec.json", "history.parquet", "arrays.npz"}
    assert again.summary("gap").equals(result.summary("gap"))


def test_any_tree_is_kept(tmp_path):
    problem = tc.problems.custom(
        F=lambda t, w, x: t, G=lambda t, w, x: w, noise=lambda key: jnp.zeros(()),
        theta={"w": np.ones((2, 3)), "b": (np.zeros(()), [np.ones(4)])}, omega=np.zeros(2),
    )  # fmt: skip
    result = tc.solve(problem, tc.Standard(0.1, 0.1), steps=3, seeds=2)
    assert result.metrics == []
    result.save(tmp_path)
    theta = tc.load(tmp_path).theta
    assert theta["w"].shape == (2, 2, 3)
    assert isinstance(theta["b"], tuple)
    assert theta["b"][1][0].shape == (2, 4)


def test_what_is_not_a_result_is_refused(tmp_path, result):
    with pytest.raises(tc.InputError, match=r"no spec\.json"):
        tc.load(tmp_path)
    result.save(tmp_path)
    (tmp_path / "history.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(tc.InputError, match="is damaged"):
        tc.load(tmp_path)


def test_no_half_written_folder(result, tmp_path, monkeypatch):
    monkeypatch.setattr(np, "savez", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        result.save(tmp_path / "run")
    assert not storage.is_complete(tmp_path / "run")


def test_many_seeds_are_resampled_as_few_are():
    """The streamed bootstrap has the law of the other: the mean's standard error, σ/√n."""
    values = np.random.default_rng(0).exponential(size=(3, 20_000))
    low, high = bootstrap_mean(values)
    expected = 2 * 1.96 * values.std(axis=1) / np.sqrt(20_000)
    np.testing.assert_allclose(high - low, expected, rtol=0.1)
    assert ((low < values.mean(axis=1)) & (values.mean(axis=1) < high)).all()
    np.testing.assert_allclose(resampled_means(values[0], 50), resampled_means(values, 50)[0], rtol=1e-12)


def test_the_order_of_rows_is_no_matter(result):
    """Rows as a run writes them are read without a pivot."""
    shuffled = result.history.sample(frac=1.0, random_state=0)
    for history in (result.history, shuffled, result.history.iloc[::-1]):
        again = dataclasses.replace(result, history=history)
        pd.testing.assert_frame_equal(again.summary("error"), result.summary("error"), rtol=1e-14)


def test_plot(result):
    fig = result.plot("error")
    (ax,) = fig.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_legend_handles_labels()[1] == ["Fast"]
    assert len(ax.collections) == 1  # the band
    assert plot.render(fig)["png"].startswith(b"\x89PNG")


def test_plot_names_the_diverged():
    problem = tc.problems.custom(
        F=lambda t, w, x: -9 * t * x, G=lambda t, w, x: w, noise=lambda key: jnp.ones(()), theta=1.0, omega=0.0,
        measure=lambda t, w: {"error": t**2},
    )  # fmt: skip
    result = tc.solve(problem, tc.Standard(1.0, 0.5), steps=400, seeds=3, bound=1e9)
    assert result.plot().axes[0].get_legend_handles_labels()[1] == ["Standard (3/3 diverged)"]


def test_unknown_metric(result):
    for ask in (result.summary, result.plot):
        with pytest.raises(tc.InputError, match=r"`metric` must be one that was recorded \(.*error.*\), got 'loss'"):
            ask("loss")


def test_what_auto_chose_is_an_attribute_of_its_runs_alone():
    problem = tc.problems.quadratic(dim=2)
    given, chosen = tc.solve(problem, tc.Fast(), 20, 2), tc.solve(problem, steps=20, seeds=2)
    for name in ("chosen", "method"):
        assert hasattr(chosen, name)
        assert not hasattr(given, name)
        with pytest.raises(tc.InputError, match="for runs without a method"):
            getattr(given, name)


def test_a_result_as_a_dataset_of_xarray():
    problem = tc.problems.custom(
        F=lambda t, w, x: {"a": t["a"] - w, "b": t["b"]}, G=lambda t, w, x: w - x, noise=jax.random.normal,
        theta={"a": 0.0, "b": np.zeros((2, 3))}, omega=0.0, measure=lambda t, w: {"size": t["a"] ** 2},
    )  # fmt: skip
    result = tc.solve(problem, tc.Fast(), steps=30, seeds=[4, 2], marks=[0, 10, 30])
    dataset = result.to_xarray()
    assert dataset["size"].dims == ("seed", "step")
    for seed in (4, 2):
        rows = result.history[result.history["seed"] == seed]
        assert np.array_equal(dataset["size"].sel(seed=seed), rows["size"])
    assert dataset["theta.b"].shape == (2, 2, 3)
    assert np.array_equal(dataset["theta.a"], result.theta["a"])
    assert np.array_equal(dataset["omega"], result.omega)
    assert json.loads(dataset.attrs["spec"])["steps"] == 30


def test_the_history_is_made_when_it_is_asked_for(monkeypatch):
    made = []
    module = sys.modules["twoclock.result"]
    monkeypatch.setattr(module, "history_columns", lambda *given: made.append(1) or history_columns(*given))
    result = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), steps=20, seeds=2)
    assert not made
    copied = pickle.loads(pickle.dumps(result))
    assert result.history is result.history
    assert copied == result
    assert len(made) == 2
