"""The examples do what they say."""

import importlib.util
from pathlib import Path

import jax
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _as_a_user():
    """Outside the harsh room: JAX as it comes."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_own_loop_gymnasium():
    assert load("own_loop_gymnasium").main(steps=10_000, seed=0) < 0.02


def test_nonlinear_gymnasium(tmp_path):
    picture = tmp_path / "value.png"
    errors = load("nonlinear_gymnasium").main(steps=10_000, seeds=2, transitions=5_000, episodes=10, out=picture)
    assert max(errors.values()) < 0.3  # a network knows nothing at the start and is off by about 0.75
    assert picture.stat().st_size > 10_000


def test_frozen_lake(tmp_path):
    picture = tmp_path / "lake.png"
    assert load("frozen_lake").main(steps=20_000, seeds=2, size=4, out=picture) < 0.25
    assert picture.stat().st_size > 10_000


def test_bilevel_regularisation(tmp_path):
    picture = tmp_path / "regularisation.png"
    losses = load("bilevel_regularisation").main(steps=2_000, seeds=1, exact_steps=25, out=picture)
    assert max(losses["implicit differentiation"], losses["Fast"]) < losses["best of a grid"]
    assert picture.stat().st_size > 10_000


def test_bilevel_data_cleaning(tmp_path):
    picture = tmp_path / "cleaning.png"
    found = load("bilevel_data_cleaning").main(steps=500, seeds=1, items=500, out=picture)
    assert found["mean weight of corrupted"] < 0.4 < 0.7 < found["mean weight of sound"]
    assert found["corrupted below sound"] > 0.9
    assert picture.stat().st_size > 10_000
