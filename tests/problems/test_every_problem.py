"""Every problem of the catalogue through the whole house: solve, save, load, resume, sweep, tune, marks, constants.

Eight settings on eight seeds throughout, the shape in which ``tune`` runs, so that all of it shares one compiled loop.
"""

import jax
import numpy as np
import pandas as pd
import pytest

import twoclock as tc
from small import SMALL
from threads import assert_alike, measured, needs_compiler, shaken
from twoclock import registry, theory
from twoclock.engine.engines import start
from twoclock.engine.run_batch import Lanes, make_instances

PROBLEMS = registry.problems()
METHOD = tc.Fast(1e-5, 1e-3, 1e-2)
SETTINGS = tc.grid(METHOD, **{"alpha.c": np.geomspace(1e-6, 1e-5, 8).tolist()})
FIRST = next(iter(SETTINGS))
RUN = {"steps": 4, "seeds": 8, "marks": [0, 2, 4]}
# Problems whose metrics XLA measures, on a GPU too: what they need is not generated.
WITH_XLA = (
    "access_control",
    "beach_bar",
    "constrained_frozen_lake",
    "forest",
    "frozen_lake",
    "matrix_game",
    "pursuit",
    "random_entropy_mdp",
    "river_swim",
    "spiral",
)


class Stopped(Exception):
    """The power goes."""


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_solved_saved_and_resumed(name, tmp_path):
    """What a sweep computes in one go is the run that was never stopped."""
    problem = PROBLEMS[name](**SMALL.get(name, {}))
    assert len(repr(problem)) < 400
    folder = {"checkpoint": tmp_path / "checkpoint", "checkpoint_every": 0.0}
    ends, steps = [], []

    def stop_at_the_end(tick):
        if tick.step == RUN["steps"]:
            ends.extend(np.asarray(leaf)[0] for leaf in jax.tree.leaves(tick.carry()))
            raise Stopped

    with pytest.raises(Stopped):
        tc.solve(problem, SETTINGS, **RUN, **folder, progress=stop_at_the_end)
    result = tc.solve(problem, SETTINGS, **RUN, **folder, progress=lambda tick: steps.append(tick.step))[FIRST]
    assert 0 not in steps
    assert not result.diverged.any()
    same(ends, jax.tree.leaves(result.end.carry))

    again = tc.load(result.save(tmp_path / "record"))
    assert again == result
    same((again.theta, again.omega), (result.theta, result.omega))
    pd.testing.assert_frame_equal(again.history, result.history)

    swept = tc.sweep({"p": problem}, {"m": SETTINGS}, **RUN).result("p", f"m {FIRST}")
    pd.testing.assert_frame_equal(swept.history[result.history.columns], result.history, check_dtype=False)


@pytest.mark.parametrize("name", {problem.__module__: name for name, problem in PROBLEMS.items()}.values())
def test_a_problem_of_every_file_is_tuned(name):
    tuned = tc.tune(PROBLEMS[name](**SMALL.get(name, {})), METHOD, {"alpha.c": (1e-6, 1e-5)}, steps=4, rungs=1)
    assert 1e-6 <= tuned.settings["alpha.c"] <= 1e-5


@needs_compiler
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in WITH_XLA])
def test_a_gpu_measures_in_one_launch_what_xla_measures(name, tmp_path):
    problem, seeds = PROBLEMS[name](**SMALL.get(name, {})), range(RUN["seeds"])
    with jax.enable_x64(True):
        lanes = Lanes.of(make_instances(problem, seeds), [METHOD], seeds, None)
        assert_alike(*measured(lanes, shaken(start(lanes)), tmp_path))


KINDS = ("quadratic_bilevel", "quadratic_minimax", "forest", "boyan", "paper_lqr", "quadratic", "rates", "spiral")


@pytest.mark.parametrize("name", KINDS)
def test_constants_of_every_kind_of_problem(name):
    found = theory.constants(PROBLEMS[name](**SMALL.get(name, {})), samples=16, points=1)
    assert np.isfinite([found[name] for name in ("L", "mu_h", "mu_g", "noise")]).all()
    assert found.L > 0
    assert found.noise >= 0


def test_constants_say_where_a_problem_is_not_finite():
    """A step of one in any direction leaves the stabilising gains of this plant."""
    with pytest.raises(tc.InputError, match=r"must be finite .* within radius=1 of the start they are not; lower"):
        theory.constants(tc.problems.boeing_747(), samples=16, points=1)
