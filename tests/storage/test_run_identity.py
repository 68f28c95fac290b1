"""Is this the same run? One answer for checkpoints, sweeps, experiments and the command line."""

import json
from dataclasses import replace
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from reproduction.experiment import Case
from reproduction.runner import on_disk, run_experiment
from twoclock.engine import program_digest
from twoclock.storage import put_note
from twoclock.storage.run_identity import FORMAT, Identity, RunSpec, identify
from twoclock.storage.sealed_folder import seal, unseal
from twoclock.storage.sweep_store import Shards

TABLE = np.random.default_rng(0).standard_normal((40, 5))
OTHER = TABLE.copy()
OTHER[31, 2] += 1e-9
METHODS = {"Fast": tc.Fast(), "Standard": tc.Standard()}


@tc.protocols.pytree
class Regression(tc.Problem):
    """A least-squares problem with its data inside, an array far larger than a description shows."""

    table: jax.Array

    def init(self, key):
        return jnp.zeros(4), jnp.zeros(4), None

    def noise(self, key):
        return jax.random.randint(key, (), 0, len(self.table))

    def draw(self, u, theta, env):
        return self.table[u], env

    def F(self, theta, omega, x):
        return -omega

    def G(self, theta, omega, x):
        return omega - x[:4] * (x[4] - x[:4] @ theta)

    def measure(self, theta, omega):
        return {"size": jnp.sum(theta**2)}


def held(table):
    return Regression(table)


def closed_over(table):
    """The same data as a constant of the user's function, inside a separate compiled function."""
    plain = Regression(np.zeros((40, 5)))
    row = jax.jit(lambda u: jnp.asarray(table)[u])
    return tc.problems.custom(
        plain.F, plain.G, plain.noise, *plain.init(None)[:2], draw=lambda u, theta, env: (row(u), env),
        measure=lambda theta, omega: {"size": jnp.sum(theta**2)},
    )  # fmt: skip


def drawn(table):
    """One per seed."""
    return lambda key: Regression(jnp.asarray(table) * jax.random.uniform(key))


def spec(**changed):
    return RunSpec.checked(**{"steps": 30, "seeds": 2, "marks": [10], "bound": None, **changed})


@pytest.mark.parametrize("made", [held, closed_over, drawn])
def test_one_number_in_a_large_array_is_another_problem(made):
    first, again, other = (identify(made(t), METHODS, spec()) for t in (TABLE, TABLE.copy(), OTHER))
    for label in METHODS:
        assert first[label].difference(again[label].as_json()) is None
        assert first[label].difference(other[label].as_json()) == "problem"


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("steps", {"steps": 31}),
        ("seeds", {"seeds": [0, 2]}),
        ("marks", {"marks": [11]}),
        ("bound", {"bound": 5.0}),
        ("precision", {"precision": "float32"}),
    ],
)
def test_what_differs_is_named(part, changed):
    here, there = (identify(held(TABLE), METHODS, s)["Fast"] for s in (spec(), spec(**changed)))
    assert here.difference(there.as_json()) == part


def test_a_start_that_is_a_constant_is_traced_as_the_run_traces_it():
    """The regulator's exact answers are computed at once where they can be, and must not be at its start."""
    one, other = (identify(tc.problems.paper_lqr(sigma=s), {"Fast": tc.Fast()}, spec()) for s in (1.0, 1.0 + 1e-9))
    assert one["Fast"].difference(other["Fast"].as_json()) == "problem"


def test_methods_differ_by_their_numbers_and_by_their_program():
    methods = {"a": tc.Fast(), "b": tc.Fast(lam=0.5), "c": tc.Fast(order="fresh"), "again": tc.Fast()}
    _, found = program_digest.digest_run(held(TABLE), methods, x64=True)
    assert found["a"] == found["again"]
    assert len(set(found.values())) == 3


def test_an_unused_option_invalidates_no_record():
    old = Identity({"steps": 3})
    new = Identity({"steps": 3, "trick": None})
    used = Identity({"steps": 3, "trick": 1})
    assert new.difference(old.as_json()) is None
    assert old.difference(new.as_json()) is None
    assert used.difference(old.as_json()) == old.difference(used.as_json()) == "trick"


CASE = Case(held(TABLE), METHODS, steps=30, seeds=2, marks=[10])


def run(case, out, **options):
    module = ModuleType("experiment")
    module.TITLE, module.cases, module.draw = "A test", lambda quick: {"one": case}, lambda records: {}
    return run_experiment("test", module, out, **options).records["one"]


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    out = tmp_path_factory.mktemp("experiment")
    run(CASE, out)
    return out


@pytest.mark.parametrize(
    "changed", [{"problem": held(OTHER)}, {"marks": [11]}, {"bound": 50.0}, {"methods": {"Fast": tc.Fast(lam=0.5)}}]
)
def test_an_experiment_does_not_take_the_record_of_another_run(reproduced, changed):
    other = replace(CASE, **changed)
    assert set(on_disk("test", {"one": CASE}, reproduced)["one"]) == set(CASE.methods)
    assert not on_disk("test", {"one": other}, reproduced)["one"]
    with pytest.raises(tc.InputError, match="lacks records"):
        run(other, reproduced, run=False)


def test_an_experiment_computes_again_what_has_changed(tmp_path):
    first = run(CASE, tmp_path)
    other = run(replace(CASE, problem=held(OTHER)), tmp_path)
    fresh = tc.solve(held(OTHER), METHODS, 30, 2, [10])
    for label in METHODS:
        assert other[label].history.equals(fresh[label].history)
        assert not other[label].history.equals(first[label].history)


def test_an_experiment_takes_the_record_of_another_patch_version(reproduced, monkeypatch):
    monkeypatch.setattr("twoclock.storage.run_identity.__version__", "9.9.9")
    monkeypatch.setattr("reproduction.experiment.tc.solve", None)
    assert set(run(CASE, reproduced)) == set(METHODS)


@pytest.mark.parametrize(
    ("part", "changed"), [("problem", {"problem": held(OTHER)}), ("marks", {"marks": [11]}), ("bound", {"bound": 50.0})]
)
def test_checkpoints_and_sweeps_refuse_by_the_same_name(tmp_path, part, changed):
    one = {"problem": held(TABLE), "method": tc.Fast(), "steps": 30, "seeds": 2, "marks": [10]}
    tc.solve(**one, checkpoint=tmp_path / "run")
    with pytest.raises(tc.InputError, match=f"belongs to another run: its {part} differs?"):
        tc.solve(**{**one, **changed}, checkpoint=tmp_path / "run")
    many = {"steps": 30, "seeds": 2, "marks": [10], "out": tmp_path / "sweep"}
    tc.sweep({"a": held(TABLE)}, {"fast": tc.Fast()}, **many)
    problem = changed.pop("problem", held(TABLE))
    with pytest.raises(tc.InputError, match=f"holds another sweep: its {part}s? differ"):
        tc.sweep({"a": problem}, {"fast": tc.Fast()}, **{**many, **changed})


def test_what_an_older_version_wrote_is_refused_in_one_line(tmp_path):
    """Version 0.1.0: results of format 1, checkpoints and sweeps with an identity that has no format."""
    result = tc.solve(held(TABLE), tc.Fast(), 30, 2, checkpoint=tmp_path / "run")
    home = result.save(tmp_path / "result")
    tc.sweep({"a": held(TABLE)}, {"fast": tc.Fast()}, 30, 2, out=tmp_path / "sweep")
    for file in (home / "spec.json", tmp_path / "sweep" / "sweep.json", *(tmp_path / "run").rglob("spec.json")):
        text = file.read_text()
        content = json.loads(text)
        (content.get("identity") or content)["format"] = FORMAT - 1
        del content["sha256"]
        file.write_text(json.dumps(content))
    for read in (
        lambda: tc.load(home),
        lambda: tc.solve(held(TABLE), tc.Fast(), 30, 2, checkpoint=tmp_path / "run"),
        lambda: tc.sweep({"a": held(TABLE)}, {"fast": tc.Fast()}, 30, 2, out=tmp_path / "sweep"),
        lambda: Shards(tmp_path / "sweep").spec,
    ):
        with pytest.raises(tc.InputError, match="written by another version of twoclock") as error:
            read()
        assert "\n" not in str(error.value)


def test_an_old_record_in_an_experiment_runs_again(tmp_path):
    run(CASE, tmp_path)
    specs = [tmp_path / "test" / "one" / label / "spec.json" for label in METHODS]
    for spec in specs:
        old = unseal(spec.read_bytes())
        del old["identity"]
        spec.write_text(seal({**old, "format": FORMAT - 1}))
    assert not on_disk("test", {"one": CASE}, tmp_path)["one"]
    assert set(run(CASE, tmp_path)) == set(METHODS)
    for spec in specs:  # version 0.1.0 wrote no checksum: nothing proves who wrote the files beside it
        put_note(spec.parent, "spec", {**unseal(spec.read_bytes()), "format": 1})
    assert not on_disk("test", {"one": CASE}, tmp_path)["one"]
    with pytest.raises(tc.InputError, match="that twoclock did not write, or that was changed since; move it away"):
        run(CASE, tmp_path)
