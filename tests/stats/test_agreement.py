import math

import pytest

from regrow.errors import DataError
from regrow.stats.agreement import agreement, cohens_kappa
from regrow.stats.reliability import reliability


def test_kappa_closed_form():
    """Cohen's own kind of example: 20 + 15 agree of 50, margins 25/25 and 30/20: (.7 - .5) / (1 - .5)."""
    first = [1] * 25 + [0] * 25
    second = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert cohens_kappa(first, second) == pytest.approx(0.4)
    assert cohens_kappa(["a", "b", "c"], ["a", "b", "c"]) == 1
    assert math.isnan(cohens_kappa([1, 1], [1, 1]))


def test_published_agreement_of_the_refusal_classifier():
    """240 labelled responses: .92 agreement, kappa .84, precision .94, recall .88 from a 2 x 2 table that has them."""
    labels = [True] * 116 + [False] * 124
    predicted = [True] * 103 + [False] * 13 + [True] * 6 + [False] * 118
    found = agreement(labels, predicted)
    assert [round(value, 2) for value in found] == [0.92, 0.84, 0.94, 0.89]


def test_undefined_precision_and_recall():
    found = agreement([False, False], [False, True])
    assert math.isnan(found.recall) and found.precision == 0
    assert math.isnan(agreement([True], [False]).precision)
    with pytest.raises(DataError):
        agreement([], [])


def test_expected_calibration_error():
    found = reliability([0.95, 0.95, 0.35, 0.1], [1, 0, 0, 1])
    assert found.ece == pytest.approx((2 * 0.45 + 0.35 + 0.9) / 4)
    assert found.bins[9].items == 2 and found.bins[9].accuracy == 0.5
    assert found.bins[0].items == 1 and math.isnan(found.bins[5].accuracy)
    assert math.isnan(reliability([], []).ece)
    with pytest.raises(DataError):
        reliability([1.2], [1])
