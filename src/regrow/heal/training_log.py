"""The log of a healing run: one JSON object per update, cut back to the checkpoint when a run is continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regrow.errors import StudyError
from regrow.records.atomic import disk_error, write_text

FILE = "log.jsonl"


class TrainingLog:
    """Appends lines with the keys update (1-based), tokens, loss, learning_rate, gradient_norm, tokens_per_second."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE

    def cut_back(self, updates_done: int) -> None:
        """Keep the lines of the first ``updates_done`` updates; a line that a crash tore is dropped too."""
        kept: list[str] = []
        if self.file.exists():
            for line in self.file.read_text("utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and entry.get("update", 0) <= updates_done:
                    kept.append(line)
        write_text(self.file, "".join(line + "\n" for line in kept))

    def append(self, entry: dict[str, Any]) -> None:
        """Add one line. Raises StudyError when the disk refuses."""
        try:
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry, allow_nan=False) + "\n")
        except OSError as error:
            raise disk_error(self.file, error) from error

    def last_loss(self) -> float | None:
        """Return the loss of the last update, None when there is none."""
        lines = self.file.read_text("utf-8").splitlines() if self.file.exists() else []
        return float(json.loads(lines[-1])["loss"]) if lines else None


def refuse_unwritable(folder: Path) -> None:
    """Create ``folder``. Raises StudyError when it is a file or cannot be made."""
    if folder.is_file():
        raise StudyError(f"the output '{folder}' is a file", hint="name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from error
