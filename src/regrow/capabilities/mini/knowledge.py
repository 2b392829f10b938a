"""Items for knowledge: a short question about an everyday fact and four answer texts."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from regrow.capabilities.mini.assembly import SIZES
from regrow.capabilities.mini.chat import Shot, messages
from regrow.capabilities.mini.partition import Draw
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "knowledge"

SHOTS: tuple[Shot, ...] = (
    ("What colour is fresh grass?", "Green."),
    ("What do you call the meal in the morning?", "Breakfast."),
    ("Which animal is the largest on Earth?", "The blue whale."),
)

_TURNS: tuple[Split, ...] = ("test", "dev", "test")


@cache
def relations() -> dict[str, Any]:
    """Return the project's own facts: {relation: {"question": text with {}, "pairs": [[subject, answer], ...]}}."""
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath("facts.json").read_text("utf-8"))
    return loaded


def sentence(answer: str) -> str:
    """Return an answer as the shots write it: a capital first and a full stop."""
    return f"{answer[0].upper()}{answer[1:]}."


@cache
def items(split: Split) -> list[Item]:
    """Return the items of ``split`` (none for "heal": knowledge has no pool of its own); gold is {"choice": index}.

    Of the facts of each relation every third is a dev fact, the others are test facts; wrong choices are answers to
    other questions of the relation. Where there are more facts than wanted, the relations give up their last ones.
    """
    if split == "heal":
        return []
    asked = [
        (relation, subject)
        for relation, table in relations().items()
        for place, (subject, _) in enumerate(table["pairs"])
        if _TURNS[place % len(_TURNS)] == split
    ]
    kept = sorted(asked, key=lambda fact: [other for other in asked if other[0] == fact[0]].index(fact))[: SIZES[split]]
    return [_item(split, number, *fact) for number, fact in enumerate(fact for fact in asked if fact in kept)]


def _item(split: Split, number: int, relation: str, subject: str) -> Item:
    table = relations()[relation]
    answer = dict(table["pairs"])[subject]
    draw = Draw(split, NAME, relation, subject)
    others = sorted({other for _, other in table["pairs"]} - {answer})
    texts = draw.several([answer, *draw.several(others, 3)], 4)
    return Item(
        capability=NAME,
        item_id=f"mini-{NAME}-{split}-{number:03d}",
        split=split,
        messages=messages(SHOTS, table["question"].format(subject)),
        gold={"choice": texts.index(answer)},
        choices=tuple(map(sentence, texts)),
        facts={"template": relation},
    )
