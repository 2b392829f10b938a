"""A lease: the right of one live process, on any machine that sees the folder, to work on a step.

The holder counts up in the lease file. Whoever else looks judges by whether the count moves while it watches, on its
own steady clock: clocks of other machines, and clocks that jump, are never compared. On the holder's own machine a
dead process is known at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regrow.records.atomic import disk_error, write_text

BEAT_SECONDS = 2.0
STALE_SECONDS = 60.0
"""A lease whose count has not moved for so long, while somebody watched, has lost its holder."""


class LeaseTakenError(Exception):
    """Another live process holds the lease."""


@dataclass(frozen=True)
class Holder:
    """Who wrote a lease, as it says itself: host name and process id ("" and 0 where it is half written). ``text`` is
    the lease as it stood; a living holder changes it every BEAT_SECONDS."""

    host: str
    process: int
    text: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}" if self.process else "a process that it does not name"


def holder_of(file: Path) -> Holder | None:
    """Return who wrote the lease in ``file``; None when there is none."""
    text = _read(file)
    if text is None:
        return None
    facts = _facts(text)
    process = facts.get("process")
    return Holder(str(facts.get("host", "")), process if isinstance(process, int) else 0, text)


@dataclass
class LeaseWatch:
    """Judges leases by watching them: call :meth:`live` now and then with the same object."""

    stale_seconds: float = STALE_SECONDS
    _seen: dict[Path, tuple[str, float]] = field(default_factory=dict)

    def live(self, file: Path) -> bool:
        """Return whether the lease in ``file`` has a holder. A lease seen for the first time counts as live unless its
        process is known to be dead."""
        text = _read(file)
        if text is None:
            self._seen.pop(file, None)
            return False
        if _holder_is_dead(text):
            return False
        now = time.monotonic()
        if file not in self._seen or text != self._seen[file][0]:
            self._seen[file] = (text, now)
            return True
        return now - self._seen[file][1] < self.stale_seconds


@contextmanager
def lease(file: Path, watch: LeaseWatch | None = None, *, beat_seconds: float = BEAT_SECONDS) -> Iterator[None]:
    """Hold the lease in ``file`` while the block runs. Raises LeaseTakenError when another process holds it.

    A lease without a live holder is removed first, by one taker at a time and only if it is still the one that was
    judged; then whoever creates the file anew holds it.
    """
    watch = watch or LeaseWatch()
    token = uuid.uuid4().hex
    stop = threading.Event()
    beats = threading.Thread(target=_beat, args=(file, token, stop, beat_seconds), daemon=True)

    def give_up() -> None:
        stop.set()
        if beats.ident is not None:
            beats.join()
        if _token(_read(file)) == token:
            file.unlink(missing_ok=True)

    # SIGINT and SIGTERM may arrive at any line, also while the lease is taken or given up: hence twice.
    try:
        try:
            while not _create(file, token):
                if watch.live(file):
                    raise LeaseTakenError(str(file))
                clear_dead(file, watch)
            beats.start()
            yield
        finally:
            give_up()
    finally:
        give_up()


def clear_dead(file: Path, watch: LeaseWatch) -> None:
    """Remove a lease that ``watch`` has seen without a live holder; one that has a holder stays.

    Under a lock of the system, so that nobody removes the lease that another taker has just created in its place.
    """
    if not os.path.lexists(file):
        return
    try:
        import fcntl
    except ImportError:
        file.unlink(missing_ok=True)
        return
    with file.with_name(f".{file.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(file) and not watch.live(file):
            file.unlink(missing_ok=True)


def _create(file: Path, token: str) -> bool:
    handle: int | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(file.parent, error) from error
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(handle, "w") as stream:
            stream.write(_text(token, 0))
    except FileExistsError:
        return False
    except (OSError, KeyboardInterrupt) as error:
        if handle is not None:  # neither a full disk nor an interruption must leave a lease that nobody holds
            file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise disk_error(file, error) from error
        raise
    return True


def _beat(file: Path, token: str, stop: threading.Event, every: float) -> None:
    count = 0
    while not stop.wait(every):
        count += 1
        if _token(_read(file)) != token:
            return  # taken over while this process was held up; what it writes is still whole
        with contextlib.suppress(Exception):  # a full disk must not end the work; the next beat tries again
            write_text(file, _text(token, count))


def _text(token: str, count: int) -> str:
    return json.dumps({"token": token, "host": platform.node(), "process": os.getpid(), "count": count})


def _read(file: Path) -> str | None:
    try:
        return file.read_text("utf-8")
    except OSError:
        return None


def _facts(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "")
        return found if isinstance(found, dict) else {}
    except ValueError:
        return {}


def _token(text: str | None) -> str:
    return str(_facts(text).get("token", ""))


def _holder_is_dead(text: str) -> bool:
    facts = _facts(text)
    process = facts.get("process")
    if facts.get("host") != platform.node() or not isinstance(process, int) or os.name != "posix":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _is_zombie(process)


def _is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (OSError, IndexError):
        return False
