"""Numbers in running text: thousands commas, decimals, currency signs and minus signs read as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(
    r"""
    (?P<minus>(?<![\w.)\]%])-)?             # a minus, unless it subtracts from what stands before it
    (?:[$€£¥]\s?(?P<inner>-)?)?             # $-5
    (?P<digits>
        \d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?  # 1,234,567.8
      | \d+(?:\.\d+)?                       # 1234 or 12.5
      | (?<![\w.])\.\d+                     # .5
    )
    """,
    re.VERBOSE,
)
_MINUS_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\uff0d": "-"})


def numbers_in(text: str) -> list[Decimal]:
    """Return the numbers of ``text`` in order. Commas count only between groups of three; "3,4" is two numbers."""
    return [_value(match) for match in _NUMBER.finditer(text.translate(_MINUS_SIGNS))]


def first_number(text: str) -> Decimal | None:
    """Return the first number of ``text``, None where there is none."""
    match = _NUMBER.search(text.translate(_MINUS_SIGNS))
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Decimal:
    size = Decimal(match["digits"].replace(",", ""))
    return -size if bool(match["minus"]) != bool(match["inner"]) else size
