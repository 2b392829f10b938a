"""Numbers as people type them: tokens ("60k", "1M"), block lists ("13,14", "12-15")."""

from __future__ import annotations

import re

from regrow.errors import ConfigError

MOST_BLOCKS = 10_000
"""No Transformer has as many blocks; a guard against spans that would fill the memory."""

_TOKENS = re.compile(r"([0-9]+(?:[._][0-9]+)*)\s*([kKmMgGbB]?)")
_SCALE = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "b": 1_000_000_000}


def parse_tokens(text: str, *, option: str) -> int:
    """Return a positive token count from "61000", "61_000", "61k" or "1.5M"."""
    match = _TOKENS.fullmatch(text.strip())
    count = 0
    if match:
        try:
            exact = float(match[1].replace("_", "")) * _SCALE[match[2].lower()]
            count = round(exact)
            match = match if abs(exact - count) < 1e-6 else None
        except ValueError:
            match = None
    if not match:
        raise ConfigError(
            f"{option} '{text}' is not a number of tokens", hint=f"write for example {option} 60k or {option} 1M"
        )
    if count <= 0:
        raise ConfigError(f"{option} must be at least one token, got '{text}'", hint=f"write for example {option} 60k")
    return count


def parse_blocks(text: str, *, option: str = "--blocks", from_the_end: bool = False) -> tuple[int, ...]:
    """Return 0-based block indices from "13,14" or "12-15,20", in the order given.

    ``from_the_end`` allows "-1" for the last block and "none" for no block at all.
    """
    if from_the_end and text.strip().lower() == "none":
        return ()
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        if from_the_end and re.fullmatch(r"-[0-9]{1,4}", part):
            found.append(int(part))
            continue
        span = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if not span:
            raise ConfigError(
                f"{option} '{text}' is not a list of block indices", hint=f"write for example {option} 13,14 or 12-15"
            )
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first:
            raise ConfigError(f"{option} span '{part}' runs backwards", hint=f"write {last}-{first}")
        if last >= MOST_BLOCKS:
            raise ConfigError(
                f"{option} '{part}' names a block that no model has",
                hint=f"indices are 0-based and below {MOST_BLOCKS}",
            )
        found.extend(range(first, last + 1))
    return tuple(found)
