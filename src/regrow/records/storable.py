"""Texts as they can be written: half of a surrogate pair, which no UTF-8 file can hold, becomes U+FFFD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

V = TypeVar("V")


def storable(text: str) -> str:
    """Return ``text`` with every lone surrogate replaced. Such halves come from answers that were cut within an emoji
    and from JSON escapes (``"\\ud83d"``)."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable_values(values: Mapping[str, V]) -> dict[str, V]:
    """Return a mapping with its texts, keys too, made storable."""
    return {storable(key): storable(value) if isinstance(value, str) else value for key, value in values.items()}  # type: ignore[misc]
