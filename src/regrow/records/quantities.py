"""Numbers as people type them: tokens ("60k", "1M"), block lists ("13,14", "12-15"), counts or shares ("2", "25%")."""

from __future__ import annotations

import re

from regrow.errors import ConfigError

_TOKENS = re.compile(r"([0-9]+(?:[._][0-9]+)*)\s*([kKmMgGbB]?)")
_SCALE = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "b": 1_000_000_000}


def parse_tokens(text: str, *, option: str) -> int:
    """Return a positive token count from "61000", "61_000", "61k" or "1.5M"."""
    match = _TOKENS.fullmatch(text.strip())
    count = 0
    if match:
        try:
            count = round(float(match[1].replace("_", "")) * _SCALE[match[2].lower()])
        except ValueError:
            match = None
    if not match:
        raise ConfigError(
            f"{option} '{text}' is not a number of tokens", hint=f"write for example {option} 60k or {option} 1M"
        )
    if count <= 0:
        raise ConfigError(f"{option} must be at least one token, got '{text}'", hint=f"write for example {option} 60k")
    return count


def parse_blocks(text: str) -> tuple[int, ...]:
    """Return 0-based block indices from "13,14" or "12-15,20", in the order given."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        span = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if not span:
            raise ConfigError(
                f"--blocks '{text}' is not a list of block indices", hint="write for example --blocks 13,14 or 12-15"
            )
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first:
            raise ConfigError(f"--blocks span '{part}' runs backwards", hint=f"write {last}-{first}")
        found.extend(range(first, last + 1))
    return tuple(found)


def parse_removal(text: str, blocks: int) -> int:
    """Return how many of ``blocks`` to remove from a count ("2") or a share ("25%", "0.25"), rounded to the nearest."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(%?)", text.strip())
    if not match:
        raise ConfigError(
            f"--remove '{text}' is neither a count nor a share", hint="write for example --remove 2 or --remove 25%"
        )
    value = float(match[1])
    if match[2]:
        count = round(value / 100 * blocks)
    elif "." in match[1] and value < 1:
        count = round(value * blocks)
    elif value == int(value):
        count = int(value)
    else:
        raise ConfigError(
            f"--remove '{text}' is not a whole number of blocks", hint="write for example --remove 2 or 25%"
        )
    if count < 1:
        raise ConfigError(f"--remove '{text}' removes no block of {blocks}", hint="remove at least one block")
    if count >= blocks:
        raise ConfigError(
            f"--remove '{text}' would remove {count} of {blocks} blocks, which leaves nothing",
            hint=f"remove at most {blocks - 1}",
        )
    return count
