"""Episodes as Gymnasium and Minari keep them, T + 1 observations around T actions, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twoclock.logs.sources import Columns
from twoclock.protocols import InputError
from twoclock.validation import shown

NAMES = {
    "state": "state", "action": "action", "reward": "reward", "next_state": "next_state", "terminated": "terminated",
    "truncated": "truncated", "episode": "episode", "propensity": "propensity",
}  # fmt: skip


def is_episodes(source: object) -> bool:
    return (
        hasattr(source, "iterate_episodes")
        or (isinstance(source, str) and _is_minari_id(source))
        or (isinstance(source, Sequence) and not isinstance(source, (str, bytes)))
    )


def _is_minari_id(text: str) -> bool:
    """``name-v0`` or ``namespace/name-v0``, where no such file is."""
    stem, _, version = text.rpartition("-v")
    return bool(stem) and version.isdigit() and not Path(text).exists()


def columns(source: Any) -> Columns:
    """The columns of a Minari dataset, of its id, or of a list of episodes.

    An episode has ``observations`` (T + 1), ``actions``, ``rewards``, ``terminations``, ``truncations`` and perhaps
    ``infos`` with ``action_log_prob`` as each step returned it, as attributes or keys; or it is a list of steps (state,
    action, reward, next_state, terminated, truncated).
    """
    if isinstance(source, str):
        source = _minari(source)
    episodes = source.iterate_episodes() if hasattr(source, "iterate_episodes") else source
    return joined(_episode(number, episode) for number, episode in enumerate(episodes))


def joined(parts: Iterable[Columns]) -> Columns:
    found = list(parts)
    if not found:
        raise InputError("`source` has no episodes")
    with_propensity = all("propensity" in part for part in found)
    names = [name for name in found[0] if name != "propensity" or with_propensity]
    return {name: np.concatenate([part[name] for part in found]) for name in names}


def _minari(name: str) -> Any:
    try:
        import minari
    except ImportError:
        raise InputError(f"`source` {name} is a Minari id; install it with `pip install 'twoclock[minari]'`") from None
    try:
        return minari.load_dataset(name, download=False)
    except (FileNotFoundError, ValueError) as error:
        why = " ".join(str(error).split())
        raise InputError(
            f"`source` {name} is no local Minari dataset: {why:.150}; `minari download` it first"
        ) from None


def _episode(number: int, episode: object) -> Columns:
    if isinstance(episode, Sequence) and not isinstance(episode, (str, bytes)):
        return _steps(number, episode)
    parts = {}
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        value = episode.get(name) if isinstance(episode, Mapping) else getattr(episode, name, None)
        if value is None:
            raise InputError(f"`source[{number}]` must have {name}, as Gymnasium's episodes in Minari have")
        parts[name] = _array(number, name, value)
    observations, steps = parts["observations"], len(parts["actions"])
    if len(observations) != steps + 1:
        raise InputError(
            f"`source[{number}]` must have one observation more than actions, got {len(observations)} and {steps}"
        )
    found = {
        "state": observations[:-1], "action": parts["actions"], "reward": parts["rewards"],
        "next_state": observations[1:], "terminated": parts["terminations"], "truncated": parts["truncations"],
        "episode": np.full(steps, number),
    }  # fmt: skip
    infos = episode.get("infos") if isinstance(episode, Mapping) else getattr(episode, "infos", None)
    if infos and "action_log_prob" in infos:  # what reset and each step returned: the first goes with no action
        logs = np.asarray(infos["action_log_prob"], float)
        if logs.shape != (steps + 1,):
            raise InputError(
                f"`source[{number}].infos['action_log_prob']` must have {steps + 1} entries, got {logs.shape}"
            )
        found["propensity"] = np.exp(logs[1:])
    return found


def _array(number: int, name: str, value: object) -> np.ndarray:
    if isinstance(value, (Mapping, tuple)):
        raise InputError(
            f"`source[{number}].{name}` is a {type(value).__name__} of parts; flatten the space first, as with "
            "gymnasium.wrappers.FlattenObservation"
        )
    return np.asarray(value)


def _steps(number: int, steps: Sequence[Any]) -> Columns:
    names = ("state", "action", "reward", "next_state", "terminated", "truncated")
    for step in steps:
        if not isinstance(step, (tuple, list)) or len(step) != len(names):
            raise InputError(f"`source[{number}]` must be steps ({', '.join(names)}), got {shown(step)}")
    found = {name: np.asarray([step[i] for step in steps]) for i, name in enumerate(names)}
    return {**found, "episode": np.full(len(steps), number)}
