"""Settings by path, and grids of them."""

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock.param_paths import paths, setting, text, with_settings

FAST = tc.Fast(tc.Power(1.0, shift=6.0), tc.Power(4.0, shift=6.0), 0.25)


def test_one_setting_changes_and_nothing_else():
    new = with_settings(FAST, {"alpha.c": 0.5})
    assert str(new.alpha) == "0.5/(k+6)"
    assert {p: v for p, v in paths(new).items() if p not in ("alpha", "alpha.c")} == {
        p: v for p, v in paths(FAST).items() if p not in ("alpha", "alpha.c")
    }
    assert str(FAST.alpha) == "1/(k+6)"


@pytest.mark.parametrize(
    "path", sorted(p for p in paths(tc.Polyak(FAST)) if isinstance(setting(tc.Polyak(FAST), p), float))
)
def test_every_number_can_be_set(path):
    method = with_settings(tc.Polyak(FAST), {path: 0.125})
    assert setting(method, path) == 0.125
    assert jax.tree.structure(method) == jax.tree.structure(tc.Polyak(FAST))


def test_settings_inside_wrappers():
    method = with_settings(tc.PlugIn(tc.Polyak(FAST)), {"method.method.lam.c": 0.1})
    assert method.method.method.lam.c == 0.1


def test_tied_settings_and_whole_schedules():
    tied = with_settings(FAST, {"alpha.shift, beta.shift": 9.0})
    assert (tied.alpha.shift, tied.beta.shift) == (9.0, 9.0)
    assert setting(tied, "alpha.shift,beta.shift") == 9.0
    assert str(with_settings(FAST, {"lam": "2/(k+8)"}).lam) == "2/(k+8)"
    assert with_settings(FAST, {"order": "fresh"}).order == "fresh"


def test_grid_is_every_combination_in_order():
    methods = tc.grid(FAST, **{"alpha.c": np.array([0.5, 1.0]), "beta.c": (2, 4, 8)})
    assert list(methods) == [f"alpha.c={a} beta.c={b}" for a in ("0.5", "1") for b in (2, 4, 8)]
    assert [(m.alpha.c, m.beta.c) for m in methods.values()] == [(a, b) for a in (0.5, 1.0) for b in (2, 4, 8)]
    assert len({jax.tree.structure(m) for m in methods.values()}) == 1


def test_a_grid_runs_as_one_program_and_as_each_method_alone(compilations):
    problem = tc.problems.quadratic(dim=2)
    methods = tc.grid(FAST, **{"alpha.c": [0.25, 0.5, 1.0]})
    tc.solve(problem, methods, steps=50, seeds=2, marks=[50])
    before = compilations()
    again = tc.solve(problem, tc.grid(FAST, **{"alpha.c": [0.3, 0.6, 0.9]}), steps=50, seeds=2, marks=[50])
    assert compilations() == before
    alone = tc.solve(problem, with_settings(FAST, {"alpha.c": 0.6}), steps=50, seeds=2, marks=[50])
    np.testing.assert_allclose(again["alpha.c=0.6"].theta, alone.theta, rtol=1e-12)


def test_labels_tell_close_values_apart():
    assert text(0.1) == "0.1"
    assert text(1 / 3) == repr(1 / 3)
    assert len(tc.grid(FAST, **{"alpha.c": [1.0, 1.0000001]})) == 2


CASES = {
    "nothing": (lambda: tc.grid(FAST), "`grid` needs a setting to vary"),
    "empty": (lambda: tc.grid(FAST, **{"alpha.c": []}), "`alpha.c` must be given at least one value"),
    "bare": (lambda: tc.grid(FAST, **{"alpha.c": 0.5}), r"`alpha.c` must be given a list of values, got 0.5"),
    "twice": (lambda: tc.grid(FAST, **{"alpha.c": [0.5, 0.5]}), "`grid` has the setting alpha.c=0.5 twice"),
    "near": (lambda: tc.grid(FAST, **{"alpa.c": [1]}), r"`alpa.c` is not a setting of Fast; did you mean `alpha.c`\?"),
    "wrapped": (
        lambda: tc.grid(tc.Polyak(FAST), **{"alpha.c": [1]}),
        r"`alpha.c` is not a setting of Polyak; did you mean `method.alpha.c`\?",
    ),
    "far": (
        lambda: with_settings(tc.Standard(), {"zzz": 1}),
        "`zzz` is not a setting of Standard; it has alpha, alpha.c",
    ),
    "constant": (lambda: with_settings(FAST, {"lam.shift": 1}), r"`lam.shift` is not a setting of Fast; did you mean"),
    "one of the tied": (lambda: with_settings(FAST, {"alpha.c,gamma.c": 1}), "`gamma.c` is not a setting of Fast"),
    "value": (lambda: tc.grid(FAST, **{"alpha.c": [-1.0]}), r"`Power\(c=…\)` must be a finite number that is not neg"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case):
    make, words = CASES[case]
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
