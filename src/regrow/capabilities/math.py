"""Mathematical reasoning: is the final number exactly right?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from regrow.capabilities.numbers import first_number, numbers_in
from regrow.capabilities.scoring import LONGEST_RESPONSE, Kind, score_and_parse_rate
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore

_FINAL = re.compile(r"####([^\n]*)")
_ANSWER_IS = re.compile(r"answer\s+is((?:(?!answer\s+is)[^\n])*)", re.IGNORECASE)


def final_number(text: str) -> Decimal | None:
    """Return the number that an answer ends in, None where it holds no number.

    Rule: the first number on the first line that has one after "####"; else the first number after the last "answer
    is" that has one on its line; else the last number of the text.
    """
    for pattern in (_FINAL.finditer(text), reversed(list(_ANSWER_IS.finditer(text)))):
        for match in pattern:
            number = first_number(match[1])
            if number is not None:
                return number
    numbers = numbers_in(text)
    return numbers[-1] if numbers else None


class Mathematics:
    """Scores 1 when the final number of the answer (rule: final_number) equals ``gold["answer"]``, else 0.

    The gold is a number, or a text in which the same rule finds one (GSM8K's "... #### 18"). Numbers are compared as
    decimals: 18, 18.0 and $18.00 are equal. ``parse_rate`` is the share of answers that hold any number.
    """

    name = "math"
    kind: Kind = "generative"
    chance = 0.0

    def decided(self, text: str) -> bool:
        """Return True once a line with a number after "####" has ended."""
        closed = text[: text.rfind("\n", 0, LONGEST_RESPONSE) + 1]
        return any(first_number(line[1]) is not None for line in _FINAL.finditer(closed))

    def grade(self, item: Item, response: str) -> Grade:
        """Return the grade. Raises ValueError when the gold holds no number."""
        wanted = final_number(str(item.gold["answer"]))
        if wanted is None:
            raise ValueError(f"item {item.item_id} has no number for its answer: {item.gold['answer']!r}")
        number = final_number(response[:LONGEST_RESPONSE])
        return Grade(float(number == wanted), parsed=number is not None)

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return ``score`` (share of exact answers) and ``parse_rate``."""
        return score_and_parse_rate(scores)
