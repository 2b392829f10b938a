"""Who runs a study now: each runner holds a lease of its own, ``STUDY/.runners/NAME.json``, from its start to its end.

Runners may share a folder; what changes the folder under them (``run --update``, ``clean``) may not. Such a change and
the coming of a runner exclude each other by a lock of the system, so a runner reads the study before a change or after
it.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regrow.errors import StudyError
from regrow.records.atomic import disk_error
from regrow.study.lease import STALE_SECONDS, Holder, LeaseWatch, holder_of, lease

RUNNERS = ".runners"
ASKED = "study.json"
_LOCK = ".lock"
_LOOK_SECONDS = 0.25


@contextmanager
def enrolled(study: Path) -> Iterator[None]:
    """Be known as a runner of the study while the block runs. Raises StudyError where the folder cannot be written."""
    host = "".join(letter for letter in platform.node() if letter.isalnum())[:32] or "host"
    file = study / RUNNERS / f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}.json"
    with _locked(study):
        for left in (study / RUNNERS).glob("*.json"):
            if not LeaseWatch().live(left):  # known to be dead: killed, on this machine
                left.unlink(missing_ok=True)
        held = lease(file)
        held.__enter__()
    try:
        yield
    finally:
        held.__exit__(None, None, None)


@contextmanager
def alone(study: Path, what: str, *, stale_seconds: float = STALE_SECONDS) -> Iterator[None]:
    """Keep runners from beginning while the block changes the study.

    Raises StudyError that names ``what`` cannot be done, who works on the study and how to go on, while a runner or a
    worker lives. One that is seen to count is alive; one that does not count for ``stale_seconds`` is not, so only the
    leases of machines that died cost that long.
    """
    if not (study / ASKED).exists():  # nothing runs where no study is, and a foreign folder stays as it is
        yield
        return
    watch = LeaseWatch(stale_seconds)
    _refuse_alive(study, what, watch)
    with _locked(study):
        _refuse_alive(study, what, watch)
        for file in (study / RUNNERS).glob("*.json"):
            file.unlink(missing_ok=True)
        yield


def _refuse_alive(study: Path, what: str, watch: LeaseWatch) -> None:
    """Raise StudyError for the first lease that moves; return when none is left that could."""
    first: dict[Path, str] = {}
    while True:
        live = [file for file in _leases(study) if watch.live(file)]
        for file in live:
            holder = holder_of(file)
            if holder is None:
                continue
            if first.setdefault(file, holder.text) != holder.text:
                raise _busy(study, what, file, holder)
        if not live:
            return
        time.sleep(_LOOK_SECONDS)


def _leases(study: Path) -> list[Path]:
    return [*sorted((study / RUNNERS).glob("*.json")), *sorted((study / "steps").glob("*/lease.json"))]


def _busy(study: Path, what: str, file: Path, holder: Holder) -> StudyError:
    part = "the study" if file.parent.name == RUNNERS else f"step {file.parent.name} of the study"
    there = "" if holder.host == platform.node() else f" on {holder.host}"
    stop = f"stop it (kill -INT {holder.process}{there}; its work is kept)" if holder.process else "stop it"
    return StudyError(
        f"{what} is not possible now: {part} in '{study}' is being worked on by {holder}",
        hint=f"wait for it (regrow study status {study} --watch) or {stop}, then run this command again",
    )


@contextmanager
def _locked(study: Path) -> Iterator[None]:
    """Hold the lock of the study's runners. Where the system has no such locks nothing is locked."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    place = study / RUNNERS
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle = (place / _LOCK).open("a")
    except OSError as error:
        raise disk_error(place, error) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
