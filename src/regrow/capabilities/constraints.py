"""Constraints on a text that a program can verify: a small set of this project."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"'\u201d\u2019)]*+(?=\s|\Z)")
_BULLET = re.compile(r"^[ \t]*[-*\u2022][ \t]+\S", re.MULTILINE)
_CLOSING = " \t\n.!?\"'"


def words(text: str) -> list[str]:
    """Return the words of ``text``: runs of letters and digits, joined by apostrophes and hyphens."""
    return _WORD.findall(text)


def count_sentences(text: str) -> int:
    """Return how many sentences ``text`` has: ends marked by . ! or ? before a blank, plus an unmarked last one."""
    stripped = text.strip()
    ends = list(_SENTENCE_END.finditer(stripped))
    open_end = bool(words(stripped[ends[-1].end() :] if ends else stripped))
    return len(ends) + open_end


def _lowercase(text: str) -> bool:
    return text == text.lower() and text != text.upper()


def _uppercase(text: str) -> bool:
    return text == text.upper() and text != text.lower()


def _has_word(text: str, word: str) -> bool:
    return word.lower() in (found.lower() for found in words(text))


def _one_of(text: str, answers: list[str]) -> bool:
    return text.strip(_CLOSING).lower() in (answer.lower() for answer in answers)


def _starts_with(text: str, phrase: str) -> bool:
    begun, wanted = text.strip().lower(), phrase.lower()
    return begun.startswith(wanted) and not begun[len(wanted) : len(wanted) + 1].isalnum()


def _ends_with(text: str, phrase: str) -> bool:
    ended, wanted = text.rstrip(_CLOSING).lower(), phrase.rstrip(_CLOSING).lower()
    before = ended[: -len(wanted)]
    return ended.endswith(wanted) and not before[-1:].isalnum()


def _quoted(text: str) -> bool:
    inside = text.strip()
    return len(inside) > 2 and inside[0] == inside[-1] == '"' and bool(words(inside))


CHECKS: dict[str, Callable[..., bool]] = {
    "lowercase": _lowercase,
    "uppercase": _uppercase,
    "no_commas": lambda text: "," not in text,
    "word_count": lambda text, count: len(words(text)) == count,
    "max_words": lambda text, count: len(words(text)) <= count,
    "sentence_count": lambda text, count: count_sentences(text) == count,
    "bullet_count": lambda text, count: len(_BULLET.findall(text)) == count,
    "has_word": _has_word,
    "lacks_word": lambda text, word: not _has_word(text, word),
    "one_of": _one_of,
    "starts_with": _starts_with,
    "ends_with": _ends_with,
    "quoted": _quoted,
}
"""Each check by name; its further arguments are the keys of a constraint beside "kind"."""


def holds(constraint: Mapping[str, Any], text: str) -> bool:
    """Return whether ``text`` obeys ``constraint`` ({"kind": name, ...}). A text without a word obeys none.

    Raises KeyError when the kind is unknown and TypeError when its arguments are not those of the check.
    """
    options = {key: value for key, value in constraint.items() if key != "kind"}
    return bool(words(text)) and CHECKS[constraint["kind"]](text, **options)
