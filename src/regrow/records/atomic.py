"""Files and folders that are either whole or absent: written beside their place, flushed to disk, renamed."""

from __future__ import annotations

import errno
import glob
import json
import os
import platform
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regrow.errors import StudyError

PARTIAL = ".partial-"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part. Raises StudyError when the
    disk refuses (full, read-only); the old file is then untouched."""
    beside = _beside(path)
    fresh = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
        flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
            if fresh:
                path.parent.rmdir()
        raise disk_error(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text whole or not at all (see :func:`write_bytes`)."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document (NaN refused, indented) whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a scratch folder that becomes ``path`` when the block ends well and vanishes when it does not.

    ``path`` may be absent or an empty folder; anything else is refused before any work is done.
    """
    refuse_used(path)
    sweep(path)
    beside = _beside(path)
    try:
        beside.mkdir(parents=True)
        yield beside
        for file in beside.rglob("*"):
            if file.is_file():
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        if path.exists():
            path.rmdir()
        beside.replace(path)
        flush_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _beside(path: Path) -> Path:
    """Return a hidden name beside ``path`` that says which process of which machine writes there."""
    return path.with_name(f".{path.name}{PARTIAL}{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def sweep(path: Path) -> None:
    """Remove what killed processes of this machine left half-written beside ``path``; nothing of a live one."""
    for left in path.parent.glob(f".{glob.escape(path.name)}{PARTIAL}{glob.escape(_host())}-*"):
        process = left.name.rsplit("-", 2)[-2]
        if not process.isdigit() or _alive(int(process)):
            continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with suppress(OSError):
                left.unlink()


def _host() -> str:
    return "".join(letter for letter in platform.node() if letter.isalnum())[:32] or "host"


def _alive(process: int) -> bool:
    if os.name != "posix":
        return True  # asking would be another call there; leaving a file is the safe answer
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def refuse_used(path: Path) -> None:
    """Raise StudyError when ``path`` is a file or a folder with anything in it."""
    if path.is_file():
        raise StudyError(f"the output '{path}' is a file", hint="name a folder that does not exist yet")
    if path.is_dir() and any(path.iterdir()):
        raise StudyError(
            f"the output folder '{path}' already holds something", hint="name another folder, or delete this one first"
        )


def flush_folder(path: Path) -> None:
    """Make a rename in ``path`` durable where the system allows it (not on Windows)."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_error(path: Path, error: OSError) -> StudyError:
    """Return the StudyError that says in plain words why ``path`` could not be written."""
    free = ""
    try:
        nearest = next(parent for parent in (path, *path.parents) if parent.exists())
        free = f"; {size_of(shutil.disk_usage(nearest).free)} are free there"
    except (OSError, StopIteration):
        pass
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return StudyError(
        f"cannot write '{path}': {error.strerror or error}{free if full else ''}",
        hint=("free some space or choose" if full else "choose") + " another folder with --output",
    )


def size_of(count: int) -> str:
    """Return a number of bytes as people say it: "1.25 GB", "340 MB", "12 kB"."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count / 1e3:.0f} kB"
