"""The card of a folder of pools: counts, tokens, licences, samples that cannot break out of it."""

from __future__ import annotations

from regrow.data.pool_card import LONGEST_SAMPLE, pool_card, pool_facts
from regrow.data.pools import Example, Pool

EXAMPLES = (
    Example("math", "m-1", "What is 1 + 1?", "```\n# not a heading\n```\n#### 2", (1, 2, 3), (4, 5)),
    Example("math", "m-2", "x" * (LONGEST_SAMPLE + 5), "y", (1,), (2,)),
)
POOLS = {
    "math": Pool("math", EXAMPLES, {"unfinished answer": 3, "no text": 14}, source="GSM8K train", licence="MIT"),
    "general": Pool("general", ()),
}


def test_facts_are_counts_and_origins() -> None:
    first, second = pool_facts(POOLS)
    assert (first["examples"], first["tokens"], first["licence"]) == (2, 7, "MIT")
    assert list(first["dropped"].items()) == [("no text", 14), ("unfinished answer", 3)]
    assert second["examples"] == 0 and second["dropped"] == {}


def test_the_card_shows_them_and_samples_stay_inside_their_fences() -> None:
    card = pool_card(POOLS, teacher="the unpruned model", suite="full")
    assert "| math | 2 | 7 | no text: 14; unfinished answer: 3 |" in card
    assert "- **math**: GSM8K train. Licence: MIT." in card and "- **general**: not stated." in card
    assert "````text\n```\n# not a heading\n```\n#### 2\n````" in card
    assert "x" * LONGEST_SAMPLE + " …" in card and "x" * (LONGEST_SAMPLE + 1) not in card
