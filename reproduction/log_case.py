"""Many logs of a finite MDP, each evaluated: a case of an experiment that no run of two operators makes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from reproduction.experiment import Progress, Role
from twoclock import Result, __version__, evaluate
from twoclock.logs import read
from twoclock.models import Mdp
from twoclock.storage import Identity, Provenance

Policy = Float[np.ndarray, "s a"]


@dataclass(frozen=True, eq=False)
class Logged:
    """A finite MDP with a behaviour that is logged and a target to evaluate; discount 0 ends an episode."""

    mdp: Mdp
    start: Float[np.ndarray, " s"]
    behaviour: Policy
    target: Policy

    @property
    def gamma(self) -> float:
        return float(self.mdp.gamma.max())

    @property
    def truth(self) -> float:
        return float(self.start @ self.mdp.values(self.target))

    def draw(self, episodes: int, steps: int, seed: int, noise: float = 0.5) -> dict[str, np.ndarray]:
        """The columns of a log; episodes are cut off after so many steps, and rewards have noise."""
        mdp, rng = self.mdp, np.random.default_rng(seed)
        P, ends = mdp.P.cumsum(axis=2), np.broadcast_to(mdp.gamma == 0, mdp.P.shape)
        r = np.broadcast_to(mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None], mdp.P.shape)
        s = _pick(np.broadcast_to(self.start.cumsum(), (episodes, mdp.states)), rng)
        episode, rows = np.arange(episodes), []
        for t in range(steps):
            a = _pick(self.behaviour.cumsum(axis=1)[s], rng)
            after = _pick(P[s, a], rng)
            done = ends[s, a, after]
            earned = r[s, a, after] + noise * rng.standard_normal(len(s))
            rows.append((episode, np.full(len(s), t), s, a, earned, after, done, self.behaviour[s, a]))
            episode, s = episode[~done], after[~done]
            if not len(s):
                break
        columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        names = ("episode", "step", "state", "action", "reward", "next_state", "terminated", "propensity")
        return {name: column[order] for name, column in zip(names, columns, strict=True)}


def _pick(cumulative: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (cumulative < rng.random(len(cumulative))[:, None]).sum(axis=1).clip(max=cumulative.shape[1] - 1)


@dataclass(frozen=True, eq=False)
class LogCase:
    """Estimators compared on the same logs of one MDP.

    Args:
        world: what is logged.
        methods: label → name of an estimator.
        steps: episodes of a log.
        seeds: how many logs.
        longest: steps after which an episode is cut off.
        title: what the report calls the case.
    """

    world: Logged
    methods: Mapping[str, str]
    steps: int
    seeds: int
    longest: int
    title: str = ""
    role: Role = "compare"

    @property
    def lanes(self) -> int:
        return len(self.methods) * self.seeds

    @property
    def work(self) -> int:
        return self.steps * self.lanes

    @cached_property
    def identities(self) -> dict[str, Identity]:
        """By the numbers of the world and the library's version: the estimators are its code."""
        mdp, world = self.mdp_numbers, self.world
        parts = {
            "mdp": mdp, "start": world.start.tolist(), "target": world.target.tolist(), "steps": self.steps,
            "behaviour": world.behaviour.tolist(), "seeds": self.seeds, "longest": self.longest, "version": __version__,
        }  # fmt: skip
        return {label: Identity({**parts, "method": name}) for label, name in self.methods.items()}

    @property
    def mdp_numbers(self) -> list[object]:
        return [np.asarray(part).tolist() for part in (self.world.mdp.P, self.world.mdp.r, self.world.mdp.gamma)]

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, Result]:
        """Draw the logs and evaluate each with every estimator; a log is a seed, its episodes are the step."""
        truth, rows = self.world.truth, dict[str, list[dict[str, float]]]({label: [] for label in labels})
        for seed in range(self.seeds):
            columns = self.world.draw(self.steps, self.longest, seed)
            log = read(columns, next_state="next_state", episode="episode", step="step", propensity="propensity")
            for label in labels:
                began = time.perf_counter()
                v = evaluate(
                    log, self.world.target, self.world.gamma, estimator=self.methods[label], bootstrap=0, compare=False
                )
                main = v.table.iloc[0]
                rows[label].append(
                    {
                        "seed": seed, "step": self.steps, "error": (main["value"] - truth) ** 2,
                        "covered": float(main["low"] <= truth <= main["high"]), "length": main["high"] - main["low"],
                        "warned": float(len(v.warnings) > 0), "seconds": time.perf_counter() - began,
                        "estimate": main["value"],
                    }
                )  # fmt: skip
            progress(self.steps * (seed + 1) // self.seeds, 0)
        return {label: self._result(found, self.methods[label]) for label, found in rows.items()}

    def _result(self, rows: list[dict[str, float]], name: str) -> Result:
        history = pd.DataFrame(rows).drop(columns="estimate")
        history[["seed", "step"]] = history[["seed", "step"]].astype(int)
        estimates = np.array([[row["estimate"]] for row in rows])
        made = Provenance.here(float(history["seconds"].sum())).as_dict()
        spec = {
            "problem": {"name": self.title}, "method": {"name": name}, "steps": self.steps, "marks": [self.steps],
            "seeds": list(range(self.seeds)), "precision": "float64", **made,
        }  # fmt: skip
        lost, last = np.zeros(self.seeds, bool), np.full(self.seeds, self.steps)
        return Result(estimates, np.zeros_like(estimates), history, lost, last, spec)
