"""What a user's functions read may change between two calls: every main function computes with what it is now."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logged
import twoclock as tc
from twoclock.protocols import pytree, static

MDP = logged.random_mdp(end=0.1)
LOG = logged.read(MDP.draw(episodes=20, steps=10))
METHOD = tc.Standard(0.5, 0.5)


def bowl(**changed):
    parts = {
        "F": lambda theta, omega, x: 0.5 * theta + omega - 1, "G": lambda theta, omega, x: omega - theta + 0.1 * x,
        "noise": lambda key: jax.random.normal(key, (2,)), "theta": np.ones(2), "omega": np.ones(2),
        "measure": lambda theta, omega: {"error": jnp.sum(theta**2)},
    }  # fmt: skip
    return tc.problems.custom(**{**parts, **changed})


@pytree
class Scaled(tc.Method):
    """A user's own method, whose estimate reads a number."""

    read: object = static()

    def init(self, theta, omega):
        return METHOD.init(theta, omega)

    def step(self, F, G, state, x, k):
        return METHOD.step(F, G, state, x, k)

    def estimate(self, state):
        return jax.tree.map(lambda leaf: self.read() * leaf, (state.theta, state.omega))


# What the number is part of: from a function that reads it to a problem and a method.
PARTS = {
    "F": lambda read: (bowl(F=lambda theta, omega, x: read() * theta), METHOD),
    "jitted F": lambda read: (bowl(F=jax.jit(lambda theta, omega, x: read() * theta)), METHOD),
    "F with a loop": lambda read: (
        bowl(F=lambda theta, omega, x: jax.lax.fori_loop(0, 2, lambda i, t: read() * t, theta)),
        METHOD,
    ),
    "G": lambda read: (bowl(G=lambda theta, omega, x: omega - read() * theta), METHOD),
    "noise": lambda read: (bowl(noise=lambda key: read() * jax.random.normal(key, (2,))), METHOD),
    "draw": lambda read: (bowl(draw=lambda u, theta, env: (read() * u, env)), METHOD),
    "measure": lambda read: (bowl(measure=lambda theta, omega: {"error": jnp.sum(read() * theta**2)}), METHOD),
    "factory": lambda read: (lambda key: bowl(theta=read() * jnp.ones(2)), METHOD),
    "jitted factory": lambda read: (jax.jit(lambda key: bowl(theta=read() * jnp.ones(2))), METHOD),
    "step size": lambda read: (bowl(), tc.Standard(lambda k: 0.1 * read() + 0.0 * k.astype(float), 0.5)),
    "estimate": lambda read: (bowl(), Scaled(read)),
    "callback": lambda read: (
        bowl(
            F=lambda theta, omega, x: jax.pure_callback(
                lambda t: np.asarray(t) * read(), theta, theta, vmap_method="expand_dims"
            )
        ),
        METHOD,
    ),
}


@functools.cache
def end_of_a_run():
    return tc.solve(bowl(), METHOD, 30, 2)


def residual(problem, method):
    """At the end of another run: what a run sees is asked at the door `solve`."""
    return tc.residual(problem, end_of_a_run(), samples=1000, check=False).by_seed[["F", "G"]]


def learn(problem, method, engine="xla"):
    learner = tc.Learner(problem, method, engine=engine)
    learner.update_many(np.ones((5, 2)))
    return learner.theta, learner.metrics["error"]


def constants(problem, method):
    found = tc.theory.constants(problem, samples=16, points=1)
    return found.L, found.noise


DOORS = {
    "solve": lambda problem, method: (found := tc.solve(problem, method, 5, 2)).theta + found.history["error"].mean(),
    "solve on c": lambda problem, method: tc.solve(problem, method, 5, 2, engine="c").theta,
    "sweep": lambda problem, method: tc.sweep({"a": problem}, {"b": method}, 5, 2).history["error"],
    "tune": lambda problem, method: tc.tune(problem, method, {"beta.c": (0.1, 0.5)}, steps=20, rungs=1).ranking[
        "score"
    ],
    "residual": residual,
    "learner": learn,
    "learner on c": lambda problem, method: learn(problem, method, "c"),
    "constants": constants,
}
# What a door does not take, or does not look at.
UNLIKE = {
    "sweep": ("estimate",),
    "tune": ("step size", "estimate"),
    "residual": ("step size", "estimate", "measure", "factory", "jitted factory", "callback"),
    "learner": ("factory", "jitted factory", "callback", "noise", "draw"),
    "learner on c": ("factory", "jitted factory", "callback", "noise", "draw"),
    "constants": ("step size", "estimate", "measure", "factory", "jitted factory", "noise", "draw", "callback"),
    "solve on c": ("measure", "callback"),
}
PAIRS = [(door, part) for door in DOORS for part in PARTS if part not in UNLIKE.get(door, ())]


def cells():
    """Where a number may lie, and how it is set."""
    entry, array = [0.0], np.zeros(2)
    return {
        "in a list": (lambda: entry[0], lambda value: entry.__setitem__(0, value)),
        "in an array": (lambda: array, lambda value: array.fill(value)),
    }


def cases():
    """Each part at each door, with the number in both places for `solve` and in one of them in turn for the others."""
    for i, (door, part) in enumerate(PAIRS):
        for j, where in enumerate(cells()):
            if (door == "solve" or j == i % 2) and (part, where) != ("step size", "in an array"):  # which is one number
                yield door, part, where


def numbers(door, problem, method):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(DOORS[door](problem, method))])


@functools.cache
def fresh(door, part, where, value):
    """What functions find that were never called with another number, which is their own."""
    read, write = cells()[where]
    write(value)
    now = read() + 0
    return numbers(door, *PARTS[part](lambda: now))


def follow(door, part, where, values):
    """Change a number before each of several calls; what they find, and what functions find that were never called."""
    read, write = cells()[where]
    problem, method = PARTS[part](read)
    for value in values:
        write(value)
        yield numbers(door, problem, method), fresh(door, part, where, value)


@pytest.mark.parametrize(("door", "part", "where"), list(cases()))
@pytest.mark.filterwarnings("ignore:engine 'c'")
def test_a_changed_number_is_seen(door, part, where):
    before = None
    for found, fresh in follow(door, part, where, (2.0, 3.0, 2.0)):
        np.testing.assert_array_equal(found, fresh)
        assert not np.array_equal(found, before)
        before = found


@pytest.mark.parametrize("where", cells())
@pytest.mark.parametrize("door", ["solve", "residual", "learner", "constants"])
def test_four_threads_see_their_own_numbers(door, where):
    wrong = []

    def work(own):
        for part in ("F", "jitted F"):
            for found, fresh in follow(door, part, where, (own + 2.0, own + 3.0)):
                if not np.array_equal(found, fresh):
                    wrong.append((own, part, found, fresh))

    threads = [threading.Thread(target=work, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("engine", ["xla", "c"])
@pytest.mark.parametrize("part", ["F", "jitted F", "measure", "noise", "G"])
def test_a_number_that_progress_changes_counts_from_the_next_run_on(part, engine):
    """A run computes with what its functions read when it began, also the programs that are compiled later."""
    read, write = cells()["in an array"]
    write(2.0)
    problem, method = PARTS[part](read)
    run = {"steps": 9, "seeds": 2, "marks": [0, 4, 9], "engine": engine}
    during = tc.solve(problem, method, **run, progress=lambda event: write(3.0))
    after = tc.solve(problem, method, **run)
    write(2.0)
    again = tc.solve(problem, method, **run)
    assert during == again == tc.solve(*PARTS[part](lambda: np.full(2, 2.0)), **run)
    assert after == tc.solve(*PARTS[part](lambda: np.full(2, 3.0)), **run)
    assert during != after


@pytest.mark.parametrize("kind", ["a field of the problem", "a constant of a function", "in a factory"])
def test_an_array_changed_in_place_after_a_run_is_another_run(kind, tmp_path):
    array = np.full(2, 2.0)
    problem = {
        "a field of the problem": lambda: bowl(theta=array),
        "a constant of a function": lambda: bowl(F=lambda theta, omega, x: theta * array),
        "in a factory": lambda: lambda key: bowl(theta=jnp.asarray(array)),
    }[kind]()
    first = tc.solve(problem, METHOD, 10, 2, [10])
    array[:] = 3.0
    for start in (first, tc.load(first.save(tmp_path))):
        with pytest.raises(tc.InputError, match=r"`start` is of another run: its problem differs"):
            tc.solve(problem, METHOD, 20, 2, start=start)
