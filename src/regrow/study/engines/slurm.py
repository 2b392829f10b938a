"""The slurm engine, through submitit: every step is a job. submitit's "local" cluster runs the same jobs on this
machine."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from regrow.errors import ConfigError, StudyError
from regrow.records.study_spec import EngineSpec
from regrow.study.engines.engine import How, Outcome, cause_in, how_words_tell
from regrow.study.worker import run_step_by_name

_LOOK_SECONDS = 0.5
_GRACE_SECONDS = 60.0
"""How long jobs that were told to stop are waited for; slurm's own patience is KillWait, 30 s unless configured."""
_ENDS: dict[str, How] = {
    "TIMEOUT": "timeout",
    "OUT_OF_MEMORY": "out of memory",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "preempted",
    "CANCELLED": "killed",
}


class SlurmEngine:
    """``spec.workers`` jobs at once, on ``spec.partition``, each with ``threads`` CPUs and ``gpus_per_run`` GPUs."""

    def __init__(self, study: Path, spec: EngineSpec) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError(
                "the slurm engine needs the package 'submitit'",
                hint="pip install 'regrow[slurm]', or engine: {name: subprocess}",
            ) from error
        self._study = study.resolve()
        self.slots = spec.workers
        self._local = spec.cluster == "local"
        try:
            self._executor = submitit.AutoExecutor(folder=self._study / "jobs", cluster=spec.cluster)
        except RuntimeError as error:
            raise StudyError(
                f"slurm cannot be used here ({error})",
                hint="run this where `sbatch` is, or use engine: {name: subprocess}",
            ) from error
        options: dict[str, Any] = {
            "name": "regrow",
            "timeout_min": round(spec.timeout_minutes or 24 * 60),
            "cpus_per_task": spec.threads or 1,
            "gpus_per_node": spec.gpus_per_run or None,
        }
        if spec.memory_gb:
            options["mem_gb"] = spec.memory_gb
        if spec.partition and spec.cluster == "slurm":
            options["slurm_partition"] = spec.partition
        self._executor.update_parameters(**{key: value for key, value in options.items() if value is not None})
        self._under_way: dict[str, Any] = {}

    def start(self, step_id: str) -> None:
        self._under_way[step_id] = self._executor.submit(run_step_by_name, str(self._study), step_id)

    def ended(self, wait_seconds: float) -> list[Outcome]:
        until = time.monotonic() + wait_seconds
        while True:
            found = [self._outcome(step_id) for step_id, job in list(self._under_way.items()) if job.done()]
            if found or time.monotonic() >= until or not self._under_way:
                return found
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        for job in self._under_way.values():
            self._end(job)
        until = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < until and not all(job.done(force_check=True) for job in self._under_way.values()):
            time.sleep(_LOOK_SECONDS)
        self._under_way.clear()

    def _end(self, job: Any) -> None:
        """Send SIGTERM to a job, which then saves its state: slurm does so itself before it kills."""
        if self._local:
            with suppress(ProcessLookupError):
                os.kill(int(job.job_id), signal.SIGTERM)  # the local cluster's own cancel kills after a second
        else:
            job.cancel()

    def _outcome(self, step_id: str) -> Outcome:
        job = self._under_way.pop(step_id)
        error = job.exception()
        if error is None:
            return Outcome(step_id, "busy" if job.result() == "busy" else "done")
        state = str(job.state).split()[0].rstrip("+")
        message = cause_in(str(error)) or type(error).__name__
        how = _ENDS.get(state)
        told = how_words_tell(message)
        if how is None or told == "out of memory":
            how = told or ("killed" if "has not produced any output" in str(error) else "error")
        return Outcome(step_id, how, message)
