"""The evaluations below the folders a user names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from regrow.errors import DataError
from regrow.records.store import ASKED, RESULT

HEALING_LOG = "healing_log.jsonl"


def evaluation_folders(named: Iterable[Path]) -> list[Path]:
    """Return the folders with a finished evaluation, each named one itself or all those below it, sorted by path.

    Raises DataError for a folder that is absent or holds none.
    """
    found: dict[Path, Path] = {}
    for folder in named:
        if not folder.is_dir():
            raise DataError(f"there is no folder '{folder}'", hint="name folders written by `regrow eval`")
        inside = [folder] if (folder / RESULT).exists() else sorted(file.parent for file in folder.rglob(RESULT))
        inside = [place for place in inside if place == folder or _is_evaluation(place)]
        if not inside:
            raise DataError(f"'{folder}' holds no finished evaluation", hint="measure first: regrow eval MODEL -o DIR")
        for place in inside:
            found.setdefault(place.resolve(), place)
    return list(found.values())


def healing_log_in(named: Iterable[Path]) -> Path | None:
    """Return the training log below the named folders when there is exactly one."""
    logs = {log for folder in named for log in folder.rglob(HEALING_LOG)}
    return logs.pop() if len(logs) == 1 else None


def _is_evaluation(folder: Path) -> bool:
    """False for the finished run of another kind; what cannot be read is left to the reader, who says what is wrong."""
    try:
        asked = json.loads((folder / ASKED).read_text("utf-8"))
    except (OSError, ValueError):
        return True
    return not isinstance(asked, dict) or asked.get("kind") == "evaluation"
