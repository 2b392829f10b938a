"""The evaluations below the folders a user names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regrow.errors import DataError
from regrow.records.store import RESULT

HEALING_LOG = "healing_log.jsonl"


def evaluation_folders(named: Iterable[Path]) -> list[Path]:
    """Return the folders with a finished evaluation, each named one itself or all those below it, sorted by path.

    Raises DataError for a folder that is absent or holds none.
    """
    found: list[Path] = []
    for folder in named:
        if not folder.is_dir():
            raise DataError(f"there is no folder '{folder}'", hint="name folders written by `regrow eval`")
        inside = [folder] if (folder / RESULT).exists() else sorted(file.parent for file in folder.rglob(RESULT))
        if not inside:
            raise DataError(f"'{folder}' holds no finished evaluation", hint="measure first: regrow eval MODEL -o DIR")
        found += [place for place in inside if place not in found]
    return found


def healing_log_in(named: Iterable[Path]) -> Path | None:
    """Return the training log below the named folders when there is exactly one."""
    logs = {log for folder in named for log in folder.rglob(HEALING_LOG)}
    return logs.pop() if len(logs) == 1 else None
