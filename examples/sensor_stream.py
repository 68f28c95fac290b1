"""Calibrate a sensor on a stream: a slope and an offset, with intervals that narrow as the samples come in.

A cheap sensor reads y = a·x + b + noise where a reference instrument reads x. The readings come one at a time. The
learner steps along the gradient of the squared error; there is no second variable, so ω is empty. It has intervals of
a and b after any number of readings. It is saved while it learns, and resumes bit for bit after a restart.

    python examples/sensor_stream.py [samples]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

import twoclock as tc

TRUE = np.array([0.8, -0.3])


def F(theta: Any, omega: Any, x: Any) -> Any:
    """Half the gradient of (a·x + b − y)²."""
    features = jnp.stack([x["reference"], jnp.ones_like(x["reference"])])
    return (jnp.sum(theta * features) - x["reading"]) * features


def G(theta: Any, omega: Any, x: Any) -> Any:
    return omega


def readings(samples: int, seed: int = 0) -> Iterator[dict[str, float]]:
    rng = np.random.default_rng(seed)
    for _ in range(samples):
        x = rng.uniform(-2, 2)
        yield {"reference": x, "reading": TRUE[0] * x + TRUE[1] + 0.5 * rng.standard_normal()}


def main(samples: int = 20_000) -> pd.DataFrame:
    """Learn, print the intervals at a few marks, and return the last."""
    step = tc.Power(0.3, p=0.6, shift=10.0)
    learner = tc.Learner(F, G, tc.Standard(step, step), theta=np.zeros(2), intervals=True)
    with tempfile.TemporaryDirectory() as folder:
        for i, x in enumerate(readings(samples)):
            learner.update(x)
            if i == samples // 2:  # a restart, as after a power cut
                learner.save(folder)
                learner = tc.Learner.load(folder, F, G)
    for step_ in [mark for mark in (100, 1000, 10_000) if mark < samples]:
        print(f"after {step_:,}:\n{learner.interval(step=step_).to_string(index=False)}")
    found = learner.interval()
    print(f"after {samples:,}, truth {TRUE.tolist()}:\n{found.to_string(index=False)}")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
