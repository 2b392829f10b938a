"""Whether a JSON value conforms to a JSON Schema, in bounded time whatever the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

MOST_WORK = 1_000_000
"""Schema-against-value steps beyond which a check is refused."""

_BACKTRACKING = 100_000
_COMPILED_BYTES = 4_000_000
_KNOWN_DRAFTS = ("draft-04", "draft-06", "draft-07", "2019-09", "2020-12")

_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
_EVERY_PART = (
    "items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains",
)  # fmt: skip


def fault(schema: Any, value: Any) -> str:
    """Return "" when ``value`` conforms to ``schema``, else one short reason.

    The draft is the one that ``$schema`` names, the newest one where it names none. ``format`` is an annotation and
    is not checked. References to other documents are never fetched: such a schema cannot be satisfied. A pattern runs
    with bounded backtracking, and a schema whose references multiply into more than a million steps on this value is
    refused before it is run. A schema that is not valid itself gives "schema: ...".
    """
    try:
        if _too_much_work(schema, value):
            return "schema: too much work"
        checker = _checker(json.dumps(schema, sort_keys=True))
        error = next(iter(checker.iter_errors(value)), None)
    except jsonschema_rs.ValidationError as error_in_schema:
        return f"schema: {_first_line(error_in_schema)}"
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError, TypeError, OverflowError) as refusal:
        return f"schema: {_first_line(refusal)}"
    return "" if error is None else _first_line(error)


def schema_fault(schema: Any) -> str:
    """Return "" when ``schema`` is a JSON Schema that values can be checked against, else one short reason."""
    try:
        _checker(json.dumps(schema, sort_keys=True))
    except jsonschema_rs.ValidationError as error_in_schema:
        return _first_line(error_in_schema)
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError, TypeError, OverflowError) as refusal:
        return _first_line(refusal)
    return ""


@lru_cache(maxsize=512)
def _checker(schema_text: str) -> Any:
    schema = json.loads(schema_text)
    if isinstance(schema, dict) and not any(draft in str(schema.get("$schema")) for draft in _KNOWN_DRAFTS):
        schema.pop("$schema", None)
    return jsonschema_rs.validator_for(
        schema,
        validate_formats=False,
        offline=True,
        pattern_options=jsonschema_rs.FancyRegexOptions(
            backtrack_limit=_BACKTRACKING, size_limit=_COMPILED_BYTES, dfa_size_limit=_COMPILED_BYTES
        ),
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _too_much_work(schema: Any, value: Any) -> bool:
    """Return whether checking ``value`` would evaluate more than MOST_WORK pairs of subschema and part of the value.

    Validators evaluate a pair as often as it is reached, which can double at each reference; here each pair is
    counted once and its count is reused, so this takes time in the number of different pairs.
    """
    counts: dict[tuple[int, int], int] = {}
    nodes: list[Any] = []

    def count(part: Any, of: Any) -> int:
        key = (id(part), id(of))
        if key in counts:
            return counts[key]
        if len(counts) > MOST_WORK // 10:
            return MOST_WORK + 1
        counts[key] = 0
        nodes.append(of)
        total = 1
        for inner, inner_value in _pairs(part, of, schema):
            total += count(inner, inner_value)
            if total > MOST_WORK:
                break
        counts[key] = min(total, MOST_WORK + 1)
        return counts[key]

    return count(schema, value) > MOST_WORK


def _pairs(part: Any, of: Any, root: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(part, dict):
        return
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        target = _resolve(part.get(keyword), root)
        if target is not None:
            yield target, of
    for keyword in _SAME_VALUE_LISTS:
        if isinstance(part.get(keyword), list):
            yield from ((inner, of) for inner in part[keyword])
    for keyword in _SAME_VALUE:
        yield part.get(keyword), of
    for keyword in _SAME_VALUE_MAPS:
        if isinstance(part.get(keyword), dict):
            yield from ((inner, of) for inner in part[keyword].values())
    inside = list(of.values()) if isinstance(of, dict) else of if isinstance(of, list) else []
    for keyword in _EVERY_PART:
        yield from ((part.get(keyword), entry) for entry in inside)
    if isinstance(of, dict):
        properties = part.get("properties")
        if isinstance(properties, dict):
            yield from ((properties[name], entry) for name, entry in of.items() if name in properties)
        patterns = part.get("patternProperties")
        if isinstance(patterns, dict):
            yield from ((inner, entry) for inner in patterns.values() for entry in inside)
        if isinstance(part.get("propertyNames"), dict):
            yield from ((part["propertyNames"], name) for name in of)
    if isinstance(of, list):
        for keyword in ("items", "prefixItems"):
            if isinstance(part.get(keyword), list):
                yield from zip(part[keyword], of)


def _resolve(reference: Any, root: Any) -> Any:
    """Return what a reference's JSON pointer names in ``root``, None where it names nothing there.

    The document before "#" is not looked at (another one is never fetched); named anchors count as the root.
    """
    if not isinstance(reference, str):
        return None
    pointer = unquote(reference.partition("#")[2])
    target = root
    for step in pointer.split("/")[1:] if pointer.startswith("/") else []:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target
