"""Items for mathematical reasoning: word problems of one step with small numbers."""

from __future__ import annotations

from functools import cache

from regrow.capabilities.mini import words
from regrow.capabilities.mini.assembly import Made, Template, assemble
from regrow.capabilities.mini.chat import Shot
from regrow.capabilities.mini.partition import Draw
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "math"


def problem(text: str, a: int, sign: str, b: int) -> Made:
    """Return the problem; a split owns two operands and their operation, in whatever order and story."""
    answer = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return Made(text, {"answer": answer}, (min(a, b), sign, max(a, b)))


def buys(draw: Draw) -> Made:
    name, food, a, b = draw.own(words.NAMES), draw.own(words.FOODS), draw.between(2, 9), draw.between(2, 9)
    return problem(f"{name} has {a} {food} and buys {b} more. How many {food} are there now?", a, "+", b)


def total(draw: Draw) -> Made:
    thing, a, b = draw.own(words.THINGS), draw.between(10, 40), draw.between(10, 40)
    return problem(f"A {thing} costs {a} dollars and a bag costs {b} dollars. What is the total cost?", a, "+", b)


def walks(draw: Draw) -> Made:
    name, a, b = draw.own(words.NAMES), draw.between(2, 30), draw.between(2, 30)
    text = f"{name} walks {a} miles on Monday and {b} miles on Tuesday. How many miles is that?"
    return problem(text, a, "+", b)


def plus(draw: Draw) -> Made:
    a, b = draw.between(10, 49), draw.between(10, 49)
    return problem(f"What is {a} plus {b}?", a, "+", b)


def gives(draw: Draw) -> Made:
    name, food, b = draw.own(words.NAMES), draw.own(words.FOODS), draw.between(2, 6)
    a = b + draw.between(2, 9)
    return problem(f"{name} had {a} {food} and gave away {b}. How many {food} are left?", a, "-", b)


def boxes(draw: Draw) -> Made:
    name, a, b = draw.own(words.NAMES), draw.between(2, 9), draw.between(2, 9)
    return problem(f"{name} buys {a} boxes with {b} pieces in each box. How many pieces is that?", a, "*", b)


def costs(draw: Draw) -> Made:
    thing, a, b = draw.own(words.THINGS), draw.between(2, 9), draw.between(2, 9)
    return problem(f"One {thing} costs {a} dollars. How much do {b} of them cost?", a, "*", b)


def reads(draw: Draw) -> Made:
    name, a, b = draw.own(words.NAMES), draw.between(2, 9), draw.between(2, 9)
    return problem(f"{name} reads {a} pages a day. How many pages is that in {b} days?", a, "*", b)


def times(draw: Draw) -> Made:
    a, b = draw.between(2, 12), draw.between(2, 9)
    return problem(f"What is {a} times {b}?", a, "*", b)


TEMPLATES: dict[str, Template] = {
    "buys": buys, "total": total, "walks": walks, "plus": plus, "gives": gives, "boxes": boxes, "costs": costs,
    "reads": reads, "times": times,
}  # fmt: skip

SHOTS: tuple[Shot, ...] = (
    ("Ida has 1 rose and finds 11 more. How many roses are there now?", "1 + 11 = 12\n#### 12"),
    ("There were 21 seats and 4 were sold. How many seats are left?", "21 - 4 = 17\n#### 17"),
    ("A farm has 10 fields with 3 trees in each field. How many trees is that?", "10 * 3 = 30\n#### 30"),
)


@cache
def items(split: Split) -> list[Item]:
    """Return the items of ``split``; gold is {"answer": number}."""
    return assemble(NAME, split, TEMPLATES, SHOTS)
