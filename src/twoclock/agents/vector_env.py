"""A vectorised Gymnasium environment: the n-th of its environments is that of the n-th seed, each with its own agent.

One agent for all of them would see samples of many trajectories in turn, which nothing that remembers the last one (an
eligibility trace, a guard) could learn from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from twoclock.agents.env_adapters import episode_seed
from twoclock.agents.env_checks import EnvironmentFault, Kind, NotFinite, StepResult, named_error, number
from twoclock.agents.seed_runner import Job, Outcome, SeedRunner, Stopped, is_lost
from twoclock.protocols import InputError


def together(
    job: Job, seeds: Sequence[int], look: Callable[[int, int, bool], None], interrupted: Callable[[], bool]
) -> list[Outcome]:
    """All seeds side by side, for as long as one of them has steps to take."""
    lanes = [SeedRunner(job, seed) for seed in seeds]
    vector = _Vector(job.env, seeds)
    xs, turn, us = vector.reset(), 0, list[Any]()
    while not all(lane.done for lane in lanes):
        us = [us[i] if lane.done else lane.agent.act(xs[i]) for i, lane in enumerate(lanes)]
        us, came, xs_then = vector.step(us, turn)
        for i, lane in enumerate(lanes):
            if lane.done or came[i] is None:
                continue
            try:
                lane.take(xs[i], us[i], vector.checked(came[i]))
            except NotFinite as error:
                if not is_lost(xs[i]):
                    raise error.at(lane.seed, lane.step) from None
                lane.lose()
            except InputError as error:
                raise EnvironmentFault(str(error)).at(lane.seed, lane.step) from error
            if lane.done or turn % 1000 == 0:
                look(lane.seed, lane.step, lane.diverged)
        xs, turn = xs_then, turn + 1
        if interrupted():
            raise Stopped(min(lane.step for lane in lanes))
    return [lane.outcome() for lane in lanes]


class _Vector:
    """The environment, and which of its parts are between two episodes."""

    def __init__(self, env: Any, seeds: Sequence[int]) -> None:
        self.env, self.seeds = env, seeds
        space = env.single_action_space
        self._box = (space.low, space.high, space.dtype) if hasattr(space, "low") else None
        mode = getattr(env, "metadata", {}).get("autoreset_mode", "NextStep")
        self.mode = str(getattr(mode, "value", mode))
        self._ended = np.zeros(len(seeds), bool)

    def reset(self) -> list[Any]:
        given, _ = self._asked(0, self.env.reset, seed=[episode_seed(seed, 0) for seed in self.seeds])
        xs = list(given)
        self._kind = Kind.of(xs[0], "the first state")
        return [self._kind.check(x, "the first state") for x in xs]

    def step(self, us: list[Any], turn: int) -> tuple[list[Any], list[Any], list[Any]]:
        """Actions as they were taken, what came of each (None where an episode was begun), and the states after."""
        if self._box is not None:
            low, high, kind = self._box
            us = [np.clip(np.reshape(u, low.shape), low, high).astype(kind) for u in us]
        x, reward, terminated, truncated, info = self._asked(turn, self.env.step, np.asarray(us))
        ended = np.asarray(terminated) | np.asarray(truncated)
        final = info.get("final_obs") if self.mode == "SameStep" else None
        came: list[Any] = [
            None if self._ended[i] and self.mode == "NextStep"
            else (x[i] if final is None or not ended[i] else final[i], reward[i], terminated[i], truncated[i])
            for i in range(len(us))
        ]  # fmt: skip
        then = list(x)
        if self.mode == "Disabled" and ended.any():
            again, _ = self._asked(turn, self.env.reset, options={"reset_mask": ended})
            then = list(again)
        self._ended = ended
        return us, came, [self._state(one) for one in then]

    def checked(self, came: tuple[Any, ...]) -> StepResult:
        x, reward, terminated, truncated = came
        return StepResult(
            self._kind.check(x, "the state"), number(reward, "the reward"), bool(terminated), bool(truncated)
        )

    def _state(self, x: object) -> Any:
        """To act in; what is wrong with it is said where it is learnt from."""
        try:
            return self._kind.check(x, "the state")
        except NotFinite:
            return np.nan_to_num(np.asarray(x, float))

    def _asked(self, turn: int, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except Exception as error:
            raise EnvironmentFault(f"the vectorised environment raised {named_error(error)}").at(None, turn) from error
