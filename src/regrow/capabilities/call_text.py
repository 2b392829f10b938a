"""The first function call in a text: JSON with "name" and "arguments", or a call in Python's syntax."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from regrow.capabilities.brackets import end_of_brackets
from regrow.capabilities.json_text import parse

LONGEST_CALL = 4_000
"""Characters of a call in Python's syntax that are read; a longer one is no call."""

_OPENING = re.compile(r"\{|(?<![\w.])[A-Za-z_][\w.]{0,199}\(")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True)
class Call:
    """A function's name as written and its arguments by name."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def first_call(text: str) -> Call | None:
    """Return the first call of ``text``, None where there is none. Rule: that of ``calls``.

    Of several calls the first counts, so what follows it can never change the result.
    """
    return next(calls(text), None)


def calls(text: str) -> Iterator[Call]:
    """Yield the calls of ``text`` in their order.

    Rule. Candidates are read from the left: a JSON object (``{``), or a name directly followed by ``(``. A JSON object
    is a call when it has a string "name" and "arguments" that are an object, or a string that holds one. A Python call
    is one when it is closed, at most 4,000 characters long and gives every argument by name. Candidates that are no
    call are passed over as a whole; one that never closes ends the search.

    In Python's syntax an argument may be a literal, or one of the words true, false, null; any other expression is
    kept as its source text and never evaluated.
    """
    start = 0
    while True:
        opening = _OPENING.search(text, start)
        if opening is None:
            return
        as_json = opening.group() == "{"
        end = end_of_brackets(text, opening.end() - 1, quotes='"' if as_json else "\"'")
        if end < 0:
            return
        source = text[opening.start() : end]
        call = _json_call(source) if as_json else python_call(source)
        if call is not None:
            yield call
        start = end


def _json_call(source: str) -> Call | None:
    value = parse(source).value
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments")
    if isinstance(arguments, str):
        arguments = parse(arguments).value
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return Call(name, arguments)


def python_call(source: str) -> Call | None:
    """Return the call that ``source`` is, None where it is not one call with arguments by name, each given once."""
    if len(source) > LONGEST_CALL:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args:
            return None
        arguments = {each.arg: _value(each.value) for each in tree.keywords if each.arg is not None}
        return Call(ast.unparse(tree.func), arguments) if len(arguments) == len(tree.keywords) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.UnaryOp(op=ast.UAdd(), operand=ast.Constant(value=int() | float() as value)):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values)}
        case ast.Name(id=word):
            return _WORDS.get(word.lower(), word)
        case _:
            return ast.unparse(node)


def _key(node: ast.expr | None) -> str:
    if node is None:
        raise ValueError("a dictionary unpacks another one")
    value = _value(node)
    return value if isinstance(value, str) else json.dumps(value)
