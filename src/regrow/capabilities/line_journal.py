"""A file of JSON lines that grows while work is done, so that work that is killed goes on where it stopped."""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from regrow.records.atomic import disk_error

SYNC_SECONDS = 5.0


class LineJournal:
    """Rows appended one by one; ``rows`` are those that were there before. Use as a context manager.

    A last line that was cut when the process died is dropped from the file, any line that is not a JSON object is
    passed over: what they told is done again. Raises StudyError when the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._synced = 0.0

    def __enter__(self) -> LineJournal:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole = self._read()
            self._stream = self.path.open("ab", buffering=0)
            self._stream.truncate(whole)
            self._size = whole
        except OSError as error:
            raise disk_error(self.path, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def append(self, row: dict[str, Any]) -> None:
        """Write a row; it is on the disk after at most SYNC_SECONDS of further rows. One that is refused leaves the
        file as it was."""
        line = json.dumps(row).encode("ascii") + b"\n"
        try:
            if self._stream.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += len(line)
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._stream.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            with suppress(OSError):
                self._stream.truncate(self._size)
            raise disk_error(self.path, error) from error

    def remove(self) -> None:
        """Delete the file: what it held is kept elsewhere now."""
        self._stream.close()
        self.path.unlink(missing_ok=True)

    def _read(self) -> int:
        """Read what is there and return the length of its whole lines in bytes."""
        if not self.path.exists():
            return 0
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].split(b"\n"):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                self.rows.append(row)
        return whole
