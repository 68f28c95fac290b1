"""The examples do what they say."""

import importlib.util
import struct
from pathlib import Path

import jax
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _as_a_user():
    """Outside the strict settings of the other tests: JAX as it comes."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_tensorboard_logger(tmp_path):
    """What TensorBoard reads back is the mean of the history, at every mark."""
    results = load("tensorboard_logger").main(steps=100, seeds=2, out=tmp_path)
    logged = {(name, step): value for name, step, value in scalars(tmp_path)}
    for label, result in results.items():
        for step, mean in result.history.groupby("step")["error"].mean().items():
            assert logged[f"{label}/error", step] == pytest.approx(mean, rel=1e-6)


def scalars(folder):
    """Name, step and value of all that an event file holds, in TensorFlow's framing of records."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events.out.tfevents.*")
    content, at = file.read_bytes(), 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + length])
        yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)
        at += 16 + length


def test_own_loop_gymnasium():
    assert load("own_loop_gymnasium").main(steps=10_000, seed=0) < 0.02


def test_sensor_stream():
    module = load("sensor_stream")
    found = module.main(samples=3000)
    assert found["output"].tolist() == ["theta[0]", "theta[1]"]
    assert (found["high"] - found["low"]).max() < 0.2
    assert abs(found["estimate"].to_numpy() - module.TRUE).max() < 0.1


def test_drifting_plant():
    found = load("drifting_plant").main(steps=3000)
    assert found["forgets"] < found["static"] / 2


def test_cart_pole():
    found = load("cart_pole").main(steps=4000, trial=4000)
    assert found["learnt"] < 1.1 * found["optimum"] < found["first"] / 3
    assert found["angle"] < 0.6


def test_nonlinear_gymnasium(tmp_path):
    picture = tmp_path / "value.png"
    errors = load("nonlinear_gymnasium").main(steps=5_000, seeds=1, transitions=5_000, episodes=10, out=picture)
    assert max(errors.values()) < 0.3  # a network knows nothing at the start and is off by about 0.75
    assert picture.stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore::Warning")  # Minari's own
def test_minari_cartpole():
    pytest.importorskip("minari")
    v, truth, error = load("minari_cartpole").main(episodes=60, rollouts=30, centres=20)
    assert abs(v["steadier"].table["value"].iloc[0] - truth) < 1.0 + 3 * error
    assert set(v.table["estimator"]) == {"lstdq", "dr", "naive", "pdis", "wis"}


def test_frozen_lake(tmp_path):
    picture = tmp_path / "lake.png"
    assert load("frozen_lake").main(steps=20_000, seeds=2, size=4, out=picture) < 0.25
    assert picture.stat().st_size > 10_000


def test_large_table(tmp_path, monkeypatch):
    """The same field with fewer cells: what is learnt comes near the fixed point on tiles."""
    module, picture = load("large_table"), tmp_path / "field.png"
    for name, value in (("WIDTH", 40), ("HEIGHT", 25), ("TILE", 5), ("GOAL", (32, 12))):
        monkeypatch.setattr(module, name, value)
    ends = module.main(steps=100_000, seeds=2, out=picture)
    assert picture.stat().st_size > 10_000
    assert ends["error"] < 1.2 * ends["floor"]


def test_average_reward(tmp_path):
    picture = tmp_path / "gain.png"
    short = load("average_reward").main(steps=100_000, seeds=2, out=picture)
    assert max(short.values()) < 0.1
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_markov_game(tmp_path):
    picture = tmp_path / "games.png"
    assert max(load("markov_game").main(steps=20_000, seeds=2, out=picture).values()) < 0.7
    assert picture.stat().st_size > 10_000


def test_frozen_lake_live():
    found = load("frozen_lake_live").main(samples=40_000)
    assert found["gap"] < 0.4 < 0.7 < found["ignorant"]
    assert found["goal"] > 0.02  # one in a thousand at first


def test_bilevel_regularisation(tmp_path):
    picture = tmp_path / "regularisation.png"
    losses = load("bilevel_regularisation").main(steps=1_000, seeds=1, exact_steps=15, out=picture)
    assert max(losses["implicit differentiation"], losses["Fast"]) < losses["best of a grid"]
    assert picture.stat().st_size > 10_000


def test_bilevel_data_cleaning(tmp_path):
    picture = tmp_path / "cleaning.png"
    found = load("bilevel_data_cleaning").main(steps=300, seeds=1, items=300, out=picture)
    assert found["mean weight of corrupted"] < 0.4 < 0.7 < found["mean weight of sound"]
    assert found["corrupted below sound"] > 0.9
    assert picture.stat().st_size > 10_000


def test_mean_field(tmp_path):
    found = load("mean_field").main(steps=50_000, seeds=8, out=tmp_path / "field.png")
    assert found["population"] == pytest.approx(0.8, abs=0.08)
    assert found["policy"] == pytest.approx(0.192, abs=0.04)
    assert (tmp_path / "field.png").stat().st_size > 10_000


def test_constrained_mdp(tmp_path):
    """Two hundred thousand samples are too few to settle; the limit is already felt, and the picture is drawn."""
    end = load("constrained_mdp").main(steps=200_000, seeds=2, out=tmp_path / "constrained.png")
    assert 0 < end["multiplier"] < 2
    assert end["violation"] < 0.05
    assert (tmp_path / "constrained.png").read_bytes().startswith(b"\x89PNG")


def test_cart_position(tmp_path):
    picture = tmp_path / "cart.png"
    found = load("cart_position").main(steps=4000, picture=str(picture))
    assert found["low"] < 1.05 * found["optimum"]
    assert found["cost"] < 1.1 * found["optimum"]
    assert abs(found["at"] - 3.0) < 0.05
    assert picture.stat().st_size > 10_000
