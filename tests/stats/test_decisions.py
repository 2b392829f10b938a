import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from regrow.errors import ConfigError, DataError
from regrow.stats.decisions import (
    discordant_standard_error,
    family_sizes,
    holm,
    holm_by_family,
    mcnemar,
    paired_standard_error,
    sign_flip,
    smallest_detectable_difference,
    tost,
)


def test_published_ladder():
    """28 tests at a fixed budget: three counts of zero in 2,000 resamples, then .002 and .012."""
    p = [0.3, 0.012, 0.0, 0.002, 0.0, *[0.5] * 22, 0.0]
    found = holm(p, bounds=2 / 2000)
    assert found.adjusted[[2, 4, 27]] == pytest.approx(0.028)
    assert found.bounds[[2, 4, 27]].all() and found.bounds.sum() == 3
    assert found.adjusted[3] == pytest.approx(0.002 * 25) and round(found.adjusted[3], 3) == 0.050
    assert found.adjusted[1] == pytest.approx(0.012 * 24) and round(found.adjusted[1], 3) == 0.288
    assert found.adjusted[0] == 1.0


def test_bound_of_the_token_matched_family():
    assert holm([0.001, *[0.9] * 13], bounds=[True, *[False] * 13]).adjusted[0] == pytest.approx(0.014)


def test_families_are_corrected_apart():
    p, families = [0.01, 0.02, 0.01], ["fixed", "fixed", "matched"]
    found = holm_by_family(p, families, bounds=[True, False, False])
    assert found.adjusted == pytest.approx([0.02, 0.02, 0.01])
    assert found.bounds.tolist() == [True, True, False]
    assert family_sizes(families) == {"fixed": 2, "matched": 1}


def test_undefined_tests_do_not_count():
    found = holm([0.02, math.nan, 0.5])
    assert found.adjusted[0] == pytest.approx(0.04) and math.isnan(found.adjusted[1]) and not found.rejected[1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_against_its_definition(p):
    found = holm(p).adjusted
    order = sorted(range(len(p)), key=lambda i: p[i])
    expected = [max(min(1.0, p[order[j]] * (len(p) - j)) for j in range(k + 1)) for k in range(len(p))]
    assert [found[i] for i in order] == pytest.approx(expected)


def test_p_outside_the_unit_interval_is_refused():
    with pytest.raises(DataError):
        holm([1.2])


@pytest.mark.parametrize(("broke", "back"), [(0, 0), (1, 0), (8, 1), (5, 5), (40, 22)])
def test_mcnemar_is_the_exact_sign_test(broke, back):
    expected = binomtest(broke, broke + back).pvalue if broke + back else 1.0
    assert mcnemar(broke, back) == pytest.approx(expected)


def test_sign_flip_against_every_flip():
    moved = np.array([0.5, -0.25, 1.0, 0.75, 0.0, 1.0])
    nonzero = moved[moved != 0]
    every = [abs(np.dot(signs, nonzero)) for signs in itertools.product([-1, 1], repeat=nonzero.size)]
    exact = np.mean(np.array(every) >= nonzero.sum() - 1e-12)
    assert sign_flip(moved, resamples=100_000) == pytest.approx(exact, abs=0.005)
    assert sign_flip(np.zeros(4)) == 1.0


def test_tost_against_two_t_tests():
    moved = np.random.default_rng(0).normal(0.01, 0.2, 150)
    found = tost(moved.mean(), paired_standard_error(moved), 0.05, degrees_of_freedom=149)
    above = ttest_1samp(moved, -0.05, alternative="greater").pvalue
    below = ttest_1samp(moved, 0.05, alternative="less").pvalue
    assert found.p_value == pytest.approx(max(above, below))
    assert found.equivalent == (found.low > -0.05 and found.high < 0.05)


def test_no_difference_detected_is_not_equivalence():
    wide = tost(0.0, 0.1, 0.05)
    assert not wide.equivalent and wide.p_value > 0.3
    assert tost(0.0, 0.01, 0.05).equivalent
    nothing = tost(0.0, 0.0, 0.05)
    assert math.isnan(nothing.p_value) and nothing.reason
    with pytest.raises(DataError, match="margin"):
        tost(0.0, 0.1, 0.0)


def test_smallest_detectable_difference_has_the_promised_power():
    error = discordant_standard_error(200, 0.3)
    true = smallest_detectable_difference(error)
    drawn = np.random.default_rng(0).normal(true, error, 20_000)
    assert (np.abs(drawn) > 1.96 * error).mean() == pytest.approx(0.8, abs=0.01)
    assert math.isnan(paired_standard_error([1.0])) and math.isnan(discordant_standard_error(0, 0.1))


def test_numbers_that_count_nothing_are_refused():
    with pytest.raises(DataError, match="counts of items cannot be negative, got -1 and 2"):
        mcnemar(-1, 2)
    with pytest.raises(ConfigError, match="0 resamples are too few"):
        sign_flip([1.0, -1.0], resamples=0)
