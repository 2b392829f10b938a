"""Variance shares against closed forms and a direct sum of squares."""

from __future__ import annotations

import numpy as np
import pytest

from regrow.stats.variance import variance_shares


def grid(function, seeds=3):
    return {(f"c{i}", f"s{j}"): [function(i, j, k) for k in range(seeds)] for i in range(3) for j in range(4)}


@pytest.mark.parametrize(
    ("function", "winner"),
    [
        (lambda i, j, k: i * 2.0, "calibration"),
        (lambda i, j, k: j * 2.0, "search"),
        (lambda i, j, k: float(k), "seed"),
        (lambda i, j, k: (i - 1.0) * (j - 1.5), "calibration x search"),
    ],
)
def test_a_single_cause_gets_the_whole_share(function, winner):
    for share in variance_shares(grid(function), resamples=50):
        assert share.share.value == pytest.approx(1.0 if share.factor == winner else 0.0, abs=1e-12)


def test_two_additive_causes_share_by_their_variances():
    found = {share.factor: share.share.value for share in variance_shares(grid(lambda i, j, k: 3.0 * i + j))}
    rows, columns = 9 * np.var([0, 1, 2]), np.var([0, 1, 2, 3])
    assert found["calibration"] == pytest.approx(rows / (rows + columns))
    assert found["search"] == pytest.approx(columns / (rows + columns))


def test_shares_sum_to_one_and_limits_surround_them_under_noise():
    generator = np.random.default_rng(0)
    values = grid(lambda i, j, k: i + 0.3 * j + generator.normal(0, 0.5))
    found = variance_shares(values, resamples=500)
    assert sum(share.share.value for share in found) == pytest.approx(1.0)
    assert sum(share.chance for share in found) == pytest.approx(1.0)
    for share in found[:2]:
        assert share.share.low <= share.share.value <= share.share.high
    assert variance_shares(values, resamples=500) == found


def test_without_any_effect_the_mean_share_is_the_chance_share():
    generator = np.random.default_rng(1)
    sums = np.zeros(4)
    for _ in range(400):
        found = variance_shares(grid(lambda i, j, k: generator.normal()), resamples=1)
        sums += [share.share.value for share in found]
    assert sums / 400 == pytest.approx([share.chance for share in found], abs=0.02)


def test_one_seed_has_no_limits_and_no_interaction():
    found = variance_shares(grid(lambda i, j, k: float(i + j * j), seeds=1))
    assert [share.factor for share in found] == ["calibration", "search", "seed"]
    assert found[0].share.reason == "one seed: no limits"


def test_equal_values_are_undefined_and_holes_are_refused():
    assert all(share.share.reason == "all values are equal" for share in variance_shares(grid(lambda i, j, k: 1.0)))
    values = grid(lambda i, j, k: float(i))
    with pytest.raises(ValueError, match="no value for"):
        variance_shares({key: value for key, value in values.items() if key != ("c1", "s2")})
    with pytest.raises(ValueError, match="same number of seeds"):
        variance_shares({**values, ("c1", "s2"): [1.0]})
