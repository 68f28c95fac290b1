"""One seed on its way: an agent on its environment, step by step, kept so that it can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from twoclock import storage
from twoclock.agents.env_adapters import EnvAdapter, plant
from twoclock.agents.env_checks import EnvironmentFault, NotFinite, StepResult, named_error
from twoclock.agents.protocol import Agent
from twoclock.agents.reward_stats import COST, REWARD, Tally
from twoclock.intervals.bootstrap import TRACKED
from twoclock.protocols import InputError, PyTree
from twoclock.storage.checkpoints import StaleCheckpoint, check_same_run
from twoclock.storage.run_identity import Identity, RunSpec

_LOOKS = 0.25  # seconds between two
# A plant beyond this is lost, and so is one that leaves the finite numbers from half of the way there.
_LOST = 1e100


@dataclass(frozen=True)
class Job:
    """What every seed does, in parts that can travel to another process.

    Attributes:
        kind, settings: of the agent, ``kind(**settings)``.
        env, x0: as the user gave them.
        spec: steps, seeds and marks.
        identity, what: of the run, for its checkpoints; the second for people.
        folder: of the checkpoints; None for none.
        every: seconds between two.
    """

    kind: Callable[..., Agent]
    settings: Mapping[str, Any]
    env: Any
    x0: Any
    spec: RunSpec
    identity: Identity
    what: Mapping[str, Any]
    folder: Path | None = None
    every: float = 10.0

    def agent(self, seed: int) -> Agent:
        return self.kind(**{**self.settings, "seed": seed})

    def home(self, seed: int) -> Path | None:
        return None if self.folder is None else self.folder / f"seed-{seed}"

    def kept_up_to_now(self, seed: int | None) -> str:
        """For whoever reads of a fault."""
        if self.folder is None:
            return "; nothing was kept, give `checkpoint` a folder to keep what is learnt up to a fault"
        home = "" if seed is None else f"/seed-{seed}"
        return f"; what was learnt lies in {self.folder}{home}, and the same call goes on from there"


@dataclass(frozen=True)
class Outcome:
    """What a seed came to.

    Attributes:
        rows: one for each mark.
        theta, omega: what it learnt, with a leading axis of length 1.
        diverged: whether it did.
        last: its last finite step.
        notes: what should be said of it.
    """

    rows: list[dict[str, float]]
    theta: PyTree
    omega: PyTree
    diverged: bool
    last: int
    notes: list[str] = field(default_factory=list)


def is_lost(x: Any) -> bool:
    """Whether a plant in this state was about to leave the finite numbers by itself."""
    return float(np.max(np.abs(x), initial=0.0)) > _LOST**0.5


class Stopped(Exception):
    """Asked to stop; the argument is the step that it is at."""


class SeedRunner:
    """An agent, what it was paid and the rows of the marks so far; the environment is for others to drive."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.seed, self.marks = job, seed, job.spec.marks
        self.agent = job.agent(seed)
        self.rows: list[dict[str, float]] = []
        self.step, self.diverged, self.notes = 0, False, list[str]()
        self._costs = getattr(self.agent, "stage_cost", None)
        self._tally: Tally | None = None

    @property
    def done(self) -> bool:
        return self.diverged or self.step == self.marks[-1]

    def take(self, x: object, u: object, came: StepResult) -> None:
        """Learn from one step, and note what it was worth."""
        if self._tally is None:
            self._tally = self._new_tally(came.reward is not None)
            self._mark()
        self.agent.observe(x, u, *came)
        paid = {} if came.reward is None else {REWARD: came.reward}
        if self._costs is not None:
            paid[COST] = self._costs(np.asarray(x), np.asarray(u))
        self._tally.add(paid, came.terminated or came.truncated)
        self.step += 1
        if self.agent.diverged or float(np.max(np.abs(came.x), initial=0.0)) > _LOST:
            self.step -= self.agent.diverged  # that one it did not learn from
            self.lose()
        else:
            self._mark()

    def lose(self) -> None:
        """It has diverged, and stays where it is."""
        self.diverged = True
        self._tally = self._tally or self._new_tally(rewards=False)
        last = self.rows[-1] if self.rows else self._row()
        self.rows += [last] * (len(self.marks) - len(self.rows))

    def outcome(self) -> Outcome:
        learnt = self.agent.result()
        return Outcome(self.rows, learnt.theta, learnt.omega, self.diverged, self.step, self.notes)

    def _mark(self) -> None:
        if len(self.rows) < len(self.marks) and self.step == self.marks[len(self.rows)]:
            self.rows.append(self._row())

    def _row(self) -> dict[str, float]:
        last = self.agent.result().history.iloc[-1]
        own = {str(name): float(value) for name, value in last.items() if name not in ("seed", "step")}
        assert self._tally is not None
        return {**own, **self._tally.row(tracked=not any(name.startswith(TRACKED) for name in own))}

    def _new_tally(self, rewards: bool) -> Tally:
        return Tally(self.marks, [REWARD] * rewards + [COST] * (self._costs is not None))

    def save(self, x: object, plant: Mapping[str, PyTree]) -> None:
        """Keep all of it, in one instant."""
        home = self.job.home(self.seed)
        if home is None or self._tally is None:
            return
        names = list(self.rows[0]) if self.rows else []
        about = {
            "identity": self.job.identity.as_json(), "what": self.job.what, "step": self.step,
            "diverged": self.diverged, "rewards": REWARD in self._tally.kinds, "names": names, "notes": self.notes,
        }  # fmt: skip
        kept = {
            "about": np.asarray(json.dumps(about)), "x": None if x is None else np.asarray(x), "plant": dict(plant),
            "tally": self._tally.kept(), "rows": np.asarray([[row[name] for name in names] for row in self.rows]),
        }  # fmt: skip
        self.agent.save(home, run=kept)

    def restore(self) -> tuple[Any, dict[str, PyTree]] | None:
        """The state and what the environment kept, to go on from; None where there is nothing."""
        home = self.job.home(self.seed)
        if home is None or not storage.is_complete(home):
            return None
        kept = storage.load(home)[2].get("run")
        if kept is None:
            raise StaleCheckpoint(f"{home} was not written by a run; use another folder for `checkpoint`")
        about = json.loads(str(kept["about"]))
        check_same_run(home, self.job.identity, self.job.what, about["identity"], about["what"])
        self.agent.restore(home)
        self.step, self.diverged, self.notes = about["step"], about["diverged"], about["notes"]
        self.rows = [dict(zip(about["names"], row, strict=True)) for row in kept["rows"].tolist()]
        self._tally = self._new_tally(about["rewards"])
        self._tally.restore(kept["tally"])
        return kept["x"], kept["plant"]


def walk(
    job: Job,
    seed: int,
    look: Callable[[SeedRunner], None] = lambda lane: None,
    stop: Callable[[], bool] = lambda: False,
    beat: Callable[[int, bool], None] = lambda step, busy: None,
) -> Outcome:
    """One seed from its start, or from its checkpoint, to its end.

    Args:
        job: what to do.
        seed: for whom.
        look: called at the start, at the end, and about four times a second between.
        stop: asked as often; once it says yes, all is kept and ``Stopped`` raised.
        beat: told before and after the environment is asked for something.
    """
    lane = SeedRunner(job, seed)
    known = lane.restore()
    if not lane.done:
        env = plant(job.env, job.x0, seed, keep=job.folder is not None)
        try:
            _Walk(lane, env, beat).on(known, look, stop)
        finally:
            env.close()
    look(lane)
    return lane.outcome()


class _Walk:
    """A lane and its environment; x is the state that it is in, None between two episodes."""

    def __init__(self, lane: SeedRunner, env: EnvAdapter, beat: Callable[[int, bool], None]) -> None:
        self.lane, self.env, self.beat, self.x = lane, env, beat, None

    def on(
        self, known: tuple[Any, dict[str, PyTree]] | None, look: Callable[[SeedRunner], None], stop: Callable[[], bool]
    ) -> None:
        lane, looked, saved = self.lane, 0.0, time.monotonic()
        if known is not None:
            self.x, same = self.asked(self.env.restore, known[1], known[0])
            if not same:
                lane.notes.append(
                    f"seed {lane.seed} goes on from step {lane.step:,} with a new episode: its environment, replayed, "
                    "did not come back to where it was"
                )
        try:
            while not lane.done:
                if (now := time.monotonic()) - looked > _LOOKS:
                    look(lane)
                    looked = now
                    if stop():
                        raise Stopped(lane.step)
                    if now - saved > lane.job.every:
                        self.save()
                        saved = time.monotonic()
                self.one()
        except (EnvironmentFault, Stopped):
            self.save()  # the agent stands between two samples, the environment before the one that failed
            raise
        self.save()

    def one(self) -> None:
        """One step."""
        lane = self.lane
        if self.x is None:
            self.x = self.asked(self.env.reset)
        try:
            u = lane.agent.act(self.x)
            u, came = self.asked(self.env.step, self.x, u)
            lane.take(self.x, u, came)
        except NotFinite:
            if not is_lost(self.x):
                raise
            lane.lose()
            return
        except EnvironmentFault:
            raise
        except InputError as error:  # of the agent: a state that it cannot take
            raise self.fault(str(error)) from error
        self.x = None if came.terminated or came.truncated else came.x

    def asked(self, function: Callable[..., Any], *given: Any) -> Any:
        """What the environment answers; whatever goes wrong in it is a fault of this seed and step."""
        self.beat(self.lane.step, function != self.env.restore)  # which may take as long as all steps so far
        try:
            answer = function(*given)
        except EnvironmentFault as error:
            told = error.at(self.lane.seed, self.lane.step, self.lane.job.kept_up_to_now(self.lane.seed))
            raise (NotFinite(str(told), told.seed, told.step) if isinstance(error, NotFinite) else told) from None
        except Exception as error:
            raise self.fault(f"the environment raised {named_error(error)}") from error
        self.beat(self.lane.step, False)
        return answer

    def fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(what).at(self.lane.seed, self.lane.step, self.lane.job.kept_up_to_now(self.lane.seed))

    def save(self) -> None:
        self.lane.save(self.x, self.env.kept())
