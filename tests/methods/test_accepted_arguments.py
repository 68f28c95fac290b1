"""Odd arguments that a constructor accepts work when they are used, or are refused in one line.

``trials(seed)`` draws calls from pools of odd values, for methods, schedules, certificates, constants, intervals and
tables; the suite tries a few, the campaign of ``make faults`` as many as it likes.
"""

import dataclasses
import decimal
import fractions
import functools
import random
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import twoclock as tc
from twoclock import registry, theory
from twoclock.intervals import batch_means
from twoclock.intervals.random_scaling import critical_value
from twoclock.methods import serialize
from twoclock.problems import boyan, quadratic, quadratic_bilevel, with_trace

INF, NAN = float("inf"), float("nan")
PRECISION = ("float64", "float32")
NUMBERS = [
    *(0, 1, 2, -1, 0.0, -0.0, 0.5, 1.0, 5e-324, 1e-320, 1e-308, 1e-45, 1e308, -1e308, INF, -INF, NAN, 2**31, 2**53 + 1),
    *(2**63, 10**30, 10**400, -(10**400), True, False, None, 1j, "", "1", "0.5", "1e-400", "1e400", "nan", "inf", "k"),
    *(np.float16(0.5), np.float32(0.1), np.float64(0.5), np.longdouble(0.5), np.int8(1), np.uint8(200), np.int64(1)),
    *(np.uint64(2**63), np.bool(True), np.complex64(1), np.array(0.5), np.array(1), np.array("0.5"), np.array(None)),
    *(np.array([0.5]), np.zeros(0), np.ones((1, 1)), np.ones(3), np.float16(6e4), np.datetime64(1, "s")),
    *(jnp.float32(0.5), jnp.int32(1), jnp.bfloat16(0.5), jnp.ones(1), jnp.zeros((0,)), jnp.asarray(True)),
    *(ml_dtypes.float8_e4m3fn(0.5), fractions.Fraction(1, 3), decimal.Decimal("0.5"), [], [0.5], (), (0.5,), {}, set()),
    *(b"0.5", object(), int, float, range(3), jax.random.key(0), np.ma.masked, np.array([0.5], object)[0]),
]  # fmt: skip
SCHEDULES = [
    *("0.1/(k+1)", "1/(k+1)^0", "1/(k+1)^1", "1e-400", "1e-400/(k+1)", "1e400/(k+1)", "1/(k+1e400)", "1/(k+1e-400)"),
    *("1/(k+1e-300)", "1e300/(k+1e-300)", "max(1/(k+1), 1e-400)", "max(0/(k+1),0)", "1e-320", "1_0", "０.１", " 1 "),
    *("0x1", "1e", "inf", "-0", "+0.1", "1/(k+١)", "1" * 400, "0." + "0" * 400 + "1", "max(max(1/(k+1),0),0)"),
    *(tc.Power(5e-324), tc.Power(1.0, shift=5e-324), tc.Power(1e308, shift=1e-308), tc.Power(0, floor=0)),
    *(tc.Power(1, p=0), tc.Power(np.float16(1)), tc.Constant(0), tc.Constant(np.int8(0))),
    *(tc.Constant, tc.Power, len, print, float, abs, jnp.abs, lambda k: 0, lambda k: 0.1, lambda k: True),
    *(lambda k: None, lambda k: "0.1", lambda k: np.float32(0.1), lambda k: jnp.int32(0), lambda k: jnp.zeros(0)),
    *(lambda k: [0.1], lambda k: {"a": 0.1}, lambda k: 1j, lambda k: jnp.nan, lambda k: -k, lambda k: 1 / (k - 1)),
    *(lambda k: k // 2, lambda k: k.nothing, lambda: 0.1, lambda *k: 0.1, lambda k, j=1: 0.1 * j, lambda k, j: 0.1),
    *(functools.partial(lambda c, k: c, 0.1), lambda k: jax.random.key(0), lambda k: jnp.ones((1,)), lambda k: k < 3),
    lambda k: 0.1 if k < 3 else 0.01, lambda k: 2.0**k, lambda k: np.sqrt(k), lambda k: jnp.asarray(0.1, jnp.bfloat16),
]  # fmt: skip
FUNCTIONS = [
    *(lambda t: t, lambda t: 2 * t, lambda t: None, lambda t: t[0], lambda t: (t, t), lambda t: "a", lambda t: 0),
    *(lambda t: t.astype(int), lambda t: t.astype("float16"), jnp.abs, np.abs, abs, float, print, len, lambda: 0),
    *(lambda t: jnp.nan * t, lambda t: t > 0, lambda t: np.asarray(t), lambda t, w: t, 3, "", [], True, False, None),
    *(lambda t: 1j * t, lambda t: t.sum(), lambda t: jnp.zeros(0), lambda t: 1 / 0, {}, range(3)),
]  # fmt: skip
OUTPUTS = [
    *(lambda t, w: t, lambda t, w: w, lambda t, w: {}, lambda t, w: None, lambda t, w: jnp.zeros(0), lambda t, w: 0),
    *(lambda t, w: {"a:b": t}, lambda t, w: {"": t}, lambda t, w: {3: t}, lambda t, w: {"a": {"b": t}}, lambda t: t),
    *(lambda t, w: (t, w), lambda t, w: [t[0]], lambda t, w: "a", lambda t, w: t.astype(int), lambda t, w: 1j * t),
    *(lambda t, w: t.astype("float32"), lambda t, w: jnp.nan, lambda t, w: {"seed": t, "step": t}, np.add, max, print),
    *(lambda *z: z[0], lambda t, w, x: t, 1, 0, "theta", None, [], (True,), np.bool(True), np.array(True)),
    *(lambda t, w: {"a": t, 3: t}, lambda t, w: {"[0]": t, "": {"[0]": t}}, lambda t, w: {"\n": t}),
]  # fmt: skip


def transformations():
    optax = pytest.importorskip("optax")
    chains = [
        optax.identity(), optax.scale_by_adam(), optax.scale_by_rms(), optax.scale_by_sign(), optax.scale(0.0),
        optax.scale(-1.0), optax.adam(0.1), optax.sgd(0.1), optax.clip(1.0), optax.clip_by_global_norm(1.0),
        optax.set_to_zero(), optax.add_noise(0.1, 0.1, jax.random.key(0)), optax.trace(0.9),
        optax.scale_by_schedule(lambda k: 1.0), optax.multi_transform({"a": optax.identity()}, "a"),
        optax.multi_transform({"a": optax.identity()}, lambda p: jax.tree.map(lambda _: "a", p)),
        optax.masked(optax.scale_by_adam(), True), optax.apply_if_finite(optax.identity(), 3),
        optax.multi_transform({"a": optax.identity()}, {"x": "a"}), optax.masked(optax.identity(), {"x": True}),
        optax.add_decayed_weights(0.1), optax.scale_by_lbfgs(), optax.MultiSteps(optax.scale_by_adam(), 2),
        optax.inject_hyperparams(optax.scale)(1.0), optax.scale_by_factored_rms(), optax.ema(0.9), optax.adam,
        optax.normalize_by_update_norm(), optax.scale_by_trust_ratio(), optax.keep_params_nonnegative(),
        optax.zero_nans(), optax.centralize(), optax.scale_by_polyak(), optax.scale_by_adam(mu_dtype="bfloat16"),
        optax.with_extra_args_support(optax.identity()), optax.conditionally_mask(optax.identity(), lambda k: True),
    ]  # fmt: skip
    return [*chains, *FUNCTIONS]


def pool(kind, field):
    if kind in ("StepSize", "OptionalStepSize"):
        return NUMBERS + SCHEDULES
    if field.startswith("transform"):
        return transformations()
    if field.startswith("project"):
        return FUNCTIONS
    if field == "intervals":
        return [True, False, *OUTPUTS]
    if field == "method":
        return [tc.methods.Lstd(), tc.Polyak(), tc.Auto(), tc.methods.SVRG(),
                tc.RichardsonRomberg(), tc.methods.VRTDC(), tc.methods.BatchMeans(), tc.methods.ObGD(), tc.PlugIn(),
                tc.Standard(lambda k: 0.1, 0.1), tc.Zap(), tc.MatrixFreeZap(), *NUMBERS[:20], tc.Fast]  # fmt: skip
    if field == "model":
        return [None, tc.models.CertaintyEquivalence(np.eye(3), np.eye(2)), *NUMBERS]
    if field == "items":
        return [(), (0,), (1,), (64, 64), [64, 64], 64, (64,), (2.0,), (True,), ("a",), (10**30,), *NUMBERS]
    return NUMBERS


def use_method(method):
    """Run it a little, look at it, and write it as a record does."""
    name = type(method).__name__
    if name in ("SABA", "SVRG"):
        problem = quadratic_bilevel(samples=64)
    elif name in ("TIDBD", "SwiftTD", "ObGD", "Intentional"):
        problem = with_trace(boyan("td", "markov", lam=0.5))
    elif name == "BatchMeans":
        problem = boyan("td", "markov")
    else:
        problem = quadratic(dim=2)
    repr(method), str(method)
    serialize.to_json(method)
    precision = PRECISION[len(repr(method)) % 2]
    result = tc.solve(problem, method, steps=12, seeds=2, marks=[0, 6, 12], engine="xla", precision=precision)
    repr(result), result._repr_html_()
    for metric in result.metrics:
        result.summary(metric)
    if getattr(method, "intervals", False):
        result.interval(how="blocks" if name == "BatchMeans" else "random-scaling")
    return result


def use_schedule(schedule):
    repr(schedule), str(schedule)
    tc.schedules.parse(str(schedule))
    return use_method(tc.Standard(schedule, schedule))


def use_certificate(certificate):
    repr(certificate), certificate._repr_html_()
    certificate.bound(10, 1.0)
    return use_method(certificate.method())


def calls():
    """Every function, its right arguments, for each argument a pool of odd values, and how to use what it makes."""
    for name, make in registry.methods().items():
        kinds = {field.name: field.type for field in dataclasses.fields(make)}
        yield name, make, {}, {field: pool(kind, field) for field, kind in kinds.items()}, use_method
    yield "constant", tc.Constant, {"c": 0.1}, {"c": NUMBERS}, use_schedule
    yield "power", tc.Power, {"c": 0.1}, dict.fromkeys(("c", "p", "shift", "floor"), NUMBERS), use_schedule
    for name in ("soba", "sgda", "ma_soba", "ttsa", "running_means", "averaged_tdc", "adam"):
        odd = {"alpha": NUMBERS + SCHEDULES, "beta": NUMBERS + SCHEDULES, "lam": NUMBERS + SCHEDULES}
        names = getattr(tc.methods, name).__code__
        asked = names.co_varnames[: names.co_argcount + names.co_kwonlyargcount]
        right = {key: 0.1 for key in ("alpha", "beta", "lam") if key in asked}
        right |= {"mean_sq_feature_norm": 1.0} if name == "averaged_tdc" else {}
        yield name, getattr(tc.methods, name), right, {key: odd.get(key, NUMBERS) for key in asked}, use_method
    known = {"structure": "pl", "L": 1.0, "mu_h": 0.5, "mu_g": 0.5}
    options = dict.fromkeys(("structure", "L", "mu_h", "mu_g", "noise", "proof", "horizon"), NUMBERS)
    yield "certify", tc.certify, known, options, use_certificate
    yield "certify paper", tc.certify, {**known, "proof": "paper"}, options, use_certificate
    checked = dict.fromkeys(("L", "mu_h", "mu_g", "horizon"), NUMBERS)
    yield "check", theory.check, {"method": tc.Fast(), **known}, checked, repr
    steps = NUMBERS + SCHEDULES
    yield (
        "check of", lambda **steps: theory.check(tc.Fast(**steps), **known, horizon=1000), {},
        dict.fromkeys(("alpha", "beta", "lam"), steps), repr,
    )  # fmt: skip
    bowl = {"problem": quadratic(dim=2)}
    yield "constants", theory.constants, bowl, dict.fromkeys(("samples", "points", "radius", "seed"), NUMBERS), repr
    yield "start", theory.start, {**bowl, "structure": "pl"}, {"seed": NUMBERS, "samples": NUMBERS}, repr
    bound = tc.certify(**known).bound
    yield "bound", bound, {"k": 1, "start": 1.0}, {"k": NUMBERS, "start": [*NUMBERS, {"x": 1}, (1, 2, 3, None)]}, repr
    yield "critical", critical_value, {}, {"level": NUMBERS}, repr
    J, c = np.ones((3, 1, 1)), np.ones((3, 1))
    sandwich = {"jacobian": [J, *NUMBERS], "offset": [c, *NUMBERS]}
    sandwich |= {key: [*NUMBERS, [1, 2, 3], [0, 0, 1]] for key in ("sizes", "estimate", "directions", "level")}
    yield "sandwich", batch_means.sandwich, {"jacobian": J, "offset": c}, sandwich, repr
    yield "in_blocks", batch_means.in_blocks, {"stream": c}, {"stream": NUMBERS, "blocks": NUMBERS}, repr
    yield (
        "table",
        tc.table,
        {"results": results()},
        dict.fromkeys(("metric", "step", "largest", "allow"), NUMBERS),
        repr,
    )


@functools.cache
def results():
    return tc.solve(quadratic(dim=2), {"a": tc.Fast(), "b": tc.Standard()}, steps=5, seeds=3, engine="xla")


def trials(seed=None):
    """Labels and calls: all of them in order, or in an order by the seed."""
    every = [
        (f"{name}({argument}={value!r:.40})", make, {**right, argument: value}, use)
        for name, make, right, arguments, use in calls()
        for argument, values in arguments.items()
        for value in values
    ]
    if seed is not None:
        random.Random(seed).shuffle(every)
    return every


def fault(make, arguments, use):
    """What is wrong with a call: any exception but one line of ``InputError``; None if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use(make(**arguments))
    except tc.InputError as error:
        return None if "\n" not in str(error) and len(str(error)) < 500 else f"not one short line: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


def test_what_is_accepted_works_or_is_refused_in_one_line():
    found = {label: fault(*call) for label, *call in trials(seed=0)[:40]}
    assert not {label: wrong for label, wrong in found.items() if wrong}


@pytest.mark.parametrize(
    "value", [10**30, 2**31, fractions.Fraction(1, 3), np.float16(0.5), jnp.bfloat16(0.5)], ids=repr
)
@pytest.mark.parametrize("precision", PRECISION)
def test_numbers_that_jax_does_not_take_are_stored_as_floats(value, precision):
    for method in (tc.Polyak(tc.Standard(0.1, 0.1), power=value), tc.Standard(0.1, tc.Power(1e-30, floor=value))):
        tc.solve(quadratic(dim=2), method, steps=4, seeds=2, engine="xla", precision=precision)


@pytest.mark.parametrize(
    "text", ["1e-400", "1e-400/(k+1)", "1/(k+1e-400)", "max(1/(k+1), 1e-999)", "0." + "0" * 400 + "1"]
)
def test_a_number_below_all_floats_is_not_read_as_zero(text):
    with pytest.raises(tc.InputError, match=r"`alpha` is .* is too small for a float; write 0"):
        tc.Fast(alpha=text)
    assert tc.Fast(alpha="0e-400").alpha.c == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tc.Constant(jax.random.key(0)), r"`Constant\(c=…\)` must be a number"),
        (lambda: critical_value(jax.random.key(0)), "`level` must be one number"),
        (lambda: theory.check(tc.Fast(), "non-convex", L=1.0, mu_g=1.0, horizon=jax.random.key(0)), "`horizon` must"),
        (lambda: theory.check(tc.Fast(alpha=print), "non-convex", L=1.0, mu_g=1.0), "fails"),
        (lambda: theory.check(tc.Fast(lam=lambda k: [0.1]), "non-convex", L=1.0, mu_g=1.0), "fails"),
        (lambda: tc.certify("non-convex", L=1.0, mu_g=1.0).bound(1, "k"), "`start` must be an array of numbers"),
        (lambda: tc.certify("non-convex", L=1.0, mu_g=1.0).bound(1, 10**400), "`start` must"),
        (lambda: tc.Fast(alpha="x" * 900), "`alpha` is not a schedule: 'xxx"),
        (
            lambda: use_method(tc.methods.BatchMeans(intervals=lambda t, w: {"a": t, 3: t})),
            "`intervals` must .* keys of one kind",
        ),
    ],
)
def test_each_fault_found_so_far_is_one_line(call, words):
    with pytest.raises(tc.InputError, match=words):
        call()


def test_steps_without_a_bound_fail_the_check_and_do_not_raise():
    report = theory.check(tc.Fast(beta=1e308), "strongly-convex", L=1.0, mu_h=0.5, mu_g=0.5)
    assert report.covered == ()


def test_an_interval_of_length_zero_has_a_note():
    """Blocks that all say the same, and an estimate elsewhere."""
    found = batch_means.sandwich(np.ones((12, 1, 1)), np.ones((12, 1)), estimate=[0.5], level=fractions.Fraction(9, 10))
    assert "the estimate is inf half-lengths from the solution" in found.note[0]


class TestTransformations:
    """Those of optax that a scalar cannot try."""

    def test_labels_for_a_dictionary_of_variables_work(self):
        optax = pytest.importorskip("optax")
        by_part = {"a": optax.scale(0.5), "b": optax.clip(1.0)}
        problem = tc.problems.custom(
            lambda t, w, x: jax.tree.map(lambda p: p - x, t), lambda t, w, x: w - x, jax.random.normal,
            {"u": 0.0, "v": np.zeros(2)}, 0.0,
        )  # fmt: skip
        method = tc.Fast(transform_theta=optax.multi_transform(by_part, {"u": "a", "v": "b"}))
        assert np.isfinite(tc.solve(problem, method, 10, 2, engine="xla").theta["v"]).all()
        upside_down = optax.multi_transform({"a": optax.scale(1.0), "b": optax.sgd(0.1)}, {"u": "a", "v": "b"})
        with pytest.raises(tc.InputError, match="`transform_theta` must keep the sign of a direction"):
            tc.solve(problem, tc.Fast(transform_theta=upside_down), 10, 2, engine="xla")

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda optax: optax.masked(optax.identity(), {"x": True}), "fails"),
            (lambda optax: optax.scale_by_polyak(), "missing 1 required keyword-only argument"),
            (lambda optax: optax.add_noise(0.1, 0.1, jax.random.key(0)), "`transform_omega` must fit"),
        ],
    )
    def test_one_that_cannot_work_is_one_line(self, make, words):
        method = tc.Standard(transform_omega=make(pytest.importorskip("optax")))
        with jax.numpy_dtype_promotion("standard"), pytest.raises(tc.InputError, match=words):
            tc.solve(quadratic(dim=2), method, 10, 2, engine="xla")
