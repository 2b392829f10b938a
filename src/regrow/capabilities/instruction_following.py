"""Instruction following: does the answer obey constraints that a program can verify?"""

from __future__ import annotations

from collections.abc import Sequence

from regrow.capabilities.constraints import holds
from regrow.capabilities.scoring import LONGEST_RESPONSE, Kind, score_and_parse_rate
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore


class InstructionFollowing:
    """Scores 1 when the whole answer obeys every constraint in ``gold["constraints"]``, else 0 (strict, per prompt).

    The constraints are those of constraints.CHECKS. Nothing is cut off or cleaned before the check.
    """

    name = "instruction_following"
    kind: Kind = "generative"
    chance = 0.0

    def decided(self, text: str) -> bool:
        """Return False: what comes next can break, or mend, any of the constraints."""
        return False

    def grade(self, item: Item, response: str) -> Grade:
        """Return the grade; ``details["broken"]`` names the constraints that were not obeyed."""
        text = response[:LONGEST_RESPONSE]
        broken = [each["kind"] for each in item.gold["constraints"] if not holds(each, text)]
        return Grade(0.0, details={"broken": ",".join(broken)}) if broken else Grade(1.0)

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return ``score``: the share of answers that obey all their constraints."""
        return {"score": score_and_parse_rate(scores)["score"]}
