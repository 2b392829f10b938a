"""Function calling: is the call the right one, argument by argument?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from regrow.capabilities import call_match
from regrow.capabilities.call_text import calls, first_call
from regrow.capabilities.scoring import LONGEST_RESPONSE, Kind, score_and_parse_rate
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore


class FunctionCalling:
    """Scores 1 when the answer's first call matches ``gold["call"]`` under ``gold["functions"]``, else 0.

    What counts as a call: call_text.first_call. When it matches: call_match.fault (BFCL's AST match for one call).
    ``parse_rate`` is the share of answers in which a call was found.
    """

    name = "function_calling"
    kind: Kind = "generative"
    chance = 0.0

    def decided(self, text: str) -> bool:
        """Return True once the first call of ``text`` is closed."""
        return first_call(text[:LONGEST_RESPONSE]) is not None

    def grade(self, item: Item, response: str) -> Grade:
        """Return the grade; ``details["fault"]`` says what was wrong with a call."""
        call = first_call(response[:LONGEST_RESPONSE])
        if call is None:
            return Grade(0.0, parsed=False)
        fault = call_match.fault(call, item.gold["functions"], item.gold["call"])
        return Grade(0.0, parsed=True, details={"fault": fault}) if fault else Grade(1.0, parsed=True)

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return ``score`` (share of right calls) and ``parse_rate``."""
        return score_and_parse_rate(scores)


class OnlyCall(FunctionCalling):
    """Scores as FunctionCalling does, but 0 when a second call follows, right or wrong: the leaderboard's rule for
    questions that one call answers. So an answer is settled early only by its second call."""

    def decided(self, text: str) -> bool:
        """Return True once a second call of ``text`` is closed."""
        return _several(text)

    def grade(self, item: Item, response: str) -> Grade:
        """Return the grade; ``details["fault"]`` says what was wrong with a call."""
        if _several(response):
            return Grade(0.0, parsed=True, details={"fault": "more than one call"})
        return super().grade(item, response)


def _several(text: str) -> bool:
    return len(list(islice(calls(text[:LONGEST_RESPONSE]), 2))) == 2


class KnownCall(FunctionCalling):
    """Scores 1 when the answer's first call names a function that is offered and gives its arguments as an object with
    all that are required: the quality rule of the healing pool, where no gold says which values are right."""

    def grade(self, item: Item, response: str) -> Grade:
        """Return the grade; ``details["fault"]`` says what was wrong with a call."""
        call = first_call(response[:LONGEST_RESPONSE])
        if call is None:
            return Grade(0.0, parsed=False)
        meant = [each for each in item.gold["functions"] if call_match.same_name(call.name, str(each["name"]))]
        if not meant:
            return Grade(0.0, parsed=True, details={"fault": "name"})
        missing = [name for name in meant[0]["parameters"].get("required") or [] if name not in call.arguments]
        if missing:
            return Grade(0.0, parsed=True, details={"fault": f"missing: {missing[0]}"})
        return Grade(1.0, parsed=True)
