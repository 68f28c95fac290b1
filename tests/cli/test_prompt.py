"""Reprs, notebook views and figures."""

import copy
import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import twoclock as tc
from twoclock import plot, registry
from twoclock.models import Lqr, Mdp

PROBLEM = tc.problems.quadratic(dim=2)
RUN = {"steps": 100, "seeds": [3, 5]}
LONG = 400


@pytest.fixture(scope="module")
def result():
    with jax.enable_x64(True):
        return tc.solve(PROBLEM, tc.Fast(), **RUN)


@pytest.fixture(scope="module")
def sweep():
    with jax.enable_x64(True):
        methods = {"fast": tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0]}), "<b>": tc.Standard()}
        return tc.sweep({"bowl": PROBLEM}, methods, **RUN)


@pytest.fixture(scope="module")
def certificate():
    return tc.certify("strongly-convex", L=1.0, mu_h=0.5, mu_g=0.5, noise=1.0)


def public():
    """One of everything that a user can hold, by name."""
    yield "boyan", tc.problems.boyan()  # test_every_problem checks the rest of the catalogue
    yield from ((name, kind()) for name, kind in registry.methods().items())
    yield "Power", tc.Power(1 / 3, p=2 / 3)
    yield "Constant", tc.Constant(1 / 3)
    yield "PlugIn", tc.PlugIn(tc.Polyak(tc.Fast(alpha=lambda k: 1 / (k + 1))))
    P = np.full((4, 4, 4), 0.25)
    yield "Mdp", Mdp(P, np.zeros((4, 4)), 0.9)
    yield "Lqr", Lqr(np.eye(3) / 2, np.eye(3), np.eye(3), np.eye(3))
    yield "Minibatches", tc.samplers.Minibatches({f"column {i}": np.zeros((50, 3)) for i in range(40)}, size=5)
    theta = {f"layer {i}": jnp.zeros(3) for i in range(60)}
    yield "custom", tc.problems.custom(lambda t, w, x: t, lambda t, w, x: w, lambda key: 0.0, theta, 0.0)
    yield "constants", tc.theory.Constants(1 / 3, 1 / 7, 1 / 9, 1e5 / 3, ("L",), {"mu_h": 1 / 3, "noise": 1 / 3})
    steps = {"L": 1.0, "mu_h": 0.5, "mu_g": 0.5}
    report = tc.theory.check(tc.Fast(), "strongly-convex", **steps)
    yield "check", report
    yield from ((finding.name, finding) for finding in report)


def test_every_repr_is_short():
    shown = {name: repr(thing) for name, thing in public()}
    assert {name: text for name, text in shown.items() if len(text) > LONG or "\n" in text} == {}
    assert "layer 5: float64[3], …}" in shown["custom"]
    assert shown["boyan"].startswith("PolicyEvaluation(features=float64[13, 4]")
    assert shown["check"].startswith("CheckReport(")


def test_results_in_a_notebook(result, sweep, certificate):
    for thing in (result, sweep, certificate):
        page = thing._repr_html_()
        assert page.count("<table>") == page.count("</table>") == 1
        assert page.count("<tr>") >= 2
        assert len(repr(thing)) < LONG
    mean = result.summary("error")["mean"].iloc[-1]
    assert f"<td>error</td><td>{mean:.4g}</td>" in result._repr_html_()
    assert "&lt;b&gt;" in sweep._repr_html_()
    assert "<b>" not in sweep._repr_html_()


def test_figures_can_be_shown(result, capsys, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    fig = result.plot()
    assert fig._repr_png_().startswith(b"\x89PNG")
    fig.show()
    (output,) = capsys.readouterr().out.splitlines()
    path = output.removeprefix("figure saved to ")
    with open(path, "rb") as file:
        assert file.read(4) == b"\x89PNG"


def test_plot_is_listed_before_it_is_loaded():
    code = "import sys, twoclock; assert 'plot' in dir(twoclock) and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_compare_takes_axes_scale_and_size(result):
    own = Figure()
    left, right = own.subplots(1, 2)
    assert plot.compare({"a": result}, "error", ax=right, scale="linear") is own
    assert (len(left.lines), len(right.lines), right.get_yscale()) == (0, 1, "linear")
    assert result.plot("gap", size=(3, 2)).get_size_inches().tolist() == [3, 2]
    with pytest.raises(tc.InputError, match="`scale` must be 'log' or 'linear', got 'cubic'"):
        result.plot("gap", scale="cubic")
    for size in (3, (3, -1), "big"):
        with pytest.raises(tc.InputError, match="`size` must be a width and a height in inches"):
            result.plot("gap", size=size)


def test_equal_results(result, tmp_path):
    again = tc.solve(PROBLEM, tc.Fast(), **RUN)
    assert again == result
    assert hash(again) == hash(result)
    assert len({again, result, copy.deepcopy(result)}) == 1
    assert tc.load(result.save(tmp_path)) == result
    assert result != dataclasses.replace(result, theta=result.theta + 1)
    assert result != tc.solve(PROBLEM, tc.Fast(), 100, [3, 6])
    assert result != 3


def test_progress_events_are_plain(result):
    ticks = []
    tc.solve(PROBLEM, tc.Fast(), **RUN, progress=ticks.append)
    last = ticks[-1]
    assert repr(last).startswith("Tick(step 100, error 0.")
    assert "\n" not in repr(last)
    means = result.history.query("step == 100").drop(columns=["seed", "step"]).mean()
    assert last.metrics == pytest.approx(means.to_dict(), rel=1e-12)
    assert {type(value) for value in last.metrics.values()} == {float}
    labelled = []
    tc.solve(PROBLEM, {"a": tc.Fast(), "b": tc.Fast("1/(k+9)")}, **RUN, progress=labelled.append)
    assert {name.split("/")[0] for name in labelled[-1].metrics} == {"a", "b"}
    assert labelled[-1].metrics["a/error"] == pytest.approx(last.metrics["error"], rel=1e-9)
