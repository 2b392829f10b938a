"""Runs of removed blocks and their places in the pruned model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.errors import ModelError
from regrow.repair.cuts import spans_of


def test_examples() -> None:
    spans = spans_of([0, 3, 4, 7], 8, 4)
    assert [(s.first, s.last, s.after_block) for s in spans] == [(0, 0, -1), (3, 4, 1), (7, 7, 3)]
    assert [(s.entering, s.leaving) for s in spans] == [(0, 1), (3, 5), (7, 8)]
    assert [str(s) for s in spans] == ["block 0", "blocks 3-4", "block 7"]


@given(
    st.integers(2, 12).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))
    )
)
def test_spans_cover_the_cut_and_sit_between_kept_blocks(case: tuple[int, set[int]]) -> None:
    count, gone = case
    kept = [index for index in range(count) if index not in gone]
    spans = spans_of(list(gone), count, len(kept))
    assert [block for span in spans for block in span.blocks] == sorted(gone)
    for span in spans:
        before = kept[span.after_block] if span.after_block >= 0 else -1
        assert before == span.first - 1
        following = span.after_block + 1
        assert (kept[following] if following < len(kept) else count) == span.last + 1


@pytest.mark.parametrize(
    ("removed", "count", "left"),
    [([], 6, 6), ([6], 6, 5), ([-1], 6, 5), ([1, 1], 6, 4), ([0, 1, 2], 3, 0), ([2], 6, 4)],
)
def test_nonsense_is_refused(removed: list[int], count: int, left: int) -> None:
    with pytest.raises(ModelError):
        spans_of(removed, count, left)
