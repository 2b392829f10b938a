"""What the tests of this room share: an item around a gold, and the law of early decisions."""

from __future__ import annotations

from typing import Any

from regrow.capabilities.scoring import Scorer
from regrow.protocols import Item
from regrow.records.results import ItemScore


def item(gold: Any, choices: tuple[str, ...] = ()) -> Item:
    return Item("any", "one", "dev", ({"role": "user", "content": "?"},), gold, choices)


def scored(score: float, **rest: Any) -> ItemScore:
    return ItemScore(capability="any", item_id="x", split="dev", prompt_sha256="", response="", score=score, **rest)


def check_early_decisions(scorer: Scorer, question: Item, text: str) -> bool:
    """Assert that the grade of ``text`` is already that of its first decided prefix, and that a decision stays.

    Returns whether any prefix was decided.
    """
    at = next((length for length in range(len(text) + 1) if scorer.decided(text[:length])), None)
    if at is None:
        return False
    early = scorer.grade(question, text[:at])
    for length in {at, (at + len(text)) // 2, len(text)}:
        assert scorer.decided(text[:length])
        assert scorer.grade(question, text[:length]) == early
    return True
