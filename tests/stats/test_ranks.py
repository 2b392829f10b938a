import itertools

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from regrow.errors import DataError
from regrow.stats.ranks import kendalls_w


def test_w_is_friedmans_statistic_scaled():
    table = np.random.default_rng(3).integers(0, 4, size=(5, 6)).astype(float)
    chi_square = friedmanchisquare(*table.T).statistic
    assert kendalls_w(table).w == pytest.approx(chi_square / (5 * 5))


def test_permutation_p_against_all_permutations():
    table = np.array([[1.0, 2.0, 2.0, 4.0], [1.0, 3.0, 2.0, 4.0]])
    orders = list(itertools.permutations(range(4)))
    every = [kendalls_w(table[[0, 1]][:, :], permutations=1).w]
    hits = 0
    for order in orders:
        hits += kendalls_w(np.array([table[0], table[1][list(order)]]), permutations=1).w >= every[0] - 1e-12
    exact = hits / len(orders)
    assert kendalls_w(table, permutations=200_000).p_value == pytest.approx(exact, abs=0.005)


def test_full_agreement_and_full_ties():
    assert kendalls_w([[1, 2, 3], [4, 5, 9]]).w == pytest.approx(1.0)
    assert np.isnan(kendalls_w([[1, 1, 1], [2, 2, 2]]).w)


def test_same_seed_same_p_and_memory_pieces_do_not_matter(monkeypatch):
    table = np.random.default_rng(1).random((4, 6))
    once = kendalls_w(table, generator=5)
    assert once == kendalls_w(table, generator=5)
    assert once.p_value != kendalls_w(table, generator=6).p_value


@pytest.mark.parametrize("bad", [[[1.0, 2.0]], [1.0, 2.0], [[1.0], [2.0]]])
def test_one_family_is_refused(bad):
    with pytest.raises(DataError, match="at least two families"):
        kendalls_w(bad)


def test_undefined_scores_are_named():
    with pytest.raises(DataError, match="row 1, column 0"):
        kendalls_w([[1.0, 2.0], [np.nan, 1.0]])
