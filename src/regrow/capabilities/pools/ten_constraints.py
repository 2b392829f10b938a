"""Ten constraints that a program can verify, one of which is put to each instruction of the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regrow.seeding import derive_seed

SEED = 0

WORDS = ("because", "today", "simple", "people", "small", "important", "change", "together")
OPENINGS = ("In short,", "To begin with,", "Here is my answer:")
ENDINGS = ("That is all.", "I hope this helps.", "Thank you for asking.")

Pick = Callable[[str, int], int]

MAKERS: dict[str, Callable[[Pick], tuple[str, dict[str, Any]]]] = {
    "lowercase": lambda pick: ("Write in small letters only, without any capital letter.", {}),
    "uppercase": lambda pick: ("Write in capital letters only.", {}),
    "no_commas": lambda pick: ("Do not use a comma anywhere.", {}),
    "max_words": lambda pick: _numbered("Use at most {} words.", 20 + 10 * pick("max_words", 6)),
    "sentence_count": lambda pick: _numbered("Answer in exactly {} sentences.", 2 + pick("sentence_count", 3)),
    "bullet_count": lambda pick: _numbered(
        'Answer with a list of exactly {} points, each on a line of its own that begins with "- ".',
        2 + pick("bullet_count", 4),
    ),
    "has_word": lambda pick: _worded('Use the word "{}" somewhere.', "word", WORDS[pick("word", len(WORDS))]),
    "starts_with": lambda pick: _worded(
        'Begin with the words "{}"', "phrase", OPENINGS[pick("opening", len(OPENINGS))]
    ),
    "ends_with": lambda pick: _worded('End with the words "{}"', "phrase", ENDINGS[pick("ending", len(ENDINGS))]),
    "quoted": lambda pick: ("Put the whole answer between double quotation marks.", {}),
}
"""For each check of constraints.CHECKS that is used: the sentence that asks for it, and the check's arguments."""


def constraint_for(identity: str) -> tuple[str, dict[str, Any]]:
    """Return the sentence and the constraint ({"kind": ...}) that the instruction called ``identity`` gets.

    The choice is a hash of the identity, so that it is the same everywhere and each kind comes about equally often.
    """

    def pick(what: str, below: int) -> int:
        return derive_seed(SEED, "pool constraint", what, identity) % below

    kind = list(MAKERS)[pick("kind", len(MAKERS))]
    sentence, options = MAKERS[kind](pick)
    return sentence, {"kind": kind, **options}


def _numbered(sentence: str, count: int) -> tuple[str, dict[str, Any]]:
    return sentence.format(count), {"count": count}


def _worded(sentence: str, name: str, words: str) -> tuple[str, dict[str, Any]]:
    return sentence.format(words), {name: words}
