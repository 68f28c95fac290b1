"""The public interface, from its real signatures: each callable, and for each parameter a value that is right."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc

# Made by the library alone, from arguments that were checked before.
_CONTAINERS = {
    *(
        "Result",
        "Sweep",
        "ProgressEvent",
        "InputError",
        "Certificate",
        "Condition",
        "Constants",
        "InitialErrors",
        "CheckReport",
        "ConditionCheck",
        "Method",
        "Problem",
    ),
    *(
        "LimitLaw",
        "Log",
        "Value",
        "Agent",
        "SoftOperators",
        "LqrModel",
        "PolicyEvaluation",
        "SlowWalkSetting",
        "ConstrainedOptimum",
    ),
}
_BASES = ("Rbf", "Tiles", "Fourier", "Network")
LOG = {
    "state": np.arange(40) % 3, "action": np.arange(40) // 3 % 2, "reward": np.ones(40),
    "terminated": np.arange(40) % 10 == 9, "step": np.arange(40) % 10, "p": np.full(40, 0.5),
}  # fmt: skip
TRANSITION = {"x": 0, "u": 1, "x_next": 2, "reward": 1.0, "terminated": False, "truncated": False}
# Parts that only work inside a step, on numbers that a trace has checked.
_GAME = {"P": np.ones((1, 2, 2, 1)), "R": np.array([[[3.0, -1.0], [-1.0, 1.0]]]), "gamma": 0.5, "start": None}


def _pair(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.random.normal(key), jax.random.normal(key)


# Where the value of a parameter's name does not fit, or its default alone would be refused.
_FITTING: dict[str, dict[str, Any]] = {
    "certify": {"mu_h": 0.9},
    "theory.certify": {"mu_h": 0.9},
    "theory.check": {"mu_h": 0.9},
    "methods.ttsa": {"alpha": 0.1},
    "models.FiniteField": {"crowd": np.eye(3)},
    "models.MarkovGame": _GAME,
    "models.constrained_optimum": {"limit": 4.0},
    "problems.markov_game": _GAME,
    "problems.constrained_mdp": {"limit": 4.0},
    "problems.mean_field": {"model": tc.models.LinearQuadraticField()},
    "problems.bilevel": {"sampler": _pair},
    "problems.composite": {"sampler": _pair},
    "problems.minimax": {"loss": lambda x, y, z: jnp.sum(x * y) - jnp.sum(y**2) + jnp.sum(z)},
    "problems.with_trace": {"problem": tc.problems.boyan()},
    "agents.ConstrainedActorCritic": {"cost": lambda x, u, x_next, reward, terminated: float(reward)},
    "EntropyActorCritic.act": {"x": 0},
}
_INSIDE = {
    *("samplers.shuffle", "samplers.epoch", "samplers.common_length", "samplers.draw_indexed"),
    "problems.fischer_burmeister",
}


def right_values() -> dict[str, Any]:
    """A value for each required parameter, by name; small, so that a call that is right is quick."""
    result = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 5, 2)
    model = tc.models.Mdp(np.full((3, 2, 3), 1 / 3), np.ones((3, 2)), 0.9)
    loss = lambda x, y, z: jnp.sum((x - y) ** 2) + jnp.sum(y * z)  # noqa: E731
    return {
        "problem": tc.problems.quadratic(dim=2),
        "problems": {"a": tc.problems.quadratic(dim=2)},
        "method": tc.Fast(),
        "methods": {"b": tc.Fast()},
        "steps": 5,
        "seeds": 2,
        "structure": "pl",
        "L": 1.0,
        "mu_g": 0.9,
        "mu_h": 0.9,
        "c": 1.0,
        "key": jax.random.key(0),
        "mdp": model,
        "soft": tc.models.SoftMdp(np.full((3, 2, 3), 0.3), np.ones((3, 2)), np.full(3, 0.1), np.full(3, 1 / 3)),
        "cost": np.arange(6.0).reshape(3, 2) / 6,
        "limit": 2.0,
        "kappa": 0.5,
        "slack": 0.5,
        "width": 0.01,
        "lqr": tc.models.Lqr(np.eye(2) * 0.5, np.eye(2), np.eye(2), np.eye(2)),
        "features": np.eye(3),
        "target": np.full((3, 2), 0.5),
        "F": lambda t, w, x: t - w,
        "G": lambda t, w, x: w - x,
        "noise": jax.random.normal,
        "theta": 0.0,
        "omega": 0.0,
        "outer": loss,
        "inner": loss,
        "loss": loss,
        "sampler": lambda key: jax.random.normal(key, (2,)),
        "x": np.zeros(2),
        "y": np.zeros(2),
        "value": lambda p, s: p @ s,
        "params": np.zeros(3),
        "Q": np.eye(2),
        "R": np.eye(2),
        "A": np.eye(2) * 0.5,
        "B": np.eye(2),
        "P": np.full((3, 2, 3), 1 / 3),
        "r": np.ones((3, 2)),
        "gamma": 0.9,
        "temp": 0.1,
        "start": np.full(3, 1 / 3),
        "states": 3,
        "actions": 2,
        "data": np.zeros(8),
        "size": 2,
        "function": jax.random.normal,
        "alpha": "1/(k+1)",
        "beta": "1/(k+1)",
        "lam": "1/(k+1)",
        "square": 1.0,
        "mean_sq_feature_norm": 1.0,
        "space": {"alpha.c": (0.1, 1.0)},
        "budget": 400,
        "path": "/nowhere",
        "env": None,
        "result": result,
        "results": {"a": result, "b": result},
        "metric": "error",
        "log": tc.logs.read(LOG),
        "policy": np.full((3, 2), 0.5),
        "temperature": 0.1,
        "policy_ratio": 1.0,
        "u": 1,
        "seed": 0,
        "source": LOG,
        "mean": lambda s: np.zeros(len(s)),
        "covariance": 1.0,
        "folder": "/nowhere",
        "model": lambda x: x,
    }


def callables() -> dict[str, Callable[..., Any]]:
    """Every public function and class, and the methods of what they hand back, by name."""
    found = {name: getattr(tc, name) for name in tc.__all__ if name not in _CONTAINERS}
    for part in ("agents", "logs", "methods", "models", "problems", "samplers", "theory"):
        module = found.pop(part)
        names = getattr(module, "__all__", [name for name in dir(module) if not name.startswith("_")])
        found.update({f"{part}.{name}": getattr(module, name) for name in names if name not in _CONTAINERS})
    found.pop("logs.evaluate")  # it is tc.evaluate
    found.update({f"logs.features.{name}": _fitted(getattr(tc.logs.features, name)) for name in _BASES})
    found["evaluate with features"] = lambda log, policy, gamma, features, estimator, start, actions: tc.evaluate(
        tc.logs.read(LOG, actions=actions) if log is None else log, policy, gamma, features, estimator, start=start,
        bootstrap=0,
    )  # fmt: skip
    valued = tc.evaluate(tc.logs.read(LOG), np.full((3, 2), 0.5), 0.9, bootstrap=0)
    for name in ("report", "save", "__getitem__"):
        found[f"Value.{name}"] = getattr(valued, name)
    found.pop("plot", None)
    found["scan"] = _scan
    result = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 5, 2)
    grid = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0], "lam.c": [20.0, 40.0]})
    swept = tc.sweep({"a": tc.problems.quadratic(dim=2)}, {"b": grid}, 5, 2)
    for name in ("summary", "plot", "save"):
        found[f"Result.{name}"] = getattr(result, name)
    found["Result.interval"] = tc.solve(tc.problems.quadratic(dim=2), tc.Polyak(intervals=True), 50, 2).interval
    learner, regulator = _live()
    for name in ("update", "update_many", "interval", "save", "load"):
        found[f"Learner.{name}"] = getattr(learner, name)
    for name in ("act", "observe", "cost", "save", "load"):
        found[f"Regulator.{name}"] = getattr(regulator, name)
    actor = tc.agents.EntropyActorCritic(3, 2, 0.1)
    judge = tc.agents.Evaluator(1.0, np.eye(3), 0.9)
    for agent in (actor, judge):
        for name in ("act", "observe"):
            if hasattr(agent, name):
                found[f"{type(agent).__name__}.{name}"] = getattr(agent, name)
    for name in ("final", "best", "result", "plot_best", "plot_sensitivity", "plot_map", "load"):
        found[f"Sweep.{name}"] = getattr(swept, name)
    return {name: f for name, f in found.items() if callable(f) and name not in _INSIDE and not _is_warning(f)}


def _live() -> tuple[tc.Learner, tc.agents.Regulator]:
    """A learner and a regulator that have had a first sample."""
    learner = tc.Learner(lambda t, w, x: t - w, lambda t, w, x: w - x, tc.Fast(), 0.0, 0.0, intervals=True)
    learner.update_many(np.linspace(0.0, 1.0, 20))
    regulator = tc.agents.Regulator(np.eye(2), np.eye(1))
    for x in np.random.default_rng(0).normal(size=(20, 2)):
        regulator.observe(x, regulator.act(x), 0.5 * x)
    return learner, regulator


def _fitted(kind: Any) -> Callable[..., Any]:
    """A basis is checked where it meets a log."""

    @functools.wraps(kind, updated=())
    def use(**settings: Any) -> Any:
        return tc.evaluate(tc.logs.read(LOG), np.full((3, 2), 0.5), 0.9, kind(**settings), bootstrap=0, compare=False)

    use.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return use


def _own_step(carry: Any, x: Any) -> tuple[Any, None]:
    """A user's own step; what it raises for a wrong carry is the user's to see."""
    try:
        return carry + x, None
    except Exception as error:
        raise ZeroDivisionError(f"own making: {error}") from None


def _scan(**given: Any) -> Any:
    """`tc.scan`, which knows nothing of the package and refuses with a ValueError of one line."""
    try:
        return tc.scan(**given)
    except ValueError as error:
        raise (error if "\n" in str(error) else tc.InputError(str(error))) from None


def _is_warning(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)


def arguments(name: str, function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    """Right arguments for a callable: its own defaults, and values by name where it has none."""
    special: dict[str, dict[str, Any]] = {
        "grid": {"method": tc.Fast(), "alpha.c": [0.5]},
        "Result.summary": {"metric": "error", "confidence": 0.95},
        "Result.plot": {"metric": "error", "statistic": "mean"},
        "Sweep.final": {"metric": "error", "confidence": 0.95},
        "Sweep.best": {"metric": "error"},
        "Sweep.result": {"problem": "a", "method": "b alpha.c=0.5 lam.c=20"},
        "Sweep.plot_best": {"metric": "error", "statistic": "mean"},
        "Sweep.plot_map": {"metric": "error", "x": None, "y": None},
        "Sweep.plot_sensitivity": {"metric": "error", "setting": None},
        "Sweep.load": {"folder": "/nowhere"},
        "Result.save": {"path": "saved"},
        "Value.__getitem__": {"name": "policy"},
        "Value.report": {"folder": "reported"},
        "Value.save": {"folder": "kept"},
        "logs.read": {
            "source": dict(LOG),
            "state": "state",
            "action": "action",
            "reward": "reward",
            "next_state": None,
            "terminated": "terminated",
            "truncated": None,
            "episode": None,
            "step": "step",
            "propensity": "p",
            "actions": None,
            "on_bad": "raise",
        },
        "evaluate with features": {
            "log": None,
            "policy": np.full((3, 2), 0.5),
            "gamma": 0.9,
            "features": "rbf",
            "estimator": ["lstdq", "model"],
            "start": None,
            "actions": [0, 1],
        },
        "Result.interval": {"level": 0.95, "how": "random-scaling", "step": None},
        "Learner": {
            "F": lambda t, w, x: t - w,
            "G": lambda t, w, x: w - x,
            "method": tc.Fast(),
            "theta": 0.0,
            "omega": 0.0,
            "intervals": True,
            "measure": None,
            "precision": "float64",
            "bound": None,
            "engine": "auto",
            "example": 0.5,
        },
        "Learner.update": {"x": 0.5},
        "Learner.update_many": {"xs": np.zeros(3)},
        "Learner.save": {"path": "learnt"},
        "Regulator.observe": {"x": np.zeros(2), "u": np.zeros(1), "x_next": np.zeros(2)},
        "Regulator.save": {"path": "regulated"},
        "EntropyActorCritic.observe": {
            "x": 0,
            "u": 1,
            "x_next": 2,
            "reward": 1.0,
            "terminated": False,
            "truncated": False,
        },
        "Evaluator.observe": {"x": 0, "u": 1, "x_next": 2, "reward": 1.0, "terminated": False, "truncated": False},
        # Steps and seeds are left as they are: a thousand million steps of a user's own simulator are no fault.
        "agents.run": {
            "agent": tc.agents.Regulator(np.eye(1), np.eye(1)),
            "env": lambda x, u, rng: 0.5 * x + u + rng.normal(size=1),
            "marks": None,
            "progress": False,
            "checkpoint": None,
            "x0": np.zeros(1),
            "step_timeout": None,
            "processes": 1,
            "on": "local",
            "address": None,
            "checkpoint_every": 10.0,
        },
        "agents.fresh": {"agent": tc.agents.Regulator(np.eye(1), np.eye(1)), "seed": 1},
        "scan": {
            "step": _own_step,
            "init": 0.0,
            "xs": np.arange(3.0),
            "length": None,
            "reverse": False,
            "unroll": 1,
            "engine": "auto",
        },
        "models.from_gymnasium": {"env": "FrozenLake-v1"},
        "samplers.Separate": {"inner": jax.random.normal, "outer": jax.random.normal},
        "problems.exact": {"problem": tc.problems.baird()},
        "problems.composite": {
            "outer": lambda y, x: jnp.sum(y**2),
            "inner": lambda x, z: x + z,
            "sampler": _pair,
            "x": np.zeros(2),
        },
    }
    if name in special:
        return dict(special[name])
    given: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.name in ("steps", "seeds", "budget") or parameter.default is parameter.empty:
            given[parameter.name] = _FITTING.get(name, {}).get(parameter.name, known.get(parameter.name))
        else:
            given[parameter.name] = parameter.default
    return given | _FITTING.get(name, {})
