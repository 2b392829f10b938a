"""The general healing pool's rule: an open instruction is answered by anything that is not empty."""

from __future__ import annotations

from collections.abc import Sequence

from regrow.capabilities.scoring import Kind, score_and_parse_rate
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore


class OpenAnswer:
    """Scores 1 for any answer with something in it: no measure of quality, it keeps empty targets out of a pool."""

    name = "general"
    kind: Kind = "generative"
    chance = 0.0

    def decided(self, text: str) -> bool:
        """Return True once there is anything but blanks."""
        return bool(text.strip())

    def grade(self, item: Item, response: str) -> Grade:
        return Grade(float(bool(response.strip())))

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return ``score``: the share of answers with something in them."""
        return {"score": score_and_parse_rate(scores)["score"]}
