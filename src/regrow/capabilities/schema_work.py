"""How much work a JSON Schema makes, counted without doing it: an upper bound, or "not to be counted here"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MOST_WORK_HERE = 200_000
_DEEPEST_HERE = 100

_NOT_COUNTED = frozenset(
    (
        "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef",
        "unevaluatedItems", "unevaluatedProperties", "contentSchema",
    )
)  # fmt: skip
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
_EVERY_PART = ("items", "additionalItems", "additionalProperties", "contains")
_DEPENDENT = ("dependentRequired", "dependencies")
_COMPARED = ("enum", "const")

_PART_COMPILED = 10
_PATTERN_COMPILED = 5_000
_MULTIPLE_OF = 200
_ENTRY_COMPARED = 20


def is_quickly_read(schema: Any) -> bool:
    """Return whether ``schema`` is small and made only of what ``is_little_work`` can count.

    Not counted: names that references can go to beside a JSON pointer, pointers that an embedded base could turn
    elsewhere or that lead back to where they stand, and "unevaluated", which makes validators evaluate again what
    stands beside it.
    """
    work, refers, embeds = 0, False, False
    parts = [schema]
    while parts and work <= _MOST_WORK_HERE:
        part = parts.pop()
        work += _own_size(part)
        if isinstance(part, list):
            parts.extend(part)
        if not isinstance(part, dict):
            continue
        if not _NOT_COUNTED.isdisjoint(part):
            return False
        reference = part.get("$ref")
        if isinstance(reference, str):
            refers = True
            if (reference != "#" and not reference.startswith("#/")) or "%" in reference:
                return False
        embeds = embeds or (part is not schema and any(isinstance(part.get(name), str) for name in ("$id", "id")))
        patterns = part.get("patternProperties")
        patterns_here = isinstance(part.get("pattern"), str) + (len(patterns) if isinstance(patterns, dict) else 0)
        work += _PART_COMPILED + _PATTERN_COMPILED * patterns_here
        parts.extend(part.values())
    return work <= _MOST_WORK_HERE and not (refers and (embeds or _refers_to_itself(schema)))


def _refers_to_itself(schema: Any) -> bool:
    """Return whether a way through the subschemas and pointers of ``schema`` ever comes back to where it was."""
    entered: set[int] = set()
    left: set[int] = set()
    way = [schema]
    while way:
        part = way[-1]
        if id(part) in left or not isinstance(part, list | dict):
            way.pop()
        elif id(part) in entered:
            entered.remove(id(way.pop()))
            left.add(id(part))
        else:
            entered.add(id(part))
            inside = list(part.values()) if isinstance(part, dict) else part
            if isinstance(part, dict) and isinstance(part.get("$ref"), str):
                inside.append(_resolve(part["$ref"], schema))
            if any(id(inner) in entered for inner in inside):
                return True
            way.extend(inside)
    return False


def is_little_work(schema: Any, value: Any) -> bool:
    """Return whether checking ``value`` surely takes little time: about a microsecond for each step counted here.

    Validators evaluate a pair of subschema and part of the value as often as it is reached, which can double at each
    reference; here each pair is counted once and its count is reused, so counting takes no longer than its result is
    large.
    """
    if not is_quickly_read(schema):
        return False
    counts: dict[tuple[int, int], int] = {}
    sizes: dict[int, int] = {}
    too_much = _MOST_WORK_HERE + 1

    def size(of: Any) -> int:
        if id(of) not in sizes:
            inside = of.values() if isinstance(of, dict) else of if isinstance(of, list) else ()
            names = sum(map(_own_size, of)) if isinstance(of, dict) else 0
            sizes[id(of)] = _own_size(of) + names + sum(map(size, inside))
        return sizes[id(of)]

    def count(part: Any, of: Any, depth: int) -> int:
        key = (id(part), id(of))
        if key in counts:
            return counts[key]
        if depth > _DEEPEST_HERE:
            return too_much
        total = size(of) + _own_work(part, of, size(of))
        for inner, inner_value in _pairs(part, of, schema):
            if total >= too_much:
                break
            total += count(inner, inner_value, depth + 1)
        counts[key] = min(total, too_much)
        return counts[key]

    return count(schema, value, 0) <= _MOST_WORK_HERE


def _own_size(of: Any) -> int:
    """Return how many steps of work one text, number or bracket can be, what it holds left out."""
    if isinstance(of, str):
        return 1 + len(of) // 100
    return 1 + of.bit_length() // 100 if isinstance(of, int) else 1


def _own_work(part: Any, of: Any, size: int) -> int:
    """Return the steps that the keywords of ``part`` take on ``of`` without the subschemas in it.

    ``size`` is that of ``of``, which every error holds a copy of; each missing name is an error.
    """
    if not isinstance(part, dict):
        return 0
    work = _ENTRY_COMPARED * sum(_whole_size(part[name]) for name in _COMPARED if name in part)
    if isinstance(of, dict):
        for name in ("properties", "required"):
            work += len(part[name]) if isinstance(part.get(name), list | dict) else 0
        if isinstance(part.get("required"), list):
            work += size * sum(1 for name in part["required"] if name not in of)
        work += size * sum(_whole_size(part[name]) for name in _DEPENDENT if name in part)
        if isinstance(part.get("patternProperties"), dict):
            work += 2 * len(part["patternProperties"]) * sum(_pattern_work(str(name)) for name in of)
    if "pattern" in part and isinstance(of, str):
        work += _pattern_work(of)
    return work + (_MULTIPLE_OF if "multipleOf" in part and isinstance(of, int | float) else 0)


def _whole_size(of: Any) -> int:
    total, parts = 0, [of]
    while parts:
        part = parts.pop()
        total += _own_size(part)
        if isinstance(part, list | dict):
            parts.extend(part)
        if isinstance(part, dict):
            parts.extend(part.values())
    return total


def _pattern_work(text: str) -> int:
    """Return the steps of one pattern: its bounded backtracking can scan the text again at each step."""
    return 100 * (10 + len(text))


def _pairs(part: Any, of: Any, root: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each subschema that ``part`` applies, with the part of the value that it is applied to."""
    if not isinstance(part, dict):
        return
    if isinstance(part.get("$ref"), str):
        yield _resolve(part["$ref"], root), of
    for keyword in _SAME_VALUE_LISTS:
        if isinstance(part.get(keyword), list):
            yield from ((inner, of) for inner in part[keyword])
    yield from ((part[keyword], of) for keyword in _SAME_VALUE if keyword in part)
    for keyword in _SAME_VALUE_MAPS:
        if isinstance(part.get(keyword), dict):
            yield from ((inner, of) for inner in part[keyword].values())
    inside = list(of.values()) if isinstance(of, dict) else of if isinstance(of, list) else []
    for keyword in _EVERY_PART:
        if isinstance(part.get(keyword), dict | bool):
            yield from ((part[keyword], entry) for entry in inside)
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


def _resolve(reference: str, root: Any) -> Any:
    """Return what a reference's JSON pointer names in ``root``, None where it names nothing there."""
    target = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target
