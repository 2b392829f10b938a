"""The first JSON value in a text that may hold prose, code fences and several values."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from regrow.capabilities.brackets import end_of_brackets

_OPENING = re.compile(r"[{\[]")
_FENCE = re.compile(r"\A\s*```[A-Za-z0-9_-]*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Found:
    """``value`` counts only when ``found`` is True (the value may be None: JSON's null)."""

    found: bool
    value: Any = None


NOTHING = Found(False)


def first_json(text: str) -> Found:
    """Return the first object or list of ``text``: read from the left, the first bracket pair that parses.

    Rule. A candidate starts at ``{`` or ``[`` and ends where that bracket closes (brackets.end_of_brackets). One that
    is not strict JSON is passed over as a whole, its inside is not searched. One that never closes, or is nested
    deeper than 64, ends the search. Prose and code fences around a value do not matter; of several values the first
    counts. So nothing that follows the first value can change the result.

    Not JSON here: NaN, Infinity, numbers beyond the range of a double, integers of more digits than Python reads.
    """
    start = 0
    while True:
        opening = _OPENING.search(text, start)
        if opening is None:
            return NOTHING
        end = end_of_brackets(text, opening.start(), quotes='"')
        if end < 0:
            return NOTHING
        read = parse(text[opening.start() : end])
        if read.found:
            return read
        start = end


def whole_json(text: str) -> Found:
    """Return the JSON value that the whole of ``text`` is, one surrounding code fence and white space aside."""
    fenced = _FENCE.match(text)
    return parse((fenced.group(1) if fenced else text).strip())


def parse(text: str) -> Found:
    """Return the strict JSON value of ``text``, or nothing where it is not one."""
    try:
        return Found(True, json.loads(text, parse_constant=_refuse, parse_float=_finite))
    except (ValueError, RecursionError):
        return NOTHING


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is out of range")
    return value
