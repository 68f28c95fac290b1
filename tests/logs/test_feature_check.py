"""Features that hold the value only nearly: a note where the interval holds richer estimates, or else a warning."""

import numpy as np
import pytest

import twoclock as tc
from twoclock.logs.estimators import ValueEstimate
from twoclock.logs.feature_check import judge_features, richer_features, still_richer_features
from twoclock.logs.features import build
from twoclock.logs.standard_error import bands_of, difference, interval_of, is_determined


def walk(seed, episodes=300, steps=25):
    """x' = .8x ± .3 + noise; the rewards have a square that features linear in x leave out."""
    rng = np.random.default_rng(seed)
    x, rows = rng.standard_normal(episodes), []
    for _ in range(steps):
        a = (rng.random(episodes) < 0.5).astype(int)
        rows.append((x, a, x + 0.1 * x**2 + 0.1 * rng.standard_normal(episodes)))
        x = 0.8 * x + 0.3 * (2 * a - 1) + 0.3 * rng.standard_normal(episodes)
    x, action, reward = (np.stack(column, axis=1).ravel() for column in zip(*rows, strict=True))
    columns = {"state": x, "action": action, "reward": reward, "episode": np.repeat(np.arange(episodes), steps)}
    return tc.logs.read(columns, episode="episode", terminated=None)


def linear(x, a):
    return np.column_stack([np.ones(len(x)), x, a])


def evaluated(seed):
    v = tc.evaluate(walk(seed), lambda x: np.tile([0.2, 0.8], (len(x), 1)), 0.9, linear, bootstrap=0)
    return v, v.diagnostics.set_index("name").loc["features"]


def shifted(*gaps, noise=0.001):
    """An estimate of standard error .1 with shifts whose own errors are small."""
    rng = np.random.default_rng(0)
    influence, errors = rng.standard_normal(400), rng.standard_normal((len(gaps), 400))
    influence *= 0.1 / np.linalg.norm(influence)
    errors *= noise / np.linalg.norm(errors, axis=1, keepdims=True)
    return ValueEstimate(0.0, influence, shifts=tuple(zip(gaps, errors, strict=True)))


def test_a_shift_that_the_interval_holds_is_a_note():
    notes = 0
    for seed in range(6):
        v, row = evaluated(seed)
        notes += row["grade"] == "note"
        assert row["grade"] != "warning"
        if row["grade"] == "note":
            assert "the interval holds that of the features alone, [" in row["sentence"]
            assert "no check warns" in v.verdict
            assert any(row["sentence"] in note for note in v.notes)
            assert f"note: {row['sentence']}" in repr(v)
    assert notes >= 4


@pytest.mark.parametrize(
    ("gaps", "grade", "words"),
    [
        ((0.0, 0.07), "fine", "with richer features the value moves by 0.07"),
        ((0.0, 0.3), "warning", "there are no still richer ones to test these with"),
        ((0.0, 0.3, 0.31, 0.35), "note", "the interval holds that of the features alone, [-0."),
        ((0.0, 0.3, 0.31, 0.9), "warning", "still richer ones move it on to 0.9, out of the interval of both"),
        ((0.0, 0.3, -0.9, 0.31), "warning", "move it on to -0.9, out of the interval of both"),
        ((0.0, 0.5, 0.5, 0.2), "note", "and that with richer features, [0."),
        ((0.0, 0.5, 0.5), "warning", "has no point in common with that of the features"),
        ((0.0, 0.5, 0.5, 0.65), "warning", "has no point in common with that of the features"),
        ((0.0, 0.5, 0.5, 0.5), "note", "and that with richer features, [0."),
        ((0.3,), "warning", "there are no richer features to test these with"),
        ((0.2, 0.3, 0.3, 0.3), "note", "and that with returns over several steps, [-0."),
        ((0.2, 0.3, 0.3, 0.9), "warning", "still richer ones move it on to 0.9, out of the interval of both"),
        ((0.4, 0.3, 0.3, 0.3), "warning", "contradicts that of the features alone, [-0."),
    ],
)
def test_the_second_test_decides_between_note_and_warning(gaps, grade, words):
    found = judge_features(shifted(*gaps), 0.95, stream=False)
    assert (found.grade, words in found.sentence) == (grade, True), found.sentence


def test_a_second_shift_within_its_own_error_is_no_objection():
    one = shifted(0.0, 0.3, 0.31, 0.9)
    noisy = (0.9, one.shifts[3][1] * 400)
    one = ValueEstimate(0.0, one.influence, shifts=(*one.shifts[:3], noisy))
    assert judge_features(one, 0.95, stream=False).grade == "note"


def test_a_second_test_that_is_nearly_undetermined_is_left_out():
    """A shift with an error of thirty standard errors would make the interval as long as that, and tests nothing."""
    one = shifted(0.0)
    noise = one.shifts[0][1] * 100  # of norm .1, as the estimate's
    assert is_determined(one, noise, stream=False)
    assert not is_determined(one, 30 * noise, stream=False)


def test_a_short_log_has_a_second_test_with_fewer_features():
    """As many as its rows determine, down to a quarter; with none there was a warning in .30 of covering logs."""
    sizes = {}
    for episodes in (40, 100, 400):
        log = walk(0, episodes)
        richer = richer_features(build(linear, log), log)
        still = still_richer_features(richer, log)
        sizes[episodes] = None if still is None else (still.size - richer.size) / 2  # of two actions
        assert still is None or still.size <= log.rows / 10 + 4
    assert sizes[40] is None
    assert 30 <= sizes[100] < 120 <= sizes[400]


def test_the_interval_holds_the_second_estimates_too():
    one = shifted(0.0, 0.3, 0.31, 0.9)
    bands, whole = bands_of(one, 0.95, stream=False), interval_of(one, 0.95, stream=False)
    assert (whole.low, whole.high) == (min(b.low for b in bands), max(b.high for b in bands))
    assert whole.high > 0.9


def test_policies_of_which_one_had_a_second_test_are_compared():
    both = difference(shifted(0.0, 0.3, 0.31, 0.9), shifted(0.1, 0.2))
    assert [gap for gap, _ in both.shifts] == pytest.approx([-0.1, 0.1, 0.11, 0.7])
    both = difference(shifted(0.1, 0.2), shifted(0.0, 0.3, 0.31, 0.9))
    assert [gap for gap, _ in both.shifts] == pytest.approx([0.1, -0.1, -0.11, -0.7])
