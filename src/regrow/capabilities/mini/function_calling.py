"""Items for function calling: one tool by its signature, a request, one call in JSON wished for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from regrow.capabilities.mini import words
from regrow.capabilities.mini.assembly import Made, assemble
from regrow.capabilities.mini.chat import Shot
from regrow.capabilities.mini.partition import Draw
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "function_calling"

Value = Callable[[Draw], str | int]
Arguments = dict[str, str | int]


def own(vocabulary: Sequence[str]) -> Value:
    """Return a drawer of a word that the split owns."""
    return lambda draw: draw.own(vocabulary)


def shared(vocabulary: Sequence[str]) -> Value:
    """Return a drawer of a word of any split, for arguments of few possible values."""
    return lambda draw: draw.any_of(vocabulary)


def number(low: int, high: int) -> Value:
    return lambda draw: draw.between(low, high)


FIRST_NAME, SURNAME, CITY = own(words.NAMES), own(words.SURNAMES), own(words.CITIES)
THING, FOOD, ANIMAL = own(words.THINGS), own(words.FOODS), own(words.ANIMALS)
COLOUR, DAY, ROOM, LANGUAGE = shared(words.COLOURS), shared(words.DAYS), shared(words.ROOMS), shared(words.LANGUAGES)

TOOLS: dict[str, tuple[str, dict[str, Value]]] = {
    "set_light": ("Set the light in the {room} to {level} percent.", {"room": ROOM, "level": number(10, 99)}),
    "send_money": ("Send {amount} dollars to {name}.", {"name": FIRST_NAME, "amount": number(10, 99)}),
    "lend_money": ("Lend {name} {amount} dollars.", {"name": FIRST_NAME, "amount": number(10, 99)}),
    "paint": ("Paint the {room} {color}.", {"room": ROOM, "color": COLOUR}),
    "translate": ("Translate the word {word} to {language}.", {"word": THING, "language": LANGUAGE}),
    "find_teacher": ("Find a {language} teacher in {city}.", {"language": LANGUAGE, "city": CITY}),
    "rent_bike": ("Rent a bike in {city} for {hours} hours.", {"city": CITY, "hours": number(2, 9)}),
    "rent_flat": ("Rent a flat in {city} for {months} months.", {"city": CITY, "months": number(2, 9)}),
    "book_table": (
        "Book a table for {guests} guests under the name {name}.",
        {"name": SURNAME, "guests": number(2, 12)},
    ),
    "book_room": ("Book the room for {hours} hours for {name}.", {"name": SURNAME, "hours": number(2, 9)}),
    "get_weather": ("What is the weather in {city} on {day}?", {"city": CITY, "day": DAY}),
    "buy_ticket": ("Buy a train ticket to {city} for {day}.", {"city": CITY, "day": DAY}),
    "call_doctor": ("Call doctor {name} on {day}.", {"name": SURNAME, "day": DAY}),
    "add_item": ("Add {count} {item} to my list.", {"item": FOOD, "count": number(2, 20)}),
    "walk": ("Walk the {animal} for {minutes} minutes.", {"animal": ANIMAL, "minutes": number(5, 60)}),
    "feed": ("Feed the {animal} {cups} cups of food.", {"animal": ANIMAL, "cups": number(2, 9)}),
    "send_package": ("Send a package from {sender} to {receiver}.", {"sender": FIRST_NAME, "receiver": FIRST_NAME}),
    "move_file": ("Move the file from {source} to {target}.", {"source": THING, "target": THING}),
    "set_timer": (
        "Set a timer for {task} for {minutes} minutes.",
        {"task": shared(words.TASKS), "minutes": number(5, 60)},
    ),
    "set_age": ("Set the age of {name} to {age}.", {"name": FIRST_NAME, "age": number(18, 80)}),
    "set_volume": (
        "Set the volume of the {device} to {level}.",
        {"device": shared(words.DEVICES), "level": number(10, 99)},
    ),
    "repair": ("Repair the {item} on {day}.", {"item": THING, "day": DAY}),
    "add_player": (
        "Add {name} to the {team} team with number {number}.",
        {"name": FIRST_NAME, "team": COLOUR, "number": number(2, 40)},
    ),
    "ship": ("Ship the {product} to {city}.", {"product": THING, "city": CITY}),
}
"""Tools by name: the request, and what fills its places; these are the tool's arguments."""


def kind_of(value: str | int) -> str:
    return "integer" if isinstance(value, int) else "string"


def question(tool: str, request: str, arguments: Arguments) -> str:
    """Return the prompt: the signature of the tool and what the user wants."""
    signature = ", ".join(f"{argument}: {kind_of(value)}" for argument, value in arguments.items())
    return f"Tool: {tool}({signature})\nRequest: {request}"


def shot(tool: str, request: str, arguments: Arguments) -> Shot:
    return question(tool, request, arguments), json.dumps({"name": tool, "arguments": arguments})


SHOTS = (
    shot("rent_car", "Rent a car in Ghent for 3 weeks.", {"place": "Ghent", "weeks": 3}),
    shot("sell_book", "Sell the book Silent Water for 14 dollars.", {"title": "Silent Water", "price": 14}),
    shot("invite", "Invite Lucas to the wedding.", {"guest": "Lucas", "event": "wedding"}),
)


def gold(tool: str, arguments: Arguments) -> dict[str, Any]:
    """Return {"functions": the tool offered, "call": {tool: {argument: [value]}}}, the leaderboard's layout."""
    properties = {argument: {"type": kind_of(value)} for argument, value in arguments.items()}
    parameters = {"type": "dict", "properties": properties, "required": list(properties)}
    call = {tool: {argument: [value] for argument, value in arguments.items()}}
    return {"functions": [{"name": tool, "parameters": parameters}], "call": call}


def use(tool: str, draw: Draw) -> Made | None:
    """Return a request for ``tool``; None when two arguments got the same value (which one is meant?)."""
    text, sources = TOOLS[tool]
    arguments = {argument: source(draw) for argument, source in sources.items()}
    if len(set(arguments.values())) < len(arguments):
        return None
    return Made(question(tool, text.format(**arguments), arguments), gold(tool, arguments))


@cache
def items(split: Split) -> list[Item]:
    """Return the items of ``split``."""
    return assemble(NAME, split, {tool: partial(use, tool) for tool in TOOLS}, SHOTS)
