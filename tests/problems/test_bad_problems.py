"""Wrong arguments of the problems and models: what is passed, and what the one line must say."""

import types

import jax
import jaxtyping
import numpy as np
import pytest

import twoclock as tc
from twoclock import models, prng, problems, theory

P = np.full((2, 2, 2), 0.5)
MDP = models.Mdp(P, np.zeros((2, 2)), 0.9)
PI = np.full((2, 2), 0.5)
LQR = models.Lqr([[0.9]], [[1.0]], [[1.0]], [[1.0]])
KEY = prng.instance_key(0)


def F(theta, omega, x):
    return theta


CUSTOM = {"F": F, "G": F, "noise": lambda key: jax.random.normal(key), "theta": 0.0, "omega": 0.0}
BILEVEL = {
    "outer": lambda x, y, b: x**2 + y**2, "inner": lambda x, y, b: y**2, "sampler": lambda key: (None, None),
    "x": 0.0, "y": 0.0,
}  # fmt: skip
EVALUATE = {"mdp": MDP, "features": np.eye(2), "target": PI}
MDP_OF = {"P": P, "r": np.zeros((2, 2)), "gamma": 0.9}
KNOWN = {"structure": "pl", "L": 1.0, "mu_h": 0.5, "mu_g": 0.5}


def factory():
    return F


TABLE = [
    # what is called, what is passed, what the line says
    (problems.custom, {**CUSTOM, "F": 1.0}, r"`custom\(F=…\)` must be a function, got float"),
    (problems.custom, {**CUSTOM, "G": None}, r"`custom\(G=…\)` must be a function, got NoneType"),
    (problems.custom, {**CUSTOM, "F": factory}, r"`custom\(F=…\)` must be .* of \(theta, omega, x\), got one of \(\)"),
    (problems.custom, {**CUSTOM, "noise": lambda: 0.0}, r"`custom\(noise=…\)` must be .* of \(key\), got one of \(\)"),
    (problems.custom, {**CUSTOM, "noise": lambda key, n: n}, r"`custom\(noise=…\)` must be .* got one of \(key, n\)"),
    (problems.custom, {**CUSTOM, "draw": lambda u: u}, r"`custom\(draw=…\)` must be a function of \(u, theta, env\)"),
    (problems.custom, {**CUSTOM, "draw": 3}, r"`custom\(draw=…\)` must be a function, got int"),
    (problems.custom, {**CUSTOM, "measure": lambda theta: {}}, r"`custom\(measure=…\)` must be .* of \(theta, omega\)"),
    (problems.custom, {**CUSTOM, "theta": None}, "`theta` must hold at least one number, got None"),
    (problems.custom, {**CUSTOM, "theta": {}}, "`theta` must hold at least one number, got {}"),
    (problems.custom, {**CUSTOM, "theta": "0.0"}, "`theta` must be a number or an array, got str; write 0.0"),
    (problems.custom, {**CUSTOM, "theta": np.zeros}, "`theta` must be a number or an array, got .*; call it first"),
    (problems.custom, {**CUSTOM, "omega": {"a": True}}, r"`omega\['a'\]` must be a number or an array, got bool"),
    (problems.custom, {**CUSTOM, "env": np.array(["a"])}, "`env` must be an array of numbers, got one of <U1"),
    (problems.custom, {**CUSTOM, "env": {"a": 2**64}}, r"`env\['a'\]` must be a number that an array can hold"),
    (problems.quadratic, {"dim": 2.5}, "`dim` must be a whole number, got 2.5"),
    (problems.quadratic, {"dim": "3"}, "`dim` must be a whole number, got '3'"),
    (problems.quadratic, {"mu_h": "0.5"}, "`mu_h` must be one number, got '0.5'"),
    (problems.quadratic, {"top": np.inf}, "`top` must be a finite number above 0, got inf"),
    (problems.quadratic, {"sigma": [0.1]}, r"`sigma` must be one number, got \[0.1\]"),
    (problems.quadratic, {"seed": -1}, "`seed` must be at least 0, got -1"),
    (problems.rates, {"dim": True}, r"`rates\(dim=…\)` must be a whole number, got True"),
    (problems.rates, {"h": 1}, r"`rates\(h=…\)` must be 'strongly-convex', 'pl', 'non-convex' or 'flat', got 1"),
    (problems.quadratic_bilevel, {"samples": 8, "batch": 9}, "`batch` must be a whole number from 1 to 8, got 9"),
    (problems.quadratic_minimax, {"condition": 0.5}, "`condition` must be a finite number of at least 1, got 0.5"),
    (problems.bilevel, {**BILEVEL, "v_scale": 1.0, "levels": True}, "`v_scale` is 1 with `levels=True`"),
    (problems.bilevel, {**BILEVEL, "levels": 1}, "`levels` must be True or False, got 1"),
    (problems.bilevel, {**BILEVEL, "v_scale": "1"}, "`v_scale` must be one number, got '1'"),
    (problems.bilevel, {**BILEVEL, "x": None}, "`x` must hold at least one number, got None"),
    (problems.bilevel, {**BILEVEL, "y": "zero"}, "`y` must start from finite numbers, got text"),
    (problems.bilevel, {**BILEVEL, "inner": lambda x, y: y**2}, r"`inner` must be a function of \(x, y, batch\)"),
    (problems.bilevel, {**BILEVEL, "outer": 2.0}, "`outer` must be a function, got float"),
    (problems.composite, {"outer": F, "inner": 1.0, "sampler": F, "x": 0.0}, "`inner` must be a function, got float"),
    (problems.minimax, {"loss": F, "sampler": 5, "x": 0.0, "y": 0.0}, "`sampler` must be a function of a key"),
    (models.Mdp, {**MDP_OF, "gamma": "0.9"}, "`gamma` must be an array of numbers, got str"),
    (models.Mdp, {**MDP_OF, "gamma": None}, "`gamma` must be an array of numbers, got NoneType"),
    (models.Mdp, {"P": [[1.0], [1.0, 0.0]], "r": 0, "gamma": 0.9}, "`P` must be an array of numbers, got list"),
    (models.EmpiricalMdp, {"states": 2.0, "actions": 2}, r"`EmpiricalMdp\(states=…\)` must be a whole number, got 2.0"),
    (models.EmpiricalMdp, {"states": 2, "actions": 2, "temp": "hot"}, r"Mdp\(temp=…\)` must be one number, got 'hot'"),
    (models.Lqr, {"A": [["1"]], "B": [[1]], "Q": [[1]], "R": [[1]]}, "`A` must be a matrix of numbers, got list"),
    (models.Lqr, {"A": [[1]], "B": [[1]], "Q": [[0]], "R": [[1]]}, "`.A, Q.` must be detectable: the mode 1 of `A`"),
    (models.CertaintyEquivalence, {"Q": [[1.0]], "R": [[1.0]], "ridge": 0.0}, r"\(ridge=…\)` must be .* above 0"),
    (models.from_gymnasium, {"env": object()}, "`env` must have a table"),
    (problems.policy_evaluation, {**EVALUATE, "features": np.zeros((2, 3))}, "`features` must not all be zero"),
    (problems.policy_evaluation, {**EVALUATE, "factor": "2"}, "`factor` must be one number"),
    (problems.policy_evaluation, {**EVALUATE, "weights": [1.0]}, r"`weights` must be .* got the shape \(1,\)"),
    (problems.policy_evaluation, {**EVALUATE, "weights": [-1.0, 2.0]}, "`weights` must be .* a negative entry"),
    (problems.random_policy_evaluation, {"key": KEY, "states": 2.5}, "`states` must be a whole number, got 2.5"),
    (problems.random_policy_evaluation, {"key": KEY, "gamma": "0.9"}, "`gamma` must be one number, got '0.9'"),
    (problems.value_operators, {"value": 3}, "`value` must be a function, got int"),
    (problems.value_operators, {"value": lambda params: 0.0}, r"`value` must be a function of \(params, state\)"),
    (problems.value_operators, {"value": lambda p, s: 0.0, "operator": "etd"}, "`operator` must be .* got 'etd'"),
    (problems.entropy_mdp, {"mdp": MDP, "features": np.zeros((2, 1))}, "`features` must not all be zero"),
    (problems.entropy_mdp, {"mdp": MDP, "temp": "0.1"}, "`temp` must be one number, got '0.1'"),
    (problems.random_entropy_mdp, {"key": KEY, "actions": 0}, "`actions` must be at least 1, got 0"),
    (problems.lqr_actor_critic, {"lqr": LQR, "sigma": "1"}, "`sigma` must be one number, got '1'"),
    (problems.lqr_actor_critic, {"lqr": LQR, "K0": "zero"}, "`K0` must be a matrix of numbers, got str"),
    (problems.Guard, {"limit": "8"}, r"`Guard\(limit=…\)` must be one number, got '8'"),
    (tc.samplers.Minibatches, {"data": np.arange(4), "size": 5}, "`size` must be a whole number from 1 to 4, got 5"),
    (tc.samplers.Minibatches, {"data": np.arange(4), "size": 2.0}, "`size` must be a whole number, got 2.0"),
    (theory.certify, {**KNOWN, "L": "1"}, "`L` must be one number, got '1'"),
    (theory.certify, {**KNOWN, "mu_g": True}, "`mu_g` must be one number, got True"),
    (theory.certify, {**KNOWN, "proof": ["tight"]}, r"`certify\(proof=…\)` must be 'tight', 'paper' or 'printed'"),
    (theory.constants, {"problem": LQR}, "`problem` must have init, noise, draw, F and G"),
    (theory.constants, {"problem": problems.quadratic(), "samples": 1.5}, "`samples` must be a whole number, got 1.5"),
    (theory.start, {"problem": problems.quadratic(), "structure": "convex"}, "`structure` must be"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _as_users_run_it():
    """Without the run-time type checks of the tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(("make", "arguments", "words"), TABLE)
def test_bad_arguments_are_refused_in_one_line(make, arguments, words):
    with pytest.raises(tc.InputError, match=words) as error:
        make(**arguments)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("name", ["forest", "paper_lqr", "quadratic", "rates", "boyan"])
def test_a_factory_that_was_not_called_is_named(name):
    """A key arrives where a setting should."""
    with pytest.raises(tc.InputError, match=r"got a traced value|must be 'td'|must be 'strongly-convex'"):
        tc.solve(getattr(problems, name), tc.Standard(), steps=1, seeds=1)


def test_objects_that_only_look_the_part_are_to_be_subclasses():
    looks_like_a_problem = types.SimpleNamespace(init=F, noise=F, draw=F, F=F, G=F)
    with pytest.raises(tc.InputError, match=r"got SimpleNamespace; derive its class from tc\.Problem"):
        tc.solve(looks_like_a_problem, tc.Standard(), steps=1, seeds=1)
    looks_like_a_method = types.SimpleNamespace(init=F, step=F, estimate=F)
    with pytest.raises(tc.InputError, match=r"got SimpleNamespace; derive its class from tc\.Method"):
        tc.solve(problems.quadratic(), looks_like_a_method, steps=1, seeds=1)


def test_an_object_that_refuses_to_be_looked_at_is_no_draw():
    class Rude:
        def __getattr__(self, name):
            raise RuntimeError("no")

    with pytest.raises(tc.InputError, match="must be a function, got Rude"):
        tc.problems.custom(lambda t, w, x: w, lambda t, w, x: w, jax.random.normal, 0.0, 0.0, draw=Rude())
