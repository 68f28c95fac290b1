"""Selection of the engine of a run: the one asked for, or the one likely to finish first; XLA wherever another cannot.

The choice depends on the size of a run and on the machine, never on what ran before: the same call gives the same bits.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import jax

from twoclock import validation
from twoclock.engine import run_batch
from twoclock.engine.c_engine import CEngine
from twoclock.engine.cuda_engine import CudaEngine
from twoclock.engine.protocol import Engine, Program, is_table
from twoclock.engine.run_batch import Lanes
from twoclock.engine.xla_engine import Xla, start

EngineName = Literal["auto", "c", "cuda", "xla"]
NAMES = get_args(EngineName)
VARIABLE = "TWOCLOCK_ENGINE"

# What a step costs on XLA, in seconds: for each group of lanes, for each lane, and for each number in a lane's state;
# and the seconds from which a run is worth a program of its own, whose making takes about as long.
_CPU_COST = (1.5e-6, 8e-8, 2.5e-9)
_GPU_COST = (4e-5, 1e-9, 0.0)
WORTH_COMPILING = 1.5


@dataclass(frozen=True)
class Chosen:
    """An engine's programs.

    Attributes:
        name: the engine's.
        programs: together they advance all lanes.
        reason: why it is not another engine; None where it is the one asked for.
    """

    name: str
    programs: Sequence[Program]
    reason: str | None = None

    @property
    def words(self) -> str:
        return self.name if self.reason is None else f"{self.name}, because {self.reason}"


def choose(asked: str | Engine, work: Lanes, steps: int, block: int | None = None) -> Chosen:
    """Choose an engine for these lanes and compile them.

    Args:
        asked: a name, or an engine itself; "auto" leaves it to ``TWOCLOCK_ENGINE`` and to the size of the run.
        steps: of the whole run, so that one that is resumed goes on as it began.
        block: for XLA.
    """
    if not isinstance(asked, str):
        return _compile(asked, work, block, warn=False)
    name = resolve(asked)
    if name != "auto":
        engines: dict[str, Engine] = {"c": CEngine(), "cuda": CudaEngine(), "xla": Xla(block)}
        return _compile(engines[name], work, block, warn=True)
    on_gpu = jax.default_backend() == "gpu"
    if predict_seconds(work, steps, on_gpu) < WORTH_COMPILING:
        return _with_xla(work, block, "the run is too short to be worth compiling for")
    return _compile(CudaEngine() if on_gpu else CEngine(), work, block, warn=False)


def resolve(asked: object) -> str:
    """Check the name of an engine; "auto" is what the environment says."""
    names = {name: name for name in NAMES}
    name = validation.lookup(names, asked, "engine")
    return validation.lookup(names, os.environ.get(VARIABLE) or "auto", VARIABLE) if name == "auto" else name


def predict_seconds(work: Lanes, steps: int, on_gpu: bool) -> float:
    """Seconds that XLA would take for the steps, roughly."""
    per_group, per_lane, per_number = _GPU_COST if on_gpu else _CPU_COST
    count, seeds = work.shape
    methods, parts = run_batch.partition(count, seeds, len(jax.devices()) if on_gpu else None)
    state = jax.eval_shape(lambda: start(work)).state
    # Of a table a step touches a few rows.
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state, is_leaf=is_table) if not is_table(leaf))
    return steps * (len(methods) * len(parts) * per_group + count * seeds * per_lane + numbers * per_number)


def fall_back(work: Lanes, block: int | None, name: str, reason: str) -> Chosen:
    """Take XLA in place of an engine that failed, with a warning."""
    warnings.warn(f"engine {name!r}: {reason}; the run goes on with 'xla'", stacklevel=2)
    return _with_xla(work, block, reason)


def _compile(engine: Engine, work: Lanes, block: int | None, warn: bool) -> Chosen:
    programs = engine.compile(work)
    if not isinstance(programs, str):
        return Chosen(engine.name, programs)
    return fall_back(work, block, engine.name, programs) if warn else _with_xla(work, block, programs)


def _with_xla(work: Lanes, block: int | None, reason: str) -> Chosen:
    return Chosen("xla", Xla(block).compile(work), reason)
