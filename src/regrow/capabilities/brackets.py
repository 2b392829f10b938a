"""Where a bracketed piece of text ends."""

from __future__ import annotations

import re

DEEPEST = 64
"""Brackets inside brackets beyond which a piece of text counts as never closed."""

_MARK = re.compile(r"""[()\[\]{}"'\\]""")
_PAIRS = {")": "(", "]": "[", "}": "{"}


def end_of_brackets(text: str, opening: int, *, quotes: str) -> int:
    """Return the place after the bracket that closes the one at ``opening``, -1 when none does.

    Brackets within strings (opened by one of ``quotes``, backslash escapes) do not count. A closing bracket of the
    wrong sort ends the piece where it stands, for nothing that follows can mend it. The result depends on the text up
    to that end only.
    """
    stack: list[str] = []
    quote = ""
    escaped = -1
    for mark in _MARK.finditer(text, opening):
        place, sign = mark.start(), mark.group()
        if place == escaped:
            continue
        if quote:
            if sign == "\\":
                escaped = place + 1
            elif sign == quote:
                quote = ""
        elif sign in quotes:
            quote = sign
        elif sign in "([{":
            stack.append(sign)
            if len(stack) > DEEPEST:
                return -1
        elif sign in _PAIRS and (stack.pop() != _PAIRS[sign] or not stack):
            return place + 1
    return -1
