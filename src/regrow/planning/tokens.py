"""Token counts as people write them, the inverse of records.quantities.parse_tokens."""

from __future__ import annotations


def show_tokens(tokens: float) -> str:
    """Return the shortest exact form of a whole number of tokens: "30k", "4.48M", "61000" as "61k", "61250" as is."""
    count = round(tokens)
    for scale, letter in ((1_000_000, "M"), (1_000, "k")):
        for digits in range(3):
            if count >= scale and count * 10**digits % scale == 0:
                return f"{count / scale:.{digits}f}{letter}"
    return str(count)
