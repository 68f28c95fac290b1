"""The residual of a result: its distance from a solution, estimated from samples alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng, validation
from twoclock.engine import engines
from twoclock.engine.protocol import LaneState
from twoclock.engine.run_batch import Lanes, make_instances
from twoclock.protocols import InputError, Problem, ProblemSource, PyTree
from twoclock.result import Result
from twoclock.storage.run_identity import describe
from twoclock.tuning.fresh_samples import FrozenState, Probe, hide_truth, read_samples, samples_used
from twoclock.tuning.residual_estimate import estimate_residuals
from twoclock.validation import run_args

if TYPE_CHECKING:
    import pandas as pd

_LEAST, _HORIZON = 1000, 2**31 - 1
_CLEARLY = 0.99  # as a share of the start's value: with a larger one the estimate is no nearer than the start
_FREEDOM = 15  # of the standard error from 16 batches


@dataclass(frozen=True, repr=False)
class Residual:
    """An estimated distance from a solution.

    Attributes:
        value: the mean over seeds of the estimated ‖θ−θ*‖², or of the squared gradient where θ and ω are too large
            for that; it may be negative near zero.
        low, high: its 95 % interval over seeds (Student's t; from one seed, over its batches of samples).
        noise: the standard error of ``value`` from the fresh samples alone, for these estimates.
        what: "distance" or "gradient".
        by_seed: one row per seed: seed, value, se, low, high, arrived, ``gradient`` ‖E F − B·E G‖², ``F`` ‖E F‖² and
            ``G`` ‖E G‖² with their ``_se``, diverged.
        samples: the number of fresh samples for each seed.
        way: the mean squared distance of θ from its start.
        start: the same as ``value`` for the start, by the same slopes.
        flat: the number of directions of θ without curvature; the distance ignores them, since all points along them
            are equally good.
        unsure: the number of directions of θ with unknown curvature. ``value`` contains the least possible distance
            along them; ``high`` is infinite.
        arrived: for each seed whether the means of F and G are within their noise, that noise is small compared with
            the start and the distance from there, and no direction is unsure.
        notes: reservations about the number.
    """

    value: float
    low: float
    high: float
    noise: float
    what: Literal["distance", "gradient"]
    by_seed: pd.DataFrame
    samples: int
    way: float
    start: float
    flat: int
    unsure: int
    notes: tuple[str, ...]

    @property
    def arrived(self) -> np.ndarray:
        return self.by_seed["arrived"].to_numpy(bool)

    @property
    def seen(self) -> bool:
        """Whether the estimates differ from a solution by two standard errors or more."""
        fine = self._fine
        sure = fine["gradient"].sum() > 2 * np.sqrt(np.sum(fine["gradient_se"] ** 2))
        return self.value > 2 * self.noise or bool(sure)

    @property
    def verdict(self) -> str:
        """One sentence."""
        name = "‖θ−θ*‖²" if self.what == "distance" else "‖∇h(θ)‖²"
        if self.flat:
            name += f" outside {self.flat} flat direction{'s' if self.flat > 1 else ''}"
        most = max(self.high, self.value + 2 * self.noise)
        if self.unsure:
            ways = "one direction" if self.unsure == 1 else f"{self.unsure} directions"
            least = f", and at least {self.low:.2g} (95 %)" if self.low > 0 else ""
            known = f"{name} cannot be bounded{least}: in {ways} of θ the samples show no curvature"
            return f"not at a solution: {known}" if self.seen else f"nothing shows that this is a solution: {known}"
        if not self.value < _CLEARLY * self.start:
            return f"no nearer to a solution than the start: {name} is about {self.value:.2g}, {self.start:.2g} there"
        if not self.seen and not self.arrived.any():
            few = "the samples are too few to tell it from the start"
            return f"nothing shows that this is a solution: {few}; {name} is at most {most:.2g} (95 %)"
        if not self.seen:
            return f"no distance from a solution can be seen: {name} is at most {most:.2g} (95 %)"
        if not self.value > 2 * self.noise:
            size = self._fine["gradient"].mean()
            return f"not at a solution: ‖∇h(θ)‖² is about {size:.2g}; how far off, {name}, is at most {most:.2g} (95 %)"
        verdict = f"not at a solution yet: {name} is about {self.value:.2g} [{self.low:.2g}, {self.high:.2g}]"
        if self.what == "distance" and self.way > 0:
            verdict += f", {self.value / self.way:.2g} of the squared way from the start"
        return verdict

    @property
    def _fine(self) -> pd.DataFrame:
        return self.by_seed[~self.by_seed["diverged"]]

    def __repr__(self) -> str:
        seeds = len(self._fine)
        of = f"{seeds} seed{'s' if seeds > 1 else ''}, {self.samples:,} fresh samples each"
        return f"Residual({self.verdict}; {'; '.join((of, *self.notes))})"


def residual(
    problem: ProblemSource | object, result: Result | object, samples: int | object = None, *, check: bool = True
) -> Residual:
    """Estimate from fresh samples how far a result is from a solution of E F = 0, E G = 0.

        ‖S⁺(E F − B·E G)‖²,    B = F_ω G_ω⁺,    S = F_θ − B·G_θ        (F_θ the slope of E F in θ, and so on)

    at the final estimates: ‖θ−θ*‖² to first order, exactly where F and G are affine. Slopes are differences of one
    sample at two points, as far apart as the estimate is uncertain, so that steps, kinks and ``stop_gradient`` do not
    mislead them. The start is judged likewise. Known answers of the problem are not used. If θ and ω have more than 64
    entries together, the residual is the squared gradient, ‖E F − B·E G‖², with B along 32 directions of ω.

    Args:
        problem: the problem of the result, or the function of a key that made one for each seed.
        result: of ``solve``, or loaded.
        samples: the number of fresh samples for each seed; by default the number of steps of the run, at least 1,000.
        check: False accepts a problem whose description differs from the result's.

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic(dim=2)
    >>> result = tc.solve(problem, tc.Fast(), steps=2000, seeds=10)
    >>> tc.residual(problem, result).by_seed.columns[:3].tolist()
    ['seed', 'value', 'se']
    """
    import pandas as pd
    from scipy.stats import t

    source = run_args.check_problem(problem)
    if not isinstance(result, Result):
        name = type(result).__name__
        raise InputError(f"`result` must be a Result of tc.solve, got {name}; for several call it on each")
    steps, seeds = int(result.spec["steps"]), list(result.spec["seeds"])
    fresh = samples_used(max(steps, _LEAST) if samples is None else validation.whole("samples", samples, 1, _HORIZON))
    if steps + fresh > _HORIZON:
        raise InputError(f"`samples` must leave steps + samples below 2³¹, got {fresh:,} after {steps:,} steps")
    if result.diverged.all():
        raise InputError("`result` has no seed that did not diverge, so there is no estimate to look at")
    set_fields = pd.json_normalize(result.spec["method"]).iloc[0].dropna()
    check_unconstrained(list(set_fields.index))
    with jax.enable_x64(True):
        ready = make_instances(source, seeds)
        if validation.flag("check", check):
            here, there = (json.loads(json.dumps(part)) for part in (describe(source), result.spec["problem"]))
            if here != there:
                odd = next((name for name in (*here, *there) if here.get(name) != there.get(name)), "name")
                raise InputError(
                    f"`result` is of another problem ({there.get('name')}, which differs in `{odd}`); pass the problem "
                    "that it was solved on, or check=False"
                )
        check_solves(ready.example)
        lanes = hide_truth(Lanes(ready, Probe(), 1, seeds))
        start = engines.start(lanes)
        theta = _as_lanes(result.theta, start.state.theta, "theta")
        omega = _as_lanes(result.omega, start.state.omega, "omega")
        state = FrozenState(theta, omega, start.state.totals)
        carry = LaneState(state, start.env, jnp.asarray(~result.diverged[None]), start.last)
        means = read_samples(lanes, carry, steps, fresh)
        found = estimate_residuals(means)
        on_policy = follows_theta(ready.example)
    large = bool(np.isnan(found.distance.value).any())
    value, se = (part[0] for part in found.best(found.median_unit()))
    lost = ~np.isfinite(value)
    if lost.all():
        raise InputError("`result` has no seed whose residual is finite, so there is nothing to judge")
    reach = t.ppf(0.975, _FREEDOM) * np.where(lost, 0.0, se)
    columns = {"seed": seeds, "value": value, "se": se, "low": value - reach, "high": value + reach}
    columns["arrived"] = found.arrived[0]
    for name, square in (("gradient", found.slow), ("F", found.F), ("G", found.G)):
        columns |= {name: square.value[0], f"{name}_se": square.se[0]}
    table = pd.DataFrame({**columns, "diverged": lost})
    fine = table[~lost]
    count, mean = len(fine), float(fine["value"].mean())
    half = float(reach[~lost][0])
    if count > 1:
        half = float(t.ppf(0.975, count - 1) * fine["value"].std(ddof=1) / np.sqrt(count))
    noise = float(np.sqrt(np.sum(fine["se"] ** 2)) / count)
    notes = []
    if lost.any():
        notes.append(f"{int(lost.sum())} of {len(lost)} seeds diverged and are left out")
    if on_policy:
        notes.append("the samples follow θ, so the distance is rough; E F and E G are not")
    what: Literal["distance", "gradient"] = "gradient" if large else "distance"
    flat, unsure = (0 if large else int(np.max(part[0][~lost])) for part in (found.flat, found.unsure))
    way, start_value = (float(part[0][~lost].mean()) for part in (means.way, found.start.value))
    high = np.inf if unsure else mean + half
    return Residual(mean, mean - half, high, noise, what, table, fresh, way, start_value, flat, unsure, tuple(notes))


def _as_lanes(tree: PyTree, like: PyTree, name: str) -> PyTree:
    """Reshape the estimates of a result to the state of lanes, one method × seeds."""
    shapes, wanted = (jax.tree.map(np.shape, part) for part in (tree, jax.tree.map(lambda leaf: leaf[0], like)))
    if shapes != wanted:
        raise InputError(f"`result` does not fit the problem: its {name} has shapes {shapes}, the problem's {wanted}")
    return jax.tree.map(lambda leaf, to: np.asarray(leaf, to.dtype)[None], tree, like)


def check_unconstrained(fields: list[str]) -> None:
    """Refuse a method with a projection among its fields: it may correctly end where E F ≠ 0."""
    for path in fields:
        if path.rsplit(".", 1)[-1].startswith("project_"):
            raise InputError(
                f"the residual says nothing here: `{path}` keeps a variable in a set, and on its boundary a solution "
                "need not have E F = 0; use a metric of the problem"
            )


def check_solves(problem: Problem) -> None:
    """Refuse a problem whose ω solves no E G = 0."""
    if problem.omega_is_trace:
        raise InputError(
            "the residual says nothing here: ω is a trace, which solves no equation; use a metric of the problem, or "
            "take the problem that `with_trace` was given"
        )


def follows_theta(problem: Problem) -> bool:
    """Whether the samples depend on θ or ω, as on-policy ones do: the curvature leaves that out."""
    key = prng.start_key(0)
    theta, omega, env = problem.init(key)
    program = jax.make_jaxpr(lambda t, o: problem.sample(problem.noise(key), t, o, env))(theta, omega).jaxpr
    used = {id(v) for equation in program.eqns for v in equation.invars} | {id(v) for v in program.outvars}
    return any(id(v) in used for v in program.invars)
