"""Metrics on a GPU: the kernel, run on the CPU, and when XLA measures instead."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from threads import assert_alike, measured, needs_compiler, shaken
from twoclock.codegen import Unsupported
from twoclock.engine import cuda_engine, lane_program
from twoclock.engine.engines import start
from twoclock.engine.protocol import measure_lanes
from twoclock.engine.run_batch import Lanes, make_instances

SEEDS = (3, 5, 8)
METHODS = [tc.Fast(1e-3, beta, 1e-2) for beta in (1e-3, 2e-3)]


def problem(measure):
    return tc.problems.custom(
        F=lambda theta, omega, x: theta + x - omega,
        G=lambda theta, omega, x: omega,
        noise=lambda key: jax.random.normal(key, (2,)),
        theta=np.zeros(2),
        omega=np.zeros(2),
        measure=measure,
    )


def several(theta, omega):
    """Metrics of every type: a truth value, whole numbers, a constant, and what loops as long as a lane wants to."""
    halved = jax.lax.while_loop(
        lambda c: c[0] > 1e-3, lambda c: (c[0] / 2, c[1] + 1), (jnp.abs(theta[0]), jnp.int32(0))
    )
    return {
        "to_the_right": theta[0] > 0,
        "halvings": halved[1],
        "hundredths": (100 * omega[1]).astype(jnp.int64),
        "single": theta[1].astype(jnp.float32),
        "error": jnp.sum(theta**2),
        "infinite_at_first": jnp.log(jnp.sum(theta**2)),
        "two": 2.0,
    }


def lanes_of(measure, methods=METHODS, bound=None):
    return Lanes.of(make_instances(problem(measure), SEEDS), methods, SEEDS, bound)


@needs_compiler
@pytest.mark.parametrize("bound", [None, 10.0])
def test_a_row_has_the_names_types_and_tracked_values_of_xla(bound, tmp_path):
    with jax.enable_x64(True):
        lanes = lanes_of(several, [tc.Polyak(method, intervals=True) for method in METHODS], bound)
        found, expected = measured(lanes, shaken(start(lanes)), tmp_path)
    assert_alike(found, expected)
    assert {found[name].dtype.name for name in found} == {"bool", "int32", "int64", "float32", "float64"}
    assert any(name.endswith("[1]") for name in found)
    assert len(np.unique(found["halvings"])) > 1


def test_what_is_not_generated_has_a_reason():
    def factorised(theta, omega):
        return {"error": jnp.linalg.solve(jnp.outer(theta, theta) + jnp.eye(2), theta)[0]}

    def large(theta, omega):
        return {"error": jnp.sum(jnp.sin(jnp.arange(300_000.0) * theta[0]))}

    with jax.enable_x64(True):
        for measure, reason in ((factorised, "the operation lu is not generated"), (large, "XLA is faster")):
            with pytest.raises(Unsupported, match=reason):
                lane_program.metrics_source(lanes_of(measure))


@pytest.fixture
def fake(monkeypatch):
    """A fake kernel that returns ``fake.row`` of XLA's row; ``fake.calls`` counts its calls."""

    class Fake:
        calls, row = 0, staticmethod(lambda row: row)

        def __init__(self, made, launch, device):
            self.lanes = launch

        def __call__(self, carry):
            Fake.calls += 1
            return Fake.row(measure_lanes(self.lanes.instances, self.lanes.methods, carry))

    monkeypatch.setattr(cuda_engine, "_MetricsKernel", Fake)
    monkeypatch.setattr(cuda_engine, "_refused", set())
    monkeypatch.setattr(cuda_engine, "_compared", type(cuda_engine._compared)())
    return Fake


def marks_of(lanes):
    marks = cuda_engine.DeviceMetrics(lanes, jax.devices()[0])
    return lambda carry: marks.measure(carry, lambda source, threads: lanes)


def test_a_kernel_is_compared_with_xla_for_its_first_rows_only(fake):
    lanes = lanes_of(several)
    carry, measure = start(lanes), marks_of(lanes)
    expected = measure(carry)
    measure(carry)
    fake.row = lambda row: {**row, "error": row["error"] + 1.0}
    np.testing.assert_array_equal(measure(carry)["error"], expected["error"] + 1.0)


@pytest.mark.parametrize("mark", [0, 1])
def test_a_kernel_that_differs_from_xla_is_replaced_by_it(mark, fake):
    lanes = lanes_of(several)
    carry, measure = start(lanes), marks_of(lanes)
    expected = measure_lanes(lanes.instances, lanes.methods, carry)
    for _ in range(mark):
        measure(carry)
    fake.row = lambda row: {**row, "error": row["error"] + 1e-3}
    with pytest.warns(UserWarning, match=r"the kernel of the metrics fails: it differs from XLA by 1.0e-03; 'xla'"):
        assert_alike(measure(carry), expected)
    for again in (measure, marks_of(lanes)):
        assert_alike(again(carry), expected)
    assert fake.calls == mark + 1


def test_a_kernel_that_cannot_be_compiled_is_replaced_by_xla(fake):
    def fails(row):
        raise RuntimeError("no such register")

    lanes, fake.row = lanes_of(several), fails
    carry, measure = start(lanes), marks_of(lanes)
    with pytest.warns(UserWarning, match="RuntimeError: no such register; 'xla' measures"):
        found = measure(carry)
    assert_alike(found, measure_lanes(lanes.instances, lanes.methods, carry))


def test_a_problem_without_metrics_has_an_empty_row(fake):
    lanes = lanes_of(None, [tc.Standard(0.1, 0.1)])
    assert marks_of(lanes)(start(lanes)) == {}
    assert fake.calls == 0


@pytest.mark.skipif(cuda_engine.unavailable() is not None, reason="there is no GPU")
@pytest.mark.parametrize("seeds", [40, 20_000])
def test_on_a_gpu_a_history_is_that_of_xla(seeds):
    run = {"steps": 300, "marks": [0, 1, 7, 150, 300], "seeds": seeds, "bound": 0.8}
    method = tc.Polyak(tc.Fast(0.1, 0.3, 0.9), intervals=True)
    found, expected = (tc.solve(problem(several), method, engine=name, **run) for name in ("cuda", "xla"))
    assert found.spec["engine"] == "cuda"
    assert not cuda_engine._refused
    assert 0 < expected.diverged.sum() < seeds
    np.testing.assert_array_equal(found.diverged, expected.diverged)
    assert (found.history.dtypes == expected.history.dtypes).all()
    for name in expected.history:
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-9, atol=1e-9, err_msg=name)
