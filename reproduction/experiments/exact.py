"""What the paper says and a closed form decides: assumptions, theorems as printed, Algorithm 2; no simulation."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from reproduction.experiment import Case, Claim, Measured, Records, words_of
from reproduction.verdicts import NOT_REPRODUCED, REPRODUCED, decide, only_where
from twoclock import plot

TITLE = "What closed forms decide"
ALT = {"exact": "Theorem 3's printed bound and the exact least mean squared gradient so far of a run that it allows."}

JUDGED = {"exact": {"theorem-3-bound": "Theorem 3's printed bound"}}

# Theorem 3's counterexample: F = θ + X, G = ω, Var X = NOISE, θ₀ = f₀ = FAR, steps of Section 3.3 at L = μ_G = 1.
NOISE, FAR, LAST = 1e8, 10.0, 4_000_000
# Theorem 1's run as printed: θ and ω in one dimension, F = θ + ½(ω − ½θ), G = ω − ½θ, so that L = μ_h = μ_G = 1.
_STEPS = (10**6, 10**7, 10**8, 10**9)


def cases(quick: bool) -> dict[str, Case]:
    return {}


@cache
def moments() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Marks, the least E‖∇h‖² so far and the printed bound, by exact second moments of θ and f."""
    proven = tc.certify("non-convex", L=1.0, mu_g=1.0, noise=NOISE, proof="printed")
    marks = np.unique(np.geomspace(1, LAST, 60).round().astype(int))

    def step(k: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        tt, tf, ff, lowest = now
        r = (k + 1.0) ** -0.5
        a, b = proven.c[0] * r, proven.c[2] * r
        new = (
            tt - 2 * a * tf + a * a * ff,
            (1 - b) * tf + b * tt - a * (1 - b) * ff - a * b * tf,
            (1 - b) ** 2 * ff + 2 * b * (1 - b) * tf + b * b * (tt + NOISE),
        )
        return (*new, jnp.minimum(lowest, new[0]))

    with jax.enable_x64(True):
        advance = jax.jit(lambda first, last, now: jax.lax.fori_loop(first, last, step, now))
        now = (jnp.asarray(FAR**2),) * 4
        least = []
        for first, last in zip([0, *marks[:-1].tolist()], marks.tolist(), strict=True):
            now = advance(first, last, now)
            least.append(float(now[3]))
    return marks, np.array(least), np.asarray(proven.bound(marks, {"x": FAR**2 / 2, "y": 0.0, "f": 0.0, "g": 0.0}))


@cache
def first_theorem() -> dict[int, tuple[float, float]]:
    """z/z₀ and the printed bound over z₀ of Theorem 1's run, at powers of ten: no noise, so that it is exact.

    Within a block of steps the sizes change by less than 10⁻³; they are taken in its middle.
    """
    proven = tc.certify("strongly-convex", L=1.0, mu_h=1.0, mu_g=1.0, noise=0.0, proof="printed")
    F, G = np.array([0.75, 0.5]), np.array([-0.5, 1.0])
    state, k, found = np.array([1.0, 0.0, 0.0, 0.0]), 0, {}
    for last in _STEPS:
        while k < last:
            m = min(max(1, int((k + proven.tau) / 2000)), last - k)
            a, b, c = np.array(proven.c) / (k + m / 2 + proven.tau + 1)
            block = np.eye(4)
            block[0, 2], block[1, 3] = -a, -b
            block[2], block[3] = [*(c * F), 1 - c, 0], [*(c * G), 0, 1 - c]
            state, k = np.linalg.matrix_power(block, m) @ state, k + m
        start = {"x": 1.0, "y": 0.25, "f": 0.75**2, "g": 0.25}
        found[last] = float(state[0] ** 2), float(proven.bound(min(last, 2**31), start))
    return found


def draw(records: Records) -> dict[str, plot.Figure]:
    fig, axes = plot.figure(1, 1, width=6.0, height=3.8)
    k, least, bound = moments()
    ax = axes[0, 0]
    ax.plot(k, least, color=plot.COLOURS[0], label="least E‖∇h‖² so far, exact")
    ax.plot(k, bound, color=plot.COLOURS[1], linestyle="--", label="Theorem 3 as printed")
    ax.plot(k, _with_noise(k), color=plot.COLOURS[2], linestyle=":", label="with 16B log(k+2)")
    ax.set(xscale="log", yscale="log", xlabel="steps k", ylabel="‖∇h(θ)‖²")
    ax.legend(frameon=False, fontsize="small")
    plot.caption(
        fig, f"F = θ + X, G = ω, Var X = {NOISE:g}, θ₀ = f₀ = {FAR:g}, α₀ = β₀ = 1/72, λ₀ = ¼: exact second moments"
    )
    return {"exact": fig}


def _with_noise(k: np.ndarray) -> np.ndarray:
    return (32 * FAR**2 / 2 + 16 * NOISE * np.log(k + 2)) * 72 / np.sqrt(k + 1)


def captions(records: Records) -> dict[str, str]:
    k, least, bound = moments()
    return {"exact": f"At k = {k[-1]:,} the exact value is {least[-1] / bound[-1]:.2f} times the printed bound."}


def claims(records: Records) -> list[Claim]:
    return [*_theorems(), *_assumptions(), *_applications(), *_algorithms()]


def _row(name: str, numbers: Mapping[str, Measured], verdict: str, finding: str) -> Claim:
    return Claim(name, **words_of("exact", name), numbers=numbers, verdict=verdict, finding=finding, halves=False)


def _theorems() -> list[Claim]:
    unit: dict[str, Any] = {"L": 1.0, "mu_h": 1.0, "mu_g": 1.0}
    try:
        tc.certify("pl", **unit, proof="printed")
        second = ""
    except tc.InputError as none:
        second = str(none).split("; ")[0]
    k, least, bound = moments()
    ratio = least / bound
    worst = int(np.argmax(ratio))
    trap_least, trap_bound, trap_last = _trap()
    standard, fast = (tc.certify("strongly-convex", **unit, method=method) for method in ("standard", "fast"))
    return [
        _row(
            "theorem-1",
            {f"z/z₀ and bound/z₀ at {step:,}": list(values) for step, values in first_theorem().items()},
            decide(all(z <= top for z, top in first_theorem().values()) and first_theorem()[10**9][0] < 0.5),
            f"It holds, and is slow: z is at {first_theorem()[10**6][0]:.3f} of its start after 10⁶ steps and at "
            f"{first_theorem()[10**8][0]:.3f} after 10⁸, the bound at {first_theorem()[10**8][1]:.2f}.",
        ),
        _row(
            "theorem-2-steps",
            {"why not": second or "some do"},
            decide(not second) if not second else only_where("the conditions on c_β are read as conditions on β_k"),
            "No steps meet them: c_β ≥ c_α ≥ 2/μ_G ≥ 2/L; read as conditions on β_k they can be met, with 8 for one 4.",
        ),
        _row(
            "theorem-3-bound",
            {"largest ratio": float(ratio[worst]), "at step": int(k[worst])},
            decide(bool(ratio.max() <= 1)),
            f"The print lacks B: at k = {k[worst]:,} the exact value is {ratio[worst]:.2f} times the bound; "
            "with 16B log(k+2) it holds.",
        ),
        _row(
            "theorem-3-steps",
            {
                "E‖∇h‖² at 10⁶ steps": trap_last,
                "least so far": trap_least,
                "bound at 10⁶": trap_bound,
                "the bound falls below the least at": f"{_crossing(trap_least):.2g} steps",
            },
            NOT_REPRODUCED if trap_last > 1e6 else REPRODUCED,
            f"θ runs away (E‖∇h‖² = {trap_last:.2g} after 10⁶ steps), so the least stays {trap_least:.2g}; the bound "
            f"falls below it at {_crossing(trap_least):.1g} steps; the proof uses six more conditions.",
        ),
        _row(
            "table-1-non-convex",
            {"Theorem 3": "O(log k/√k)"},
            only_where("a factor log k is allowed for"),
            "Theorem 3 has log(k+2)/√(k+1); Table 1 leaves the logarithm out.",
        ),
        _row(
            "averaging-is-needed",
            {"A of standard": standard.A, "A of Fast": fast.A},
            NOT_REPRODUCED,
            f"It has one: at L = μ = 1 its certified constant is {standard.A:.3g}, Fast's {fast.A:.3g} (Chandak 2025: "
            "the strongly monotone case).",
        ),
    ]


@cache
def _trap(last: int = 1_000_000) -> tuple[float, float, float]:
    """The least E‖∇h‖² so far, the printed bound and the last E‖∇h‖² of Section 3.3's steps on the trap, exactly."""
    a0, b0, c0 = tc.certify("non-convex", L=1.0, mu_g=0.1, proof="printed").c
    # One draw of variance 1 enters f and g.
    draw = np.array([0.0, 0.0, 1.0, 1.0])

    def step(k: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        second, lowest = now
        r = (k + 1.0) ** -0.5
        a, b, c = a0 * r, b0 * r, c0 * r
        rows = [[1, 0, -a, 0], [0, 1, 0, -b], [-0.8 * c, c, 1 - c, 0], [-0.1 * c, 0.1 * c, 0, 1 - c]]
        block = jnp.array([[jnp.asarray(entry, float) for entry in row] for row in rows])
        second = block @ second @ block.T + c**2 * np.outer(draw, draw)
        return second, jnp.minimum(lowest, 0.04 * second[0, 0])

    with jax.enable_x64(True):
        start = jnp.zeros((4, 4)).at[0, 0].set(1.0), jnp.asarray(0.04)
        second, lowest = jax.jit(lambda now: jax.lax.fori_loop(0, last, step, now))(start)
        return float(lowest), float(_trap_bound(np.array(float(last)))), float(0.04 * second[0, 0])


def _trap_bound(k: np.ndarray) -> np.ndarray:
    """Theorem 3 as printed from θ₀ = 1, ω₀ = f₀ = g₀ = 0: V₀ = 0.8² + 0.1² + 0.1 + 1."""
    return np.asarray((32 * 1.75 + 4 * np.log(k + 2)) * 72 / np.sqrt(k + 1))


def _crossing(least: float) -> float:
    """Where the bound of the trap falls below a value that never changes again."""
    k = np.geomspace(1e6, 1e14, 4000)
    return float(k[np.argmax(_trap_bound(k) < least)])


@cache
def _lqr_facts() -> dict[str, float]:
    lqr = tc.problems.paper_lqr().lqr
    with jax.enable_x64(True):
        best = np.asarray(lqr.gain)
        # A gain on the way to the edge of the stabilising set: the critic's solution grows without bound.
        way = np.zeros_like(best)
        way[0, 0] = -1.0
        sizes = [float(np.linalg.norm(np.asarray(lqr.Omega(share * 0.5 * way)))) for share in (0.9, 0.99, 0.999)]
        low = float(lqr.monotonicity(-best, 1.0, 1.0))
        better = float(lqr.monotonicity(-best, 1.0, 2.0))
        costs = [
            float(np.linalg.norm(np.asarray(jax.grad(lambda K, s=sigma: lqr.J(K, s))(best)))) for sigma in (0.0, 1.0)
        ]
    return {"0.9": sizes[0], "0.999": sizes[2], "low": low, "better": better, "slope0": costs[0], "slope1": costs[1]}


def _assumptions() -> list[Claim]:
    facts = _lqr_facts()
    tdc = tc.problems.random_policy_evaluation
    with jax.enable_x64(True):
        problem = jax.jit(lambda key: tdc(key, states=10, actions=5, features=3))(jax.random.key(0))
        noise = [_variance(problem, np.full(3, far)) for far in (0.0, 100.0, 10_000.0)]
    # Quadratic growth, which a certificate allows for: 100 times as far, 100² times the variance and not 100³ times.
    tamed = noise[2] <= 2 * 100**2 * noise[1]
    proven = tc.certify("strongly-convex", L=1.0, mu_h=1.0, mu_g=1.0, noise=1.0, growth=1.0)
    bounded = decide(noise[1] <= 1.01 * noise[0])
    return [
        _row(
            "assumption-1",
            {"‖Ω_K‖ at 0.9 of the way to the edge": facts["0.9"], "at 0.999": facts["0.999"]},
            only_where("K stays in a sublevel set of J"),
            f"‖Ω_K‖ grows from {facts['0.9']:.3g} to {facts['0.999']:.3g} towards the edge of the stabilising "
            "gains and has no bound there.",
        ),
        _row(
            "assumption-2",
            {
                "variance at θ = 0": noise[0],
                "at θ = 100": noise[1],
                "at θ = 10,000": noise[2],
                "A with B₁ = 1": proven.A,
            },
            only_where("the noise may grow as B₀ + B₁‖θ−θ*‖²") if tamed and bounded == NOT_REPRODUCED else bounded,
            f"It is {noise[0]:.3g} at θ = 0 and {noise[1]:.3g} at θ = (100, 100, 100): no B serves all θ. B₀ + "
            "B₁‖θ−θ*‖² does, and with it the rate of Theorem 1 has a proof of ours.",
        ),
        _row(
            "assumption-3",
            {"smallest eigenvalue": facts["low"], "with weight 2 on J": facts["better"]},
            decide(True) if facts["low"] > 0 else only_where("the J row has weight 2"),
            f"Its smallest eigenvalue is {facts['low']:.3f}; with weight 2 on the J row it is {facts['better']:.3f}.",
        ),
    ]


def _variance(problem: tc.Problem, theta: np.ndarray) -> float:
    def one(key: jax.Array) -> jax.Array:
        _, omega, env = problem.init(key)
        x, _ = problem.sample(problem.noise(key), theta, omega, env)
        return problem.F(jnp.asarray(theta), omega, x)

    values = jax.vmap(one)(jax.random.split(jax.random.key(1), 4000))
    return float(jnp.sum(jnp.var(values, axis=0)))


def _applications() -> list[Claim]:
    facts = _lqr_facts()
    known = tc.problems.paper_lqr().pl_constants([])
    forest = tc.problems.forest(temp=1.0)
    mus = [float(forest.pl_constants([size * np.array([[1.0, -1.0]] * 3)])["mu_h"]) for size in (0.0, 5.0)]
    return [
        _row(
            "bilevel",
            {"solution of the bilevel problem": 0.5, "of the two equations": 1.0},
            NOT_REPRODUCED,
            "min (x−1)²/2 + x²/2 is at x = ½, the two equations give x = 1: the implicit term −∇²_xy f₂(∇²_yy "
            "f₂)⁻¹∇_y f₁ is missing.",
        ),
        _row(
            "lqr-same-optimum",
            {"‖∇J(K*)‖, σ = 0": facts["slope0"], "σ = 1": facts["slope1"]},
            decide(max(facts["slope0"], facts["slope1"]) < 1e-8),
            "Yes: the gradient at K* is zero to rounding for both.",
        ),
        _row(
            "lqr-pl",
            {"μ": float(known["mu_h"]), "largest metric on {J ≤ J(0)}": float(known["metric"][1])},
            only_where("K stays in a sublevel set of J"),
            f"With E_K it holds with μ = {known['mu_h']:.3f} (Fazel 2018); for ∇J itself only on sublevel "
            "sets, where Σ_K is bounded.",
        ),
        _row(
            "mdp-pl",
            {"μ at the uniform and the best policy": mus[0], "at logits ±5": mus[1]},
            only_where("all action probabilities stay above a bound"),
            f"The constant goes with min π²: at τ = 1 in the forest {mus[0]:.2g} at the uniform and the best "
            f"policy, {mus[1]:.2g} with logits ±5.",
        ),
    ]


def _algorithms() -> list[Claim]:
    lqr = tc.problems.paper_lqr().lqr
    with jax.enable_x64(True):
        Sigma = np.asarray(lqr.covariance(np.zeros((2, 3)), 1.0))
    # The mean of zzᵀ(zᵀΩz), by Gaussian moments: 2ΣΩΣ + tr(ΩΣ)Σ, at Ω = I; the printed sign pushes along it.
    push = float(np.sum(np.eye(5) * (2 * Sigma @ Sigma + np.trace(Sigma) * Sigma)))
    problem = tc.problems.rates("strongly-convex", noise=0.0)
    paths = {
        name: tc.solve(problem, method, 3, 1, [1, 2, 3]).history["error"].to_numpy()
        for name, method in {
            "standard": tc.Standard(0.5, 0.25), "printed": tc.Fast(0.5, 0.25, 1.0),
            "fresh": tc.Fast(0.5, 0.25, 1.0, order="fresh"),
        }.items()
    }  # fmt: skip
    printed, fresh = (float(np.abs(paths[name] - paths["standard"]).max()) for name in ("printed", "fresh"))
    return [
        _row(
            "algorithm-2",
            {"⟨mean of zzᵀ(zᵀΩz), Ω⟩ at Ω = I": push},
            decide(push < 0),
            f"It pushes Ω away from 0 with {push:.3g} > 0 at any step size; eq. (lqr_Goperator), L529, has the "
            "sign and φ(x′, u′) right.",
        ),
        _row(
            "lambda-1",
            {"largest difference, as printed": printed, "F and G blended first": fresh},
            decide(True) if printed < 1e-12 else only_where("F and G are blended before the step"),
            "As printed it is the standard method one step late; blended first it is the standard method exactly.",
        ),
    ]
