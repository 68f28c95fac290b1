"""SABA and SVRG: each transcribed in NumPy on the same samples, and both find the exact solution of finite data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import twoclock as tc
from twoclock import prng
from twoclock.engine import engines
from twoclock.engine.engines import Xla
from twoclock.engine.run_batch import Lanes, make_instances
from twoclock.methods import SABA, SVRG
from twoclock.protocols import InputError

STEPS, RIDGE, ITEMS = 40, 0.1, 12


def problem_of(replace, batch=4):
    return tc.problems.quadratic_bilevel(dim_x=3, dim_y=4, samples=ITEMS, batch=batch, replace=replace, v_scale=1.0)


def samples(problem, seed=0):
    """The samples that the library draws for this seed."""
    theta, _, env = problem.init(prng.start_key(seed))

    def step(env, k):
        x, env = problem.draw(problem.noise(prng.step_key(seed, k)), theta, env)
        return env, x

    return jax.tree.map(np.asarray, jax.lax.scan(step, env, jnp.arange(STEPS))[1])


def shares(inner, outer, x, y, v):
    """What one inner and one outer item add to (F, G_y, G_v), by hand; v has the library's sign."""
    (a, b, c), (p, r) = inner, outer
    zero = np.zeros_like(y)
    of_inner = -(-b * (a @ v)), a * (a @ y - b @ x - c) + RIDGE * y, a * (a @ v) + RIDGE * v
    of_outer = RIDGE * x, zero, -p * (p @ y - r)
    return [np.concatenate(part) for part in (of_inner, of_outer)]


def items(level, k):
    """The items of one level's batch at step k, and their numbers."""
    return [tuple(column[k][i] for column in level.batch) for i in range(len(level.index[k]))], level.index[k]


@pytest.mark.parametrize("replace", [False, True])
def test_saba_is_saga_with_a_memory_for_each_level(replace):
    with jax.enable_x64(True):
        problem = problem_of(replace)
        drawn = samples(problem)
    x, y, v = np.zeros(3), np.zeros(4), np.zeros(4)
    memory = [{}, {}]
    twice = False
    for k in range(STEPS):
        both = [items(level, k) for level in drawn]
        direction, heard = np.zeros(11), [{}, {}]
        for of, (batch, index) in enumerate(both):
            twice |= len(set(index.tolist())) < len(index)
            mean = np.mean(list(memory[of].values()), axis=0) if memory[of] else np.zeros(11)
            for item, i in zip(batch, index.tolist(), strict=True):
                # The other level's item does not enter this level's share.
                new = shares(*((item, both[1][0][0]) if of == 0 else (both[0][0][0], item)), x, y, v)[of]
                direction += (new - memory[of][i] + mean if i in memory[of] else new) / len(index)
                heard[of][i] = new
        for of in (0, 1):
            memory[of] |= heard[of]
        x, y, v = x - 0.05 * direction[:3], y - 0.1 * direction[3:7], v - 0.1 * direction[7:]
    assert twice == replace
    result = tc.solve(problem, SABA(0.05, 0.1, items=(ITEMS, ITEMS)), steps=STEPS, seeds=[0])
    for got, want in zip((result.theta, *result.omega), (x, y, v), strict=True):
        np.testing.assert_allclose(got[0], want, atol=1e-12)


def test_svrg_gathers_a_pass_and_moves_for_two():
    with jax.enable_x64(True):
        problem = problem_of(False)
        drawn = samples(problem)
    one_pass, z = ITEMS // 4, np.zeros(11)

    def batch_mean(k, at):
        (inner, _), (outer, _) = (items(level, k) for level in drawn)
        each = [sum(shares(i, o, at[:3], at[3:7], at[7:])) for i, o in zip(inner, outer, strict=True)]
        return np.mean(each, axis=0)

    steps = np.r_[np.full(3, 0.05), np.full(8, 0.1)]
    for k in range(STEPS):
        place = k % (3 * one_pass)
        if place == 0:
            anchor, gathered = z, []
        if place < one_pass:
            gathered.append(batch_mean(k, anchor))
        else:
            z = z - steps * (batch_mean(k, z) - batch_mean(k, anchor) + np.mean(gathered, axis=0))
    result = tc.solve(problem, SVRG(0.05, 0.1, moves=2.0), steps=STEPS, seeds=[0])
    np.testing.assert_allclose(np.concatenate([result.theta[0], *(part[0] for part in result.omega)]), z, atol=1e-12)


@pytest.mark.parametrize("method", [SABA(0.1, 0.2, items=(ITEMS, ITEMS)), SVRG(0.1, 0.2)], ids=["SABA", "SVRG"])
def test_constant_steps_reach_the_exact_solution(method):
    """Linearly: the error at twice the steps is about the square, until rounding. SOBA with these steps hovers."""
    result = tc.solve(problem_of(False), method, steps=6000, seeds=2, marks=[1000, 2000, 6000])
    error = result.summary("error")["mean"].to_numpy()
    assert error[2] < 1e-20
    assert error[1] < 1e-2 * error[0] or error[1] < 1e-20
    hovering = tc.solve(problem_of(False), tc.methods.soba(0.1, 0.2), steps=6000, seeds=2, marks=[6000])
    assert hovering.summary("error")["mean"].iloc[-1] > 1e-6


def test_saba_and_svrg_solve_saddles_and_levels_drawn_together():
    minimax = tc.problems.quadratic_minimax(dim_x=2, dim_y=2, samples=8, batch=4)
    for method in (SABA(0.1, 0.2, items=8), SVRG(0.1, 0.2)):
        assert tc.solve(minimax, method, steps=4000, seeds=1).summary("error")["mean"].iloc[-1] < 1e-16
    apart = problem_of(False)
    data = apart.sampler.inner.data, apart.sampler.outer.data
    together = tc.problems.bilevel(
        apart.outer, apart.inner, tc.sampling.Minibatches(data, 4), apart.x, apart.y, 1.0, truth=apart.truth
    )
    result = tc.solve(together, SABA(0.1, 0.2, items=ITEMS), steps=4000, seeds=1)
    assert result.summary("error")["mean"].iloc[-1] < 1e-16


def test_xla_updates_the_memory_in_place():
    """A step touches a batch of rows; to turn the tables took a hundred times as long as all else."""
    seeds = [0, 1, 2]
    work = Lanes.of(
        make_instances(problem_of(replace=False), seeds), [SABA(0.1, 0.2, items=(ITEMS, ITEMS))], seeds, None
    )
    (group,) = Xla().compile(work)
    noise = engines._noise(group.instances, group.streams, np.int32(0), size=1, capacity=1)
    traced = jax.make_jaxpr(engines._advance.jitted)(
        group.instances, group.methods, group.place(engines.start(work)), noise, np.zeros(3, np.int32), None
    )
    turned = [eqn.outvars[0].aval.shape for eqn in equations(traced.jaxpr) if eqn.primitive.name == "transpose"]
    assert turned  # the rest of the state is
    assert not [shape for shape in turned if ITEMS in shape and len(shape) == 4]  # methods, seeds, items, entries


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from equations(inner)


def test_a_diverged_lane_is_reported_and_keeps_its_last_finite_iterate():
    result = tc.solve(problem_of(False), SABA(50.0, 50.0, items=(ITEMS, ITEMS)), steps=2000, seeds=2)
    assert result.diverged.all()
    assert np.isfinite(result.theta).all()
    assert (result.last_step < 2000).all()


@pytest.mark.parametrize(
    ("problem", "method", "words"),
    [
        (lambda: tc.problems.quadratic(dim=2), SABA(), "`SABA` must know which items"),
        (lambda: tc.problems.quadratic(dim=2), SVRG(), "`SVRG` must pass over the data"),
        (lambda: problem_of(False), SABA(items=(12, 13)), r"`SABA\(items=\(12, 13\)\)` must count the data's items"),
        (lambda: problem_of(True), SVRG(), "the same item may come twice"),
    ],
)
def test_problems_that_do_not_fit_get_one_line(problem, method, words):
    with pytest.raises(InputError, match=words) as error:
        tc.solve(problem(), method, steps=10, seeds=1)
    assert "\n" not in str(error.value)


def test_wrong_numbers_get_one_line():
    with pytest.raises(InputError, match="items"):
        SABA(items=0)
    with pytest.raises(InputError, match="moves"):
        SVRG(moves=0.5)
