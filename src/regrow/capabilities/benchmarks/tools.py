"""Tools offered to a model: their descriptions as JSON Schema, and the turn that tells the model how to call them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from regrow.protocols import Message

_TYPES = {
    "dict": "object", "float": "number", "tuple": "array", "int": "integer", "str": "string", "bool": "boolean",
    "list": "array", "double": "number", "long": "integer",
}  # fmt: skip

SYSTEM = (
    "You can call these functions:\n{tools}\n\n"
    "Answer the user's request with exactly one function call, written as a JSON object with the keys "
    '"name" and "arguments", and nothing else.'
)


def as_json_schema(parameters: Any) -> Any:
    """Return a description of parameters with Python's names of types replaced by those of JSON Schema; "any" goes."""
    if isinstance(parameters, list):
        return [as_json_schema(part) for part in parameters]
    if not isinstance(parameters, Mapping):
        return parameters
    found: dict[str, Any] = {}
    for key, value in parameters.items():
        if key == "type" and isinstance(value, str):
            if value.lower() != "any":
                found[key] = _TYPES.get(value.lower(), value.lower())
        else:
            found[key] = as_json_schema(value)
    return found


def with_tools(functions: Sequence[Mapping[str, Any]], request: str) -> tuple[Message, ...]:
    """Return the chat that offers ``functions`` (name, description, parameters) and makes a request."""
    tools = "\n".join(
        json.dumps({**function, "parameters": as_json_schema(function["parameters"])}, ensure_ascii=False)
        for function in functions
    )
    return ({"role": "system", "content": SYSTEM.format(tools=tools)}, {"role": "user", "content": request})
