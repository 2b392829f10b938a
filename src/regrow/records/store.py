"""One folder per run: what was asked (``run.json``), what came out (``result.json``, ``items.jsonl``).

The result is written last and whole, so a folder without ``result.json`` is an unfinished run and a folder with it is
a finished one; there is no third state.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regrow.errors import DataError, StudyError
from regrow.records.atomic import disk_error, write_json, write_text
from regrow.records.fingerprint import fingerprint
from regrow.records.results import ItemScore, RunRecord

ASKED = "run.json"
RESULT = "result.json"
ITEMS = "items.jsonl"
PARTS = "parts"
LOCK = ".lock"


class RunFolder:
    """A folder claimed for one request: the same request claims it again and resumes, another one is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def finished(self, kind: str, asked: dict[str, Any]) -> bool:
        """Return True when this very request is already finished here; nothing is written.

        Raises StudyError when the folder holds another run or foreign files.
        """
        file = self.path / ASKED
        if file.exists():
            try:
                before = json.loads(file.read_text("utf-8"))
                known = before["fingerprint"]
            except (ValueError, KeyError, TypeError) as error:
                raise StudyError(
                    f"'{file}' cannot be read ({error})", hint="delete the folder and run again"
                ) from error
            if known != fingerprint([kind, asked]):
                changed = _differences(before, {"kind": kind, "asked": asked})
                raise StudyError(
                    f"the output folder '{self.path}' already holds another run ({changed})",
                    hint="name another folder with --output, or delete this one",
                )
            return (self.path / RESULT).exists()
        if self.path.is_file():
            raise StudyError(f"the output '{self.path}' is a file", hint="name a folder with --output")
        if self.path.is_dir() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise StudyError(
                f"the output folder '{self.path}' already holds files that are not a run of regrow",
                hint="name another folder with --output",
            )
        return False

    def claim(self, kind: str, asked: dict[str, Any]) -> bool:
        """Take the folder for this request and return whether it is already finished (see :meth:`finished`)."""
        done = self.finished(kind, asked)
        if not done:
            write_json(self.path / ASKED, {"kind": kind, "asked": asked, "fingerprint": fingerprint([kind, asked])})
        return done

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out of the folder while the block runs; the lock dies with this process.

        Raises StudyError when another process works here. Where the system has no advisory locks nothing is locked.
        """
        try:
            import fcntl
        except ImportError:
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / LOCK).open("w")
        except OSError as error:
            raise disk_error(self.path, error) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StudyError(
                    f"another process is working in '{self.path}'", hint="wait for it, or name another folder"
                ) from error
            yield

    def write_partial(self, items: Iterable[ItemScore]) -> None:
        """Keep the items of a finished part (one capability), so that a stopped run continues after it."""
        graded = list(items)
        if graded:
            lines = "".join(item.model_dump_json() + "\n" for item in graded)
            write_text(self.path / PARTS / f"{graded[0].capability}.jsonl", lines)

    def read_partial(self) -> list[ItemScore]:
        """Return the items that a stopped run left here. A part that cannot be read is measured anew."""
        found: list[ItemScore] = []
        for part in sorted((self.path / PARTS).glob("*.jsonl")):
            try:
                lines = part.read_text("utf-8").splitlines()
                found.extend(ItemScore.model_validate_json(line) for line in lines)
            except (ValidationError, OSError, ValueError):
                part.unlink(missing_ok=True)
        return found

    def write_evaluation(self, record: RunRecord, items: Iterable[ItemScore]) -> None:
        """Write the items, then the record that declares them complete."""
        lines = "".join(item.model_dump_json() + "\n" for item in items)
        write_text(self.path / ITEMS, lines)
        write_text(self.path / RESULT, record.model_dump_json(indent=2) + "\n")
        shutil.rmtree(self.path / PARTS, ignore_errors=True)


def read_evaluation(path: Path) -> tuple[RunRecord, list[ItemScore]]:
    """Return the record and the items of a finished evaluation folder. Raises DataError when it is not one."""
    result = path / RESULT
    if not result.exists():
        raise DataError(
            f"'{path}' holds no finished evaluation (no {RESULT})", hint="run `regrow eval MODEL --output DIR` first"
        )
    try:
        record = RunRecord.model_validate_json(result.read_bytes())
        with (path / ITEMS).open(encoding="utf-8") as stream:
            items = [ItemScore.model_validate_json(line) for line in stream if line.strip()]
    except (ValidationError, OSError, ValueError) as error:
        raise DataError(
            f"'{path}' is not a readable evaluation: {error}", hint="measure it again with `regrow eval`"
        ) from error
    return record, items


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    if before.get("kind") != now["kind"]:
        return f"a {before.get('kind')} instead of a {now['kind']}"
    old, new = before.get("asked", {}), now["asked"]
    names = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    shown = ", ".join(f"{key}: {old.get(key)!r} there, {new.get(key)!r} now" for key in names[:3])
    return shown or "another request"
