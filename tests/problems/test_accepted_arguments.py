"""Odd arguments that a constructor of problems, models or samplers accepts work when used, or are refused in one line.

``trials(seed)`` draws calls with one odd argument each, endlessly; ``attempt`` makes one of them and uses what it gives
back. The suite tries a few, the campaign of ``make faults`` as many as it likes.
"""

import random
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import twoclock as tc
from twoclock import models, problems, samplers

INF, NAN = float("inf"), float("nan")
NUMBERS = [
    *(0, 1, 2, 3, -1, 0.5, 1.0, 1e-320, 1e308, INF, NAN, 2**31, 2**63, 10**400, True, None, 1j, "", "1", b"1", [], ()),
    *(np.float16(0.5), np.float32(0.5), np.longdouble(0.5), np.int8(1), np.uint8(2), np.uint64(2**63), np.bool(True)),
    *(np.array(0.5), np.array(2), np.array("a"), np.array([0.5]), np.zeros(0), jnp.float32(0.5), jnp.int32(2), [0.5]),
    *(jnp.bfloat16(0.5), jnp.zeros(0), jax.random.key(0), np.ma.masked, object(), int, range(2), np.datetime64(1, "s")),
]  # fmt: skip
WORDS = [
    "td",
    "tdc",
    "gtd2",
    "tdrc",
    "etd",
    "iid",
    "markov",
    "restart",
    "stationary",
    "pl",
    "kinked",
    "TD",
    "",
    3,
    None,
]
SHAPES = [(), (0,), (1,), (2,), (3,), (1, 1), (2, 2), (2, 1), (1, 2), (3, 3), (2, 2, 2), (2, 2, 1), (0, 2), (2, 0)]
KINDS = ["float64", "float32", "float16", "int64", "int8", "uint8", "bool", "complex64", "object", "U3", "M8[s]"]


def arrays(rng):
    """An array, or something like one, of any shape, kind and make."""
    shape, kind = rng.choice(SHAPES), rng.choice(KINDS)
    fill = rng.choice([0, 1, 0.5, -1, 2, NAN, INF, 1e308, 1e-320])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        whole = np.full(shape, fill if kind[0] in "fc" or fill in (0, 1, 2) else 1).astype(kind)
    if len(shape) > 1 and shape[0] == shape[1] and rng.random() < 0.5 and kind[0] in "fiu":
        whole = np.eye(shape[0]).astype(kind)
    make = rng.choice(
        [np.asarray, np.asarray, np.ndarray.tolist, np.ma.masked_array, masked, np.asmatrix, as_jax, fortran]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return make(whole)
        except (ValueError, TypeError):
            return whole


def masked(array):
    return np.ma.masked_array(array, np.ones(array.shape, bool))


def as_jax(array):
    return jnp.asarray(array)


def fortran(array):
    return np.asfortranarray(array)[::-1]


TREES = [
    *(0, 0.0, True, None, {}, (), [], "a", {"a": 0.0}, {"a": 0.0, 1: 0.0}, [0.0, [1.0]], (0.0, {"b": np.zeros(2)})),
    *(np.zeros(0), np.zeros((2, 0)), np.ma.masked_array([1.0], [True]), jax.random.key(0)),
    *(jax.random.PRNGKey(0), jnp.ones(2, jnp.float16), np.ones(2, np.longdouble), np.ones(2, int), 1j, NAN),
    *(np.array([1.0], object), np.array(["a"]), SimpleNamespace(a=1), object(), np.zeros, jnp.int8(3), range(3), {1.0}),
    *(np.datetime64(1, "s"), np.float64(1e308), np.array(5e-324), jnp.zeros((), jnp.bfloat16), INF, np.bool(True)),
]  # fmt: skip
FUNCTIONS = [
    *(lambda *a: a[0], lambda *a: a[-1], lambda *a: 0.0, lambda *a: jnp.zeros(2), lambda *a: None, lambda *a: "a"),
    *(lambda *a: jax.random.key(0), lambda *a: jnp.nan, lambda *a: jnp.sum(a[0]), lambda *a: a, lambda *a: 1 / 0),
    *(lambda *a: {"m": jnp.ones(())}, lambda *a: {"m": jnp.ones(2)}, lambda *a: {1: 1.0}, lambda *a: {"seed": 1.0}),
    *(lambda *a: (a[0], a[0]), lambda *a: jnp.ones(2, int), lambda *a: jnp.zeros(0)),
    *(lambda *a: jax.random.bits(a[0]), lambda *a: jax.random.split(a[0]), lambda *a: {"step": 0.0}, lambda *a: [1.0]),
    *(lambda: 0.0, 3, None, "F", jnp.sum, print, float, object(), lambda *a: a[0] if a[0] > 0 else 1.0, lambda *a: {}),
]  # fmt: skip

P = np.full((2, 2, 2), 0.5)
MDP = models.Mdp(P, np.ones((2, 2)), 0.9)
LQR = models.Lqr([[0.9]], [[1.0]], [[1.0]], [[1.0]])
PI = np.full((2, 2), 0.5)
CUSTOM = {
    "F": lambda t, w, x: t - w, "G": lambda t, w, x: w - 0.5, "noise": lambda key: jax.random.normal(key), "theta": 0.0,
    "omega": 0.0, "draw": lambda u, t, env: (u, env), "env": None, "measure": lambda t, w: {"m": jnp.sum(w)},
}  # fmt: skip
LOSSES = {
    "outer": lambda x, y, b: jnp.sum((x - y) ** 2), "inner": lambda x, y, b: jnp.sum((y - x) ** 2),
    "sampler": lambda key: (jax.random.normal(key, (2,)), None), "x": 0.0, "y": 0.0,
    "measure": lambda x, w: {"m": jnp.sum(x)}, "truth": None, "check": True,
}  # fmt: skip
SADDLE = {name: value for name, value in LOSSES.items() if name not in ("outer", "inner")}
SADDLE["loss"] = lambda x, y, b: x * y - y**2 + jnp.sum(b[0]) * x
COMPOSITE = {"outer": lambda w, b: jnp.sum(w**2), "inner": lambda x, b: x + b[0]}
EVALUATE = {
    "mdp": MDP, "features": np.eye(2), "target": PI, "behaviour": PI, "operator": "tdc", "sampling": "iid",
    "ridge": None, "factor": 2.0, "weights": None, "theta0": None, "lam": None,
}  # fmt: skip
NAMED = {
    "baird": ("operator", "sampling", "ridge", "lam"), "boyan": ("operator", "sampling", "ridge", "lam"),
    "tsitsiklis_van_roy": ("gamma", "operator", "ridge"), "spiral": ("operator", "sampling", "ridge"),
    "ring": ("states", "waves"), "long_walk": ("states",), "slow_walk": ("right", "lam"), "forest": ("temp", "gamma"),
    "frozen_lake": ("temp", "size", "gamma", "slippery"), "paper_lqr": ("sigma", "kappa", "expected_action", "guard"),
    "boeing_747": ("sigma", "kappa", "guard"), "rates": ("h", "coupling", "dim", "noise", "start", "correlation"),
    "quadratic": ("dim", "mu_h", "mu_g", "top", "rotation", "coupling", "sigma", "seed"),
    "quadratic_bilevel": ("dim_x", "dim_y", "samples", "batch", "condition", "noise", "replace", "v_scale", "seed"),
    "quadratic_minimax": ("dim_x", "dim_y", "samples", "batch", "condition", "noise", "seed"),
    "slow_walk_setting": ("right",), "Guard": ("limit", "reach", "span", "log"),
    "ActorCritic": ("kappa", "sigma", "expected_action"),
}  # fmt: skip
SOFT = {"P": 0.5 * P, "r": np.ones((2, 2)), "temp": np.full(2, 0.1), "start": np.full(2, 0.5)}
# What is called, its right arguments, and the pool for those of its arguments whose pool their name does not tell.
CALLS = [
    (problems.custom, CUSTOM),
    (problems.bilevel, {**LOSSES, "v_scale": 0.5, "levels": False}),
    (problems.minimax, SADDLE),
    (problems.composite, {k: v for k, v in LOSSES.items() if k not in ("y", "check")} | COMPOSITE),
    (problems.policy_evaluation, EVALUATE),
    (problems.nonlinear_policy_evaluation, {
        **{k: v for k, v in EVALUATE.items() if k not in ("features", "theta0", "lam")},
        "value": lambda p, s: jnp.sum(p) * s, "params": np.ones(2), "states": np.ones(2),
    }),
    (problems.entropy_mdp, {
        "mdp": MDP, "temp": 0.1, "start": None, "sampling": "restart", "features": None, "policy_features": None,
        "theta0": None,
    }),
    (problems.random_policy_evaluation, {
        "key": jax.random.key(0), "states": 3, "actions": 2, "features": 2, "gamma": 0.5, "operator": "tdc",
        "sampling": "iid", "ridge": None, "factor": 2.0, "lam": None, "spread": 1.0, "reward_noise": 0.0, "nu": 3.0,
    }),
    (problems.random_entropy_mdp, {
        "key": jax.random.key(0), "states": 3, "actions": 2, "gamma": 0.5, "temp": 0.1, "sampling": "restart",
    }),
    (problems.lqr_actor_critic, {
        "lqr": LQR, "sigma": 1.0, "K0": None, "kappa": 2.0, "expected_action": False, "guard": None,
    }),
    (problems.lqr_model, {"lqr": LQR, "sigma": 1.0, "K0": None, "ridge": 1e-6, "guard": None}),
    (problems.ModelCritic, {"Q": [[1.0]], "R": [[1.0]], "ridge": 1e-6}),
    (problems.value_operators, {"value": lambda p, s: p * s, "operator": "tdc", "factor": 2.0, "ridge": 1.0}),
    (problems.exact, {"problem": problems.quadratic(dim=2)}),
    (problems.with_trace, {"problem": problems.boyan("td", "markov", lam=0.5)}),
    (models.Mdp, {"P": P, "r": np.ones((2, 2)), "gamma": 0.9}),
    (models.Lqr, {"A": [[0.9]], "B": [[1.0]], "Q": [[1.0]], "R": [[1.0]], "noise": None}),
    (models.CertaintyEquivalence, {"Q": [[1.0]], "R": [[1.0]], "sigma": 1.0, "ridge": 1e-6}),
    (models.EmpiricalMdp, {"states": 2, "actions": 2, "gamma": 0.9, "temp": 0.1}),
    (models.SoftMdp, SOFT),
    (models.limit_law, {"mdp": MDP, "features": np.eye(2), "target": PI, "behaviour": PI, "sampling": "iid"}),
    (samplers.Minibatches, {"data": np.arange(4.0), "size": 2, "replace": False}),
    (samplers.Stream, {"function": lambda key: jax.random.normal(key)}),
    *((getattr(MDP, name), arguments) for name, arguments in {
        "policy": {"policy": PI}, "stationary": {"policy": PI}, "values": {"policy": PI}, "start_law": {"start": None},
        "soft": {"temp": 0.1, "start": None}, "soft_values": {"temp": 0.1, "policy": PI}, "soft_policy": {"temp": 0.1},
        "soft_return": {"policy": PI, "temp": 0.1}, "soft_gradient": {"logits": PI, "temp": 0.1},
        "visitation": {"policy": PI, "start": None}, "chain": {"policy": PI}, "reward": {"policy": PI},
        "discounted_chain": {"policy": PI},
    }.items()),
    *((getattr(LQR, name), {"K": [[0.5]], **arguments}) for name, arguments in {
        "closed_loop": {}, "spectral_radius": {}, "P": {}, "J": {"sigma": 0.5}, "Omega": {}, "natural_gradient": {},
        "state_covariance": {"sigma": 0.5}, "covariance": {"sigma": 0.5}, "critic": {"sigma": 0.5, "kappa": 1.0},
        "monotonicity": {"sigma": 0.5, "kappa": 1.0}, "simulate": {"sigma": 0.5, "steps": 10, "seed": 0},
        "critic_mean": {"sigma": 0.5, "J": 1.0, "Omega": np.eye(2)},
    }.items()),
    *((getattr(models.SoftMdp(**SOFT), name), arguments) for name, arguments in {
        "q": {"V": np.ones(2)}, "improve": {"Q": PI}, "evaluate": {"logits": PI}, "J": {"logits": PI},
        "gradient": {"logits": PI},
    }.items()),
    *((getattr(problems, name), dict.fromkeys(arguments)) for name, arguments in NAMED.items()),
]  # fmt: skip
POOLS = {
    **dict.fromkeys(("F", "G", "noise", "draw", "measure", "outer", "inner", "loss", "sampler"), FUNCTIONS),
    **dict.fromkeys(("value", "function"), FUNCTIONS),
    **dict.fromkeys(("operator", "sampling", "h", "coupling"), WORDS),
    **dict.fromkeys(("theta", "omega", "env", "x", "y", "params", "truth", "mdp", "lqr", "problem", "key"), TREES),
    **dict.fromkeys(("features", "target", "behaviour", "weights", "theta0", "start", "policy_features", "K0"), ...),
    **dict.fromkeys(("K", "P", "Q", "R", "A", "B", "r", "policy", "logits", "V", "Omega", "data"), ...), "guard": TREES,
}  # fmt: skip


def trials(seed):
    """Draw calls without end: what is called, and its arguments, of which one or two are odd."""
    rng = random.Random(seed)
    while True:
        call, right = rng.choice(CALLS)
        given = {name: value for name, value in right.items() if value is not None or rng.random() < 0.1}
        for name in rng.sample(list(right), min(rng.choice([1, 1, 1, 2]), len(right))):
            pool = POOLS.get(name, NUMBERS)
            if name in ("states", "gamma", "temp", "noise", "start") and rng.random() < 0.5:
                pool = ...
            given[name] = arrays(rng) if pool is ... or rng.random() < 0.1 else rng.choice(pool)
        if call in map(problems.__dict__.get, NAMED):
            given = {name: value for name, value in given.items() if value is not None}
        yield call, given


def use(made, folder):
    """What a user does with it: prints it, solves, measures, saves and loads."""
    repr(made)
    if isinstance(made, models.Mdp):
        made.values(np.full((made.states, made.actions), 1 / made.actions))
        made.soft_policy(0.1)
        made = problems.entropy_mdp(made)
    if isinstance(made, models.Lqr):
        made.J(made.gain)
        made = problems.lqr_actor_critic(made, K0=made.gain)
    if isinstance(made, models.SoftMdp):
        made.solve()
    if isinstance(made, samplers.Minibatches | samplers.Stream):
        made = problems.minimax(
            lambda x, y, b: x * y - y**2 + 0 * jnp.sum(jnp.ravel(jax.tree.leaves(b)[0])), made, 0.0, 0.0
        )
    if isinstance(made, models.CertaintyEquivalence):
        n, m = len(made.Q), len(made.R)
        made.solve(made.statistic({"z": jnp.ones(n + m), "next": jnp.ones(n + m)}) + made.prior)
    if isinstance(made, models.EmpiricalMdp):
        made.solve(made.prior)
    if isinstance(made, problems.Guard):
        made = problems.paper_lqr(guard=made) if made.log < 10**5 else None
    if isinstance(made, tc.Problem):
        result = tc.solve(made, tc.Fast(1e-3, 1e-3, 0.1), steps=3, seeds=2, engine="xla")
        for name in result.history.columns.drop(["seed", "step"]):
            result.summary(name)
        tc.load(result.save(Path(folder) / "result"))


def attempt(call, given):
    """The exception of another kind than `InputError` that a trial ends with; None where all is well."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        try:
            use(call(**given), folder)
        except tc.InputError as error:
            return None if "\n" not in str(error) and len(str(error)) < 400 else error
        except Exception as error:
            return error
    return None


@pytest.fixture(autouse=True)
def _as_users_run_it():
    """Without the strict settings of the tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("seed", range(4))
def test_odd_arguments_work_or_are_refused_in_one_line(seed):
    drawn = trials(seed)
    for _ in range(25):
        call, given = next(drawn)
        error = attempt(call, given)
        assert error is None, f"{call.__qualname__}({given}): {type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("call", "given", "words"),
    [
        (LQR.J, {"K": [0.5]}, r"`K` must have the shape \(1, 1\), got \(1,\)"),
        (LQR.critic, {"K": "gain", "sigma": 1.0}, "`K` must be an array of numbers, got str"),
        (LQR.simulate, {"K": np.eye(2), "sigma": 1.0, "steps": 5}, r"`K` must have the shape \(1, 1\)"),
        (models.SoftMdp(**SOFT).J, {"logits": np.ones(3)}, r"`logits` must have the shape \(2, 2\), got \(3,\)"),
        (models.SoftMdp, SOFT | {"r": "none"}, "`r` must be an array of numbers, got str"),
        (models.SoftMdp, SOFT | {"temp": np.ones(3)}, r"`temp` must fit .* got the shape \(3,\)"),
        (MDP.chain, {"policy": np.ones((3, 3))}, r"`policy` must have the shape \(2, 2\)"),
        (models.Mdp, {"P": np.ma.masked_array(P, P > 0), "r": np.ones((2, 2)), "gamma": 0.9}, "`P` must have no mask"),
        (problems.custom, CUSTOM | {"theta": np.ma.masked_array([1.0], [True])}, "`theta` must have no masked entries"),
        (problems.minimax, SADDLE | {"y": jax.random.key(0)}, "`y` must hold numbers, got a key of JAX"),
        (problems.bilevel, LOSSES | {"y": np.zeros(0)}, "`y` must hold at least one number"),
        (problems.entropy_mdp, {"mdp": MDP, "temp": jax.random.key(0)}, "`temp` must be one number"),
        (problems.ring, {"waves": 2**31}, "`states`, `waves`"),
        (problems.ActorCritic, {"kappa": "2"}, r"`ActorCritic\(kappa=…\)` must be one number, got '2'"),
        (problems.Guard, {"log": 1000.5}, r"`Guard\(log=…\)` must be a whole number, got 1000.5"),
    ],
)  # fmt: skip
def test_what_failed_in_the_words_of_others_is_refused_in_one_line(call, given, words):
    with pytest.raises(tc.InputError, match=words) as error:
        call(**given)
    assert "\n" not in str(error.value)


def test_a_guard_that_never_changes_units_works():
    assert problems.boeing_747(guard=problems.Guard(span=1e308)).bounds.cost_unit is None


def test_a_key_may_be_the_randomness_of_a_step():
    drawn = {"noise": lambda key: key, "draw": lambda u, theta, env: (jax.random.normal(u), env)}
    plain, by_key = (
        tc.solve(problems.custom(**CUSTOM | {"draw": None} | kind), tc.Fast(), 20, 2) for kind in ({}, drawn)
    )
    assert by_key.history.equals(plain.history)
    for sample in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert attempt(problems.custom, CUSTOM | {"noise": lambda key, sample=sample: sample}) is None
        assert attempt(problems.minimax, SADDLE | {"sampler": lambda key, sample=sample: sample}) is None
