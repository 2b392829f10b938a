"""Drafts against a search of the whole text for the last place where the same tokens stood."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from regrow.capabilities.prompt_lookup import LONGEST, PromptLookup, worthwhile_chance


def searched(text: list[int], match: int, most: int) -> list[int]:
    key = text[-match:]
    for at in range(len(text) - match - 1, -1, -1):
        if text[at : at + match] == key and len(key) == match:
            followed = text[at + match :]
            return (followed * most)[:most]
    return []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("match", [1, 2, 3])
def test_it_drafts_what_followed_last_time(seed: int, match: int) -> None:
    draw = np.random.default_rng(seed)
    text = draw.integers(0, 4, size=200).tolist()
    lookup = PromptLookup(text[:10], match)
    found = 0
    for before, end in pairwise(range(10, 201, 3)):
        assert lookup.draft(99) == searched(text[:before], match, LONGEST)
        assert lookup.draft(2) == searched(text[:before], match, 2)
        found += bool(lookup.draft(2))
        lookup.extend(text[before:end])
    assert found > 2


def test_it_drafts_more_while_it_is_right_and_less_when_it_is_not() -> None:
    lookup = PromptLookup([1, 2] * 20)
    lengths = []
    for turn in range(24):
        drafted = lookup.draft(99, 0.3)
        lengths.append(len(drafted))
        lookup.extend(drafted if turn < 9 else [90 + turn, 1, 2])
    assert lengths[0] == 1 and lengths[8] == LONGEST and lengths[-1] == 0
    assert lengths[:9] == sorted(lengths[:9]) and lengths[9:] == sorted(lengths[9:], reverse=True)


def test_it_learns_from_guesses_that_it_did_not_make() -> None:
    lookup = PromptLookup([1, 2] * 20)
    lookup.rate = 0.2
    assert lookup.draft(99, 0.3) == []
    for token in (1, 2) * 3:
        lookup.extend([token])
        lookup.draft(99, 0.3)
    assert lookup.rate == pytest.approx(1 - 0.8 * 0.9**6) and lookup.draft(99, 0.3)
    before = lookup.rate
    lookup.extend([7])
    assert lookup.rate == pytest.approx(0.9 * before) and lookup.draft(99, 0.3) == []


def test_few_rows_guess_more_boldly() -> None:
    chances = [worthwhile_chance(rows) for rows in range(1, 200)]
    assert chances == sorted(chances) and chances[0] < 0.1 and 0.4 < chances[20] < 0.7 and chances[-1] <= 1


@pytest.mark.parametrize("text", [[], [5], [5, 5], [1, 2, 3, 4]])
def test_a_text_that_never_stood_there_has_no_draft(text: list[int]) -> None:
    assert PromptLookup(text).draft(4) == []


def test_no_room_no_draft() -> None:
    lookup = PromptLookup([7] * 9)
    assert lookup.draft(0) == [] and lookup.draft(-1) == [] and lookup.draft(1) == [7]


def test_a_loop_is_drafted_round_and_round() -> None:
    lookup = PromptLookup([1, 2, 3, 1, 2, 3, 1, 2, 3])
    assert lookup.draft(99) == [1, 2, 3, 1, 2, 3, 1, 2]
