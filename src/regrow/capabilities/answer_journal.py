"""Answers kept one by one while they are written, so that work that is killed goes on where it stopped."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import TracebackType

from regrow.capabilities.generation import Answer, Request
from regrow.records.atomic import disk_error
from regrow.records.fingerprint import fingerprint

SYNC_SECONDS = 5.0


class AnswerJournal:
    """A file of JSON lines, one answer each, appended to. Use as a context manager.

    An answer is known again by its prompt, its length limit and ``identity`` (who answers). A last line that was cut
    when the process died is dropped, as is any line that cannot be read: those prompts are asked again.
    """

    def __init__(self, path: Path, identity: str = "") -> None:
        self.path, self._identity = path, identity
        self._known: dict[str, Answer] = {}
        self._synced = 0.0

    def __enter__(self) -> AnswerJournal:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole = self._read()
            self._stream = self.path.open("ab")
            self._stream.truncate(whole)
        except OSError as error:
            raise disk_error(self.path, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, request: Request) -> Answer | None:
        """Return the answer that was kept for a request, None where there is none."""
        return self._known.get(self._key(request))

    def keep(self, request: Request, answer: Answer) -> None:
        """Append an answer. Raises StudyError when the disk refuses."""
        key = self._key(request)
        self._known[key] = answer
        row = {
            "key": key,
            "text": answer.text,
            "prompt_tokens": answer.prompt_tokens,
            "generated_tokens": answer.generated_tokens,
            "stopped": answer.stopped,
        }
        try:
            self._stream.write(json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n")
            self._stream.flush()
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._stream.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            raise disk_error(self.path, error) from error

    def remove(self) -> None:
        """Delete the file: what it held is kept elsewhere now."""
        self._stream.close()
        self.path.unlink(missing_ok=True)

    def _key(self, request: Request) -> str:
        return fingerprint([self._identity, request.prompt, request.max_new_tokens, list(request.stop_texts)])

    def _read(self) -> int:
        """Read what is there and return the length of its whole lines in bytes."""
        if not self.path.exists():
            return 0
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].split(b"\n"):
            try:
                row = json.loads(line)
                self._known[row["key"]] = Answer(
                    row["text"], row["prompt_tokens"], row["generated_tokens"], 0.0, row["stopped"]
                )
            except (ValueError, KeyError, TypeError):
                continue
        return whole
