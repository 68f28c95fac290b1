"""The example that learns through reset and step alone."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import twoclock as tc
from twoclock.problems.lqr.actor_critic import PAPER


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples" / "lqr_gymnasium.py"
    spec = importlib.util.spec_from_file_location("lqr_gymnasium", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*Box.*:UserWarning")
def test_the_environment_passes_gymnasiums_checks(example):
    check_env(example.LinearPlant(PAPER), skip_render_check=True)


def test_the_regulator_learns_through_reset_and_step(example):
    K0 = np.zeros((2, 3))
    method = tc.Fast(tc.Power(1.0, shift=1000.0), tc.Power(2.0, shift=1000.0), tc.Power(80.0, shift=1000.0))
    state = example.train(example.LinearPlant(PAPER), K0, method, steps=5000)
    assert PAPER.J(state.theta, 1.0) - PAPER.J(PAPER.gain, 1.0) < 0.1 * 0.418325
