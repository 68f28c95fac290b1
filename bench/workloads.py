"""The workloads of the engines: lanes that run from step 0, with nothing recorded."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from tabular import GAIN_STEP, METHOD, NUMBERS, TabularGain, TabularTdc, random_tables

import twoclock as tc
from twoclock.engine.engines import start
from twoclock.engine.loop import advance_all
from twoclock.engine.protocol import Engine, Program
from twoclock.engine.run_batch import Lanes, make_instances


def figure_1():
    return TabularTdc(**random_tables()), METHOD


def three_levels():
    method = dataclasses.replace(METHOD, beta=(NUMBERS[1], GAIN_STEP))
    return TabularGain(**random_tables()), method


def lqr():
    A = np.array([[0.5, 0.01, 0], [0.01, 0.5, 0.01], [0, 0.01, 0.5]])
    B = np.array([[1, 0.1], [0, 0.1], [0, 0.1]])
    model = tc.models.Lqr(A, B, np.eye(3), np.eye(2))
    return tc.problems.lqr_actor_critic(model, sigma=1.0), tc.Fast("0.02/(k+100)", "0.2/(k+100)", "20/(k+100)")


def entropy_mdp():
    rng = np.random.default_rng(0)
    P = rng.random((5, 3, 5))
    model = tc.models.Mdp(P / P.sum(-1, keepdims=True), rng.random((5, 3)), 0.8)
    return tc.problems.entropy_mdp(model, temp=0.1), tc.Fast("1/(k+100)", "10/(k+100)", "20/(k+100)")


def readme():
    problem = tc.problems.custom(
        F=lambda theta, omega, x: omega - 1,
        G=lambda theta, omega, x: omega - theta + x,
        noise=lambda key: jax.random.normal(key),
        theta=0.0,
        omega=0.0,
    )
    return problem, tc.Fast(alpha="2/(k+20)", beta="8/(k+40)", lam="40/(k+160)")


def quadratic_20():
    return tc.problems.quadratic(dim=20), tc.Fast()


def large_mdp():
    return TabularTdc(**random_tables(100, 100, 30)), METHOD


class Timed:
    """Lanes of one workload on one engine, compiled; ``walk(steps)`` runs them from the start."""

    def __init__(self, workload, seeds: int, engine: Engine) -> None:
        problem, method = workload()
        numbers = tuple(range(seeds))
        self.lanes = Lanes.of(make_instances(problem, numbers), [method], numbers, None)
        programs = engine.compile(self.lanes)
        if isinstance(programs, str):
            raise RuntimeError(programs)
        self.programs: list[Program] = list(programs)
        carry = start(self.lanes)
        self.begin = [program.place(carry) for program in self.programs]

    def walk(self, steps: int):
        """The carries after ``steps`` steps, one per program, each on its own thread."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max(len(self.programs), 1)) as pool:
            begin = jax.tree.map(lambda leaf: leaf.copy(), self.begin)  # a program may use it up
            return advance_all(pool, self.programs, begin, 0, steps)

    def theta(self, steps: int) -> np.ndarray:
        parts = [np.asarray(jax.tree.leaves(carry.state.theta)[0])[0] for carry in self.walk(steps)]
        return np.concatenate(parts)

    def numbers(self, steps: int) -> np.ndarray:
        """All floating-point numbers that a seed carries, θ first; seeds × numbers."""
        seeds = len(self.lanes.seeds)
        leaves = [np.concatenate(parts, axis=1) for parts in zip(*map(jax.tree.leaves, self.walk(steps)), strict=True)]
        return np.concatenate([leaf.reshape(seeds, -1) for leaf in leaves if leaf.dtype == float], axis=1)
