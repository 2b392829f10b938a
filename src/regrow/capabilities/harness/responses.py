"""What the model answered to the harness's requests, kept while a task runs."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from regrow.capabilities.line_journal import LineJournal
from regrow.records.fingerprint import fingerprint


class ResponseJournal:
    """A file of responses (line_journal.py). Use as a context manager.

    A response is known again by the kind of its request and its arguments, whichever task asked. Without a path nothing
    is kept.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lines = LineJournal(path) if path is not None else None
        self._known: dict[str, Any] = {}

    def __enter__(self) -> ResponseJournal:
        if self._lines is not None:
            self._lines.__enter__()
            self._known = {
                row["key"]: row["response"]
                for row in self._lines.rows
                if isinstance(row.get("key"), str) and "response" in row
            }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lines is not None:
            self._lines.__exit__(kind, error, trace)

    def __len__(self) -> int:
        return len(self._known)

    def known(self, kind: str, requests: list[Any]) -> dict[int, Any]:
        """Return the responses that are there already, by the number of their request."""
        found: dict[int, Any] = {}
        if self._known:
            for number, request in enumerate(requests):
                key = _key(kind, request.args)
                if key in self._known:
                    found[number] = self._known[key]
        return found

    def keep(self, kind: str, request: Any, response: Any) -> None:
        """Append a response: a text, a number or a list of such. Raises StudyError when the disk refuses."""
        if self._lines is not None:
            self._lines.append({"key": _key(kind, request.args), "response": response})


def _key(kind: str, arguments: tuple[Any, ...]) -> str:
    return fingerprint([kind, repr(arguments)])
