"""A sweep is one data set that anyone can open, and a kill at any moment leaves it to be finished, bit for bit."""

import hashlib
import inspect
import json
import subprocess
import sys
import time

import duckdb
import jax
import numpy as np
import pandas as pd
import polars
import pytest

import twoclock as tc
from twoclock.storage.sealed_folder import seal, unseal
from twoclock.sweeps.plan import _shape

GRID = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0, 2.0], "lam.c": [20.0, 40.0]})
BOWL = tc.problems.quadratic(dim=2)
# Diverges at the large step: the sweep has something to report.
WILD = {"small": tc.Standard(alpha=0.1, beta=0.1), "large": tc.Standard(alpha=30.0, beta=0.1)}

NAN = tc.problems.custom(
    F=lambda t, w, x: t, G=lambda t, w, x: w, noise=lambda key: jax.random.normal(key), theta=np.nan, omega=0.0
)

# It dawdles once four shards are done, so that it is at work when it is killed.
SCRIPT = """
import sys, time
import twoclock as tc
grid = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0, 2.0], "lam.c": [20.0, 40.0]})
tc.sweep({"bowl": tc.problems.quadratic(dim=2), "walk": tc.problems.walk_tabular()}, {"fast": grid}, 4000, 8,
         out=sys.argv[1], lanes=8,
         progress=lambda watch: (print(watch.done, flush=True), time.sleep(0.05 * (watch.done >= 4))))
"""


def small(out=None, **options):
    problems = {"bowl": BOWL, "walk": tc.problems.walk_tabular()}
    return tc.sweep(problems, {"fast": GRID}, 4000, 8, out=out, **{"lanes": 8, **options})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "whole"
    with jax.enable_x64(True):
        return small(out), out


def files(out):
    return {p.relative_to(out): hashlib.sha256(p.read_bytes()).hexdigest() for p in out.glob("history/*/*/*")}


def test_history_has_every_run(whole):
    sweep, _ = whole
    assert sweep.history.columns[:5].tolist() == ["problem", "method", "seed", "step", "diverged"]
    marks = len(sweep.spec["identity"]["marks"])
    assert len(sweep.history) == 2 * 6 * 8 * marks
    assert sweep.history.groupby(["problem", "method", "seed"]).size().eq(marks).all()
    assert set(sweep.history["problem"]) == {"bowl", "walk"}
    assert "fast alpha.c=0.5 lam.c=20" in set(sweep.history["method"])


def test_a_sweep_computes_what_solve_does(whole):
    sweep, _ = whole
    alone = tc.solve(BOWL, GRID, 4000, 8)
    for label, result in alone.items():
        rows = sweep.result("bowl", f"fast {label}").history
        pd.testing.assert_frame_equal(rows[result.history.columns], result.history, rtol=1e-9)


def test_pandas_polars_and_duckdb_read_the_data_set(whole):
    sweep, out = whole
    by_pandas = pd.read_parquet(out / "history")
    by_polars = polars.read_parquet(out / "history", hive_partitioning=True).to_pandas()
    by_duckdb = duckdb.sql(f"select * from '{out}/history/**/*.parquet'").df()
    order = ["problem", "method", "seed", "step"]
    for frame in (by_pandas, by_polars, by_duckdb):
        frame = frame.astype({"problem": str, "method": str})[sweep.history.columns].sort_values(order)
        ours = sweep.history.sort_values(order)
        assert frame["method"].tolist() == ours["method"].tolist()
        np.testing.assert_array_equal(frame["gap"].to_numpy(float), ours["gap"].to_numpy(float))


def test_no_metric_is_lost_where_problems_measure_different_things(whole):
    sweep, out = whole
    by_pandas = pd.read_parquet(out / "history")
    assert by_pandas.query("problem == 'walk'")["rmspbe"].notna().all()
    assert by_pandas.query("problem == 'bowl'")["rmspbe"].isna().all()
    assert "rmspbe" not in sweep.result("bowl", "fast alpha.c=0.5 lam.c=20").metrics


def test_killed_and_started_again_ends_in_the_same_files(whole, tmp_path, kill):
    _, out = whole
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    while int(child.stdout.readline()) < 4:
        pass
    time.sleep(0.04)
    kill(child)
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "shards").glob("*.json")}
    assert len(kept) >= 4
    small(tmp_path)
    assert files(tmp_path) == files(out)
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "shards").glob("*.json")}
    assert {name: after[name] for name in kept} == kept  # finished shards are not redone
    assert not (tmp_path / ".parts").exists()


def test_a_finished_sweep_computes_nothing(whole, compilations):
    _, out = whole
    before = files(out), compilations()
    small(out, progress=lambda watch: None)
    assert (files(out), compilations()) == before


def test_a_half_written_shard_does_not_count(whole, tmp_path):
    sweep, out = whole
    small(tmp_path)
    victim = next((tmp_path / "shards").glob("*.json"))
    victim.unlink()
    rows = len(tc.Sweep.load(tmp_path).history)
    assert rows < len(sweep.history)
    small(tmp_path)
    assert files(tmp_path) == files(out)


def test_a_sealed_shard_without_files_is_refused_in_one_line(tmp_path):
    out = tmp_path / "sweep"
    tc.sweep({"a": tc.problems.quadratic(dim=2)}, {"b": tc.Fast()}, 20, 2, out=out)
    (shard,) = (out / "shards").glob("*.json")
    shard.write_text(seal({**unseal(shard.read_bytes()), "files": {}}))
    with pytest.raises(tc.InputError, match="has no finished shard"):
        tc.Sweep.load(out)


def test_ctrl_c_says_what_is_done(tmp_path):
    def stop(watch):
        if watch.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="stopped with 2 of 12 shards done; the same call"):
        small(tmp_path, progress=stop)
    assert len(list((tmp_path / "shards").glob("*.json"))) == 2


def test_one_program_for_the_whole_grid(compilations):
    """Shards of one shape, the last one filled up: as many compilations for five shards as for one."""

    def compiled(alphas):
        before = compilations()
        tc.sweep({"bowl": tc.problems.quadratic(dim=3)}, tc.grid(tc.Fast(), **{"beta.c": alphas}), 300, 7, lanes=14)
        return compilations() - before

    compiled([1.0, 2.0])
    assert compiled(np.linspace(1, 8, 9).tolist()) == 0


def test_own_instances_are_drawn_once_for_all_shards():
    calls = []

    def drawn(key):
        jax.debug.callback(lambda: calls.append(1))
        return tc.problems.random_policy_evaluation(key, states=4, actions=2, features=2)

    sweep = tc.sweep({"own": drawn}, GRID, 200, 4, lanes=8)
    assert len(calls) == 1
    assert sweep.history.query("step == 0")["error"].nunique() == 4  # a separate problem for each seed


@pytest.mark.parametrize(
    ("methods", "seeds", "lanes", "memory", "shape"),
    [
        (200, 50, 2048, 1e9, (40, 50)),
        (7, 20, 2048, 1e9, (8, 20)),
        (1, 5000, 2048, 1e9, (1, 1728)),
        (10, 50, 2048, 50 * 1000 + 2 * 50 * 100, (2, 50)),
        (10, 50, 2048, 11_000, (1, 10)),
    ],
)
def test_shards_keep_to_their_bounds(methods, seeds, lanes, memory, shape):
    """With 100 bytes a run and 1000 an instance."""
    found = _shape(methods, seeds, lanes, memory, 100, 1000)
    assert found == shape
    assert found[0] * found[1] * 100 + found[1] * 1000 <= memory


def test_divergence_is_data():
    sweep = tc.sweep({"bowl": BOWL}, WILD, 2000, 4)
    final = sweep.final("error").set_index("method")
    assert final["diverged"].to_dict() == {"small": 0, "large": 4}
    assert sweep.best("error")["method"].tolist() == ["small"]
    alone = tc.solve(BOWL, WILD["large"], 2000, 4)
    ours = sweep.result("bowl", "large").summary("error")
    assert ours["diverged"].tolist() == alone.summary("error")["diverged"].tolist()


def test_best_is_by_family(whole):
    sweep, _ = whole
    final, best = sweep.final("gap"), sweep.best("gap")
    assert best["family"].tolist() == ["fast", "fast"]
    for row in best.itertuples():
        assert row.mean == final[final["problem"] == row.problem]["mean"].min()
    assert final["alpha.c"].nunique() == 3
    first = ["problem", "family", "method", "mean", "low", "high", "diverged", "seeds"]
    assert best.columns.tolist() == [*first, "alpha.c", "lam.c"], "of the numbers only what was varied"
    assert sweep.best().columns.tolist() == [*first, "alpha.c", "lam.c"]


def test_a_sweep_without_a_folder_has_the_same_history(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sweep, _ = whole
    assert small().history.equals(sweep.history)
    assert not list(tmp_path.iterdir())


def test_a_shard_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    from twoclock.sweeps import Worker

    compute, failing = Worker.compute, []

    def sometimes(self, shard, look):
        if failing and "lam.c=40" in shard.methods[0]:
            raise MemoryError("no room for it")
        return compute(self, shard, look)

    monkeypatch.setattr(Worker, "compute", sometimes)
    failing.append(True)
    with pytest.raises(RuntimeError, match=r"6 of 12 shards failed, the first with: no room for it; the same call"):
        small(tmp_path)
    assert len(list((tmp_path / "shards").glob("*.json"))) == 6
    assert set(json.loads((tmp_path / "progress.json").read_text())["failed"].values()) == {"no room for it"}
    failing.clear()
    small(tmp_path)


def test_pictures_are_drawn_from_records(whole):
    sweep, out = whole
    again = tc.Sweep.load(out)
    for name in ("plot_best", "plot_sensitivity"):
        ours, theirs = (getattr(s, name)("gap").axes[0].lines[0].get_xydata() for s in (sweep, again))
        np.testing.assert_array_equal(ours, theirs)
    fig = again.plot_map("gap", "alpha.c", "lam.c")
    assert [ax.get_title() for ax in fig.axes if ax.get_title()] == ["bowl: fast", "walk: fast"]


def test_the_diverged_region_is_hatched():
    grid = tc.grid(tc.Standard(alpha=0.1, beta=0.1), **{"alpha.c": [0.1, 30.0], "beta.c": [0.1, 0.2]})
    sweep = tc.sweep({"bowl": BOWL}, {"standard": grid}, 2000, 4)
    fig = sweep.plot_map("error")
    hatched = [patch.get_x() for patch in fig.axes[0].patches if patch.get_hatch()]
    assert hatched == [0.5, 0.5]  # the second column, both rows


CASES = {
    "no problems": (lambda: tc.sweep({}, GRID), "`problems` must be a mapping of labels with at least one"),
    "no methods": (lambda: tc.sweep({"bowl": BOWL}, {}), "`methods` must be a mapping of labels"),
    "empty grid": (lambda: tc.sweep({"bowl": BOWL}, {"fast": {}}), "empty grid under 'fast'"),
    "a method alone": (
        lambda: inspect.unwrap(tc.sweep)({"bowl": BOWL}, tc.Fast()),
        "`methods` must be a mapping of labels",
    ),
    "no method": (lambda: tc.sweep({"bowl": BOWL}, {"a": 0.1}), "'a', which is no method but a float"),
    "no problem": (lambda: tc.sweep({"bowl": 3}, GRID), "`problem` must have init, noise, draw, F and G"),
    "on": (lambda: tc.sweep({"bowl": BOWL}, GRID, on="dask"), "`on` must be 'local' or 'ray', got 'dask'"),
    "lanes": (lambda: tc.sweep({"bowl": BOWL}, GRID, lanes=0), "`lanes` must be"),
    "engine": (lambda: tc.sweep({"bowl": BOWL}, GRID, engine="fortran"), "`engine` has no 'fortran'"),
    "memory": (lambda: tc.sweep({"bowl": BOWL}, GRID, memory=100), "`memory` must hold one run, which takes"),
    "shared": (lambda: tc.sweep({"bowl": BOWL}, GRID, shared=True), '`shared` needs on="ray" and `out`'),
    "label": (lambda: tc.sweep({"": BOWL}, GRID), "the label of a problem must have 1 to about"),
    "start": (lambda: tc.sweep({"nan": NAN}, {"fast": tc.Fast()}, 10, 2), "`theta` must start from finite numbers"),
    "steps": (lambda: tc.sweep({"bowl": BOWL}, GRID, steps=0), "`steps` must lie in 1"),
    "folder": (lambda: tc.sweep({"bowl": BOWL}, GRID, 10, 2, out="/proc/nowhere"), "cannot be written"),
    "no sweep": (lambda: tc.Sweep.load("/proc"), "has no sweep.json"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case):
    make, words = CASES[case]
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("what", "changed"),
    [("steps", {"steps": 60}), ("seeds", {"seeds": 3}), ("methods", {"methods": WILD}),
     ("problems", {"problems": {"bowl": tc.problems.quadratic(dim=2, sigma=0.3)}}), ("bound", {"bound": 9.0})],
)  # fmt: skip
def test_the_folder_of_another_sweep_is_refused(tmp_path, what, changed):
    options = {"problems": {"bowl": BOWL}, "methods": GRID, "steps": 50, "seeds": 2, "marks": [50], "out": tmp_path}
    tc.sweep(**options)
    before = files(tmp_path)
    with pytest.raises(tc.InputError, match=f"holds another sweep: its {what} differ") as error:
        tc.sweep(**{**options, **changed})
    assert "\n" not in str(error.value)
    assert files(tmp_path) == before


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(tc.InputError, match="must be an empty or new folder"):
        small(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
