"""Open instructions of everyday life, for the healing pool called general; no test items."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from regrow.capabilities.mini import words
from regrow.capabilities.mini.assembly import SIZES, Made, Template, assemble
from regrow.capabilities.mini.chat import Shot
from regrow.capabilities.mini.partition import Draw
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "general"

INSTRUCTIONS = {
    "what_for": ("What is a {} used for?", words.THINGS),
    "buy": ("What should I look at when I buy a {}?", words.THINGS),
    "care": ("How should I take care of a {}?", words.THINGS),
    "story": ("Write the first sentence of a story about a {}.", words.ANIMALS),
    "describe": ("Describe a {} to a child.", words.ANIMALS),
    "food_for": ("What does a {} need to live well?", words.ANIMALS),
    "like": ("Why do so many people like {}?", words.FOODS),
    "eat_with": ("What goes well with {}?", words.FOODS),
    "keep": ("How can I keep {} fresh?", words.FOODS),
    "visit": ("Why should I visit {}?", words.CITIES),
    "weekend": ("Give me an idea for a weekend in {}.", words.CITIES),
    "gift": ("What could I give {} as a birthday present?", words.NAMES),
    "note": ("Write a short thank-you note to {}.", words.NAMES),
    "do_there": ("What can a family do at a {}?", words.PLACES),
    "work_there": ("Who works at a {}?", words.PLACES),
    "poem": ("Write one line of a poem about a {}.", words.PLACES),
    "study": ("Give me one tip for learning {}.", words.SUBJECTS),
    "interest": ("What is interesting about {}?", words.SUBJECTS),
}

SHOTS: tuple[Shot, ...] = (
    ("What is a saw used for?", "A saw is used to cut wood and other hard materials."),
    ("Give me an idea for a rainy evening.", "Make a warm drink and read a good book by the window."),
    ("Write one line of a poem about the moon.", "The silver moon keeps watch while the whole town sleeps."),
)


def instruction(text: str, vocabulary: Sequence[str], draw: Draw) -> Made:
    return Made(text.format(draw.any_of(vocabulary)), None)


TEMPLATES: dict[str, Template] = {
    name: partial(instruction, text, vocabulary) for name, (text, vocabulary) in INSTRUCTIONS.items()
}


@cache
def items(split: Split) -> list[Item]:
    """Return the healing prompts; "dev" and "test" have none, for there is no right answer to score."""
    return assemble(NAME, split, TEMPLATES, SHOTS, count=SIZES["heal"]) if split == "heal" else []
