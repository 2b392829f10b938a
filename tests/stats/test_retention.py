import math

import numpy as np
import pytest

from regrow.stats.ranks import kendalls_w
from regrow.stats.retention import capped_mean, chance_corrected, retention, undefined_reason, worst_case

ITEMS = np.array([150, 200, 300, 200, 200, 300])
CHANCE = np.array([0, 0, 0, 0, 0.5, 0.25])
UNPRUNED = np.array(
    [
        [48, 107, 136, 95, 167, 97],
        [117, 172, 115, 97, 146, 175],
        [106, 138, 134, 77, 148, 128],
        [90, 108, 179, 124, 170, 108],
    ]
)
PRUNED = np.array([[3, 0, 58, 7, 126, 74], [5, 0, 23, 0, 117, 99], [22, 7, 44, 5, 114, 111], [44, 4, 119, 3, 145, 78]])


def test_published_chance_corrected_values():
    kept = chance_corrected(PRUNED / ITEMS, UNPRUNED / ITEMS, CHANCE)
    published = [[0.388, -0.045], [0.370, 0.240], [0.292, 0.679], [0.643, 0.091]]
    np.testing.assert_allclose(kept[:, 4:], published, atol=5e-4)
    np.testing.assert_allclose(kept[:, :4], retention(PRUNED / ITEMS, UNPRUNED / ITEMS)[:, :4])


def test_retention_of_a_score_of_nothing_is_undefined_and_says_why():
    assert math.isnan(retention(0.4, 0.0))
    assert undefined_reason(0.4, 0.0) == "the unpruned score is 0"
    assert math.isnan(chance_corrected(0.6, 0.5, 0.5))
    assert "chance (0.5)" in undefined_reason(0.6, 0.5, 0.5)
    assert math.isnan(retention(math.nan, 0.5)) and undefined_reason(math.nan, 0.5) == "the model has no score"
    assert undefined_reason(0.1, math.nan) == "the unpruned model has no score"
    assert undefined_reason(0.4, 0.8) == ""
    assert isinstance(retention(0.4, 0.8), float) and retention(0.4, 0.8) == 0.5


def test_a_gain_cannot_hide_a_loss():
    assert capped_mean([0.5, 1.5]) == 0.75
    assert worst_case([0.5, 1.5]) == 0.5
    np.testing.assert_allclose(capped_mean([[0.5, 1.5], [1.0, 0.2]]), [0.75, 0.6])
    assert math.isnan(capped_mean([0.5, math.nan])) and math.isnan(worst_case([0.5, math.nan]))
    assert math.isnan(capped_mean([])) and math.isnan(worst_case([]))
    assert np.isnan(worst_case(np.ones((3, 0)))).all() and worst_case(np.ones((3, 0))).shape == (3,)


def test_published_concordance():
    raw = kendalls_w(retention(PRUNED / ITEMS, UNPRUNED / ITEMS))
    corrected = kendalls_w(chance_corrected(PRUNED / ITEMS, UNPRUNED / ITEMS, CHANCE))
    assert round(raw.w, 4) == 0.9191
    assert round(corrected.w, 4) == 0.6241
    assert raw.p_value < 0.001
    # Published .012, .011 with another seed.
    assert corrected.p_value == pytest.approx(0.0115, abs=0.002)
    assert corrected.mean_ranks == (3.25, 1.625, 5.25, 2.125, 5.00, 3.75)
