"""Whether a call is the one wanted: the name, every argument, its type and its value.

The rules are those of the Berkeley Function Calling Leaderboard's checker for one Python-typed call (its "AST match"),
written from their description; the gold layout is the leaderboard's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from regrow.capabilities.call_text import Call

_TYPES: dict[str, type] = {
    "string": str, "any": str, "integer": int, "float": float, "number": float, "boolean": bool,
    "array": list, "tuple": list, "dict": dict, "object": dict,
}  # fmt: skip

_IGNORED_IN_TEXT = re.compile(r"[ ,./\-_*^]")
_OPTIONAL = ""
_LARGEST = 10**308


def fault(call: Call, functions: Sequence[Mapping[str, Any]], gold: Mapping[str, Mapping[str, list[Any]]]) -> str:
    """Return "" when ``call`` is what ``gold`` asks for, else one short reason.

    ``functions`` are the tools offered (name, parameters with properties and required); ``gold`` maps the wanted
    function's name to {argument: allowed values}. Names of functions compare case-insensitively with "." and "_"
    equal; an argument that the signature or the gold does not know fails; "" among the allowed values means that the
    argument may be left out, and that its list may be empty; text values, also in a list and as a value of a
    dictionary, compare without case, blanks and ``,./-_*^``, with ' and " equal; anything deeper compares as it is.
    """
    wanted, allowed = next(iter(gold.items()))
    function = next((each for each in functions if same_name(str(each["name"]), wanted)), None)
    if function is None:
        return "gold: names no tool that is offered"
    if not same_name(call.name, wanted):
        return "name"
    properties: Mapping[str, Any] = function["parameters"].get("properties", {})
    for name in function["parameters"].get("required", ()):
        if name not in call.arguments:
            return f"missing: {name}"
    for name, value in call.arguments.items():
        if name not in properties or name not in allowed:
            return f"unexpected: {name[:60]}"
        if not _matches(value, properties[name], allowed[name]):
            return f"value: {name}"
    for name, values in allowed.items():
        if name not in call.arguments and _OPTIONAL not in values:
            return f"missing: {name}"
    return ""


def same_name(one: str, other: str) -> bool:
    """Return whether two function names are equal but for case and "." against "_"."""
    return one.lower().replace(".", "_") == other.lower().replace(".", "_")


def _matches(value: Any, schema: Mapping[str, Any], allowed: Sequence[Any]) -> bool:
    """Return whether ``value`` has the declared type, or that of the first allowed value, and is among the allowed.

    Where the first allowed value is not of the declared type it stands for a variable: then plain equality decides
    (Python's: 1 equals 1.0 and True).
    """
    expected = _TYPES.get(str(schema.get("type", "any")), str)
    inner = _TYPES.get(str((schema.get("items") or {}).get("type", "any")), str) if expected is list else None
    if expected is float and type(value) is int and abs(value) < _LARGEST:
        value = float(value)
    first = _first_type(allowed)
    if type(value) is not expected:
        return type(value) is first and value in allowed
    if inner is not None and not any(_entries_fit(value, inner, option) for option in allowed):
        return False
    if first not in (None, expected):
        return value in allowed
    if expected is dict:
        return any(_dict_matches(value, option) for option in allowed)
    if inner is dict:
        return any(_dicts_match(value, option) for option in allowed if _holds_values(option))
    if expected is str:
        return _plain(value) in [_plain(option) for option in allowed if isinstance(option, str)]
    if expected is list:
        return _plain_list(value) in [_plain_list(option) for option in allowed if _holds_values(option)]
    return value in allowed


def _first_type(allowed: Sequence[Any]) -> type | None:
    return next((type(option) for option in allowed if option != _OPTIONAL), None)


def _entries_fit(value: Any, inner: type, option: Any) -> bool:
    """Return whether every entry has the declared type, or the type that the allowed list begins with.

    An allowed value that is no list, such as the "" of an argument that may be left out, asks nothing of the entries.
    """
    return not isinstance(option, list) or all(type(entry) in (inner, _first_type(option)) for entry in value)


def _dict_matches(value: Any, option: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(option, dict) or not all(map(_holds_values, option.values())):
        return False
    if any(key not in option or _plain(entry) not in _plain_list(option[key]) for key, entry in value.items()):
        return False
    return all(key in value or _OPTIONAL in values for key, values in option.items())


def _dicts_match(value: Any, option: Any) -> bool:
    """Return whether the dictionaries match one by one; "" allows the empty list."""
    return len(value) == len(option) and all(_dict_matches(one, other) for one, other in zip(value, option))


def _holds_values(option: Any) -> bool:
    """Return whether an allowed value can be gone through; what cannot, in a gold that is not well formed, allows
    nothing."""
    return isinstance(option, list | dict | str)


def _plain(value: Any) -> Any:
    """Return a text without what does not count in it, anything else (a list in a dictionary too) as it is."""
    return _IGNORED_IN_TEXT.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _plain_list(values: Any) -> list[Any]:
    return [_plain(value) for value in values]
