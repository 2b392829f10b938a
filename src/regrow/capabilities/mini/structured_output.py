"""Items for structured output: one sentence, the fields wanted, a JSON object wished for."""

from __future__ import annotations

from functools import cache
from typing import Any

from regrow.capabilities.mini import words
from regrow.capabilities.mini.assembly import Made, Template, assemble
from regrow.capabilities.mini.chat import Shot
from regrow.capabilities.mini.partition import Draw
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "structured_output"

Schema = dict[str, Any]

STRING: Schema = {"type": "string", "minLength": 1}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}


def within(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def one_of(*words_allowed: str) -> Schema:
    return {"enum": list(words_allowed)}


def listed(inner: Schema, length: int) -> Schema:
    return {"type": "array", "items": inner, "minItems": length, "maxItems": length}


def record(**fields: Schema) -> Schema:
    """Return the schema of an object with exactly these fields, all of them required."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def said(schema: Schema) -> str:
    """Return a schema of this module in the few words that the prompt uses."""
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "object":
        return f"object with {' and '.join(fields_of(schema))}"
    if schema["type"] == "array":
        return f"list of {said(schema['items'])}s"
    limits = f" from {schema['minimum']} to {schema['maximum']}" if "maximum" in schema else ""
    return f"{schema['type']}{limits}"


def fields_of(schema: Schema) -> list[str]:
    return [f"{name} ({said(inner)})" for name, inner in schema["properties"].items()]


def question(sentence: str, schema: Schema) -> str:
    return f"{sentence}\nReturn JSON: {', '.join(fields_of(schema))}."


def made(sentence: str, **fields: Schema) -> Made:
    return Made(question(sentence, record(**fields)), {"schema": record(**fields)})


def person(draw: Draw) -> Made:
    name, age, city = draw.own(words.NAMES), draw.between(18, 80), draw.own(words.CITIES)
    return made(f"{name} is {age} years old and lives in {city}.", name=STRING, age=INTEGER, city=STRING)


def museum(draw: Draw) -> Made:
    city, state, day = draw.own(words.CITIES), draw.any_of(["open", "closed"]), draw.any_of(words.DAYS)
    return made(f"The museum in {city} is {state} on {day}.", city=STRING, day=STRING, open=BOOLEAN)


def meeting(draw: Draw) -> Made:
    name, day, room = draw.own(words.NAMES), draw.any_of(words.DAYS), draw.between(1, 40)
    return made(f"{name} has a meeting on {day} in room {room}.", name=STRING, day=STRING, room=INTEGER)


def appointment(draw: Draw) -> Made:
    (one, other), day, hour = draw.own_several(words.NAMES, 2), draw.any_of(words.DAYS), draw.between(8, 17)
    return made(f"{one} meets {other} on {day} at {hour} o'clock.", day=STRING, hour=within(0, 23))


def weather(draw: Draw) -> Made:
    city, sky, degrees = draw.own(words.CITIES), draw.any_of(["sunny", "cloudy", "rainy"]), draw.between(2, 34)
    sentence = f"Today {city} is {sky} with {degrees} degrees."
    return made(sentence, city=STRING, sky=one_of("sunny", "cloudy", "rainy"), degrees=INTEGER)


def shopping(draw: Draw) -> Made:
    name, (first, second, third) = draw.own(words.NAMES), draw.own_several(words.FOODS, 3)
    return made(f"{name} bought {first}, {second} and {third}.", buyer=STRING, items=listed(STRING, 3))


def scores(draw: Draw) -> Made:
    name, first, second, third = draw.own(words.NAMES), *(draw.between(1, 30) for _ in range(3))
    return made(f"{name} scored {first}, {second} and {third} points.", player=STRING, points=listed(INTEGER, 3))


def address(draw: Draw) -> Made:
    name, number, street = draw.own(words.SURNAMES), draw.between(1, 99), draw.own(words.STREETS)
    sentence = f"Mrs {name} lives at {number} {street} Street."
    return made(sentence, name=STRING, address=record(number=INTEGER, street=STRING))


def family(draw: Draw) -> Made:
    (parent, child), age = draw.own_several(words.NAMES, 2), draw.between(2, 17)
    sentence = f"{parent} has a son named {child} who is {age}."
    return made(sentence, parent=STRING, child=record(name=STRING, age=INTEGER))


def trip(draw: Draw) -> Made:
    (start, end), hours = draw.own_several(words.CITIES, 2), draw.between(2, 11)
    return made(f"The train from {start} to {end} takes {hours} hours.", start=STRING, end=STRING, hours=INTEGER)


def pet(draw: Draw) -> Made:
    name, colour, animal = draw.own(words.NAMES), draw.any_of(words.COLOURS), draw.own(words.ANIMALS)
    sentence = f"{name} has a {colour} {animal} that is {draw.between(1, 14)} years old."
    return made(sentence, owner=STRING, animal=STRING, age=INTEGER)


def order(draw: Draw) -> Made:
    name, food, size = draw.own(words.SURNAMES), draw.own(words.FOODS), draw.any_of(["small", "medium", "large"])
    sentence = f"Mr {name} ordered {draw.between(2, 9)} {size} bags of {food}."
    return made(sentence, customer=STRING, product=STRING, size=one_of("small", "medium", "large"), bags=INTEGER)


def wish(draw: Draw) -> Made:
    name, thing, size = draw.own(words.NAMES), draw.own(words.THINGS), draw.any_of(["small", "large"])
    return made(f"{name} wants a {size} {thing}.", name=STRING, product=STRING, size=one_of("small", "large"))


def rating(draw: Draw) -> Made:
    name, thing, stars = draw.own(words.NAMES), draw.own(words.THINGS), draw.between(1, 5)
    return made(f"{name} gave the {thing} {stars} stars.", name=STRING, product=STRING, stars=within(1, 5))


def job(draw: Draw) -> Made:
    name, work, pay = draw.own(words.NAMES), draw.any_of(["teacher", "nurse", "cook", "pilot"]), draw.between(20, 90)
    return made(f"{name} is a {work} and earns {pay} dollars an hour.", name=STRING, job=STRING, pay=INTEGER)


def car(draw: Draw) -> Made:
    name, colour, year = draw.own(words.SURNAMES), draw.any_of(words.COLOURS), draw.between(1985, 2020)
    return made(f"{name} drives a {colour} car from {year}.", driver=STRING, color=STRING, year=INTEGER)


TEMPLATES: dict[str, Template] = {
    "person": person, "museum": museum, "meeting": meeting, "appointment": appointment, "weather": weather,
    "shopping": shopping, "scores": scores, "address": address, "family": family, "trip": trip, "pet": pet,
    "order": order, "wish": wish, "rating": rating, "job": job, "car": car,
}  # fmt: skip

SHOTS: tuple[Shot, ...] = (
    (
        question("Judge Ito is in hall 7 on floor 2.", record(name=STRING, place=record(hall=INTEGER, floor=INTEGER))),
        '{"name": "Ito", "place": {"hall": 7, "floor": 2}}',
    ),
    (
        question(
            "The shop in Ghent sells wool, silk and yarn and is open.",
            record(city=STRING, goods=listed(STRING, 3), open=BOOLEAN),
        ),
        '{"city": "Ghent", "goods": ["wool", "silk", "yarn"], "open": true}',
    ),
    (
        question(
            "Ito sold the long rug for 90 dollars.",
            record(seller=STRING, length=one_of("short", "long"), price=NUMBER),
        ),
        '{"seller": "Ito", "length": "long", "price": 90}',
    ),
)


@cache
def items(split: Split) -> list[Item]:
    """Return the items of ``split``; gold is {"schema": JSON Schema}."""
    return assemble(NAME, split, TEMPLATES, SHOTS)
