"""Records that no run made: what an experiment says must follow from them alone."""

import functools

import numpy as np
import pandas as pd

from twoclock.result import Result

METRICS = (
    "error", "gap", "gradient", "tracking", "least_probability", "guard_trips", "guard_held", "guard_clipped",
    "covered", "length", "warned", "refused", "seconds", "rival", "start", "arrived",
    "mean", "multiplier", "exploitability", "social_return",
)  # fmt: skip
# What intervals need, of one output.
INTERVALS = ("estimate", "scale", "effective", "block-estimate", "block-error", "block-correlation", "block-shift")
SEEDS = 12


def result(value, steps, diverged=0.0, wall=2.0):
    """A result whose every metric is value(k), times a factor of each seed's own that all methods share."""
    marks = np.unique([0, *np.geomspace(1, steps, 31).round().astype(int), *10 ** np.arange(1 + int(np.log10(steps)))])
    factor = np.random.default_rng(0).lognormal(sigma=0.3, size=SEEDS)
    values = np.outer(factor, [value(k) for k in marks]).ravel()
    seed, step = np.repeat(np.arange(SEEDS), len(marks)), np.tile(marks, SEEDS)
    tracked = {f"interval:{kind}:theta[0]": values for kind in INTERVALS}
    counts = {"interval:n": step.astype(float), "interval:block-freedom": 31.0, "interval:block-count": 32.0}
    frame = pd.DataFrame({"seed": seed, "step": step, **dict.fromkeys(METRICS, values), **tracked, **counts})
    spec = {
        "seeds": list(range(SEEDS)), "steps": steps, "wall_seconds": wall, "precision": "float64",
        "problem": {"name": "made up"}, "method": {"name": "made up"},
    }  # fmt: skip
    lost = np.arange(SEEDS) < round(diverged * SEEDS)
    return Result(np.zeros(SEEDS), np.zeros(SEEDS), frame, lost, np.full(SEEDS, steps), spec)


@functools.cache
def level(steps):
    """A result that falls like 1/k; no two methods differ by it."""
    return result(lambda k: 1 / (1 + k), steps)


def records(cases, value=None, diverged=lambda case, method: 0.0):
    """A result for every method of every case: ``value(case, method, k)``, ``diverged(case, method)`` of the seeds.

    Without a value all are level.
    """
    if value is None:
        return {name: dict.fromkeys(case.methods, level(case.steps)) for name, case in cases.items()}
    return {
        name: {
            label: result(lambda k, n=name, m=label: value(n, m, k), case.steps, diverged(name, label))
            for label in case.methods
        }
        for name, case in cases.items()
    }
