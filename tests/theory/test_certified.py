"""`twoclock certify`: the example fits its certificate, the bound is drawn, and bad input costs one line."""

import numpy as np
import pytest

import twoclock as tc
from twoclock import cli, theory
from twoclock.cli.commands.certify import fit_quadratic, measure_bound

GOOD = ["certify", "pl", "--L", "1", "--mu-h", "0.9", "--mu-g", "0.8", "--noise", "0.5"]


@pytest.mark.parametrize("structure", theory.STRUCTURES)
@pytest.mark.parametrize(("L", "mu_h", "mu_g"), [(1.0, 0.9, 0.8), (1.0, 1.0, 1.0), (3.0, 0.1, 2.0), (0.1, 0.05, 0.05)])
def test_the_example_has_the_constants_of_its_certificate(structure, L, mu_h, mu_g):
    certificate = tc.certify(structure, L=L, mu_h=mu_h, mu_g=mu_g, noise=0.5)
    known = theory.constants(fit_quadratic(certificate))
    assert known.L <= L * (1 + 1e-12)
    assert known.mu_g == pytest.approx(mu_g)
    assert known.noise == pytest.approx(0.5)
    if structure != "non-convex":
        assert known.mu_h == pytest.approx(mu_h)


def test_a_trial_stays_below_the_bound():
    certificate = tc.certify("non-convex", L=1.0, mu_g=0.9, noise=0.5)
    table = measure_bound(certificate, steps=3000, seeds=20)
    assert np.all(table["mean"] <= table["bound"])
    assert np.all(np.diff(table["mean"]) <= 0)


def test_the_command_prints_the_certificate_and_draws_the_bound(tmp_path, capsys):
    assert cli.main([*GOOD, "--steps", "1000", "--seeds", "10", "--out", str(tmp_path / "picture")]) == 0
    output = capsys.readouterr().out
    assert "λ ≤ 1" in output
    assert "1,000" in output
    assert {path.name for path in (tmp_path / "picture").iterdir()} == {"bound.png", "bound.svg"}


def test_the_command_checks_a_schedule(capsys):
    schedule = ["--alpha", "5e-4", "--beta", "2e-3", "--lam", "0.8/(k+10)"]
    assert cli.main([*GOOD, "--check", *schedule]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "left at step 391" in output
    assert "none" in output


@pytest.mark.parametrize("method", ["fast", "standard"])
def test_the_command_takes_a_constant_for_each_level(method, tmp_path, capsys):
    constants = ["strongly-convex", "--L", "1.2", "--mu-h", "0.7", "--mu-g", "0.9", "0.5", "--method", method]
    assert cli.main(["certify", *constants, "--steps", "2000", "--seeds", "10", "--out", str(tmp_path / "out")]) == 0
    rows = [line.split("│")[1:4] for line in capsys.readouterr().out.splitlines() if line.startswith("│ 1,000")]
    ((_, measured, bound),) = rows
    assert float(measured) < float(bound)
    certificate = tc.certify("strongly-convex", L=1.2, mu_h=0.7, mu_g=(0.9, 0.5), method=method)
    steps = ["--alpha", str(certificate.alpha), "--beta", str(certificate.method().beta)]
    lam = ["--lam", str(certificate.lam)] if method == "fast" else []
    assert cli.main(["certify", *constants, "--check", *steps, *lam]) == 0
    assert "β₁ ≤ β₂" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["certify", "convex", *GOOD[2:]], "`structure` must be 'strongly-convex'"),
        (["certify", "pl", "--L", "1", "--mu-h", "2", "--mu-g", "1"], "must not exceed L"),
        (["certify", "pl", "--L", "1", "--mu-g", "1"], "`mu_h` must be given"),
        (["certify", "pl", "--L", "1"], "--mu-g"),
        ([*GOOD, "--steps", "3000000000"], "`steps` must lie in"),
        ([*GOOD, "--check", "--alpha", "a/k"], "is not a schedule"),
        ([*GOOD, "--proof", "none"], "must be 'tight', 'paper' or 'printed'"),
    ],
)
def test_bad_input_is_one_line_and_status_two(args, words, capsys):
    assert cli.main(args) == 2
    output = capsys.readouterr().err
    assert words in output
    assert output.count("\n") == 1
