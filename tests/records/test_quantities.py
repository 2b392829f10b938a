"""Numbers as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.errors import ConfigError
from regrow.records.quantities import parse_blocks, parse_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("61000", 61_000), ("61_000", 61_000), ("60k", 60_000), ("1M", 1_000_000), ("4.48M", 4_480_000)],
)
def test_tokens(text: str, tokens: int) -> None:
    assert parse_tokens(text, option="--tokens") == tokens


@pytest.mark.parametrize("text", ["0", "1X", "", "-5", "k", "1..5M", "1e6", "nan", "0.0001", "3.5", "1.00005k", "١٢"])
def test_what_is_not_a_token_count(text: str) -> None:
    with pytest.raises(ConfigError, match="--tokens") as caught:
        parse_tokens(text, option="--tokens")
    assert "--tokens" in (caught.value.hint or "")


@given(st.integers(1, 10**12))
def test_every_plain_count_is_itself(count: int) -> None:
    assert parse_tokens(str(count), option="--tokens") == count


def test_blocks() -> None:
    assert parse_blocks("13,14") == (13, 14)
    assert parse_blocks("12-14, 20") == (12, 13, 14, 20)
    assert parse_blocks("0,-1,2-3", from_the_end=True) == (0, -1, 2, 3)
    for text in ("", "a", "3-1", "1,,2", "-1"):
        with pytest.raises(ConfigError):
            parse_blocks(text)
