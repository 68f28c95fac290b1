"""Run agents on environments, seed by seed: the loop, its checkpoints, and its executor."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from twoclock import storage
from twoclock.agents.env_adapters import EnvAdapter, Vectorised, make_adapter
from twoclock.agents.env_checks import EnvironmentFault, StepResult, named_error
from twoclock.agents.protocol import Agent
from twoclock.agents.reward_stats import COST, REWARD, RewardStats
from twoclock.executor import Channel, Executor, RemoteTraceback, TaskBatch, TaskTimeout, WorkerLost
from twoclock.intervals.bootstrap import TRACKED
from twoclock.protocols import InputError, PyTree
from twoclock.storage.checkpoints import StaleCheckpoint, check_same_run
from twoclock.storage.run_identity import Identity, RunSpec

T = TypeVar("T")

_LOOKS = 0.25  # seconds between two
# A plant beyond this is lost, and so is one that leaves the finite numbers from half of the way there.
_LOST = 1e100


@dataclass(frozen=True)
class AgentJob:
    """What every seed of a run does, in parts that can be sent to another process.

    Attributes:
        kind, settings: of the agent, ``kind(**settings)``.
        env, x0: as the user gave them.
        spec: steps, seeds and marks.
        identity, what: of the run, for its checkpoints; the second for people.
        folder: of the checkpoints; None for none.
        every: seconds between two.
    """

    kind: Callable[..., Agent]
    settings: Mapping[str, object]
    env: object
    x0: object
    spec: RunSpec
    identity: Identity
    what: Mapping[str, object]
    folder: Path | None = None
    every: float = 10.0

    def home(self, seed: int) -> Path | None:
        return None if self.folder is None else self.folder / f"seed-{seed}"

    def describe_saved(self, seed: int | None) -> str:
        """The end of a message about a fault: what of the run was saved, and where."""
        if self.folder is None:
            return "; nothing was kept, give `checkpoint` a folder to keep what is learnt up to a fault"
        home = "" if seed is None else f"/seed-{seed}"
        return f"; what was learnt lies in {self.folder}{home}, and the same call goes on from there"


@dataclass(frozen=True)
class SeedOutcome:
    """The outcome of a seed.

    Attributes:
        rows: one for each mark.
        theta, omega: what it learnt, with a leading axis of length 1.
        diverged: whether it did.
        last: its last finite step.
        notes: warnings about it.
    """

    rows: list[dict[str, float]]
    theta: PyTree
    omega: PyTree
    diverged: bool
    last: int
    notes: list[str] = field(default_factory=list)


class Stopped(Exception):
    """A run was asked to stop; the argument is the step that it is at."""


class SeedRunner:
    """An agent, its rewards and the rows of the marks so far; the loop below drives its environment."""

    def __init__(self, job: AgentJob, seed: int) -> None:
        self.job, self.seed, self.marks = job, seed, job.spec.marks
        self.agent = job.kind(**{**job.settings, "seed": seed})
        self.rows: list[dict[str, float]] = []
        self.step, self.diverged, self.notes = 0, False, list[str]()
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
        self.agent.observe(x, u, *came)
        paid = {} if came.reward is None else {REWARD: came.reward}
        if self._cost is not None:
            paid[COST] = self._cost(np.asarray(x), np.asarray(u))
        self._stats.add(paid, came.terminated or came.truncated)
        self.step += 1
        if self.agent.diverged or float(np.max(np.abs(came.x), initial=0.0)) > _LOST:
            self.step -= self.agent.diverged  # that one it did not learn from
            self.lose()
        else:
            self._mark()

    def lose(self) -> None:
        """Note that it has diverged; it stays where it is."""
        self.diverged = True
        self._stats = self._stats or self._new_stats(rewards=False)
        last = self.rows[-1] if self.rows else self._row()
        self.rows += [last] * (len(self.marks) - len(self.rows))

    def outcome(self) -> SeedOutcome:
        learnt = self.agent.result()
        return SeedOutcome(self.rows, learnt.theta, learnt.omega, self.diverged, self.step, self.notes)

    def _mark(self) -> None:
        if len(self.rows) < len(self.marks) and self.step == self.marks[len(self.rows)]:
            self.rows.append(self._row())

    def _row(self) -> dict[str, float]:
        last = self.agent.result().history.iloc[-1]
        own = {str(name): float(value) for name, value in last.items() if name not in ("seed", "step")}
        assert self._stats is not None
        return {**own, **self._stats.row(tracked=not any(name.startswith(TRACKED) for name in own))}

    def _new_stats(self, rewards: bool) -> RewardStats:
        return RewardStats(self.marks, [REWARD] * rewards + [COST] * (self._cost is not None))

    def save(self, x: PyTree, env: Mapping[str, PyTree]) -> None:
        """Write all of it to its folder, in one instant."""
        home = self.job.home(self.seed)
        if home is None or self._stats is None:
            return
        names = list(self.rows[0]) if self.rows else []
        about = {
            "identity": self.job.identity.as_json(), "what": self.job.what, "step": self.step,
            "diverged": self.diverged, "rewards": REWARD in self._stats.kinds, "names": names, "notes": self.notes,
        }  # fmt: skip
        trees = {
            "about": np.asarray(json.dumps(about)), "x": None if x is None else np.asarray(x), "env": dict(env),
            "stats": self._stats.snapshot(), "rows": np.asarray([[row[name] for name in names] for row in self.rows]),
        }  # fmt: skip
        self.agent.save(home, run=trees)

    def restore(self) -> tuple[PyTree, dict[str, PyTree]] | None:
        """Take up the checkpoint, and return the state and the snapshot of the environment; None if there is none."""
        home = self.job.home(self.seed)
        if home is None or not storage.is_complete(home):
            return None
        saved = storage.load(home).trees.get("run")
        if saved is None:
            raise StaleCheckpoint(f"{home} was not written by a run; use another folder for `checkpoint`")
        about = json.loads(str(saved["about"]))
        check_same_run(home, self.job.identity, self.job.what, about["identity"], about["what"])
        self.agent.restore(home)
        self.step, self.diverged, self.notes = about["step"], about["diverged"], about["notes"]
        self.rows = [dict(zip(about["names"], row, strict=True)) for row in saved["rows"].tolist()]
        self._stats = self._new_stats(about["rewards"])
        self._stats.restore(saved["stats"])
        return saved["x"], saved["env"]


class _Loop:
    """The one loop: agents of some seeds on the environment that serves them, a sample for each seed per turn."""

    def __init__(self, lanes: Sequence[SeedRunner], env: EnvAdapter | Vectorised, channel: Channel) -> None:
        self.lanes, self.env, self.channel, self.job = lanes, env, channel, lanes[0].job

    def resume(self, x: PyTree, snapshot: dict[str, PyTree]) -> None:
        """Bring the environment back to where it was."""
        lane = self.lanes[0]
        assert isinstance(self.env, EnvAdapter)
        if not self._ask(self.env.restore, snapshot, x, may_hang=False):  # which may take as long as all steps so far
            lane.notes.append(
                f"seed {lane.seed} goes on from step {lane.step:,} with a new episode: its environment, replayed, "
                "did not come back to where it was"
            )

    def run(self) -> None:
        """Until every seed is done. Report, and ask whether to stop, about four times a second."""
        looked, saved = 0.0, time.monotonic()
        us: list[PyTree] = [None] * len(self.lanes)
        try:
            while not all(lane.done for lane in self.lanes):
                if (now := time.monotonic()) - looked > _LOOKS:
                    looked = now
                    for lane in self.lanes:
                        self.channel.report((lane.seed, lane.step, lane.diverged))
                    if self.channel.stop():
                        raise Stopped(min(lane.step for lane in self.lanes))
                    if now - saved > self.job.every:
                        self.save()
                        saved = time.monotonic()
                us = self._turn(us)
        except (EnvironmentFault, Stopped):
            self.save()  # the agent stands between two samples, the environment before the one that failed
            raise
        self.save()

    def _turn(self, us: list[PyTree]) -> list[PyTree]:
        """Act, step and learn once for each seed; those that are done repeat their last action, which nobody sees."""
        xs = self._ask(self.env.states)
        for i, lane in enumerate(self.lanes):
            if not lane.done:
                us[i] = self._judge(lane, lane.agent.act, xs[i])
        turns = self._ask(self.env.step, us)
        for lane, x, (u, came) in zip(self.lanes, xs, turns, strict=True):
            if lane.done or came is None:
                continue
            if isinstance(came, StepResult):
                self._judge(lane, lane.learn, x, u, came)
            elif float(np.max(np.abs(x), initial=0.0)) > _LOST**0.5:  # it was about to leave the finite numbers
                lane.lose()
            else:
                raise self._fault(came, lane)
        return [u for u, _ in turns]

    def _ask(self, function: Callable[..., T], *given: object, may_hang: bool = True) -> T:
        """Call the environment; an error in it is a fault of this seed and step."""
        lane = self.lanes[0] if isinstance(self.env, EnvAdapter) else None
        step = max(lane.step for lane in self.lanes)
        self.channel.beat(step, may_hang)
        try:
            answer = function(*given)
        except EnvironmentFault as error:
            raise self._fault(error, lane) from None
        except Exception as error:
            raise self._fault(EnvironmentFault(f"{self.env.what} raised {named_error(error)}"), lane) from error
        self.channel.beat(step, False)
        return answer

    def _judge(self, lane: SeedRunner, function: Callable[..., T], *given: object) -> T:
        """Call the agent; a state that it cannot take is a fault of the environment."""
        try:
            return function(*given)
        except InputError as error:
            raise self._fault(EnvironmentFault(str(error)), lane) from error

    def _fault(self, error: EnvironmentFault, lane: SeedRunner | None) -> EnvironmentFault:
        if lane is None:
            return error.at(None, max(lane.step for lane in self.lanes))
        saved = self.job.describe_saved(lane.seed) if isinstance(self.env, EnvAdapter) else ""
        return error.at(lane.seed, lane.step, saved)

    def save(self) -> None:
        if isinstance(self.env, EnvAdapter):
            self.lanes[0].save(self.env.x, self.env.snapshot())


def run_seed(shared: None, task: tuple[AgentJob, int], channel: Channel) -> SeedOutcome:
    """Run one seed from its start, or from its checkpoint, to its end; messages are (seed, step, diverged)."""
    job, seed = task
    lane = SeedRunner(job, seed)
    saved = lane.restore()
    if not lane.done:
        env = make_adapter(job.env, job.x0, seed, replayable=job.folder is not None)
        try:
            loop = _Loop([lane], env, channel)
            if saved is not None:
                loop.resume(*saved)
            loop.run()
        finally:
            env.close()
    return lane.outcome()


def run_vectorised(job: AgentJob, channel: Channel) -> list[SeedOutcome]:
    """Run all seeds side by side on a vectorised environment, for as long as one of them has steps to take."""
    lanes = [SeedRunner(job, seed) for seed in job.spec.seeds]
    _Loop(lanes, Vectorised(job.env, job.spec.seeds), channel).run()
    return [lane.outcome() for lane in lanes]


def run_seeds(
    executor: Executor,
    tasks: Sequence[tuple[AgentJob, int]],
    look: Callable[[int, int, bool], None],
    interrupted: Callable[[], bool],
) -> list[SeedOutcome]:
    """Run seeds on an executor. After a fault, or once interrupted, the others save what they have, and stop.

    Args:
        executor: where they run.
        tasks: pairs of a job and a seed.
        look: called with a seed, the step it is at, and whether it has diverged.
        interrupted: asked often.
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
            elif isinstance(outcome, Exception):
                faults.append(_fault_of(job, seed, outcome))
            else:
                outcomes[number] = outcome
                look(seed, job.spec.steps, outcome.diverged)
    if faults:
        raise faults[0]
    if len(outcomes) < len(tasks):
        raise Stopped(stopped_at)
    return [outcomes[number] for number in range(len(tasks))]


def _fault_of(job: AgentJob, seed: int, error: Exception) -> Exception:
    """What to raise for a seed that failed: a lost worker is a fault of its environment."""
    if isinstance(error, WorkerLost):
        how = str(error)
        if isinstance(error, TaskTimeout):
            how = f"the environment took more than step_timeout={error.seconds:g} seconds and was ended"
        return EnvironmentFault(how).at(seed, error.step, job.describe_saved(seed))
    if isinstance(error, InputError) or not isinstance(error.__cause__, RemoteTraceback):
        return error
    fault = InputError(f"seed {seed}: {named_error(error)}")
    fault.__cause__ = error.__cause__
    return fault
