"""Items for instruction following: something small to write, under one constraint that a program can verify."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from regrow.capabilities.mini import words
from regrow.capabilities.mini.assembly import Made, Template, assemble
from regrow.capabilities.mini.chat import Shot
from regrow.capabilities.mini.partition import Draw
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "instruction_following"

COUNTS = {2: "two", 3: "three", 4: "four"}


def made(question: str, *constraints: dict[str, Any]) -> Made:
    return Made(question, {"constraints": list(constraints)})


def yes_or_no(ask: Callable[[Draw], str], draw: Draw) -> Made:
    return made(f"{ask(draw)} Answer with yes or no only.", {"kind": "one_of", "answers": ["yes", "no"]})


def bullets(count: int, what: Callable[[Draw], str], draw: Draw) -> Made:
    question = f"List {COUNTS[count]} {what(draw)}. Start each line with a dash."
    return made(question, {"kind": "bullet_count", "count": count})


def with_words(pick: Callable[[Draw], list[str]], draw: Draw) -> Made:
    *first, last = pick(draw)
    constraints = [{"kind": "has_word", "word": word} for word in (*first, last)]
    question = f"Write one sentence with the words {', '.join(first)} and {last}."
    return made(question, *constraints, {"kind": "sentence_count", "count": 1})


def about_with_word(draw: Draw) -> Made:
    city, word = draw.own(words.CITIES), draw.any_of(words.ADJECTIVES)
    return made(
        f"Write one sentence about {city} with the word {word}.",
        {"kind": "has_word", "word": city},
        {"kind": "has_word", "word": word},
        {"kind": "sentence_count", "count": 1},
    )


def begins(phrase: str, draw: Draw) -> Made:
    about = draw.any_of([draw.own(words.FOODS), draw.own(words.CITIES), f"a {draw.own(words.THINGS)}"])
    return made(f'Write one sentence about {about}. Begin with "{phrase}".', {"kind": "starts_with", "phrase": phrase})


def begins_with_name(draw: Draw) -> Made:
    phrase = f"{draw.own(words.NAMES)} and I"
    return made(f'Write one sentence. Begin with "{phrase}".', {"kind": "starts_with", "phrase": phrase})


def ends(phrase: str, draw: Draw) -> Made:
    about = draw.any_of([draw.own(words.NAMES), f"a {draw.own(words.ANIMALS)}"])
    return made(f'Write one sentence about {about}. End with "{phrase}".', {"kind": "ends_with", "phrase": phrase})


def without_word(draw: Draw) -> Made:
    animal = draw.own(words.ANIMALS)
    return made(
        f"Describe a {animal} in one sentence. Do not use the word {animal}.",
        {"kind": "lacks_word", "word": animal},
        {"kind": "sentence_count", "count": 1},
    )


TEMPLATES: dict[str, Template] = {
    "yes_no_bigger": partial(yes_or_no, lambda draw: f"Is a {draw.own(words.ANIMALS)} bigger than a house?"),
    "yes_no_eat": partial(yes_or_no, lambda draw: f"Can you eat a {draw.own(words.THINGS)}?"),
    "yes_no_buy": partial(yes_or_no, lambda draw: f"Can I buy a {draw.own(words.THINGS)} in a shop?"),
    "yes_no_like": partial(yes_or_no, lambda draw: f"Do people eat {draw.own(words.FOODS)}?"),
    "bullets_place": partial(bullets, 3, lambda draw: f"things in a {draw.own(words.PLACES)}"),
    "bullets_words": partial(bullets, 3, lambda draw: f"words about {draw.own(words.FOODS)}"),
    "bullets_uses": partial(bullets, 3, lambda draw: f"uses of a {draw.own(words.THINGS)}"),
    "bullets_cities": partial(bullets, 3, lambda draw: f"cities near {draw.own(words.CITIES)}"),
    "bullets_gifts": partial(bullets, 2, lambda draw: f"gifts for {draw.own(words.NAMES)}"),
    "bullets_dishes": partial(bullets, 2, lambda draw: f"dishes with {draw.own(words.FOODS)}"),
    "bullets_animals": partial(bullets, 4, lambda draw: f"animals like a {draw.own(words.ANIMALS)}"),
    "words_animal": partial(with_words, lambda draw: [draw.own(words.ANIMALS), draw.own(words.PLACES)]),
    "words_food": partial(with_words, lambda draw: [draw.own(words.FOODS), draw.own(words.CITIES)]),
    "words_soft": partial(
        with_words, lambda draw: [draw.own(words.ANIMALS), draw.own(words.PLACES), draw.any_of(words.ADJECTIVES)]
    ),
    "words_name": partial(
        with_words, lambda draw: [draw.own(words.NAMES), draw.own(words.FOODS), draw.own(words.THINGS)]
    ),
    "about_with_word": about_with_word,
    "begins_opinion": partial(begins, "In my opinion"),
    "begins_once": partial(begins, "Once upon a time"),
    "begins_name": begins_with_name,
    "ends_rain": partial(ends, "in the rain"),
    "ends_home": partial(ends, "at home"),
    "without_word": without_word,
}

SHOTS: tuple[Shot, ...] = (
    ('Write one sentence about rain. End with "at night".', "The rain falls softly at night."),
    ("List three tools. Start each line with a dash.", "- saw\n- drill\n- pliers"),
    ("Write one sentence with the words rain and roof.", "The rain fell on the roof."),
)


@cache
def items(split: Split) -> list[Item]:
    """Return the items of ``split``; gold is {"constraints": [{"kind": name in constraints.CHECKS, ...}]}."""
    return assemble(NAME, split, TEMPLATES, SHOTS)
