"""Wrong inputs over the whole public interface, as data: what is called, with what, and what the one line must say.

``CALLS`` has, for each function, arguments that are right and for each argument wrong values and a pattern that the
line must match (``wrong_problems`` has those of problems and models); ``OTHERS`` calls that need more than one argument
to be wrong; ``COMMANDS`` command lines; ``FILES`` lines of a sweep's file.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import twoclock as tc
from twoclock import methods, models, plot, prng, problems, theory

INF, NAN, HUGE = float("inf"), float("nan"), 10**5000
KEY = prng.instance_key(0)
MDP = models.Mdp(np.full((2, 2, 2), 0.5), np.zeros((2, 2)), 0.9)
BOWL = problems.quadratic(dim=2)


def operator(theta, omega, x):
    return theta + x


def noise(key):
    return jax.random.normal(key)


DEEP = functools.reduce(lambda tree, _: [tree], range(2000), 1.0)

CUSTOM = {"F": operator, "G": operator, "noise": noise, "theta": 0.0, "omega": 0.0}
KNOWN = {"structure": "pl", "L": 1.0, "mu_h": 0.5, "mu_g": 0.5}
SOLVE = {"problem": BOWL, "method": tc.Fast(), "steps": 10, "seeds": 2}
SWEEP = {"problems": {"a": BOWL}, "methods": {"b": tc.Fast()}, "steps": 10, "seeds": 2}
TUNE = {"problem": BOWL, "method": tc.Fast(), "steps": 100}

NO_NUMBERS = ["0.5", None, [0.5], True, 1j, NAN]
NO_COUNTS = [0, -1, 2.5, "3", None, True]
SCHEDULES = ["1/k", "k", "", "1/(k+1)^2", -0.1, INF, NAN, 1j, True, [0.1], np.ones(3), {"c": 1}, tc.Power, "-1/(k+1)"]


def custom(**changed):
    return problems.custom(**{**CUSTOM, **changed})


def solve_custom(**changed):
    return tc.solve(custom(**changed), tc.Fast(), steps=10, seeds=2)


def grid(method=None, **values):
    return tc.grid(tc.Fast() if method is None else method, **(values or {"alpha.c": [1.0]}))


def solve_with(**changed):
    return tc.solve(BOWL, tc.Standard(**changed), steps=10, seeds=2)


class NoPytree(tc.Problem):
    init = noise = draw = F = G = staticmethod(lambda *args: 0.0)


class Forgetful(tc.Method):
    """A method whose state has no iterates."""

    init = staticmethod(lambda theta, omega: (theta, omega))
    step = staticmethod(lambda F, G, state, x, k: state)
    estimate = staticmethod(lambda state: state)


jax.tree_util.register_static(Forgetful)


# (function, right arguments, {argument: (what the line must say, wrong values)})
CALLS = [
    (tc.solve, SOLVE, {
        "problem": ("`problem`", [3, None, "quadratic", problems.Guard(), tc.Fast(), problems.custom, problems.boyan,
                                  lambda: BOWL, lambda key: 3, lambda key, more: BOWL, NoPytree(), BOWL.F]),
        "method": ("`method`", [0.1, "fast", tc.Fast, {}, {"a": 1}, {"a": tc.Fast}, [tc.Fast()], BOWL]),
        "steps": ("`steps` must", [0, -1, 2.5, "many", None, True, NAN, INF, 2**31, [1], 1j, HUGE, np.arange(3)]),
        "seeds": ("`seeds` must", [0, -1, [], [1, 1], [1.5], [-1], "12", None, True, {1: 2}, 2.5, [2**32], HUGE,
                                   ["a"], [None], np.zeros((2, 2))]),
        "marks": ("`marks` must", [[20], [-1], "12", [1.5], 5, ["a"], {3: 4}, [HUGE]]),
        "precision": ("`precision` must be 'float64'", ["half", 64, None, float, ["float64"]]),
        "bound": ("`bound` must be positive", [0, -1.0, NAN, "1", True, 1j, [1.0]]),
        "block": ("`block` must", [0, -1, 2.5, "8", True, [4]]),
        "checkpoint": ("`checkpoint`|cannot be written", [3, True, ["a"], "a\0b", "x" * 300, "/proc/nowhere"]),
        "checkpoint_every": ("`checkpoint_every` must", [-1.0, "10", NAN, None, True, [1]]),
        "progress": ("`progress` must", ["yes", 3, None, [1]]),
        "engine": ("`engine` has no", ["gpu", 3, None, ["c"]]), "start": ("`start`", [3, "runs", {"a": 1}, BOWL]),
    }),
    (problems.custom, CUSTOM, {
        "F": (r"`custom\(F=…\)` must be a function", [1.0, None, "F", lambda: 0.0, lambda theta: theta, np.zeros(2)]),
        "G": (r"`custom\(G=…\)` must be a function", [1.0, None, lambda omega: omega, lambda a, b, c, d: a]),
        "noise": (r"`custom\(noise=…\)` must be a function", [None, 0.0, lambda: 0.0, lambda key, n: 0.0]),
        "draw": (r"`custom\(draw=…\)` must be a function", [3, lambda u: u, lambda u, theta, omega, env, more: u]),
        "measure": (r"`custom\(measure=…\)` must be a function", [3, {"error": 1}, lambda theta: {}]),
        "theta": ("`theta", [None, {}, "0.0", np.zeros, True, [], {"a": None}, object()]),
        "omega": ("`omega", ["0.0", np.zeros, {"a": True}, object()]),
    }),
    (solve_custom, {}, {
        "F": ("`F`", [lambda t, w, x: t > 0, lambda t, w, x: t * 1j, lambda t, w, x: jnp.zeros(5),
                      lambda t, w, x: {"a": t}, lambda t, w, x: None, lambda t, w, x: (t, t), lambda t, w, x: "t",
                      lambda t, w, x: t if t > 0 else -t, lambda t, w, x: float(t), lambda t, w, x: np.sin(t),
                      lambda t, w, x: t.nothing, lambda t, w, x: 1 / 0, lambda t, w, x: jnp.ones(2) @ jnp.ones(3),
                      lambda t, w, x: int(t), lambda t, w, x: [t for _ in range(t)]]),
        "G": ("`G`", [lambda t, w, x: w > 0, lambda t, w, x: jnp.zeros((1, 1)), lambda t, w, x: max(w, 0.0),
                      lambda t, w, x: undefined]),  # noqa: F821
        "noise": ("`noise`", [lambda key: key.nothing, lambda key: np.random.normal(),  # noqa: NPY002
                              lambda key: float(jax.random.normal(key)), lambda key: {}["a"]]),
        "draw": ("`draw`", [lambda u, t, e: u, lambda u, t, e: (u,), lambda u, t, e: (u, e, e), lambda u, t, e: None,
                            lambda u, t, e: (u, 1.0), lambda u, t, e: (u if u > 0 else 0.0, e)]),
        "measure": ("`measure`", [lambda t, w: t, lambda t, w: None, lambda t, w: {"seed": t}, lambda t, w: {"step": t},
                                  lambda t, w: {"e": jnp.ones(3)}, lambda t, w: {"e": None}, lambda t, w: {3: t},
                                  lambda t, w: {"e": t * 1j}, lambda t, w: {"e": {"f": t}}, lambda t, w: [("e", t)],
                                  lambda t, w: {"e": "big"}, lambda t, w: {"e": float(t)}]),
        "theta": ("`theta` must", [NAN, INF, 0, 1j]),
        "omega": ("`omega` must", [NAN, np.zeros(2, int)]),
    }),
    (solve_with, {}, {
        "alpha": ("`alpha`", [lambda k: jnp.ones(3), lambda k: k if k > 0 else 1.0, lambda: 0.1,
                              lambda k: 0.1 * np.random.normal() ** 2]),  # noqa: NPY002
        "project_theta": ("`Standard", [lambda theta: {"a": theta}, lambda theta: theta.nothing]),
    }),
    (tc.Fast, {}, {
        "alpha": ("`alpha`", SCHEDULES), "beta": ("`beta`", SCHEDULES[:6]), "lam": ("`lam`", [1.5, "2/(k+1)", -1]),
        "lam_g": ("`lam_g`", [1.5, "x"]), "order": (r"`Fast\(order=…\)` must be", ["new", None, 1, ["paper"]]),
        "transform_theta": ("transform_theta", [3, "adam", lambda g: g]),
        "project_omega": ("project_omega", [3, "simplex"]),
        "f0": (r"`Fast\(f0=…\)", ["1", 1j, NAN, np.array([INF]), {"a": "x"}, [lambda k: k], DEEP]),
    }),
    (tc.Standard, {}, {"alpha": ("`alpha`", ["1/k", -1, None]), "beta": ("`beta", ["fast", [], [-1]])}),
    (tc.Polyak, {}, {"method": ("method=…|`method`", [3, None, tc.Fast, "fast"]),
                     "power": ("power", ["1", -1.0, NAN, [1.0], True]),
                     "skip": ("skip", [-1, 0.5, "1", None, NAN, True, [1]]),
                     "intervals": ("intervals", [None, 1, "yes", lambda theta: theta, [True]])}),
    (tc.Polyak, {"intervals": True}, {"power": (r"power=…\)` must be 0 with intervals", [0.5, 2])}),
    (tc.RichardsonRomberg, {}, {"method": ("method", [3, None, tc.Fast]), "skip": ("skip", [-1, 2.5, "1"]),
                                "intervals": ("intervals", [None, 0, lambda omega: omega])}),
    (lambda intervals: tc.solve(BOWL, tc.Polyak(tc.Fast(), intervals=intervals), 4, 2), {}, {
        "intervals": ("intervals", [lambda t, w: None, lambda t, w: {}, lambda t, w: "a", lambda t, w: t > 0,
                                    lambda t, w: t.nothing, lambda t, w: float(t)])}),
    (tc.PlugIn, {}, {"method": ("method", [3, tc.Fast]), "model": ("model", [3, "lqr"])}),
    (tc.Power, {"c": 1.0}, {
        "c": (r"`Power\(c=…\)` must", [-1.0, "1", None, NAN, INF, True, [1.0], 1j]),
        "p": (r"`Power\(p=…\)` must", [-0.5, 2.0, "1", NAN]),
        "shift": (r"`Power\(shift=…\)` must", [0.0, -1.0, "1", NAN]),
        "floor": (r"`Power\(floor=…\)` must", [-1.0, "0", NAN]),
    }),
    (tc.Constant, {}, {"c": (r"`Constant\(c=…\)` must", [-1.0, "1", None, NAN, [1.0]])}),
    (methods.averaged_tdc, {}, {"mean_sq_feature_norm": ("`mean_sq_feature_norm`", [0.0, -1.0, "1", None, NAN])}),
    (methods.ttsa, {"alpha": 0.1, "beta": 0.1}, {"shift": ("shift", [0.0, "1"]), "alpha": ("`alpha`", ["1/k", -1])}),
    (grid, {}, {
        "alpha": ("`alpha`", [0.1, "0.1", [], ["1/k"]]),
        "alpha.c": ("`?(alpha.c|Power)", [1, [-1.0], [], ["x"], DEEP, [HUGE]]),
        "nothing": ("`nothing` is not a setting of Fast", [[1]]), "alpha.d": ("`alpha.d` is not a setting", [[1]]),
        "method": ("`method` must", [3, "fast", tc.Fast]),
    }),
    (tc.log_marks, {"steps": 100}, {"per_decade": ("`per_decade` must", [0, 2**31, 2.5])}),
    (tc.logs.read, {"source": {"state": [0, 1], "action": [0, 1], "reward": [0.0, 1.0], "terminated": [False, True]}}, {
        "actions": ("`actions` must", [np.asarray(4), np.eye(2), 3, "ab"]),
    }),
    (tc.sweep, SWEEP, {
        "problems": ("`problem", [{}, BOWL, None, {"a": 3}, {"a": problems.custom}, [BOWL]]),
        "methods": ("`method", [{}, tc.Fast(), None, {"a": 3}, {"a": tc.Fast}, {"a": {}}]),
        "steps": ("`steps` must", [0, "10", None]), "seeds": ("`seeds` must", [0, [1.5], "1"]),
        "marks": ("`marks` must", [[11], "x"]), "precision": ("`precision` must", ["half"]),
        "on": ("`on` must be 'local' or 'ray'", ["here", None, 3]), "bound": ("`bound` must", [-1]),
        "lanes": ("`lanes` must", [0, 2.5, "8", True, 10**5000]), "memory": ("`memory` must", [0, -1, "1G", NAN, 10]),
        "tries": ("`tries` must", [0, "4", True]), "address": ("`address` must", ["here:1", 3]),
        "shared": ("`shared` needs", [True]), "progress": ("`progress` must", ["yes", 3, tc.Power(1.0)]),
        "out": ("`out`|cannot be written", [3, "x" * 300]),
    }),
    (tc.tune, TUNE, {
        "problem": ("`problem", [3, None, problems.custom, lambda key: 3]),
        "method": ("`method`", [3, tc.Fast, {}, {3: tc.Fast()}, {"a": 3}]),
        "space": ("`space`|`alpha|`nothing|`order", [{}, 3, {"alpha.c": 3}, {"alpha.c": (1, 0)}, {"nothing": (1, 2)},
                                                    {"order": (1, 2)}, {"alpha.c": (0, 1)}, {"alpha.c": ("a", "b")}]),
        "steps": ("`steps` must", [0, "x", None]), "budget": ("`budget` must", [0, "x", True, INF, NAN, [1]]),
        "metric": ("`metric` must", ["nothing", 3, ["error"]]), "by": ("`by` must", ["start", None, 1]),
        "order": ("`order` must", ["yes", 1, None]), "widen": ("`widen` must", ["yes", 1]),
        "rungs": ("`rungs` must", [0, 2.5, "3", True, 99]), "seed": ("`seed` must", [-1, "0", 1.5]),
        "bound": ("`bound` must", [0, "x"]), "progress": ("`progress` must", ["yes", 3]),
    }),
    (tc.load, {}, {"path": ("`path`|cannot be|no record", ["nowhere", 3, None, "x" * 300, "/etc/hostname"])}),
    (theory.certify, KNOWN, {
        "structure": ("structure", ["convex", None, 3]), "L": ("`L` must", [*NO_NUMBERS, 0.0, -1.0]),
        "mu_g": ("`mu_g` must", ["0.5", None, True, 1j, NAN, [], 0.0, 2.0]),
        "mu_h": ("`mu_h` must", ["0.5", -1.0, 2.0, None, True]),
        "noise": ("`noise` must", ["1", -1.0, None, NAN]), "proof": ("proof", ["loose", None, ["tight"]]),
        "horizon": ("horizon", [0, "x", 2.5, True]),
    }),
    (theory.check, {"method": tc.Fast(), **KNOWN}, {
        "method": (r"`check\(method=…\)` must", [3, tc.Polyak(), tc.Fast, tc.Fast(order="fresh")]),
        "structure": ("structure", ["convex"]), "horizon": ("horizon", [0, "x", 2.5]), "L": ("`L` must", ["1", 0.0]),
    }),
    (theory.constants, {"problem": BOWL}, {
        "problem": ("`problem", [3, None, MDP, problems.custom]), "samples": ("`samples` must", NO_COUNTS),
        "points": ("`points` must", NO_COUNTS), "radius": ("`radius` must", ["1", 0.0, NAN]),
        "seed": ("`seed` must", [-1, "0", 1.5]),
    }),
    (theory.start, {"problem": BOWL, "structure": "pl"}, {"structure": ("`structure` must", ["convex", None])}),
]  # fmt: skip


COVERED = pd.DataFrame({"step": [10], "level": [0.95], "coverage": [0.9], "runs": [100]})


def of_result(result):
    """The same for what takes the result of a run."""
    kept = tc.solve(BOWL, tc.Polyak(tc.Standard(0.1, 0.1), intervals=True), steps=4, seeds=2)
    return [
        (tc.residual, {"problem": BOWL, "result": result}, {
            "problem": ("`problem`|the problem", [3, None, problems.quadratic(dim=3)]),
            "result": ("`result` must", [3, None, {"a": result}]),
            "samples": ("`samples` must", [0, -1, "x", 2.5, True]),
        }),
        (tc.table, {"results": {"a": result}}, {
            "results": ("`results` must", [{}, result, None, {"a": 3}]),
            "metric": ("`metric` must", ["nothing", None, 3]),
            "step": ("`step` must", [3.5, "x", 99]), "allow": ("`allow` may", ["all", ["all"], [3], 3]),
        }),
        (result.summary, {"metric": "error"}, {
            "metric": ("`metric` must be one that was recorded", ["nothing", None, 3, "seed"]),
            "confidence": ("`confidence` must", [0.0, 1.0, 95, "0.95", NAN, None]),
        }),
        (result.plot, {}, {"metric": ("`metric` must", ["nothing", 3]),
                           "statistic": ("`statistic` must", ["max", None])}),
        (result.interval, {}, {"level": ("`level` must", [0.0, 1.0, 95, "0.95", NAN, None, True, [0.9]]),
                               "how": ("`how` must", ["bootstrap", 2.0, 3]),
                               "step": ("`interval` needs data that this run did not collect", [None])}),
        (kept.interval, {}, {"step": ("`step` must be a mark", [7, "x", 2.5, True, 10**30]),
                             "level": ("`level` must", [1.5])}),
        (kept.plot, {"intervals": True}, {"metric": ("`metric` has no", ["nothing", "theta[9]"]),
                                          "seed": ("`seed` must", [9, "0", True]),
                                          "intervals": ("`level` must", [1.5, "yes", 0.0])}),
        (result.plot, {}, {"intervals": ("`interval` needs", [True]), "seed": ("`seed` is for", [0])}),
        (plot.coverage, {}, {"frame": ("`frame` must", [None, 3, COVERED.drop(columns="runs"), COVERED[:0],
                                                        COVERED.assign(coverage=95.0), COVERED.assign(level=NAN)])}),
        (result.save, {}, {"path": ("`path`|cannot be written", [3, None, "x" * 300, "/proc/nowhere"])}),
        (plot.compare, {"results": {"a": result}, "metric": "error"}, {
            "results": ("`results` must", [{}, None, result, {"a": 3}]), "metric": ("`metric` must", ["nothing", None]),
            "statistic": ("`statistic` must", ["max"]), "scale": ("`scale` must", ["square", None]),
            "size": ("`size` must", [3, (0, 1), ("a", "b"), None, (1, 2, 3)]), "ax": ("`ax` must", [3, "panel"]),
        }),
    ]  # fmt: skip


OTHERS = [
    (lambda: solve_custom(theta={"a": NAN}, F=lambda t, w, x: t, G=lambda t, w, x: w),
     r"`theta\['a'\]` must start from finite numbers"),
    (lambda: solve_custom(theta=np.zeros(2), F=lambda t, w, x: jnp.zeros(5)),
     r"`F` must return the shapes of theta: at `theta` it returns \(5,\), theta has \(2,\)"),
    (lambda: solve_custom(omega={"y": np.zeros(3)}, G=lambda t, w, x: {"y": jnp.zeros(4)}),
     r"at `omega\['y'\]` it returns \(4,\), omega has \(3,\)"),
    (lambda: solve_custom(theta=np.zeros(2), F=lambda t, w, x: {"a": t}),
     r"`F` must return the structure of theta, \(2,\), got \{'a': \(2,\)\}"),
    (lambda: tc.solve(BOWL, tc.Polyak(tc.Standard(alpha=lambda k: jnp.ones(3))), 4, 2),
     r"`alpha` must give one number per step, got shape \(3,\)"),
    (lambda: solve_custom(F=lambda t, w, x: t if t > 0 else -t), "`F` must not branch .* `jnp.where"),
    (lambda: solve_custom(F=lambda t, w, x: np.sin(t)), "`F` must compute with jax.numpy"),
    (lambda: solve_custom(measure=lambda t, w: {"\udcff": t}), "`measure` must name its metrics by text"),
    (lambda: solve_custom(measure=lambda t, w: {"seed": t}), "`measure` must not call a metric 'seed'"),
    (lambda: solve_custom(measure=lambda t, w: {"e": jnp.ones(3)}), "`measure` must return one real number for 'e'"),
    (lambda: tc.solve(problems.boyan, tc.Fast(), 4, 2), r"`boyan\(\)`"),
    (lambda: tc.solve(BOWL, tc.Fast, 4, 2), r"`method` must be a method, got the class Fast; call it, `Fast\(\)`"),
    (lambda: tc.solve(BOWL, Forgetful(), steps=4, seeds=2), r"`Forgetful.init` must return a state with `.theta`"),
    (lambda: tc.sweep({"a/b": BOWL}, {"": tc.Fast()}, 4, 2), "the label of a method"),
    (lambda: tc.solve(BOWL, {3: tc.Fast()}, 4, 2), "`method` must map text labels"),
]  # fmt: skip

RUN = "run quadratic fast"
CERTIFY = "certify pl --L 1 --mu-h 0.5 --mu-g 0.5"
COMMANDS = [
    ("rnu", "did you mean 'run'"), ("run", "`run` takes a PROBLEM"),
    ("run --steps 10", "`run` takes a PROBLEM"),
    ("run qadratic fast", "`PROBLEM` has no 'qadratic'; did you mean 'quadratic'"),
    ("run quadratic fats", "`METHOD` has no 'fats'; did you mean 'fast'"), ("run custom fast", "`PROBLEM` has no"),
    ("run nowhere.py:p fast", "nowhere.py, which is not there"),
    ("run own.py:nothing fast", "`own.py` has no 'nothing'"),
    ("run own.py:three fast", "`problem` must have init"), ("run own.py: fast", "`own.py` has no ''"),
    ("run own.py:needs fast", "must be a problem, a function of `key`"), ("run broken.py:p fast", "with NameError"),
    ("run syntax.py:p fast", "with SyntaxError"), ("run own.py:frozen fast --steps 9", "`noise` must depend"),
    *((f"{RUN} --steps {wrong}", "--steps") for wrong in ("x", "1.5", "1e", "nan", "inf", "")),
    *((f"{RUN} --steps {wrong}", "`steps` must lie in") for wrong in ("0", "-5", "1e10")),
    *((f"{RUN} --seeds {wrong}", "seeds") for wrong in ("0", "x", "2.5", "-1", "1e-3")),
    *((f"{RUN} --precision {wrong}", "--precision") for wrong in ("half", "64")),
    *((f"{RUN} --bound {wrong}", "bound") for wrong in ("0", "-1", "x", "nan")),
    (f"{RUN} --step 10", "--step"), (f"{RUN} --nothing", "--nothing"), (f"{RUN} extra", "extra"),
    (f"{RUN} --resume", "`--resume` needs the folder"), (f"{RUN} --out own.py", "own.py"),
    (f"{RUN} --out /proc/x", "cannot be written"), (f"{RUN} --problem.dim 0", "`dim` must"),
    (f"{RUN} --problem.dim x", "--problem.dim"), (f"{RUN} --problem.dmi 3", "--problem.dmi"),
    (f"{RUN} --problem.mu-h 2", "`mu_h` must"), (f"{RUN} --problem.sigma -1", "`sigma` must"),
    (f"{RUN} --method.alpha 1/k", "`alpha` must be finite at k=0"), (f"{RUN} --method.alpha", "--method.alpha"),
    (f"{RUN} --method.lam 2", "`lam` must not exceed 1"), (f"{RUN} --method.order new", "order"),
    (f"{RUN} --method.gamma 2", "--method.gamma"), ("run boyan fast --problem.operator x", "`operator` must"),
    ("run quadratic polyak --method.power x", "power"),
    ("run quadratic polyak --method.method.alpha x", "`alpha` is not"),
    ("certify", "STRUCTURE|structure|required"), ("certify convex --L 1 --mu-g 1", "structure"),
    ("certify pl --L 1 --mu-g 0.5", "`mu_h` must be given"),
    (f"{CERTIFY} --L x", "--L"), (f"{CERTIFY} --L -1", "`L` must"),
    (f"{CERTIFY} --mu-g 2", "`mu_g` must"), (f"{CERTIFY} --proof loose", "proof"), (f"{CERTIFY} --steps 0", "steps"),
    (f"{CERTIFY} --seeds x", "--seeds"), (f"{CERTIFY} --check --alpha 1/k", "`alpha` must"),
    (f"{CERTIFY} --noise -1", "`noise` must"), (f"{CERTIFY} --check --lam 2", "`lam` must"),
    ("plot", "required|FOLDER|folder"), ("plot nowhere", "`DIR` must be a folder"),
    ("plot . --metric error", "`DIR` must"),
    ("plot . --statistic max", "--statistic"), ("status", "required|folder"), ("status nowhere", "nowhere"),
    ("check", "required|folder"), ("check nowhere", "nowhere"), ("list everything", "everything"),
    ("sweep", "required|SPEC|spec"), ("sweep nowhere.toml", "nowhere.toml"), ("sweep broken.toml", "is not valid TOML"),
    ("sweep empty.toml", r"needs a table \[problems.LABEL\]"), ("sweep own.toml --on here", "--on"),
    ("sweep own.toml --shared", "`shared` needs"), ("sweep own.toml --address x", "`address` must"),
]  # fmt: skip

# Lines of a sweep's file, each replaced by a wrong one: (right, wrong, words of the error).
FILES = [
    ("seeds = 2", "seeds = [1.5]", "`seeds` must"), ("seeds = 2", "seeds = true", "`seeds`"),
    ("seeds = 2", "sedes = 2", "did you mean 'seeds'"), ("steps = 9", "steps = 0", "`steps` must"),
    ("steps = 9", 'steps = "9"', "`steps`"), ("steps = 9", "steps = 9\nmarks = [99]", "`marks` must"),
    ("steps = 9", 'steps = 9\nprecision = "half"', "`precision` must"),
    ("steps = 9", "steps = 9\nbound = -1", "`bound`"),
    ("steps = 9", "steps = 9\nlanes = 0", "`lanes` must"), ("steps = 9", "steps = 9\nmemory = nan", "`memory` must"),
    ('name = "quadratic"', "", "`problems.p` needs a `name`"), ('name = "quadratic"', "name = 3", "needs a `name`"),
    ('name = "quadratic"', 'name = "qadratic"', "did you mean 'quadratic'"), ("dim = 2", "dim = 0", "`dim` must"),
    ("dim = 2", 'dim = "2"', "`problems.p.dim` must be of the kind"), ("dim = 2", "dmi = 2", "did you mean 'dim'"),
    ('name = "fast"', 'name = "fats"', "did you mean 'fast'"), ("alpha = 0.1", 'alpha = "1/k"', "`alpha` must"),
    ("alpha = 0.1", "alpah = 0.1", "did you mean 'alpha'"), ("alpha = 0.1", "alpha = -1", "`alpha` must"),
    ("alpha = 0.1", "grid = {}", "grid` is empty"), ("alpha = 0.1", 'grid = { "alpha.c" = 1 }', "needs a list"),
    ("alpha = 0.1", 'grid = { "alpha.x" = [1] }', "`alpha.x` is not a setting"),
    ("alpha = 0.1", 'grid = { "alpha.c" = [-1] }', "must"), ("alpha = 0.1", "alpha = [1]", "`alpha` must"),
]  # fmt: skip
