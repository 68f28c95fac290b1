"""Run agents on environments, seed by seed: the loop, its statistics, its checkpoints, and its executor."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from twoclock import storage
from twoclock.agents.env_adapters import (
    EnvAdapter,
    EnvironmentFault,
    Gymnasium,
    StepResult,
    Vectorised,
    make_adapter,
    named_error,
)
from twoclock.agents.protocol import Agent, LearnerAgent
from twoclock.executor import Channel, Executor, RemoteTraceback, TaskBatch, TaskTimeout, WorkerLost
from twoclock.intervals.batch_means import BlockMean
from twoclock.intervals.bootstrap import TRACKED
from twoclock.intervals.random_scaling import RunningMean
from twoclock.protocols import InputError, PyTree
from twoclock.storage.checkpoints import StaleCheckpoint, check_same_run
from twoclock.storage.run_identity import Identity, RunSpec
from twoclock.validation import run_args

T = TypeVar("T")
Saved = tuple[PyTree, dict[str, PyTree]] | None  # the state and the snapshot of an environment

# Names of the means: of the agent's own costs, of rewards, and of the returns of finished episodes.
COST, REWARD, RETURN = "mean_cost", "mean_reward", "mean_return"
# Half of each usual mark, so that a prolonged run has its sums there.
_HALVES = {mark // 2 for mark in run_args.log_marks(2**31 - 1)}
_FROM = " from step "
_LOOKS = 0.25  # seconds between two
# A state beyond this size is lost, and so is one that overflows from beyond its square root.
_LOST = 1e100


@dataclass(frozen=True)
class AgentJob:
    """The work of every seed of a run, in parts that can be sent to another process."""

    kind: Callable[..., Agent]  # of the agent, ``kind(**settings)``
    settings: Mapping[str, object]
    env: object  # as the user gave it, and x0
    x0: object
    spec: RunSpec
    what: Mapping[str, object]  # the environment and the agent, as text
    folder: Path | None = None  # of the checkpoints
    identity: Identity | str = ""  # of the run, for its checkpoints; or why it cannot be identified
    every: float = 10.0  # seconds between two checkpoints

    def describe_saved(self, seed: int | None) -> str:
        """The end of a message about a fault: what was saved, and where."""
        if self.folder is None:
            return "; nothing was saved: give `checkpoint` a folder, and what is learnt up to a fault is saved there"
        home = "" if seed is None else f"/seed-{seed}"
        onward = "the same call resumes there" if isinstance(self.identity, Identity) else "no call can resume from it"
        return f"; what was learnt lies in {self.folder}{home}, and {onward}"


@dataclass(frozen=True)
class SeedOutcome:
    """The outcome of a seed."""

    rows: list[dict[str, float]]  # one per mark
    theta: PyTree  # with a leading axis of length 1, as omega
    omega: PyTree
    diverged: bool
    last: int  # its last finite step
    notes: list[str]  # warnings about it


class Stopped(Exception):
    """A run was asked to stop; the argument is its step."""


class RewardStats:
    """Mean costs, rewards and returns of one seed.

    At mark m each mean is over the steps after m/2, so that recent learning shows in it. From half of the run on,
    ``RunningMean`` and ``BlockMean`` collect what its intervals need. ``kinds``: COST, REWARD or both; ``floors``: what
    a mean of a kind cannot be below.
    """

    def __init__(self, marks: Sequence[int], kinds: Sequence[str], floors: Mapping[str, float]) -> None:
        self.kinds, self.floors, self.skip = tuple(kinds), floors, marks[-1] // 2
        self._halves = _HALVES | {mark // 2 for mark in marks}
        self._sums = dict.fromkeys((*kinds, RETURN, "episodes"), 0.0)
        self._episode = 0.0
        self._at = {0: tuple(self._sums.values())}
        self._paths = {kind: RunningMean() for kind in kinds}
        self._blocks = {kind: BlockMean() for kind in kinds}
        self.step = 0

    def add(self, paid: dict[str, float], ended: bool) -> None:
        """Add a step: its cost and reward by kind, and whether an episode ended with it."""
        self.step += 1
        for kind, value in paid.items():
            self._sums[kind] += value
            if self.step > self.skip:
                self._paths[kind].add(value)
                self._blocks[kind].add(value)
        self._episode += paid.get(REWARD, 0.0)
        if ended:
            self._sums[RETURN] += self._episode
            self._sums["episodes"] += 1
            self._episode = 0.0
        if self.step in self._halves:
            self._at[self.step] = tuple(self._sums.values())

    def means(self) -> dict[str, float]:
        """The means at the present mark; where a prolonged run has no sums at half, they are over more than the later
        half."""
        half = max(step for step in self._at if step <= self.step // 2)
        since = {name: now - then for (name, now), then in zip(self._sums.items(), self._at[half], strict=True)}
        of = {kind: (since[kind], float(self.step - half)) for kind in self.kinds}
        if REWARD in self.kinds:
            of[RETURN] = since[RETURN], since["episodes"]
        return {kind: total / count if count else math.nan for kind, (total, count) in of.items()}

    def tracked(self) -> dict[str, float]:
        """The data for the intervals of the means."""
        found = {f"{TRACKED}n": float(max(self.step - self.skip, 0))}
        blocks = {kind: mean.statistics() for kind, mean in self._blocks.items()}
        for of_all in blocks.values():  # the same for all kinds, and without a name; first, as in a prolonged run
            counts = {"n": found[f"{TRACKED}n"], "freedom": of_all.freedom, "count": of_all.blocks}
            found |= {f"{TRACKED}block-{what}": float(value) for what, value in counts.items()}
        for kind, path in self._paths.items():
            name = f"{kind}{_FROM}{self.skip + 1:,} on"
            found[f"{TRACKED}estimate:{name}"] = path.mean
            found[f"{TRACKED}scale:{name}"] = path.scale
            found[f"{TRACKED}effective:{name}"] = path.effective
            found[f"{TRACKED}block-estimate:{name}"] = self._blocks[kind].estimate
            if kind in self.floors:
                found[f"{TRACKED}floor:{name}"] = self.floors[kind]
            for what in ("error", "correlation", "shift"):
                found[f"{TRACKED}block-{what}:{name}"] = float(getattr(blocks[kind], what)[0])
        return found

    def snapshot(self) -> dict[str, PyTree]:
        """All of it as arrays."""
        return {
            "at": np.asarray([self.step, self.skip, *self._at], int), "sums": np.asarray(list(self._at.values())),
            "now": np.asarray([*self._sums.values(), self._episode]),
            "paths": np.asarray([path.sums for path in self._paths.values()]),
            "blocks": np.asarray([blocks.numbers for blocks in self._blocks.values()]),
        }  # fmt: skip

    def restore(self, snapshot: dict[str, PyTree]) -> None:
        """Restore a snapshot; a path that has begun continues, also in a run with more steps."""
        self.step, skip, *halves = snapshot["at"].tolist()
        *sums, self._episode = snapshot["now"].tolist()
        self._sums = dict(zip(self._sums, sums, strict=True))
        self._at = {half: tuple(at) for half, at in zip(halves, snapshot["sums"].tolist(), strict=True)}
        if self.step in self._halves:  # of a run that is prolonged to twice its steps
            self._at[self.step] = tuple(sums)
        if self.step > self.skip:
            self.skip = skip
            paths = zip(self._paths, snapshot["paths"].tolist(), strict=True)
            self._paths = {kind: RunningMean(sums) for kind, sums in paths}
            blocks = zip(self._blocks, snapshot["blocks"].tolist(), strict=True)
            self._blocks = {kind: BlockMean(saved) for kind, saved in blocks}


class SeedRunner:
    """An agent, its rewards and its rows so far; the loop below steps its environment."""

    def __init__(self, job: AgentJob, seed: int) -> None:
        self.job, self.seed, self.marks = job, seed, job.spec.marks
        self.home = None if job.folder is None else job.folder / f"seed-{seed}"
        self.agent = job.kind(**{**job.settings, "seed": seed})
        if isinstance(self.agent, LearnerAgent):
            self.agent.quiet = True  # its warnings become notes of the outcome
        self.rows: list[dict[str, float]] = []
        self.step, self.diverged, self.notes = 0, False, list[str]()
        self.u: PyTree = None  # the action of an unfinished turn
        self._cost: Callable[[np.ndarray, np.ndarray], float] | None = getattr(self.agent, "stage_cost", None)
        self._stats: RewardStats | None = None

    @property
    def done(self) -> bool:
        return self.diverged or self.step == self.marks[-1]

    def learn(self, x: PyTree, u: PyTree, came: StepResult) -> None:
        """Learn from one step, and count its reward and cost."""
        if self._stats is None:
            self._stats = self._new_stats(came.reward is not None)
            self._mark()
        paid = {} if came.reward is None else {REWARD: came.reward}
        if self._cost is not None:
            paid[COST] = self._cost(np.asarray(x), np.asarray(u))
        self.agent.observe(x, u, *came)
        self._stats.add(paid, came.terminated or came.truncated)
        self.step += 1
        if self.agent.diverged or float(np.max(np.abs(came.x), initial=0.0)) > _LOST:
            self.step -= self.agent.diverged  # it did not learn from that step
            self.lose()
        else:
            self._mark()

    def lose(self) -> None:
        """Mark it as diverged; it stays where it is."""
        self.diverged = True
        self._stats = self._stats or self._new_stats(rewards=False)
        last = self.rows[-1] if self.rows else self._row()
        self.rows += [last] * (len(self.marks) - len(self.rows))

    def outcome(self) -> SeedOutcome:
        learnt = self.agent.result()
        notes = self.notes
        if isinstance(self.agent, LearnerAgent):
            notes = notes + [f"seed {self.seed}: {line}" for line in self.agent.warnings]
        return SeedOutcome(self.rows, learnt.theta, learnt.omega, self.diverged, self.step, notes)

    def _mark(self) -> None:
        if len(self.rows) < len(self.marks) and self.step == self.marks[len(self.rows)]:
            self.rows.append(self._row())

    def _row(self) -> dict[str, float]:
        last = self.agent.result().history.iloc[-1]
        own = {str(name): float(value) for name, value in last.items() if name not in ("seed", "step")}
        assert self._stats is not None
        intervals = {} if any(name.startswith(TRACKED) for name in own) else self._stats.tracked()
        return {**own, **self._stats.means(), **intervals}

    def _new_stats(self, rewards: bool) -> RewardStats:
        floors = {COST: 0.0} if isinstance(self.agent, LearnerAgent) else {}  # of the library's, costs are quadratic
        return RewardStats(self.marks, [REWARD] * rewards + [COST] * (self._cost is not None), floors)

    def save(self, x: PyTree, env: Mapping[str, PyTree]) -> None:
        """Save everything to its folder, atomically."""
        if self.home is None or self._stats is None:
            return
        names = list(self.rows[0]) if self.rows else []
        identity = self.job.identity.as_json() if isinstance(self.job.identity, Identity) else None
        about = {
            "identity": identity, "what": self.job.what, "step": self.step, "diverged": self.diverged,
            "rewards": REWARD in self._stats.kinds, "names": names, "notes": self.notes,
        }  # fmt: skip
        trees = {
            "about": np.asarray(json.dumps(about)), "x": None if x is None else np.asarray(x), "u": self.u,
            "env": dict(env), "stats": self._stats.snapshot(),
            "rows": np.asarray([[row[name] for name in names] for row in self.rows]),
        }  # fmt: skip
        self.agent.save(self.home, run=trees)

    def restore(self) -> Saved:
        """Restore the checkpoint, and return the state and the snapshot of the environment; None if there is none."""
        if self.home is None or not storage.is_complete(self.home):
            return None
        if not isinstance(self.job.identity, Identity):
            raise StaleCheckpoint(f"{self.home} cannot be resumed from: {self.job.identity}; use another folder")
        with storage.reading(self.home):
            saved = storage.load(self.home).trees.get("run")
            if saved is None:
                raise StaleCheckpoint(f"{self.home} was not written by a run; use another folder for `checkpoint`")
            about = json.loads(str(saved["about"]))
            there, spec, names, rows = about["identity"], self.job.spec, about["names"], saved["rows"].tolist()
            recorded = there["marks"]
            if there["steps"] < spec.steps:  # the run is prolonged, with its marks so far
                fits = {mark for mark in spec.marks if mark <= about["step"]} <= {*recorded}
                there = {**there, "steps": spec.steps, "marks": list(spec.marks) if fits else recorded}
            check_same_run(self.home, self.job.identity, self.job.what, there, about["what"])
            self.agent.restore(self.home)
            self.step, self.diverged, self.notes = about["step"], about["diverged"], about["notes"]
            self.u = jax.tree.map(lambda leaf: leaf[()], saved["u"])
            self._stats = self._new_stats(about["rewards"])
            self._stats.restore(saved["stats"])
            known = {mark: dict(zip(names, row, strict=True)) for mark, row in zip(recorded, rows, strict=False)}
            now = self._stats.tracked()
            if stale := {name for name in names if _FROM in name} - {*now}:  # none of these marks has an interval yet
                known = {m: {k: v for k, v in row.items() if k not in stale} | now for m, row in known.items()}
            wanted = [mark for mark in self.marks if mark <= self.step or self.diverged]
            self.rows = [known[mark if mark in known else max(known)] for mark in wanted]
        return saved["x"], saved["env"]


def _drive(lanes: Sequence[SeedRunner], env: EnvAdapter | Vectorised, channel: Channel, saved: Saved = None) -> None:
    """Run the agents of some seeds on their environment, a sample for each seed per turn.

    The loop ends when every seed is done. It reports progress, and checks whether to stop, about four times a second.
    After a fault, agent and environment are at the start of the turn, with the action that the agent chose.
    """
    only, job = lanes[0] if isinstance(env, EnvAdapter) else None, lanes[0].job
    us: list[PyTree] = [None] * len(lanes)  # finished lanes repeat their last action; its outcome is ignored

    def place_fault(error: EnvironmentFault, lane: SeedRunner | None) -> EnvironmentFault:
        if lane is None:
            return error.at(None, max(lane.step for lane in lanes))
        return error.at(lane.seed, lane.step, "" if only is None else job.describe_saved(lane.seed))

    def ask(function: Callable[..., T], *given: object, may_hang: bool = True) -> T:
        """Call the environment; an error in it is a fault of this seed and step."""
        step = max(lane.step for lane in lanes)
        channel.beat(step, may_hang)
        try:
            answer = function(*given)
        except EnvironmentFault as error:
            raise place_fault(error, only) from None
        except Exception as error:
            raise place_fault(EnvironmentFault(f"{env.what} raised {named_error(error)}"), only) from error
        channel.beat(step, False)
        return answer

    def consult(lane: SeedRunner, function: Callable[..., T], *given: object) -> T:
        """Call the agent; a state that it refuses is a fault of the environment."""
        try:
            return function(*given)
        except InputError as error:
            raise place_fault(EnvironmentFault(str(error)), lane) from error

    def save() -> None:
        if isinstance(env, EnvAdapter):
            lanes[0].save(env.x, env.snapshot())

    def turn() -> None:
        """Act, step and learn once for each seed."""
        xs = ask(env.states)
        for i, lane in enumerate(lanes):
            if not lane.done:
                lane.u = us[i] = lane.u if lane.u is not None else consult(lane, lane.agent.act, xs[i])
        turns = ask(env.step, us)
        for lane, x, (u, came) in zip(lanes, xs, turns, strict=True):
            if isinstance(came, StepResult) and not lane.done:
                consult(lane, lane.learn, x, u, came)
            elif isinstance(came, EnvironmentFault) and not lane.done:
                if float(np.max(np.abs(x), initial=0.0)) <= _LOST**0.5:
                    raise place_fault(came, lane)
                lane.lose()  # it was about to overflow
            lane.u = None
        us[:] = [u for u, _ in turns]

    # Replaying may take as long as all steps so far.
    if saved and isinstance(env, EnvAdapter) and not ask(env.restore, saved[1], saved[0], may_hang=False):
        lanes[0].notes.append(
            f"seed {lanes[0].seed} resumes at step {lanes[0].step:,} with a new episode: its environment, "
            "replayed, did not return to its state"
        )
        lanes[0].u = None
    looked, written = 0.0, time.monotonic()
    try:
        while not all(lane.done for lane in lanes):
            if (now := time.monotonic()) - looked > _LOOKS:
                looked = now
                for lane in lanes:
                    channel.report((lane.seed, lane.step, lane.diverged))
                if channel.stop():
                    raise Stopped(min(lane.step for lane in lanes))
                if now - written > job.every:
                    save()
                    written = time.monotonic()
            turn()
    except EnvironmentFault:
        if isinstance(env, EnvAdapter):
            env.rewind()
        save()
        raise
    except Stopped:
        save()
        raise
    save()


def check_actions(agent: Agent, env: EnvAdapter | Vectorised) -> None:
    """Refuse an environment whose actions an agent cannot choose."""
    if isinstance(agent, LearnerAgent) and isinstance(env, Gymnasium | Vectorised):
        is_box = hasattr(env.action_space, "low")
        if not is_box and agent.action_space == "continuous":
            raise InputError(
                f"`env` must take actions of a Box for {type(agent).__name__}, which chooses real numbers; it takes "
                f"{env.action_space}; for discrete actions there is tc.agents.EntropyActorCritic"
            )


def run_seed(shared: None, task: tuple[AgentJob, int], channel: Channel) -> SeedOutcome:
    """Run one seed from its start, or from its checkpoint, to its end; messages are (seed, step, diverged)."""
    job, seed = task
    lane = SeedRunner(job, seed)
    saved = lane.restore()
    if not lane.done:
        env = make_adapter(job.env, job.x0, seed, replayable=job.folder is not None)
        with closing(env):
            check_actions(lane.agent, env)
            _drive([lane], env, channel, saved)
    return lane.outcome()


def run_vectorised(job: AgentJob, channel: Channel) -> list[SeedOutcome]:
    """Run all seeds side by side on a vectorised environment, for as long as one of them has steps to take."""
    lanes, env = [SeedRunner(job, seed) for seed in job.spec.seeds], Vectorised(job.env, job.spec.seeds)
    check_actions(lanes[0].agent, env)
    _drive(lanes, env, channel)
    return [lane.outcome() for lane in lanes]


def run_seeds(
    executor: Executor,
    tasks: Sequence[tuple[AgentJob, int]],
    look: Callable[[int, int, bool], None],
    interrupted: Callable[[], bool],
) -> list[SeedOutcome]:
    """Run seeds on an executor; ``look`` gets a seed, the step it is at, and whether it has diverged.

    After a fault, or once interrupted, the others save what they have, and stop.
    """
    outcomes: dict[int, SeedOutcome] = {}
    faults: list[Exception] = []
    stopped_at = 0

    def report(number: int, message: object) -> None:
        if isinstance(message, tuple):
            look(*message)

    batch = TaskBatch(run_seed, None, tasks, report, lambda: bool(faults) or interrupted())
    events = executor.map(batch)
    with closing(events):
        for number, outcome in events:
            job, seed = tasks[number]
            if isinstance(outcome, Stopped):
                stopped_at = max(stopped_at, *outcome.args)
            elif isinstance(outcome, WorkerLost):
                timeout = isinstance(outcome, TaskTimeout) and f"step_timeout={outcome.seconds:g} seconds and was ended"
                how = f"the environment took more than {timeout}" if timeout else str(outcome)
                faults.append(EnvironmentFault(how).at(seed, outcome.step, job.describe_saved(seed)))
            elif isinstance(outcome, Exception):
                faults.append(outcome)
                if not isinstance(outcome, InputError) and isinstance(outcome.__cause__, RemoteTraceback):
                    faults[-1] = InputError(f"seed {seed}: {named_error(outcome)}")
                    faults[-1].__cause__ = outcome.__cause__
            else:
                outcomes[number] = outcome
                look(seed, job.spec.steps, outcome.diverged)
    if faults:
        raise faults[0]
    if len(outcomes) < len(tasks):
        raise Stopped(stopped_at)
    return [outcomes[number] for number in range(len(tasks))]
