"""The constants of a problem: exact where it is linear or provides them, else estimated from samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from twoclock.methods import Fast
from twoclock.prng import instance_key, start_key, step_key
from twoclock.protocols import InputError, Method, Problem, ProblemSource, PyTree
from twoclock.theory.certificate import METRICS, InitialErrors
from twoclock.validation import check_process, check_size, choice, number, seed_number, trace_anew, whole
from twoclock.validation.run_args import check_factory, check_problem

Theta = Float[jax.Array, " d"]
Omega = Float[jax.Array, " e"]
Pair = tuple[jax.Array, jax.Array]
_BATCHES = 8
_NAMES = ("L", "mu_h", "mu_g", "noise")
Numbers = dict[str, float]
Point = tuple[Theta, Omega]


class Flat:
    """θ and ω as vectors; the start, the means (exact where the problem offers them) and the samples of F and G."""

    def __init__(self, problem: ProblemSource, seed: object, samples: int) -> None:
        check_size("`samples`", 16 * samples)  # all are in memory at once, with arrays derived from them
        seed = seed_number("seed", seed)
        made = check_problem(problem)
        if not isinstance(made, Problem):
            check_factory(made, instance_key(seed))
            made = made(instance_key(seed))
        self.problem = made
        theta, omega, self.env = self.problem.init(start_key(seed))
        theta, omega = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (theta, omega))
        self.theta0, self.theta_of = ravel_pytree(theta)
        self.omega0, self.omega_of = ravel_pytree(omega)
        self.noise = jax.vmap(lambda k: self.problem.noise(step_key(seed, k)))(jnp.arange(samples))
        self.exact = self.problem.knows("mean_F") and self.problem.knows("mean_G")

    def samples(self, theta: Theta, omega: Omega) -> tuple[Float[jax.Array, "n d"], Float[jax.Array, "n e"]]:
        """F and G on each sample along the problem's own chain, from the same randomness at every point."""
        a, b = self.theta_of(theta), self.omega_of(omega)

        def one(env: PyTree, noise: PyTree) -> tuple[PyTree, Pair]:
            x, env = self.problem.sample(noise, a, b, env)
            return env, (ravel_pytree(self.problem.F(a, b, x))[0], ravel_pytree(self.problem.G(a, b, x))[0])

        return jax.lax.scan(one, self.env, self.noise)[1]

    def means(self, theta: Theta, omega: Omega) -> tuple[Theta, Omega]:
        if self.exact:
            a, b = self.theta_of(theta), self.omega_of(omega)
            return ravel_pytree(self.problem.mean_F(a, b))[0], ravel_pytree(self.problem.mean_G(a, b))[0]
        F, G = self.samples(theta, omega)
        return F.mean(0), G.mean(0)

    def slopes(self, points: list[Point]) -> list[Any]:
        """The derivatives of the means, ((F_θ, F_ω), (G_θ, G_ω)), at each point."""
        jacobian = jax.jit(jax.jacfwd(self.means, argnums=(0, 1)))
        return [jax.tree.map(np.asarray, jacobian(*point)) for point in points]


@dataclasses.dataclass(frozen=True, repr=False)
class Constants(Mapping[str, Any]):
    """L, μ_h, μ_G and the noise level B of a problem; ``certify(structure, **constants)`` takes them as they are.

    `constants` returns them.

    Args:
        L, mu_h, mu_g, noise: as in ``certify``. If a μ is not positive, the problem lacks that structure.
        metric: of a PL problem whose F is the gradient in another metric, as in ``certify``; else None.
        exact: the names of the exact constants; the others are estimates.
        spread: for each estimate its standard error over samples. At other points the true L or noise level may be
            larger, and a μ smaller.
    """

    L: float
    mu_h: float
    mu_g: float
    noise: float
    exact: tuple[str, ...] = ()
    spread: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metric: tuple[float, float] | None = None

    def __getitem__(self, name: str) -> Any:
        if name == "metric" and self.metric is not None:
            return self.metric
        if name not in _NAMES:
            raise KeyError(name)
        return float(getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES if self.metric is None else (*_NAMES, "metric"))

    def __len__(self) -> int:
        return len(_NAMES) + (self.metric is not None)

    def __str__(self) -> str:
        marks = {name: f" (estimate, ±{self.spread.get(name, 0.0):.2g})" for name in _NAMES if name not in self.exact}
        shown = ", ".join(f"{name}={self[name]:.6g}{marks.get(name, '')}" for name in _NAMES)
        return shown if self.metric is None else f"{shown}, metric=({self.metric[0]:.4g}, {self.metric[1]:.4g})"

    def __repr__(self) -> str:
        return f"Constants({self})"


def constants(
    problem: ProblemSource, *, samples: int = 2048, points: int = 8, radius: float = 1.0, seed: int = 0
) -> Constants:
    """L, μ_h, μ_G and the noise level of a problem.

    A problem's own ``constants()`` are used. One whose exact means ``mean_F`` and ``mean_G`` are affine has L,
    μ_h and μ_G from their matrices, exactly; its noise level is sampled, the larger of those at the start and at the
    solution. For any other problem all four come from Jacobians and variances of sample means at random points around
    the start, and are marked as estimates. LQR and entropy-regularised MDPs have formulas for their PL constant: for
    the gains that cost no more than the first one, or at the points and the best policy. There L and μ_G are the
    largest and the smallest of exact derivatives at the points.

    Args:
        problem: a problem, or a function of a key that makes one.
        samples: the number of samples in every mean.
        points: the number of points besides the start.
        radius: the standard deviation of each coordinate of these points around the start.
        seed: of the instance, the points and the samples.

    >>> import twoclock as tc
    >>> print(tc.theory.constants(tc.problems.rates("strongly-convex", noise=0.5)))
    L=1.45, mu_h=1, mu_g=1, noise=0.25
    """
    samples, points = whole("samples", samples, 2 * _BATCHES), whole("points", points)
    number("radius", radius, 0, above=True)
    check_process()
    with jax.enable_x64(True), trace_anew():
        flat = Flat(problem, seed, samples)
        if flat.problem.knows("constants"):
            known = {name: float(np.asarray(value)) for name, value in flat.problem.constants().items()}
            if missing := [name for name in _NAMES if name not in known]:
                raise InputError(
                    f"`constants()` of {type(flat.problem).__name__} must give {', '.join(_NAMES)}; no {missing[0]}"
                )
            return Constants(known["L"], known["mu_h"], known["mu_g"], known["noise"], exact=_NAMES)
        rng = np.random.default_rng(seed_number("seed", seed))

        def near(v: jax.Array) -> jax.Array:
            return v + radius * rng.normal(size=v.shape)

        cloud = [(flat.theta0, flat.omega0)] + [(near(flat.theta0), near(flat.omega0)) for _ in range(points)]
        found = _from_affine_means(flat, cloud) or _from_pl_formula(flat, cloud) or _estimate(flat, cloud)
        if found is None or not np.isfinite([found[name] for name in _NAMES]).all():
            raise InputError(
                f"F, G and ω* must be finite where `constants` looks, and within radius={radius:g} of the start they "
                "are not; lower `radius`"
            )
        return found


def start(
    problem: ProblemSource, structure: str, *, method: Method | None = None, seed: int = 0, samples: int = 2048
) -> InitialErrors:
    """The initial errors of ``Fast`` on a problem with a known answer, for ``Certificate.bound``.

    Args:
        problem: a problem, or a function of a key that makes one.
        structure: "strongly-convex", "pl" or "non-convex", as in ``certify``.
        method: a ``Fast`` whose f₀, g₀ and projections count; without one f₀ = g₀ = 0.
        seed: of the instance and the samples.
        samples: the number of samples in the means of F and G, if the problem does not know these.

    >>> import twoclock as tc
    >>> problem = tc.problems.rates("strongly-convex")
    >>> at_rest = tc.theory.start(problem, "strongly-convex", method=tc.Fast(f0=np.zeros(1)))
    >>> at_rest == tc.theory.start(problem, "strongly-convex")
    True
    """
    choice("structure", structure, METRICS)
    if method is not None and not isinstance(method, Fast):
        raise InputError(
            f"`start(method=…)` must be a `Fast`, got {type(method).__name__}; leave it out for f₀ = g₀ = 0"
        )
    with jax.enable_x64(True):
        flat = Flat(problem, seed, whole("samples", samples))
        metric = "error" if structure == "strongly-convex" else "gap"
        theta, omega = flat.theta_of(flat.theta0), flat.omega_of(flat.omega0)
        state = (method or Fast()).init(theta, omega)
        theta, omega = state.theta, state.omega
        found = flat.problem.measure(theta, omega)
        if metric not in found or "tracking" not in found:
            raise InputError(
                f"`start` needs a problem that measures `{metric}` and `tracking`; give four numbers instead"
            )
        means = flat.means(ravel_pytree(theta)[0], ravel_pytree(omega)[0])
        f, g = (ravel_pytree(average)[0] - mean for average, mean in zip((state.f, state.g), means, strict=True))
        distance, tracking = (float(np.asarray(found[name])) for name in (metric, "tracking"))
        return InitialErrors(distance, tracking, float(f @ f), float(g @ g))


def _from_affine_means(flat: Flat, cloud: list[Point]) -> Constants | None:
    if not flat.exact:
        return None
    first, *others = flat.slopes(cloud)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(first)):
        return None
    for a, *rest in zip(*map(jax.tree.leaves, (first, *others)), strict=True):
        if a.size and not np.allclose(a, rest, rtol=1e-9, atol=1e-9 * (1 + np.abs(a).max())):
            return None
    (A, B), (C, M) = first
    shift = np.concatenate(flat.means(*cloud[0]))
    move = np.linalg.lstsq(np.block([[A, B], [C, M]]), -shift, rcond=None)[0]
    solution = cloud[0][0] + move[: len(A)], cloud[0][1] + move[len(A) :]
    noise, spread = _noise(flat, [cloud[0], solution])
    found = _linear(*first)
    return Constants(found["L"], found["mu_h"], found["mu_g"], noise, exact=_NAMES[:3], spread={"noise": spread})


def _from_pl_formula(flat: Flat, cloud: list[Point]) -> Constants | None:
    """The problem's own PL constant, with L and μ_G from exact derivatives where the problem confines the points to."""
    if not flat.exact or not flat.problem.knows("pl_constants"):
        return None
    thetas = [flat.problem.confine(flat.theta_of(theta)) for theta, _ in cloud]
    known = flat.problem.pl_constants(thetas)
    if not known:
        return None
    at_root = [(ravel_pytree(t)[0], ravel_pytree(flat.problem.omega_star(t))[0]) for t in thetas]
    points = [*at_root, *((theta, flat.omega0) for theta, _ in at_root)]
    seen = [_linear(*slopes) for slopes in flat.slopes(points)]
    bend = jax.jit(jax.jacfwd(jax.grad(lambda theta: jnp.asarray(flat.problem.h(flat.theta_of(theta))))))
    bends = [float(np.linalg.norm(np.asarray(bend(theta)), 2)) for theta, _ in at_root]
    noise, spread = _noise(flat, points)
    L = max(*(one["L"] for one in seen), *bends)
    exact = ("mu_h",) if "metric" in known else ()
    return Constants(
        L, known["mu_h"], min(one["mu_g"] for one in seen), noise, exact, {"noise": spread}, known.get("metric")
    )


def _estimate(flat: Flat, cloud: list[Point]) -> Constants | None:
    """Constants at points, or None if some derivative is not finite there.

    ∇h has its slope where ω = ω*(θ), so μ_h is estimated there if ω* is known.
    """
    at_root = []
    if flat.problem.knows("omega_star"):
        at_root = [(theta, ravel_pytree(flat.problem.omega_star(flat.theta_of(theta)))[0]) for theta, _ in cloud]

    def batches(theta: Theta, omega: Omega) -> tuple[jax.Array, jax.Array]:
        F, G = flat.samples(theta, omega)
        size = len(F) // _BATCHES
        return jax.tree.map(lambda v: v[: size * _BATCHES].reshape(_BATCHES, size, -1).mean(1), (F, G))

    jacobian = jax.jit(jax.jacfwd(batches, argnums=(0, 1)))
    seen = [[jax.tree.map(np.asarray, jacobian(*point)) for point in points] for points in (cloud, at_root)]
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(seen)):
        return None

    def worst(pick: Callable[[np.ndarray], np.ndarray]) -> Numbers:
        free, tied = ([_linear(*jax.tree.map(pick, one)) for one in group] for group in seen)
        everywhere = free + tied
        return {
            "L": max(one["L"] for one in everywhere),
            "mu_h": min(one["mu_h"] for one in tied or free),
            "mu_g": min(one["mu_g"] for one in everywhere),
        }

    parts = [worst(itemgetter(i)) for i in range(_BATCHES)]
    spread = {name: float(np.std([p[name] for p in parts], ddof=1) / np.sqrt(_BATCHES)) for name in _NAMES[:3]}
    noise, spread["noise"] = _noise(flat, cloud)
    total = worst(lambda leaf: leaf.mean(0))
    return Constants(total["L"], total["mu_h"], total["mu_g"], noise, spread=spread)


def _linear(
    dF: tuple[Float[np.ndarray, "d d"], Float[np.ndarray, "d e"]],
    dG: tuple[Float[np.ndarray, "e d"], Float[np.ndarray, "e e"]],
) -> Numbers:
    """The constants of F = Aθ + Bω, G = Cθ + Mω: ω* has the slope W = −M⁺C, and ∇h the slope A + BW."""
    (A, B), (C, M) = dF, dG
    W = -np.linalg.pinv(M) @ C
    H = A + B @ W
    L = max(float(np.linalg.norm(part, 2)) for part in (A, B, C, M, W, H) if part.size)
    slowest = [float(np.linalg.eigvalsh((S + S.T) / 2)[0]) if S.size else L for S in (H, M)]
    return {"L": L, "mu_h": slowest[0], "mu_g": slowest[1]}


def _noise(flat: Flat, points: list[Point]) -> tuple[float, float]:
    """The largest noise level over the points, of F or of G, and its standard error."""

    @jax.jit
    def variances(theta: Theta, omega: Omega) -> list[Pair]:
        """E‖F−mean‖² and E‖G−mean‖², each with its standard error."""
        values = flat.samples(theta, omega)
        n = len(values[0])
        squares = [jnp.sum((v - v.mean(0, keepdims=True)) ** 2, axis=1) * (n / (n - 1)) for v in values]
        return [(square.mean(), square.std() / n**0.5) for square in squares]

    return max(pair for point in points for pair in jax.tree.map(float, variances(*point)))
