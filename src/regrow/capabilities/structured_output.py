"""Structured output: does the answer hold JSON that conforms to the schema asked for?"""

from __future__ import annotations

from collections.abc import Sequence

from regrow.capabilities import schema_check
from regrow.capabilities.json_text import first_json, whole_json
from regrow.capabilities.scoring import LONGEST_RESPONSE, Kind, score_and_parse_rate
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore


class StructuredOutput:
    """Scores 1 when the answer's JSON value is valid under ``gold["schema"]`` (a JSON Schema), else 0.

    The value is the first object or list of the answer (rule: json_text.first_json); only where there is none, the
    whole answer read as JSON, for schemas of a bare string or number. Published protocol: JSONSchemaBench, valid JSON
    under the schema; ``parse_rate`` is the share of answers in which a value was found.
    """

    name = "structured_output"
    kind: Kind = "generative"
    chance = 0.0

    def decided(self, text: str) -> bool:
        """Return True once the first JSON object or list of ``text`` is closed."""
        return first_json(text[:LONGEST_RESPONSE]).found

    def grade(self, item: Item, response: str) -> Grade:
        """Return the grade; ``details["fault"]`` says why a value was refused."""
        read = first_json(response[:LONGEST_RESPONSE])
        if not read.found:
            read = whole_json(response[:LONGEST_RESPONSE])
        if not read.found:
            return Grade(0.0, parsed=False)
        fault = schema_check.fault(item.gold["schema"], read.value)
        return Grade(0.0, parsed=True, details={"fault": fault}) if fault else Grade(1.0, parsed=True)

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return ``score`` (share of schema-valid answers) and ``parse_rate``."""
        return score_and_parse_rate(scores)
