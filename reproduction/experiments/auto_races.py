"""``Auto`` against methods tuned with the answer known: the race on one problem, and random problems of twelve kinds.

Problems of a kind have the same shapes and differ in numbers alone, so that each kind is compiled once.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float

import twoclock as tc
from reproduction.experiment import Progress, Role, make_result
from reproduction.tuned_settings import holding
from twoclock.protocols import Key, ProblemSource, Scalar, pytree
from twoclock.storage import Identity, RunSpec, identify

AUTO, BEST, TUNED, CERTIFIED, LSTD = "Auto", "best of 60", "tune without truth", "certified", "LSTD"
LIMIT = "statistical limit"
_steps = partial(holding, hold=100.0)  # first·(1 + k/100)^−power
_RUNS_OF_A_SEARCH = 400  # of two rungs, with their fresh samples


def grid() -> dict[str, dict[str, tc.Method]]:
    """Twenty settings each of Standard, Fast and Polyak: first steps of .001 to 1 and β/α of .1, 1 and 10."""
    found: dict[str, dict[str, tc.Method]] = {"Standard": {}, "Fast": {}, "Polyak": {}}
    for first in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        for ratio in (0.1, 1.0, 10.0):
            if (first, ratio) != (1.0, 10.0):
                label = f"{first:g}, {ratio:g}"
                slow, fast = _steps(first, power=1.0), _steps(first * ratio, power=1.0)
                found["Standard"][label] = tc.Standard(slow, fast)
                found["Fast"][label] = tc.Fast(slow, fast, "40/(k+160)")
                root = tc.Standard(_steps(first, power=0.5), _steps(first * ratio, power=0.5))
                found["Polyak"][label] = tc.Polyak(root, power=1.0)
    return found


@dataclass(frozen=True, eq=False)
class Race:
    """Who is nearest to the answer after the same number of samples.

    Args:
        make: makes the problem, when it is first needed.
        metric: by which, recorded as "error"; the mean over seeds at the end counts.
        methods: label → how it is made: "auto", "grid" (the best of 60 settings, chosen with truth on other seeds),
            "tune" (half of the samples for the search, without truth, half for the run), "certified", "lstd" or
            "limit".
        steps, seeds: how many; the seeds are shared by all.
        kind: a description of the kind of problem.
        structure: of h, for certified steps; the problem must know its constants.
        td: makes the problem with TD's operator, from which LSTD reads the same samples.
        variance: of the problem, that of the efficient estimate from one sample; a limit is this over the steps.
        apart: how many other seeds the best of 60 settings is chosen on.
    """

    make: Callable[[], ProblemSource]
    metric: str
    methods: Mapping[str, str]
    steps: int
    seeds: int
    kind: str
    structure: str | None = None
    td: Callable[[], ProblemSource] | None = None
    variance: Callable[[ProblemSource], float] | None = None
    apart: int = 8
    title: str = ""
    role: Role = "compare"

    @cached_property
    def problem(self) -> ProblemSource:
        return self.make()

    @property
    def lanes(self) -> int:
        return sum(self.seeds + (60 * self.apart if how == "grid" else 0) for how in self.methods.values())

    @cached_property
    def identities(self) -> dict[str, Identity]:
        spec = RunSpec.checked(self.steps, self.seeds, [self.steps])
        auto = identify(self.problem, {AUTO: tc.Auto()}, spec)[AUTO].parts
        parts = {"steps": self.steps, "seeds": self.seeds, "metric": self.metric, "problem": auto["problem"]}
        own = {"auto": auto["method"], "grid": [self.apart, str(grid())], "certified": self.structure}
        return {label: Identity({**parts, "method": [how, own.get(how)]}) for label, how in self.methods.items()}

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, tc.Result]:
        """Run each in its turn; no checkpoint is written, for each takes seconds."""
        found = {}
        for label in labels:
            began = time.perf_counter()
            if (how := self.methods[label]) == "limit":
                assert self.variance is not None
                name, lost = "limit", np.zeros(self.seeds, bool)
                values = np.full(self.seeds, self.variance(self.problem) / self.steps)
            else:
                name, problem, method, steps = self._entrant(how, progress)
                (values,), (lost,) = self._walk(problem, [method], steps, progress, range(self.seeds))
            history = pd.DataFrame({"seed": range(self.seeds), "step": self.steps, "error": values})
            title, seconds, nothing = self.title or self.kind, time.perf_counter() - began, np.zeros((self.seeds, 0))
            found[label] = make_result(title, name, self.steps, history, seconds, nothing, lost)
        return found

    def _entrant(self, how: str, progress: Progress) -> tuple[str, ProblemSource, tc.Method, int]:
        """The name of a method, its problem, the method itself, and how many samples are left for it."""
        if how == "auto":
            return "Auto", self.problem, tc.Auto(), self.steps
        if how == "lstd":
            assert self.td is not None
            return "Lstd", self.td(), tc.methods.Lstd(), self.steps
        if how == "certified":
            assert self.structure is not None
            method = tc.certify(self.structure, **self.problem.constants()).method()  # type: ignore[union-attr]
            return str(method), self.problem, method, self.steps
        if how == "tune":
            half = self.steps // 2
            short = max(half * self.seeds // _RUNS_OF_A_SEARCH, 1)  # the horizon that so small a budget affords
            start = tc.Polyak(tc.Standard(_steps(0.03, power=0.5), _steps(0.03, power=0.5)), power=1.0)
            tuned = tc.tune(self.problem, start, steps=short, budget=half * self.seeds, metric="residual", rungs=2)
            return str(tuned.method), self.problem, tuned.method, half
        # Chosen on separate seeds, so that luck in the choice does not count: few lost, then a small mean.
        apart = range(self.seeds, self.seeds + self.apart)
        found = []
        for family, settings in grid().items():
            values, lost = self._walk(self.problem, list(settings.values()), self.steps, progress, apart)
            ranks = zip(lost.sum(axis=1), values.mean(axis=1), strict=True)
            found += [(rank, f"{family} {s}", settings[s]) for s, rank in zip(settings, ranks, strict=True)]
        _, name, best = min(found, key=lambda one: one[0])
        return name, self.problem, best, self.steps

    def _walk(
        self, problem: ProblemSource, methods: Sequence[tc.Method], steps: int, progress: Progress, seeds: range
    ) -> tuple[np.ndarray, np.ndarray]:
        """The metric at the end and which lanes diverged, each methods × seeds."""
        results = tc.solve(
            problem, {str(i): method for i, method in enumerate(methods)}, steps, seeds, [steps],
            progress=lambda event: progress(event.step, event.diverged),
        )  # fmt: skip
        lost = np.array([result.diverged for result in results.values()])
        last = [r.history[r.history["step"] == steps].set_index("seed")[self.metric] for r in results.values()]
        return np.where(lost, np.inf, [column.reindex(seeds).to_numpy(float) for column in last]), lost


Rng = np.random.Generator


@pytree
class HeavyTails(tc.Problem):
    """F = H(θ − θ*) + C(ω − Wθ) + X, G = M(ω − Wθ) + X, X symmetric with P(|X| > x) = (1 + x/σ)^−tail."""

    H: Float[jax.Array, "d d"]
    C: Float[jax.Array, "d d"]
    M: Float[jax.Array, "d d"]
    W: Float[jax.Array, "d d"]
    star: jax.Array
    sigma: Scalar
    tail: Scalar

    def init(self, key: Key) -> tuple[jax.Array, jax.Array, None]:
        zero = jnp.zeros_like(jnp.asarray(self.star))
        return zero, zero, None

    def noise(self, key: Key) -> jax.Array:
        return jax.random.uniform(key, jnp.shape(self.star), minval=-1.0, maxval=1.0)

    def draw(self, u: jax.Array, theta: jax.Array, env: None) -> tuple[jax.Array | np.ndarray, None]:
        size = jnp.expm1(-jnp.log1p(-jnp.minimum(jnp.abs(u), 1 - 1e-7)) / self.tail)
        return self.sigma * jnp.sign(u) * size, env

    def F(self, theta: jax.Array, omega: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.asarray(self.H) @ (theta - self.star) + self.C @ (omega - self.W @ theta) + x

    def G(self, theta: jax.Array, omega: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.asarray(self.M) @ (omega - self.W @ theta) + x

    def measure(self, theta: jax.Array, omega: jax.Array) -> dict[str, jax.Array]:
        return {
            "error": jnp.sum(jnp.square(theta - self.star)),
            "tracking": jnp.sum(jnp.square(omega - self.W @ theta)),
        }


def _power(rng: Rng, low: float, high: float) -> float:
    """Ten to a uniform exponent."""
    return float(10 ** rng.uniform(low, high))


def rotating(rng: Rng) -> tc.Problem:
    mu_h, mu_g = rng.uniform(0.2, 0.8, 2)
    rotation, coupling = rng.uniform(0.5, 3), rng.uniform(0.2, 1)
    return tc.problems.quadratic(5, mu_h, mu_g, 1.0, rotation, coupling, _power(rng, -2, 0), int(rng.integers(10**6)))


def ill_conditioned(rng: Rng) -> tc.Problem:
    """Curvatures down to 10⁻⁴ of the largest, and noise small enough for them to show."""
    mu_h, mu_g = _power(rng, -4, -2), _power(rng, -2, 0)
    return tc.problems.quadratic(5, mu_h, mu_g, 1.0, 0.0, 0.5, mu_h * _power(rng, 0, 1.5), int(rng.integers(10**6)))


def kinked(rng: Rng) -> tc.Problem:
    return tc.problems.rates("strongly-convex", "kinked", 2, _power(rng, -1, 0.5), _power(rng, -0.5, 1))


def polyak_lojasiewicz(rng: Rng) -> tc.Problem:
    return tc.problems.rates("pl", "smooth", 2, _power(rng, -1, 0.5), rng.uniform(1, 4))


def non_convex(rng: Rng) -> tc.Problem:
    return tc.problems.rates("non-convex", "smooth", 2, _power(rng, -1, 0), rng.uniform(0.5, 2))


def heavy_tailed(rng: Rng) -> tc.Problem:
    base: Any = rotating(rng)
    return HeavyTails(base.H, base.C, base.M, base.W, base.theta_star, base.sigma, np.float64(rng.uniform(2.2, 4)))


def slow_chain(rng: Rng, operator: str = "tdc") -> tc.Problem:
    """A lazy random walk on a line with walls; random rewards; each feature covers a third of the line."""
    n, s = 15, np.arange(15)
    P = np.zeros((n, 2, n))
    P[s, 0, np.maximum(s - 1, 0)] = P[s, 1, np.minimum(s + 1, n - 1)] = 1
    right = rng.uniform(0.4, 0.6)
    mdp = tc.models.Mdp(P, np.tile(rng.normal(size=(n, 1)), 2), rng.uniform(0.3, 0.9))
    behaviour = np.full((n, 2), 0.5)
    return tc.problems.policy_evaluation(
        mdp, np.eye(3)[s * 3 // n], np.tile([1 - right, right], (n, 1)), behaviour, operator, "markov"
    )


def off_policy(rng: Rng) -> tc.Problem:
    """Importance ratios of ten and more."""
    n, m, d = 10, 4, 4
    P = rng.dirichlet(np.full(n, 0.3), size=(n, m))
    mdp = tc.models.Mdp(P, rng.normal(size=(n, m)), rng.uniform(0.5, 0.95))
    target, behaviour = rng.dirichlet(np.full(m, 0.3), n), rng.dirichlet(np.full(m, 1.0), n)
    mixed = 0.85 * behaviour + 0.15 / m
    return tc.problems.policy_evaluation(mdp, rng.normal(size=(n, d)), target, mixed, "tdc", "iid")


def least_squares(make: Callable[..., tc.Problem], rng: Rng) -> tc.Problem:
    """Bilevel or minimax, with data of any condition and noise."""
    return make(3, 3, 48, 8, _power(rng, 0.3, 1.7), _power(rng, -1, 0.5), seed=int(rng.integers(10**6)))


def regulator(rng: Rng) -> tc.Problem:
    """A stable plant of two states and one input."""
    A = rng.normal(size=(2, 2))
    A *= rng.uniform(0.3, 0.8) / np.abs(np.linalg.eigvals(A)).max()
    plant = tc.models.Lqr(A, rng.normal(size=(2, 1)), np.diag(rng.uniform(0.3, 2, 2)), [[rng.uniform(0.3, 2)]])
    return tc.problems.lqr_actor_critic(plant, sigma=1.0, kappa=5.0)


def soft_mdp(rng: Rng) -> tc.Problem:
    make = partial(tc.problems.random_entropy_mdp, states=4, actions=2, gamma=0.8, temp=_power(rng, -1.3, 0))
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(make)(jax.random.key(int(rng.integers(10**6)))))


def variance(problem: Any) -> float:
    """tr D Cov(X) Dᵀ, D = H⁻¹(I − CM⁻¹): of the efficient estimate of θ* from one sample, where F and G share X."""
    D = np.linalg.solve(problem.H, np.eye(len(problem.H)) - problem.C @ np.linalg.inv(problem.M))
    tail = getattr(problem, "tail", None)
    of_X = 1.0 if tail is None else 2 / ((tail - 1) * (tail - 2))
    return float(problem.sigma**2 * of_X * np.sum(D**2))


LINEAR = ("linear, rotating", "ill-conditioned", "heavy tails")
KINDS: dict[str, tuple[Callable[[Rng], tc.Problem], int]] = {
    "linear, rotating": (rotating, 30_000),
    "ill-conditioned": (ill_conditioned, 100_000),
    "kinked": (kinked, 100_000),
    "PL": (polyak_lojasiewicz, 10_000),
    "non-convex": (non_convex, 10_000),
    "heavy tails": (heavy_tailed, 30_000),
    "slow chain": (slow_chain, 100_000),
    "off-policy": (off_policy, 100_000),
    "bilevel": (partial(least_squares, tc.problems.quadratic_bilevel), 10_000),
    "minimax": (partial(least_squares, tc.problems.quadratic_minimax), 10_000),
    "LQR": (regulator, 10_000),
    "entropy MDP": (soft_mdp, 100_000),
}


def draw_problem(make: Callable[[Rng], tc.Problem], seed: Sequence[int]) -> tc.Problem:
    """The problem of a kind that a seed makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a plant or a curvature that only a person would change
        return make(np.random.default_rng(seed))
