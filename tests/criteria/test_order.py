"""From scores to a cut: counts, protection, windows, ties, and NaN as an error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.criteria.order import candidates, protected_blocks, removal_count, select
from regrow.errors import ConfigError, ModelError


@pytest.mark.parametrize(
    ("wanted", "count"), [("7", 7), (7, 7), ("25%", 8), ("0.25", 8), (0.1, 3), (1, 1), ("1", 1), ("29", 29)]
)
def test_counts_and_shares(wanted, count):
    assert removal_count(wanted, 30) == count


@pytest.mark.parametrize(
    "wanted", ["0", "30", "-1", "1.5", "100%", "0.001", "many", "nan", "inf", "nan%", "inf%", "-inf%", "1e400", "%", ""]
)
def test_impossible_counts_are_refused(wanted):
    with pytest.raises(ConfigError):
        removal_count(wanted, 30)


def test_a_share_that_comes_to_nothing_is_said_in_blocks():
    with pytest.raises(ConfigError, match="cannot remove '1%' of 30 blocks, which is 0"):
        removal_count("1%", 30)


def test_a_model_of_one_block_is_not_asked_for_a_count_from_1_to_0():
    with pytest.raises(ConfigError, match="one block has none to spare") as caught:
        removal_count("1", 1)
    assert "1 to 0" not in (caught.value.hint or "")


def test_protection_counts_from_both_ends():
    assert protected_blocks((0, -1, 2), 6) == {0, 2, 5}
    with pytest.raises(ConfigError, match="cannot protect block 6"):
        protected_blocks((6,), 6)
    assert candidates("x", 6, remove=2, protect=(0,), own=(0, -1)) == (1, 2, 3, 4)


@pytest.mark.parametrize(("remove", "protect", "most"), [(6, (0,), 5), (6, (), 5), (3, (0, 1, 2, -1), 2)])
def test_more_than_the_free_blocks_is_refused_with_the_limit(remove, protect, most):
    with pytest.raises(ConfigError) as caught:
        candidates("x", 6, remove=remove, protect=protect)
    assert f"at most {most}" in (caught.value.hint or "")


def test_the_methods_own_protection_is_named():
    with pytest.raises(ConfigError, match="1 protected, 1 more by lorp itself"):
        candidates("lorp", 4, remove=3, protect=(0,), own=(0, -1))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_undefined_score_names_the_block(value):
    with pytest.raises(ModelError, match="the score of block 2 is"):
        select("x", [0.0, 1.0, value, 2.0], remove=1, allowed=(1, 2, 3))
    assert select("x", [0.0, 1.0, value, 2.0], remove=1, allowed=(1, 3)).removed == (1,)


def test_ties_go_to_the_shallower_block():
    answer = select("x", [0.0, 1.0, 1.0, 1.0, 0.5], remove=2, allowed=(1, 2, 3, 4))
    assert answer.order == (4, 1, 2, 3)
    assert answer.removed == (1, 4)
    assert answer.protected == (0,)
    assert math.isnan(answer.scores[0])


def test_a_window_has_the_least_sum_and_leads_the_order():
    answer = select("x", [9, 0.0, 5, 2, 2, 9, 0.1], remove=2, allowed=range(1, 7), contiguous=True)
    assert answer.removed == (3, 4)
    assert answer.order == (3, 4, 1, 6, 2, 5)
    with pytest.raises(ConfigError, match="no 3 neighbouring blocks"):
        select("x", [0.0] * 5, remove=3, allowed=(1, 2, 4), contiguous=True)


@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=12),
    st.integers(1, 5),
    st.booleans(),
    st.sets(st.integers(0, 11), max_size=4),
)
def test_any_answer_removes_exactly_what_was_asked_and_nothing_protected(scores, remove, contiguous, protect):
    blocks = len(scores)
    protect = {index for index in protect if index < blocks}
    try:
        allowed = candidates("x", blocks, remove=remove, protect=sorted(protect))
        answer = select("x", scores, remove=remove, allowed=allowed, contiguous=contiguous)
    except ConfigError:
        return
    assert len(answer.removed) == remove < blocks
    assert not protect & set(answer.removed)
    assert answer.order[:remove] == tuple(sorted(answer.removed, key=answer.order.index))
    assert sorted(answer.order) == sorted(allowed)
    if contiguous:
        assert answer.removed == tuple(range(answer.removed[0], answer.removed[0] + remove))
    else:
        assert max(scores[b] for b in answer.removed) <= min([scores[b] for b in answer.order[remove:]], default=99)
