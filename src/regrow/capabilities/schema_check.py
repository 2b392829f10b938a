"""Whether a JSON value conforms to a JSON Schema, in bounded time whatever the schema.

A schema of which simple counting shows that it is little work is checked in this process. Any other one (references
that multiply or that cannot be followed here, many patterns, long values) is checked in a process of its own, which is
ended when it has computed for LONGEST_SECONDS.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import jsonschema_rs

from regrow.errors import ConfigError

LONGEST_SECONDS = 5.0
"""Computing time (not time on the clock) that a check in its own process may take."""

TOO_LONG = "schema: took too long"

_MOST_WORK_HERE = 200_000
_DEEPEST_HERE = 100
_LONGEST_WAIT = 60.0
_MOST_MEMORY = 4 << 30
_READY = "ready\n"
_WORKER = "from regrow.capabilities.schema_check import serve; serve()"

_BACKTRACKING = 100_000
_COMPILED_BYTES = 4_000_000
_KNOWN_DRAFTS = ("draft-04", "draft-06", "draft-07", "2019-09", "2020-12")

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


def fault(schema: Any, value: Any) -> str:
    """Return "" when ``value`` conforms to ``schema``, else one short reason.

    The draft is the one that ``$schema`` names, the newest one where it names none. ``format`` is an annotation and
    is not checked. References to other documents are never fetched: such a schema cannot be satisfied. A pattern runs
    with bounded backtracking, and a check that is not done after LONGEST_SECONDS of computing is given up: TOO_LONG.
    A schema that is not valid itself gives "schema: ...".
    """
    try:
        text = json.dumps(schema, sort_keys=True)
        if _is_little_work(schema, value):
            return _fault_here(text, value)
        return _fault_elsewhere({"schema": text, "value": value})
    except (ValueError, RecursionError, TypeError, OverflowError) as refusal:
        return f"schema: {_first_line(refusal)}"


def schema_fault(schema: Any) -> str:
    """Return "" when ``schema`` is a JSON Schema that values can be checked against, else one short reason."""
    try:
        text = json.dumps(schema, sort_keys=True)
        found = _schema_fault_here(text) if _is_quickly_read(schema) else _fault_elsewhere({"schema": text})
    except (ValueError, RecursionError, TypeError, OverflowError) as refusal:
        return _first_line(refusal)
    return found.removeprefix("schema: ")


def serve() -> None:
    """Check what stands on standard input and print its fault: the work of the process of ``_fault_elsewhere``."""
    print(_READY, end="", flush=True)
    asked = json.load(sys.stdin)
    _limit_this_process(asked["seconds"])
    text = asked["schema"]
    print(json.dumps(_fault_here(text, asked["value"]) if "value" in asked else _schema_fault_here(text)))


def _fault_here(schema_text: str, value: Any) -> str:
    try:
        error = next(iter(_checker(schema_text).iter_errors(value)), None)
    except jsonschema_rs.ValidationError as error_in_schema:
        return f"schema: {_first_line(error_in_schema)}"
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError, TypeError, OverflowError) as refusal:
        return f"schema: {_first_line(refusal)}"
    return "" if error is None else _first_line(error)


def _schema_fault_here(schema_text: str) -> str:
    try:
        _checker(schema_text)
    except jsonschema_rs.ValidationError as error_in_schema:
        return _first_line(error_in_schema)
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError, TypeError, OverflowError) as refusal:
        return _first_line(refusal)
    return ""


def _fault_elsewhere(asked: dict[str, Any]) -> str:
    """Return what a fresh process finds; it limits its own computing time, and dies with whatever it does wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _WORKER],
            input=json.dumps({**asked, "seconds": LONGEST_SECONDS}),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LONGEST_WAIT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)},
        )
    except subprocess.TimeoutExpired:
        return TOO_LONG
    except OSError as error:
        raise _no_process(str(error)) from error
    if not done.stdout.startswith(_READY):
        raise _no_process((done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1])
    if done.returncode:
        out_of_time = done.returncode == -getattr(signal, "SIGPROF", 0)
        return TOO_LONG if out_of_time else f"schema: the check broke off ({done.returncode})"
    return str(json.loads(done.stdout.removeprefix(_READY)))


def _no_process(reason: str) -> ConfigError:
    return ConfigError(
        f"a JSON Schema that may take long is checked in its own process, which could not start: {reason[:200]}",
        hint=f"see that this works and that there is memory left: {sys.executable} -c 'import jsonschema_rs'",
    )


def _limit_this_process(seconds: float) -> None:
    """Let the system end this process after so much computing, whatever code it is in, and refuse it more memory."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


@lru_cache(maxsize=64)
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


def _is_quickly_read(schema: Any) -> bool:
    """Return whether ``schema`` is small and made only of what ``_is_little_work`` can count.

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


def _is_little_work(schema: Any, value: Any) -> bool:
    """Return whether checking ``value`` surely takes little time: about a microsecond for each step counted here.

    Validators evaluate a pair of subschema and part of the value as often as it is reached, which can double at each
    reference; here each pair is counted once and its count is reused, so counting takes no longer than its result is
    large.
    """
    if not _is_quickly_read(schema):
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
