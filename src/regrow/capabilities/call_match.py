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
    argument may be left out; text values compare without case, blanks and ``,./-_*^``, with ' and " equal.
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
    kind = str(schema.get("type", "any"))
    expected = _TYPES.get(kind, str)
    inner = str((schema.get("items") or {}).get("type", "any")) if expected is list else ""
    if expected is float and type(value) is int and abs(value) < _LARGEST:
        value = float(value)
    stands_for_variable = _first_type(allowed) not in (None, expected)
    if type(value) is not expected and type(value) is not _first_type(allowed):
        return False
    if isinstance(value, list) and expected is list and not _inner_types_fit(value, _TYPES.get(inner, str), allowed):
        return False
    if not stands_for_variable:
        if expected is dict:
            return any(_dict_matches(value, option) for option in allowed if isinstance(option, dict))
        if isinstance(value, list) and inner in ("dict", "object"):
            return any(_dicts_match(value, option) for option in allowed if isinstance(option, list))
        if expected is str:
            return _plain(value) in [_plain(option) for option in allowed]
        if isinstance(value, list):
            return _plain_list(value) in [_plain_list(option) for option in allowed if isinstance(option, list)]
    return any(type(value) is type(option) and value == option for option in allowed) or (
        type(value) is float and any(type(option) is int and value == option for option in allowed)
    )


def _first_type(allowed: Sequence[Any]) -> type | None:
    return next((type(option) for option in allowed if option != _OPTIONAL), None)


def _inner_types_fit(value: list[Any], inner: type, allowed: Sequence[Any]) -> bool:
    """Return whether every entry has the declared type, or the type that one allowed list has."""
    for option in allowed:
        if isinstance(option, list):
            also = _first_type(option)
            if all(type(entry) is inner or type(entry) is also for entry in value):
                return True
    return False


def _dict_matches(value: Any, option: Mapping[str, list[Any]]) -> bool:
    if not isinstance(value, dict):
        return False
    if any(key not in option or not _among(entry, option[key]) for key, entry in value.items()):
        return False
    return all(key in value or _OPTIONAL in values for key, values in option.items())


def _dicts_match(value: list[Any], option: list[Any]) -> bool:
    return len(value) == len(option) and all(_dict_matches(one, other) for one, other in zip(value, option))


def _among(value: Any, allowed: Sequence[Any]) -> bool:
    plain = _plain_list(value) if isinstance(value, list) else _plain(value)
    return any(plain == (_plain_list(option) if isinstance(option, list) else _plain(option)) for option in allowed)


def _plain(value: Any) -> Any:
    return _IGNORED_IN_TEXT.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _plain_list(values: list[Any]) -> list[Any]:
    return [_plain(value) for value in values]
