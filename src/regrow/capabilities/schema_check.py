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
from functools import lru_cache
from typing import Any

import jsonschema_rs

from regrow.capabilities.schema_work import is_little_work, is_quickly_read
from regrow.errors import ConfigError

LONGEST_SECONDS = 5.0
"""Computing time (not time on the clock) that a check in its own process may take."""

TOO_LONG = "schema: took too long"

_LONGEST_WAIT = 60.0
_MOST_MEMORY = 4 << 30
_READY = "ready\n"
_WORKER = "from regrow.capabilities.schema_check import serve; serve()"

_BACKTRACKING = 100_000
_COMPILED_BYTES = 4_000_000
_KNOWN_DRAFTS = ("draft-04", "draft-06", "draft-07", "2019-09", "2020-12")


def fault(schema: Any, value: Any) -> str:
    """Return "" when ``value`` conforms to ``schema``, else one short reason.

    The draft is the one that ``$schema`` names, the newest one where it names none. ``format`` is an annotation and
    is not checked. References to other documents are never fetched: such a schema cannot be satisfied. A pattern runs
    with bounded backtracking, and a check that is not done after LONGEST_SECONDS of computing is given up: TOO_LONG.
    A schema that is not valid itself gives "schema: ...".
    """
    try:
        text = json.dumps(schema, sort_keys=True)
        if is_little_work(schema, value):
            return _fault_here(text, value)
        return _fault_elsewhere({"schema": text, "value": value})
    except (ValueError, RecursionError, TypeError, OverflowError) as refusal:
        return f"schema: {_first_line(refusal)}"


def schema_fault(schema: Any) -> str:
    """Return "" when ``schema`` is a JSON Schema that values can be checked against, else one short reason."""
    try:
        text = json.dumps(schema, sort_keys=True)
        found = _schema_fault_here(text) if is_quickly_read(schema) else _fault_elsewhere({"schema": text})
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
