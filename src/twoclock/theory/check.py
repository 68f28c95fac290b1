"""A user's own step sizes against the theory: which inequalities hold, and from which step on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import jax
import numpy as np
from numpy.typing import NDArray

from twoclock.methods import Fast, Standard
from twoclock.protocols import InputError, Schedule, html_table
from twoclock.schedules import Levels, Power
from twoclock.theory import lyapunov_search
from twoclock.theory.certificate import ORDER, Numbers, Rule, rate_conditions
from twoclock.theory.certify import ProofConstants, check_constants, check_steps
from twoclock.theory.paper import paper_decay, paper_rules
from twoclock.validation import readable_trace_errors, short_repr

Array = NDArray[np.float64]
Steps = tuple[Array, ...]  # α, β of each level, λ
Side = Callable[[Array], tuple[Numbers, Numbers]]
_WEIGHTS_OF_STANDARD = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # λ/β of the average in the proof for Standard
_POINTS = 400  # between two of these a condition is assumed to change at most once


@dataclasses.dataclass(frozen=True, repr=False)
class ConditionCheck:
    """Where one inequality holds, up to the horizon, the last step checked.

    `check` makes one for each inequality.

    Attributes:
        group: "order" (the plain order), "paper" (the paper's proof, corrected) or "tight".
        name: the inequality as written in docs/certificates.md.
        left, right: the two sides at k = 0.
        holds: the stretches [first, last] of steps on which it holds.
        horizon: the last step checked.
    """

    group: str
    name: str
    left: float
    right: float
    holds: tuple[tuple[int, int], ...]
    horizon: int

    @property
    def always(self) -> bool:
        """Whether it holds at every step."""
        return self.holds == ((0, self.horizon),)

    @property
    def since(self) -> int | None:
        """The step from which it holds up to the horizon, or None."""
        return self.holds[-1][0] if self.holds and self.holds[-1][1] == self.horizon else None

    @property
    def leaves(self) -> int | None:
        """The first step at which it fails, or None."""
        if not self.holds or self.holds[0][0] > 0:
            return 0
        return None if self.always else self.holds[0][1] + 1

    def __str__(self) -> str:
        if self.always:
            return "holds at every step"
        if not self.holds:
            return "holds at no step"
        if self.since is not None and len(self.holds) == 1:
            return f"holds from k = {self.since} on"
        if self.since is None and self.leaves:
            return f"holds up to k = {self.leaves - 1}, fails from k = {self.leaves} on"
        return "holds for k in " + ", ".join(f"[{a}, {b}]" for a, b in self.holds)

    def __repr__(self) -> str:
        return f"ConditionCheck({self.group}: {self.name} {self!s:.200})"


@dataclasses.dataclass(frozen=True, repr=False)
class CheckReport:
    """All findings on one method.

    `check` returns it.

    Attributes:
        findings: one `ConditionCheck` per inequality.
    """

    findings: tuple[ConditionCheck, ...]

    def __iter__(self) -> Iterator[ConditionCheck]:
        return iter(self.findings)

    def group(self, name: str) -> tuple[ConditionCheck, ...]:
        """The findings of one group: the plain order, or one of the proofs."""
        return tuple(f for f in self.findings if f.group == name)

    @property
    def leaves_order(self) -> int | None:
        """The first step at which α ≤ β ≤ λ ≤ ¼ fails, or None."""
        steps = [f.leaves for f in self.group("order") if f.leaves is not None]
        return min(steps) if steps else None

    @property
    def covered(self) -> tuple[str, ...]:
        """The proofs whose every inequality holds at every step."""
        asked = {name: self.group(name) for name in ("paper", "tight") if self.group(name)}
        if "paper" in asked:
            asked["paper"] += self.group("order")
        return tuple(name for name, findings in asked.items() if all(f.always for f in findings))

    def __str__(self) -> str:
        return "\n".join(f"{f.group:6} {f.name}: {f}" for f in self.findings)

    def __repr__(self) -> str:
        kept = sum(f.always for f in self.findings)
        proofs = " and ".join(self.covered) or "neither proof"
        return f"CheckReport({kept} of {len(self.findings)} inequalities hold at every step; covered by {proofs})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), ("proof", "inequality", ""), [(f.group, f.name, str(f)) for f in self.findings])


@np.errstate(all="ignore")
def check(
    method: Fast | Standard,
    structure: str,
    *,
    L: float,
    mu_h: float | None = None,
    mu_g: float | Sequence[float],
    horizon: float = 10**9,
) -> CheckReport:
    """Follow the theory's inequalities along the schedules of a ``Fast`` or a ``Standard``.

    These are the plain order α ≤ β ≤ λ ≤ ¼, the conditions of the paper's proof (corrected), and those of the tight
    proof: whether some weighted V falls at that step (spectral radius below 1), and whether one and the same V falls at
    all of them. As in ``certify``, both proofs also need the conditions for a rate: V falls by 2/n or more, and λ is at
    most λ₀n₀/n, with n = k + n₀. Constant steps violate the second, steps that are too small the first.

    The proof for ``Standard`` contains an average of the noise with its own weight λ, the multiple of the last β with
    which V falls fastest. There β must be at most β₀n₀/n, and the paper's proof does not apply.

    Args:
        method: a method with any schedules. Of several averaging weights, λ and ``lam_g``, the worst one counts.
        structure, L, mu_h, mu_g: as in ``certify``. With more than two levels ``mu_g`` has one number for each fast
            level; then the plain order is α ≤ β₁ ≤ β₂ ≤ … ≤ λ ≤ ¼, and the paper's proof does not apply.
        horizon: the last step to check.

    >>> import twoclock as tc
    >>> fig1 = tc.Fast(alpha=5e-4, beta=2e-3, lam="0.8/(k+10)")
    >>> report = tc.theory.check(fig1, "strongly-convex", L=1.0, mu_h=0.5, mu_g=0.5)
    >>> report.leaves_order
    391
    """
    given, _ = check_constants(structure, L, mu_h, mu_g, 0.0)
    if not isinstance(method, (Fast, Standard)):
        raise InputError(
            f"`check(method=…)` must be a `Fast` or a `Standard`, got {type(method).__name__}; "
            "the theory knows no other"
        )
    if isinstance(method, Standard):
        return max((_check(method, structure, given, horizon, w) for w in _WEIGHTS_OF_STANDARD), key=_steps_covered)
    if method.order != "paper":
        raise InputError(
            f"`check(method=…)` must have order='paper', got {short_repr(method.order)}; the proofs know no other"
        )
    return _check(method, structure, given, horizon)


def _steps_covered(report: CheckReport) -> float:
    """For how many steps the inequalities of a report hold, and how nearly they hold elsewhere."""
    return sum((last + 1 - first) / (f.horizon + 1) for f in report.group("tight") for first, last in f.holds)


def _check(
    method: Fast | Standard, structure: str, given: ProofConstants, horizon: float, weight: float | None = None
) -> CheckReport:
    """The report; ``weight`` is λ/β in the proof for ``Standard``, whose λ falls at the rate if and only if β does."""
    L, mu_h, mu_g, _ = given.scaled()
    of = "fast" if isinstance(method, Fast) else "standard"
    known = lyapunov_search.ProofCase(of, structure, L, (mu_h or 0.0, *mu_g))
    betas = _per_level("beta", method.beta, len(mu_g))
    lams = betas[-1:]
    if isinstance(method, Fast):
        lams = [method.lam, *(_per_level("lam_g", method.lam_g, len(mu_g)) if method.lam_g else [])]
    grid = np.unique(np.r_[0, np.geomspace(1, check_steps("horizon", horizon), _POINTS).round()])
    # The n₀ for which λ is c/(k+n₀), or c/√(k+n₀) for non-convex h, from its first two values; 1 if it is neither.
    # A larger n₀ is less demanding, so of two averaging weights the larger one counts, and n₀ is rounded up.
    n0, p = 1.0, 0.5 if structure == "non-convex" else 1.0
    for lam in lams:
        first, second = _values(lam, np.arange(2.0)) ** (1 / p)
        if isinstance(lam, Power) and float(np.asarray(lam.p)) == p:
            n0 = max(n0, float(np.asarray(lam.shift)))
        elif first > second:
            n0 = max(n0, float(second / (first - second)) * (1 + 1e-6))

    seen: dict[tuple[int, bytes], Array] = {}  # the inequalities use the same steps again and again

    def value(schedule: Schedule, k: Array) -> Array:
        at = id(schedule), k.tobytes()
        if at not in seen:
            seen[at] = _values(schedule, k)
        return seen[at]

    def steps(k: Array, lam: np.ufunc = np.minimum, scale: float = min(given.L, 1.0)) -> Steps:
        """The steps for the proofs, which concern F/L and G/L if L < 1."""
        sizes = [scale * value(x, k) for x in (method.alpha, *betas)]
        return (*sizes, lam.reduce([value(x, k) for x in lams]) if weight is None else weight * sizes[-1])

    def along(rules: list[Rule], scale: float = min(given.L, 1.0)) -> list[tuple[str, Side]]:
        def side(name: str, rule: Callable[..., tuple[Numbers, Numbers]]) -> Side:
            return lambda k: rule(*steps(k, np.maximum if name.startswith("λ ≤") else np.minimum, scale))

        return [(name, side(name, rule)) for name, rule in rules]

    def to_a_rate(name: str, fall: Callable[[Array], Array]) -> list[tuple[str, Side]]:
        """The conditions that turn a fall of V into a rate."""
        promised, lam0 = float(fall(grid[:1])[0]), float(steps(grid[:1], np.maximum)[-1][0])

        def sides(k: Array) -> list[tuple[str, Numbers, Numbers]]:
            return rate_conditions(structure, name, fall(k), promised, steps(k, np.maximum)[-1], lam0, k + n0, n0)

        def side(i: int) -> Side:
            return lambda k: sides(k)[i][1:]

        return [(text, side(i)) for i, (text, *_) in enumerate(sides(grid[:1]))]

    def triples(k: Array) -> list[tuple[float, ...]]:
        return list(zip(*steps(k), strict=True))

    def margin(k: Array) -> tuple[Numbers, Numbers]:
        positive = np.finfo(float).tiny  # so that ≤ means <
        return positive, np.array([lyapunov_search.margin(known, s)[0] for s in triples(k)])

    some = grid[:: _POINTS // 20]
    D = _common_weights(known, triples(some), some + n0)

    def tight_fall(k: Array) -> Array:
        return np.array([lyapunov_search.speed(known, s, D, 1.0) for s in triples(k)])

    groups = {
        "order": along(_plain_order(len(mu_g), of), scale=1.0),
        "tight": [
            *along(lyapunov_search.rules(structure, L, mu_h)),
            ("0 < 1 − ρ(K)", margin),
            *to_a_rate(lyapunov_search.FALL, tight_fall),
        ],
    }
    if of == "fast" and len(mu_g) == 1:
        name, speed = paper_decay(structure, mu_h, mu_g[0])
        rules = along(paper_rules(structure, L, mu_h, mu_g[0]))
        groups["paper"] = rules + to_a_rate(name, lambda k: speed * steps(k)[0])
    return CheckReport(tuple(_follow(group, *side, grid) for group, sides in groups.items() for side in sides))


def _per_level(name: str, given: Schedule | Levels, count: int) -> list[Schedule]:
    """A step size for each fast level; a single one serves all."""
    found = list(given.entries) if isinstance(given, Levels) else [given] * count
    if len(found) != count:
        raise InputError(
            f"`mu_g` must have one number for each fast level, and `{name}` of the method has {len(found)} levels, got "
            f"{count}"
        )
    return found


def _plain_order(fast: int, of: str) -> list[Rule]:
    """α ≤ β ≤ λ ≤ ¼, with the β of each level; for ``Standard`` without λ."""
    if fast == 1:
        return ORDER if of == "fast" else ORDER[:1]
    names = ["α", *(f"β{chr(0x2080 + i)}" for i in range(1, fast + 1)), "λ"]

    def below(i: int) -> Rule:
        return f"{names[i]} ≤ {names[i + 1]}", lambda *steps: (steps[i], steps[i + 1])

    rules = [below(i) for i in range(fast + (of == "fast"))]
    return [*rules, ("λ ≤ 1/4", lambda *steps: (steps[-1], 0.25))] if of == "fast" else rules


def _values(schedule: Schedule, k: Array) -> Array:
    with jax.enable_x64(True), readable_trace_errors("check(method=…)"):
        if k.size >= 4:
            with suppress(Exception):  # a user's function may need plain numbers
                if (found := np.asarray(jax.vmap(schedule)(k), float)).shape == k.shape:
                    return found
        return np.array([float(schedule(i)) for i in k])


def _common_weights(known: lyapunov_search.ProofCase, triples: list[tuple[float, ...]], n: Array) -> Array:
    """The weights D with which V falls fastest: those whose worst step has the largest decrease times n, or √n.

    The search starts from the best weights of single steps. {D : Q(D) ⪰ rD} is convex, so there is only one maximum.
    """
    from scipy.optimize import minimize  # slow to load, and needed here alone

    structure = known[1]
    units = np.sqrt(n) if structure == "non-convex" else n

    def worst(D: Array) -> float:
        speeds = [lyapunov_search.speed(known, t, D, 1.0) for t in triples]
        return min(speed * unit for speed, unit in zip(speeds, units, strict=True))

    choices = [D for fits, D in (lyapunov_search.margin(known, t) for t in triples) if fits > 0]
    if not choices:
        return np.ones(2 * len(known.mu))
    best = max(choices, key=worst)
    if structure == "non-convex" or not 0 < worst(best) < 2:
        return best

    def cost(x: Array) -> float:
        value = worst(np.exp([0.0, *x]))
        return -math.log(value) if value > 0 else math.inf

    start = np.log(best[1:] / best[0])
    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(cost, start, method="Nelder-Mead", options={"maxfev": 600, "xatol": 1e-4, "fatol": 1e-7}).x
    return np.exp([0.0, *found])


def _follow(group: str, name: str, side: Side, grid: Array) -> ConditionCheck:
    def true(k: Array) -> NDArray[np.bool_]:
        left, right = side(k)
        return np.broadcast_to(np.asarray(left) <= np.asarray(right) * (1 + 1e-12), k.shape)

    values, last = true(grid), int(grid[-1])
    changes = [0] if values[0] else []  # where a stretch begins, and the step after its last, in turn
    for i in np.flatnonzero(values[1:] != values[:-1]):
        low, high = int(grid[i]), int(grid[i + 1])
        while high - low > 1:
            middle = (low + high) // 2
            same = true(np.array([float(middle)]))[0] == values[i]
            low, high = (middle, high) if same else (low, middle)
        changes.append(high)
    if len(changes) % 2:
        changes.append(last + 1)
    holds = tuple((first, after - 1) for first, after in zip(changes[::2], changes[1::2], strict=True))
    left, right = (float(np.ravel(v)[0]) for v in side(grid[:1]))
    return ConditionCheck(group, name, left, right, holds, last)
