"""Tools and requests for them out of function-calling data sets, in whichever layout they come."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.data.rows import Row

_SYSTEM_TOOLS = re.compile(r"Use them if required\s*-\s*", re.IGNORECASE)
_USER_TURN = re.compile(r"USER:\s*(.*?)\s*ASSISTANT:\s*<functioncall>", re.DOTALL)
_LATER_CALL = re.compile(r"API_call_\d+")


@dataclass(frozen=True)
class Request:
    """A request that one call answers, and the tools that are offered for it. ``functions`` may be offered without a
    request; then ``text`` is empty."""

    text: str
    functions: tuple[Mapping[str, Any], ...]


def glaive(rows: Sequence[Row]) -> Iterator[Request]:
    """Yield the requests of glaive-function-calling-v2 (its own layout or the one of turns) whose first answer is a
    call, and the tools of every conversation."""
    for row in rows:
        functions = _tools_of_turns(row) if "conversations" in row else _tools_of_system(row)
        text = _first_request_of_turns(row) if "conversations" in row else _first_request_of_chat(row)
        if functions:
            yield Request(text, tuple(functions))


def _tools_of_turns(row: Row) -> list[Mapping[str, Any]]:
    found = _json(str(row.get("tools") or ""))
    return _functions(found if isinstance(found, list) else [])


def _tools_of_system(row: Row) -> list[Mapping[str, Any]]:
    """Several tools stand one after the other, each a JSON object."""
    text = _SYSTEM_TOOLS.split(str(row.get("system") or ""), maxsplit=1)[-1]
    decoder, at = json.JSONDecoder(), text.find("{")
    found: list[Any] = []
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(value)
        at = text.find("{", end)
    return _functions(found)


def _first_request_of_turns(row: Row) -> str:
    turns = row["conversations"]
    kinds = [turn.get("from") for turn in turns[:2]]
    return str(turns[0].get("value") or "").strip() if kinds == ["human", "function_call"] else ""


def _first_request_of_chat(row: Row) -> str:
    found = _USER_TURN.match(str(row.get("chat") or "").lstrip())
    return found[1] if found and "ASSISTANT:" not in found[1] else ""


def seal_tools(queries: Sequence[Row], definitions: Sequence[Row]) -> Iterator[Request]:
    """Yield Seal-Tools' requests that one call answers, with the tool that is called, then every tool by itself."""
    tools = {str(row["api_name"]): _seal_function(row) for row in definitions}
    for row in queries:
        calls = row.get("calling") or []
        if len(calls) == 1 and calls[0].get("api") in tools and not _refers_to_a_call(calls[0]):
            yield Request(str(row["query"]).strip(), (tools[calls[0]["api"]],))
    for function in tools.values():
        yield Request("", (function,))


def _refers_to_a_call(call: Mapping[str, Any]) -> bool:
    return bool(_LATER_CALL.search(json.dumps(call.get("parameters"))))


def _seal_function(row: Row) -> Mapping[str, Any]:
    return {
        "name": str(row["api_name"]),
        "description": str(row.get("api_description") or ""),
        "parameters": {
            "type": "object",
            "properties": dict(row.get("parameters") or {}),
            "required": [name for name in row.get("required") or [] if name in (row.get("parameters") or {})],
        },
    }


def _functions(values: Sequence[Any]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for value in values:
        inner = value.get("function", value) if isinstance(value, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("name"), str) and isinstance(inner.get("parameters"), dict):
            found.append(inner)
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
