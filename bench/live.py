"""Time a learner takes for one sample: the README's problem, on one core.

``update`` one by one, its median and 99th percentile; ``update_many``; the same with intervals; a regulator's turn
of ``act`` and ``observe``; and, to compare with, a method's step compiled by ``jax.jit`` and called from Python.
"""

from __future__ import annotations

import time

import jax
import numpy as np
from results import report

import twoclock as tc

METHOD = tc.Fast(alpha="2/(k+20)", beta="8/(k+40)", lam="40/(k+160)")


def F(theta, omega, x):
    return omega - 1


def G(theta, omega, x):
    return omega - theta + x


def each(call, inputs):
    """Microseconds of a call, the median and the 99th percentile."""
    took = np.empty(len(inputs))
    for i, x in enumerate(inputs):
        began = time.perf_counter_ns()
        call(x)
        took[i] = time.perf_counter_ns() - began
    return {"µs per sample": np.median(took) / 1e3, "99 %, µs": np.quantile(took, 0.99) / 1e3}


def by_hand(x):
    """A state that is carried from call to call."""
    with jax.enable_x64(True):
        by_hand.state = by_hand.step(by_hand.state, x, np.int32(0))


def main() -> None:
    x = np.random.default_rng(0).normal(size=2_000_000)
    rows = []
    for label, options in {"Learner": {}, "Learner, intervals": {"intervals": True}}.items():
        learner = tc.Learner(F, G, METHOD, 0.0, 0.0, example=0.0, **options)
        single = each(learner.update, x[:20_000])
        began = time.perf_counter()
        learner.update_many(x)
        batch = (time.perf_counter() - began) / len(x) * 1e6
        rows.append({"call": label, **single, "µs per sample of a batch": batch})
    with jax.enable_x64(True):
        by_hand.state = METHOD.init(0.0, 0.0)
        by_hand.step = jax.jit(lambda state, x, k: METHOD.step(F, G, state, x, k))
    by_hand(x[0])
    rows.append({"call": "jax.jit(method.step)", **each(by_hand, x[:2_000])})
    agent = tc.agents.Regulator(np.eye(3), np.eye(2))
    states = np.random.default_rng(0).normal(size=(3_000, 3))

    def turn(x):
        agent.observe(x, agent.act(x), x)

    turn(states[0])
    rows.append({"call": "Regulator, act and observe", **each(turn, states)})
    report("live", "a learner's time per sample, one core", rows)


if __name__ == "__main__":
    main()
