"""Answers kept one by one while they are written, so that work that is killed goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from regrow.capabilities.generation import Answer, Request
from regrow.capabilities.line_journal import LineJournal
from regrow.records.fingerprint import fingerprint


class AnswerJournal:
    """A file of answers (line_journal.py). Use as a context manager.

    An answer is known again by its prompt, its length limit and ``identity`` (who answers). Prompts whose line was cut
    or cannot be read are asked again.
    """

    def __init__(self, path: Path, identity: str = "") -> None:
        self._lines, self._identity = LineJournal(path), identity
        self._known: dict[str, Answer] = {}

    def __enter__(self) -> AnswerJournal:
        self._lines.__enter__()
        for row in self._lines.rows:
            try:
                self._known[row["key"]] = Answer(
                    row["text"], row["prompt_tokens"], row["generated_tokens"], 0.0, row["stopped"]
                )
            except (KeyError, TypeError):
                continue
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.__exit__(kind, error, trace)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, request: Request) -> Answer | None:
        """Return the answer that was kept for a request, None where there is none."""
        return self._known.get(self._key(request))

    def keep(self, request: Request, answer: Answer) -> None:
        """Append an answer. Raises StudyError when the disk refuses."""
        key = self._key(request)
        self._known[key] = answer
        self._lines.append(
            {
                "key": key,
                "text": answer.text,
                "prompt_tokens": answer.prompt_tokens,
                "generated_tokens": answer.generated_tokens,
                "stopped": answer.stopped,
            }
        )

    def remove(self) -> None:
        """Delete the file: what it held is kept elsewhere now."""
        self._lines.remove()

    def _key(self, request: Request) -> str:
        return fingerprint([self._identity, request.prompt, request.max_new_tokens, list(request.stop_texts)])
