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
from regrow.records.atomic import disk_error, sweep, write_json, write_text
from regrow.records.faults import first_fault
from regrow.records.fingerprint import fingerprint, text_fingerprint
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
            except (ValueError, KeyError, TypeError, OSError) as error:
                raise StudyError(
                    f"'{file}' cannot be read ({error})", hint=f"delete the folder '{self.path}' and run again"
                ) from error
            if known != fingerprint([kind, asked]):
                changed = differences(before.get("kind"), before.get("asked"), kind, asked)
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
            for name in (ASKED, RESULT, ITEMS):
                sweep(self.path / name)
        return done

    @contextmanager
    def claimed(self, kind: str, asked: dict[str, Any]) -> Iterator[bool]:
        """Hold the folder (see :meth:`held`) and take it for this request while the block runs; yields whether the
        request is finished already, perhaps by a process that held the folder before.

        When the block refuses the request before any work was kept, the claim is taken back, so that the corrected
        request finds the folder free.
        """
        with self.held():
            done = self.claim(kind, asked)
            try:
                yield done
            except Exception:
                self._release()
                raise
        # The lock file is removed only once nothing else is left to protect.
        self._remove_if_empty()

    def _release(self) -> None:
        """Give up a folder that holds nothing but claims (and files that were opened and not written to)."""
        kept = [
            entry
            for entry in self.path.rglob("*")
            if entry.is_file() and entry.name not in (ASKED, LOCK, "healing.json") and entry.stat().st_size
        ]
        if not kept:
            shutil.rmtree(self.path, ignore_errors=True)

    def _remove_if_empty(self) -> None:
        if self.path.is_dir() and all(entry.name == LOCK for entry in self.path.iterdir()):
            shutil.rmtree(self.path, ignore_errors=True)

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
                # Not splitlines: an answer may hold separators that end a line for Python but not for JSON Lines.
                lines = part.read_bytes().decode("utf-8").split("\n")
                found.extend([ItemScore.model_validate_json(line) for line in lines if line.strip()])
            except (ValidationError, OSError, ValueError):
                part.unlink(missing_ok=True)
        return found

    def write_evaluation(self, record: RunRecord, items: Iterable[ItemScore]) -> None:
        """Write the items, then the record that declares them complete."""
        lines = "".join(item.model_dump_json() + "\n" for item in items)
        write_text(self.path / ITEMS, lines)
        complete = record.model_copy(update={"items_sha256": text_fingerprint(lines)})
        write_text(self.path / RESULT, complete.model_dump_json(indent=2) + "\n")
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
        text = (path / ITEMS).read_bytes().decode("utf-8")
        if record.items_sha256 and text_fingerprint(text) != record.items_sha256:
            raise ValueError(f"{ITEMS} is not the file that was written with {RESULT}")
        items = [ItemScore.model_validate_json(line) for line in text.split("\n") if line.strip()]
    except (ValidationError, OSError, ValueError) as error:
        raise DataError(
            f"'{path}' is a damaged evaluation ({first_fault(error)})",
            hint="measure it again: the same `regrow eval` command replaces it",
        ) from error
    return record, items


def differences(old_kind: Any, old: Any, kind: str, new: dict[str, Any]) -> str:
    """Return in words how a request differs from the one that made what is there: option by option, nested ones by
    their own names, hashes as "other model"."""
    if old_kind != kind:
        return f"its record is one of {old_kind}, not of {kind}"
    there, now = _flat(old if isinstance(old, dict) else {}), _flat(new)
    names = sorted(key for key in {*there, *now} if there.get(key) != now.get(key))
    shown = [
        f"another {name.removesuffix('_sha256').replace('_', ' ')}"
        if name.endswith("_sha256")
        else f"{name}: {there.get(name)!r} there, {now.get(name)!r} now"
        for name in names[:4]
    ]
    return ", ".join(shown) or "another request"


def _flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found.update(_flat(value, f"{before}{key}."))
        else:
            found[f"{before}{key}"] = value
    return found
