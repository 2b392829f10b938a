"""The default engine: every step in a process of its own, some at once, each with its share of the threads.

Where the system forks safely, steps are forked from one process that has imported everything, so that a step costs no
start-up; elsewhere each is a new interpreter.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regrow.errors import StudyError
from regrow.records.study_spec import EngineSpec
from regrow.study.engines.engine import BUSY_CODE, How, Outcome, cause_in, how_words_tell
from regrow.study.termination import TERMINATED_CODE
from regrow.study.worker import PARENT

_TAIL_BYTES = 8_000
_LOOK_SECONDS = 0.05
_GRACE_SECONDS = 60.0
"""How long a step that is out of time may take to save its state."""


@dataclass
class _Job:
    """A step under way: its process, when that began, its exit code once it has one."""

    began: float = field(default_factory=time.monotonic)
    pid: int | None = None
    code: int | None = None
    timed_out: bool = False


class ProcessEngine:
    """``spec.workers`` processes at once; their output goes to ``steps/ID/log.txt``."""

    def __init__(self, study: Path, spec: EngineSpec) -> None:
        self._study = study
        self.slots = spec.workers
        threads = spec.threads or max(1, (os.cpu_count() or 1) // spec.workers)
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads), PARENT: str(os.getpid())}
        self._limit = spec.timeout_minutes * 60 if spec.timeout_minutes else None
        self._jobs: dict[str, _Job] = {}
        self._starter: _Forks | _Interpreters = (
            _Forks(self._environment) if sys.platform.startswith("linux") else _Interpreters(self._environment)
        )

    def start(self, step_id: str) -> None:
        place = self._study / "steps" / step_id
        place.mkdir(parents=True, exist_ok=True)
        self._jobs[step_id] = _Job()
        self._starter.start(self._jobs, str(self._study.absolute()), step_id, str((place / "log.txt").absolute()))

    def ended(self, wait_seconds: float) -> list[Outcome]:
        until = time.monotonic() + wait_seconds
        while True:
            self._starter.look(self._jobs, min(_LOOK_SECONDS, max(0.0, until - time.monotonic())))
            self._watch_the_time()
            found = [self._close(step_id) for step_id, job in list(self._jobs.items()) if job.code is not None]
            if found or time.monotonic() >= until or not self._jobs:
                return found

    def stop(self) -> None:
        for job in self._jobs.values():
            if job.code is None and job.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(job.pid, signal.SIGTERM)
        while any(job.code is None for job in self._jobs.values()) and self._starter.alive():
            self._starter.look(self._jobs, _LOOK_SECONDS)
        self._jobs.clear()
        self._starter.close()

    def _watch_the_time(self) -> None:
        for job in self._jobs.values():
            over = self._limit is not None and time.monotonic() - job.began > self._limit
            if not over or job.pid is None or job.code is not None:
                continue
            assert self._limit is not None
            # It may take a moment to save its state; only then is it killed.
            with suppress(ProcessLookupError):
                if not job.timed_out:
                    job.timed_out = True
                    os.kill(job.pid, signal.SIGTERM)
                elif time.monotonic() - job.began > self._limit + _GRACE_SECONDS:
                    os.kill(job.pid, signal.SIGKILL)

    def _close(self, step_id: str) -> Outcome:
        job = self._jobs.pop(step_id)
        if job.code == 0:
            return Outcome(step_id, "done")
        if job.code == BUSY_CODE:
            return Outcome(step_id, "busy")
        assert job.code is not None
        message = self._last_words(step_id)
        how: How = "error"
        if job.timed_out:
            how = "timeout"
        elif job.code in (-signal.SIGTERM, TERMINATED_CODE):
            how, message = "preempted", "the worker was told to stop (SIGTERM)"
        elif job.code in (-signal.SIGKILL, -signal.SIGINT, 130):
            how = "killed"
            message = f"the worker was ended by signal {-job.code}" if job.code < 0 else "the worker was interrupted"
        else:
            how = how_words_tell(message) or "error"
        return Outcome(step_id, how, message)

    def _last_words(self, step_id: str) -> str:
        try:
            with (self._study / "steps" / step_id / "log.txt").open("rb") as stream:
                stream.seek(0, os.SEEK_END)
                stream.seek(max(0, stream.tell() - _TAIL_BYTES))
                return cause_in(stream.read().decode("utf-8", "replace"))
        except OSError:
            return ""


class _Forks:
    """Steps as children of one process that has imported everything (see regrow/cli/study_spawner.py)."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._spawner: subprocess.Popen[bytes] | None = None
        self._waiting = b""

    def start(self, jobs: dict[str, _Job], study: str, step_id: str, log: str) -> None:
        if self._spawner is None or self._spawner.poll() is not None:
            self._waiting = b""
            self._spawner = subprocess.Popen(
                [sys.executable, "-m", "regrow.cli.study_spawner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
            )
        assert self._spawner.stdin is not None
        request = json.dumps({"step": step_id, "study": study, "log": log}).encode() + b"\n"
        try:
            self._spawner.stdin.write(request)
            self._spawner.stdin.flush()
        except BrokenPipeError as error:
            raise StudyError("the process that starts the steps has died", hint="run the study again") from error

    def look(self, jobs: dict[str, _Job], wait_seconds: float) -> None:
        """Take in what the spawner said; wait up to so long for the first of it."""
        if self._spawner is None:
            time.sleep(wait_seconds)
            return
        assert self._spawner.stdout is not None
        handle = self._spawner.stdout.fileno()
        while select.select([handle], [], [], wait_seconds)[0]:
            piece = os.read(handle, 65_536)
            if not piece:
                # The spawner died, and its children were told: what was under way has no other end.
                for job in jobs.values():
                    job.code = job.code if job.code is not None else -signal.SIGKILL
                return
            *lines, self._waiting = (self._waiting + piece).split(b"\n")
            for line in lines:
                _take(json.loads(line), jobs)
            wait_seconds = 0.0

    def alive(self) -> bool:
        return self._spawner is not None and self._spawner.poll() is None

    def close(self) -> None:
        if self._spawner is not None and self._spawner.stdin is not None:
            with suppress(OSError):
                self._spawner.stdin.close()
            self._spawner.wait()


class _Interpreters:
    """Steps as new interpreters."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, jobs: dict[str, _Job], study: str, step_id: str, log: str) -> None:
        command = [sys.executable, "-m", "regrow", "study", "step", study, step_id]
        with Path(log).open("ab") as stream:
            process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                process_group=0
                if os.name == "posix"
                else None,  # as the forked ones: Ctrl-C is the runner's to pass on
            )
        self._processes[step_id] = process
        jobs[step_id].pid = process.pid

    def look(self, jobs: dict[str, _Job], wait_seconds: float) -> None:
        for step_id, process in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[step_id]
                if step_id in jobs:
                    jobs[step_id].code = code
        if all(job.code is None for job in jobs.values()):
            time.sleep(wait_seconds)

    def alive(self) -> bool:
        return bool(self._processes)

    def close(self) -> None:
        return


def _take(event: dict[str, Any], jobs: dict[str, _Job]) -> None:
    job = jobs.get(event.get("step", ""))
    if job is None:
        return
    if "pid" in event:
        job.pid, job.began = event["pid"], time.monotonic()  # the spawner's own start is no time of the step
    job.code = event.get("code", job.code)
