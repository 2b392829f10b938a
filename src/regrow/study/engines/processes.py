"""The default engine: every step in a process of its own, some at once, each with its share of the threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from regrow.records.study_spec import EngineSpec
from regrow.study.engines.engine import BUSY_CODE, How, Outcome
from regrow.study.worker import PARENT

_TAIL_BYTES = 2_000
_LOOK_SECONDS = 0.1


class ProcessEngine:
    """``spec.workers`` processes at once; their output goes to ``steps/ID/log.txt``."""

    def __init__(self, study: Path, spec: EngineSpec) -> None:
        self._study = study
        self.slots = spec.workers
        self._threads = spec.threads or max(1, (os.cpu_count() or 1) // spec.workers)
        self._limit = spec.timeout_minutes * 60 if spec.timeout_minutes else None
        self._under_way: dict[str, tuple[subprocess.Popen[bytes], float, IO[bytes]]] = {}
        self._timed_out: set[str] = set()

    def start(self, step_id: str) -> None:
        place = self._study / "steps" / step_id
        place.mkdir(parents=True, exist_ok=True)
        log = (place / "log.txt").open("ab")
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads), PARENT: str(os.getpid())}
        command = [sys.executable, "-m", "regrow", "study", "step", str(self._study), step_id]
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        )
        self._under_way[step_id] = (process, time.monotonic(), log)

    def ended(self, wait_seconds: float) -> list[Outcome]:
        until = time.monotonic() + wait_seconds
        while True:
            found = [self._close(step_id) for step_id in list(self._under_way) if self._over(step_id)]
            if found or time.monotonic() >= until or not self._under_way:
                return found
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        for process, _, _ in self._under_way.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for step_id in list(self._under_way):
            self._under_way[step_id][0].wait()
            self._close(step_id)

    def _over(self, step_id: str) -> bool:
        process, since, _ = self._under_way[step_id]
        if process.poll() is not None:
            return True
        if self._limit is not None and time.monotonic() - since > self._limit:
            # It may take a moment to save its state; only then is it killed.
            if step_id not in self._timed_out:
                self._timed_out.add(step_id)
                process.send_signal(signal.SIGINT)
            elif time.monotonic() - since > self._limit + 60:
                process.kill()
        return False

    def _close(self, step_id: str) -> Outcome:
        process, _, log = self._under_way.pop(step_id)
        log.close()
        code = process.returncode
        if code == 0:
            return Outcome(step_id, "done")
        if code == BUSY_CODE:
            return Outcome(step_id, "busy")
        message = self._last_words(step_id)
        how: How = "error"
        if step_id in self._timed_out:
            self._timed_out.discard(step_id)
            how = "timeout"
        elif code in (-signal.SIGKILL, -signal.SIGTERM, 130, -signal.SIGINT):
            how = "killed"
            message = f"the worker was ended by signal {-code}" if code < 0 else "the worker was interrupted"
        elif "not enough memory" in message or "out of memory" in message.lower():
            how = "out of memory"
        return Outcome(step_id, how, message)

    def _last_words(self, step_id: str) -> str:
        try:
            with (self._study / "steps" / step_id / "log.txt").open("rb") as stream:
                stream.seek(0, os.SEEK_END)
                stream.seek(max(0, stream.tell() - _TAIL_BYTES))
                lines = stream.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        said = [line.strip() for line in lines if line.strip()]
        for line in reversed(said):
            if line.startswith("error:"):
                return line.removeprefix("error:").strip()
        return said[-1] if said else ""
