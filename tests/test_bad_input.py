"""Each wrong argument gets one line that names it, the rule and the remedy."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

GOOD = tc.problems.quadratic(dim=2)


def custom(**changed):
    parts = {
        "F": lambda t, w, x: t, "G": lambda t, w, x: w, "noise": lambda key: jax.random.normal(key),
        "theta": np.zeros(2), "omega": np.zeros(3),
    }  # fmt: skip
    return tc.problems.custom(**{**parts, **changed})


def run(problem=GOOD, method=None, **options):
    return tc.solve(problem, method or tc.Fast(), **{"steps": 10, "seeds": 2, **options})


CASES = {
    "steps 0": (lambda: run(steps=0), "`steps` must lie in 1"),
    "steps -1": (lambda: run(steps=-1), "`steps` must lie in 1"),
    "steps too many": (lambda: run(steps=2**31), "`steps` must lie in 1 … 2³¹−1"),
    "steps text": (lambda: run(steps="many"), "`steps` must be a whole number, got 'many'"),
    "seeds 0": (lambda: run(seeds=0), "`seeds` must be a positive count"),
    "seeds none": (lambda: run(seeds=[]), "`seeds` must be different integers"),
    "seeds twice": (lambda: run(seeds=[1, 1]), "`seeds` must be different integers"),
    "marks beyond": (lambda: run(marks=[20]), "`marks` must lie in 0 … steps=10"),
    "precision": (lambda: run(precision="half"), "`precision` must be 'float64' or 'float32'"),
    "bound": (lambda: run(bound=-1.0), "`bound` must be positive"),
    "no problem": (lambda: run(3), "`problem` must have init, noise, draw, F and G"),
    "no method": (lambda: run(method=0.1), "`method` must have init, step and estimate"),
    "no methods": (lambda: tc.solve(GOOD, {}), "`method` must name at least one"),
    "nan start": (lambda: run(custom(theta=np.asarray([0.0, np.nan]))), "`theta` must start from finite numbers"),
    "nan leaf": (
        lambda: run(custom(F=lambda t, w, x: t, theta={"a": np.nan})),
        r"`theta\['a'\]` must start from finite",
    ),
    "integer start": (lambda: run(custom(theta=np.zeros(2, int))), "`theta` must be floating point, got int64"),
    "F shape": (
        lambda: run(custom(F=lambda t, w, x: jnp.zeros(5))),
        r"`F` must return the shapes of theta: at `theta` it returns \(5,\), theta has \(2,\)",
    ),
    "G leaf": (
        lambda: run(custom(omega={"y": np.zeros(3)}, G=lambda t, w, x: {"y": jnp.zeros(4)})),
        r"at `omega\['y'\]` it returns \(4,\), omega has \(3,\)",
    ),
    "F structure": (
        lambda: run(custom(F=lambda t, w, x: {"a": t})),
        r"`F` must return the structure of theta, \(2,\), got \{'a': \(2,\)\}",
    ),
    "vector schedule": (
        lambda: run(method=tc.Fast(alpha=lambda k: jnp.ones(3))),
        r"`alpha` must give one number a step, got shape \(3,\)",
    ),
    "vector schedule inside": (
        lambda: run(method=tc.Polyak(tc.Standard(alpha=lambda k: jnp.ones(3)))),
        r"`alpha` must give one number a step",
    ),
    "F not a function": (
        lambda: inspect.unwrap(tc.problems.custom)(F=1.0, G=max, noise=max, theta=0.0, omega=0.0),
        r"`custom\(F=…\)` must be a function, got float",
    ),
    "folder": (lambda: run(checkpoint="/proc/nowhere"), "the folder /proc/nowhere cannot be written"),
    "quadratic mu": (
        lambda: tc.problems.quadratic(mu_h=2.0),
        r"`mu_h` must lie in \(0, 1\], got 2; top=1 is the largest",
    ),
    "quadratic dim": (lambda: tc.problems.quadratic(dim=0), "`dim` must be at least 1"),
    "quadratic sigma": (lambda: tc.problems.quadratic(sigma=-1.0), "`sigma` must be a finite number"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case):
    make, words = CASES[case]
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200
