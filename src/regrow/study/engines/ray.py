"""The ray engine: steps as ray tasks, on this machine or on the cluster at an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regrow.errors import ConfigError, StudyError
from regrow.records.study_spec import EngineSpec
from regrow.study.engines.engine import How, Outcome, how_it_failed
from regrow.study.engines.reach import ray_address, ray_nodes
from regrow.study.worker import run_step_by_name


class RayEngine:
    """``spec.workers`` tasks at once, each with ``threads`` CPUs and ``gpus_per_run`` GPUs. The study's folder must be
    visible to every node under the same path."""

    def __init__(self, study: Path, spec: EngineSpec) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "the ray engine needs the package 'ray'",
                hint="pip install 'regrow[ray]', or engine: {name: subprocess}",
            ) from error
        self._ray = ray
        self._study = study.resolve()
        self.slots = spec.workers
        self._mine = not ray.is_initialized()
        threads = spec.threads or 1
        address = ray_address(spec.address)
        if self._mine:
            if address is not None:
                ray_nodes(address)
            try:
                local = {"num_cpus": spec.workers * threads, "include_dashboard": False}
                ray.init(
                    address=address,
                    log_to_driver=False,
                    configure_logging=False,
                    **({} if address else local),
                )
            except (ConnectionError, RuntimeError, OSError, ValueError) as error:
                raise StudyError(
                    f"ray cannot be used {f'at {address!r}' if address else 'here'} ({str(error).splitlines()[0]})",
                    hint="check engine.address, leave it out to use this machine, or use engine: {name: subprocess}",
                ) from error
        options: dict[str, Any] = {"num_cpus": threads, "max_retries": 0}
        if spec.gpus_per_run:
            options["num_gpus"] = spec.gpus_per_run
        if spec.memory_gb:
            options["memory"] = int(spec.memory_gb * 1e9)
        environment = {"env_vars": {"OMP_NUM_THREADS": str(threads)}}
        self._task = ray.remote(**options)(run_step_by_name).options(runtime_env=environment)
        self._under_way: dict[Any, str] = {}

    def start(self, step_id: str) -> None:
        self._under_way[self._task.remote(str(self._study), step_id)] = step_id

    def ended(self, wait_seconds: float) -> list[Outcome]:
        if not self._under_way:
            return []
        ready, _ = self._ray.wait(list(self._under_way), num_returns=1, timeout=wait_seconds)
        return [self._outcome(reference) for reference in ready]

    def stop(self) -> None:
        for reference in self._under_way:
            self._ray.cancel(reference)  # raises KeyboardInterrupt in the worker: it saves its state
        if self._under_way:
            self._ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=120)
        self._under_way.clear()
        if self._mine:
            self._ray.shutdown()

    def _outcome(self, reference: Any) -> Outcome:
        step_id = self._under_way.pop(reference)
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.OutOfMemoryError as error:
            return Outcome(step_id, "out of memory", str(error).splitlines()[0])
        except (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.TaskCancelledError) as error:
            return Outcome(step_id, "killed", str(error).splitlines()[0])
        except (self._ray.exceptions.NodeDiedError, self._ray.exceptions.RayTaskError) as error:
            cause = getattr(error, "cause", None) or error
            how: How = "preempted" if isinstance(error, self._ray.exceptions.NodeDiedError) else how_it_failed(cause)
            return Outcome(step_id, how, f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}")
        return Outcome(step_id, "busy" if answer == "busy" else "done")
