"""Theorems 1 to 3 as printed, `certify(proof="printed")`: conditions, bounds, and where they fail."""

import itertools

import numpy as np
import pytest

import twoclock as tc
from twoclock import theory
from twoclock.theory.paper import theorem_2


@pytest.mark.parametrize(("L", "m", "g"), [(1.0, 1.0, 1.0), (1.0, 0.4, 0.3), (2.5, 0.1, 2.0)])
def test_theorem_1_as_printed_is_met_by_its_steps_and_by_none_larger(L, m, g):
    found = tc.certify("strongly-convex", L=L, mu_h=m, mu_g=g, proof="printed")
    M = (L + 1) ** 6

    def meets(a, b, c):
        return (
            a <= min(c / m, m / (6 * (L + 1) ** 4), 8 * g / m * b, m * g / (152 * M) * b)
            and a <= min(g * b / (8 * (8 * L**4 + 9 * L**2 / g)), c / 4 / (48 * L**2 + 10 * L / g))
            and b <= min(1 / (240 * M), 1 / g, c / 4 / (56 * L**2 + 4.5 / m), c / 4 / (48 * L**2 + 10 * L / g))
            and b <= g / (168 * L**4)
            and a <= b <= c <= 0.25
        )

    assert found.c[0] == pytest.approx(8 / m)
    assert meets(*(c / (found.tau + 1) for c in found.c))
    assert not meets(*(c / (0.99 * (found.tau + 1)) for c in found.c))
    assert all(condition.holds for condition in found.conditions)


def test_theorem_1_has_the_published_bound_and_known_numbers():
    unit = tc.certify("strongly-convex", L=1.0, mu_h=1.0, mu_g=1.0, noise=1e-10, proof="printed")
    assert unit.tau == pytest.approx(1.195e9, rel=1e-3)
    k, start = np.array([0, 10**6, 10**9]), (1.0, 0.25, 0.5, 0.3)
    n = k + unit.tau
    np.testing.assert_allclose(unit.bound(k, start), 1e-10 * unit.tau**2 / n + 2.05 * (unit.tau / n) ** 2, rtol=1e-12)
    assert "paper" not in theory.check(unit.method(), "strongly-convex", L=1.0, mu_h=1.0, mu_g=1.0).covered


def test_an_l_below_one_is_raised_as_the_paper_assumes():
    small = tc.certify("strongly-convex", L=0.3197, mu_h=0.315, mu_g=0.315, proof="printed")
    assert small.notes == ("L = 0.3197 is raised to 1, which the paper assumes",)
    assert small.c == tc.certify("strongly-convex", L=1.0, mu_h=0.315, mu_g=0.315, proof="printed").c
    np.testing.assert_allclose((*small.c, small.tau), (25.4, 2.5e6, 7.9e8, 3.8e10), rtol=0.02)


def test_no_steps_meet_theorem_2_as_printed():
    for L, m, g in itertools.product((1.0, 30.0), (1e-3, 1.0, 30.0), (1e-3, 1.0, 30.0)):
        least, most = theorem_2(L, m, g)
        assert least > most or g > L
    with pytest.raises(tc.InputError, match=r"c_β ≥ 4 and c_β ≤ .*no steps meet both") as caught:
        tc.certify("pl", L=1.0, mu_h=0.5, mu_g=0.5, proof="printed")
    assert "\n" not in str(caught.value)


def test_theorem_3_as_printed():
    rough = tc.certify("non-convex", L=1.0, mu_g=1.0, noise=7.0, proof="printed")
    assert rough.c == (1 / 72, 1 / 72, 0.25)
    assert rough.bound(99, (1.0, 2.0, 3.0, 4.0)) == pytest.approx((320 + 4 * np.log(101)) * 72 / 10)
    wide = tc.certify("non-convex", L=2.0, mu_g=1.0, proof="printed")
    assert wide.c == (1 / 288, 1 / 144, 0.25)


@pytest.mark.parametrize("change", [{"method": "standard"}, {"mu_g": (0.5, 0.5)}])
def test_it_covers_what_the_paper_covers(change):
    with pytest.raises(tc.InputError, match="covers `Fast` on two levels"):
        tc.certify(
            **({"structure": "strongly-convex", "L": 1.0, "mu_h": 0.5, "mu_g": 0.5, "proof": "printed"} | change)
        )
