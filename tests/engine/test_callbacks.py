"""Functions in Python that a run calls back: their identity, and their errors."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import twoclock as tc

CALLS = {
    "pure_callback": lambda host, t: jax.pure_callback(host, t, t, vmap_method="sequential"),
    "io_callback": lambda host, t: io_callback(host, t, t),
    "debug callback": lambda host, t: (jax.debug.callback(host, t), t)[1],
}


def bowl(host, call="pure_callback"):
    return tc.problems.custom(
        F=lambda theta, omega, x: CALLS[call](host, theta), G=lambda theta, omega, x: omega - x,
        noise=lambda key: jax.random.normal(key), theta=1.0, omega=0.0,
    )  # fmt: skip


def solve(problem, steps=4, **options):
    return tc.solve(problem, tc.Standard(0.1, 0.1), steps, 2, [steps], **options)


def scaled(by):
    return lambda t: by * np.asarray(t)


@pytest.mark.parametrize("call", CALLS)
def test_another_callback_is_another_run(call, tmp_path):
    first = solve(bowl(scaled(1.0), call), checkpoint=tmp_path / "run")
    for start in (first, tc.load(first.save(tmp_path / "record"))):
        assert solve(bowl(scaled(1.0), call), 8, start=start).last_step.tolist() == [8, 8]
        with pytest.raises(tc.InputError, match=r"`start` is of another run: its problem differs"):
            solve(bowl(scaled(9.0), call), 8, start=start)
    with pytest.raises(tc.InputError, match=r"belongs to another run: its problem differs"):
        solve(bowl(scaled(9.0), call), checkpoint=tmp_path / "run")
    assert solve(bowl(scaled(1.0), call), checkpoint=tmp_path / "run") == first


def test_a_callback_that_reads_another_global_is_compiled_anew():
    hosts = {"now": scaled(1.0)}
    problem = tc.problems.custom(
        F=lambda theta, omega, x: CALLS["pure_callback"](hosts["now"], theta), G=lambda theta, omega, x: omega,
        noise=lambda key: jax.random.normal(key), theta=1.0, omega=0.0,
    )  # fmt: skip
    np.testing.assert_allclose(solve(problem, 1).theta, 0.9)
    hosts["now"] = scaled(2.0)
    np.testing.assert_allclose(solve(problem, 1).theta, 0.8)


def test_a_callback_that_cannot_be_identified_runs_and_is_not_resumed_from(tmp_path):
    lock = threading.Lock()

    def host(t):
        with lock:
            return np.asarray(t)

    first = solve(bowl(host))
    saved = tc.load(first.save(tmp_path / "record"))
    for options in ({"checkpoint": tmp_path / "run"}, {"start": first}, {"start": saved}):
        with pytest.raises(tc.InputError, match=r"nothing can be resumed .* `lock` cannot be identified"):
            solve(bowl(host), 8, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("call", CALLS)
def test_an_error_in_a_callback_is_one_line(call):
    def host(t):
        raise KeyError("of the user's own")

    with pytest.raises(tc.InputError, match=r"calls in Python .* failed with KeyError: .of the user's own") as error:
        solve(bowl(host, call))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"env": jax.random.key(0)},
            "`problem` must be made of numbers, got a key of JAX in it; pass `jax",
        ),
        (
            {"env": np.int32(0), "draw": lambda u, theta, env: (u, env.astype(jnp.int64))},
            r"`draw` must return env as `init` made it: at `env` it returns int64, and `init` int32; write `\.astype",
        ),
    ],
)
@pytest.mark.parametrize("engine", ["xla", "c"])
def test_keys_and_an_environment_of_another_type_are_refused(changed, says, engine):
    parts = {
        "F": lambda theta, omega, x: omega, "G": lambda theta, omega, x: omega - theta,
        "noise": lambda key: jax.random.normal(key), "theta": 0.0, "omega": 0.0,
    }  # fmt: skip
    with pytest.raises(tc.InputError, match=says):
        solve(tc.problems.custom(**{**parts, **changed}), engine=engine)


def test_a_weak_integer_as_environment_is_compared_by_its_type():
    with jax.enable_x64(False):
        env = jnp.array(0)
    problem = tc.problems.custom(
        F=lambda theta, omega, x: omega, G=lambda theta, omega, x: omega - theta, theta=0.0, omega=0.0, env=env,
        noise=lambda key: jax.random.normal(key), draw=lambda u, theta, env: (u, env + jnp.argmax(jnp.ones(3))),
    )  # fmt: skip
    with pytest.raises(tc.InputError, match="it returns int64, and `init` int32"):
        solve(problem)


@pytest.mark.parametrize("engine", ["xla", "c"])
def test_a_key_may_be_the_sample(engine):
    """Also with a checkpoint; it draws what the noise would have drawn."""
    parts = {"F": lambda theta, omega, x: omega, "theta": 0.0, "omega": 0.0}
    inside = tc.problems.custom(
        **parts, G=lambda theta, omega, x: omega - theta + jax.random.normal(x), noise=lambda key: key
    )
    before = tc.problems.custom(**parts, G=lambda theta, omega, x: omega - theta + x, noise=jax.random.normal)
    np.testing.assert_allclose(*(solve(problem, engine=engine).theta for problem in (inside, before)), rtol=1e-12)


def test_a_learner_refuses_a_key_as_a_sample():
    learner = tc.Learner(lambda t, w, x: w, lambda t, w, x: w - t, tc.Standard(), 0.0, 0.0)
    with pytest.raises(tc.InputError, match="`x` must be a number or an array of numbers"):
        learner.update(jax.random.key(0))
