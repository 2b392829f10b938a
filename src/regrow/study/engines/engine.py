"""What an engine is: it starts steps and says how they ended. Nothing scientific depends on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from regrow.records.study_spec import EngineSpec

How = Literal["done", "busy", "error", "killed", "out of memory", "GPU failed", "preempted", "timeout"]
_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "cannot allocate memory",
    "can't allocate memory",
    "memoryerror",
    "outofmemoryerror",
    "bad_alloc",
)
_GPU_FAILED = (
    r"\b(cuda|hip|cudnn|cublas|cusolver|cusparse|cufft|nccl|nvml) (driver |runtime |unknown )?error\b",
    r"\b(cudnn|cublas|cusolver|cusparse|cufft|nccl)_status_\w+",
    r"\bcudaerror\w*",
    r"no (cuda|hip) gpus are available",
    r"no cuda-capable device is detected",
    r"no nvidia (driver|gpu)",
    r"there is no cuda\b",
    r"torch not compiled with cuda",
    r"cuda is not available|torch\.cuda\.is_available\(\) is false",
    r"no supported gpu",
    r"invalid device ordinal",
    r"uncorrectable (nvlink|ecc)|\becc error",
    r"unspecified launch failure|launch timed out",
    r"illegal memory access|misaligned address|illegal instruction was encountered|illegal address",
    r"device-side assert",
    r"\bxid\b|fallen off the bus|gpu is lost|unable to determine the device handle",
    r"device\(?s?\)?( is/are| is| are| was)? ?(busy or |)(lost|unavailable)",
    r"driver shutting down|initialization error.*cuda|cuda.*initialization error",
    r"there is no gpu any more",
)
"""What CUDA, its libraries, drivers, PyTorch and regrow say when a GPU is not there, or not well."""
_EXCEPTION = re.compile(r"(?:\[rank\d+\]:\s*)?(?:[\w.]+(?:Error|Exception|Interrupt)\b|error:|what\(\):)")
_FOLLOWS = re.compile(r"[\w.]*(ChildFailedError|RaySystemError|FailedJobError)\b")
"""Errors that only say that a process has failed, after the one that says why."""
BUSY_CODE = 75
"""Exit code of a worker that found another process at work on its step."""


@dataclass(frozen=True)
class Outcome:
    """How a step ended. "busy": another process works on it. ``message`` is the last thing its worker said."""

    step_id: str
    how: How
    message: str = ""


class Engine(Protocol):
    """Starts steps, at most ``slots`` at once, and reports each that was started exactly once."""

    @property
    def slots(self) -> int: ...

    def start(self, step_id: str) -> None:
        """Begin a step. Called only while fewer than ``slots`` are under way."""
        ...

    def ended(self, wait_seconds: float) -> list[Outcome]:
        """Return the steps that ended since the last call; wait up to so long for the first of them."""
        ...

    def stop(self) -> None:
        """End what is under way in good order (workers save their state) and wait for it."""
        ...


def engine_for(spec: EngineSpec, study: Path) -> Engine:
    """Return the engine that a study asks for. Raises ConfigError naming the extra to install where one is missing."""
    if spec.name == "serial":
        from regrow.study.engines.serial import SerialEngine

        return SerialEngine(study)
    if spec.name == "subprocess":
        from regrow.study.engines.processes import ProcessEngine

        return ProcessEngine(study, spec)
    if spec.name == "ray":
        from regrow.study.engines.ray import RayEngine

        return RayEngine(study, spec)
    from regrow.study.engines.slurm import SlurmEngine

    return SlurmEngine(study, spec)


def tells_of_no_memory(text: str) -> bool:
    """Return whether the last words of a worker say that memory was refused: as regrow, Python, CUDA, Linux and C++
    say it."""
    said = text.lower()
    return any(words in said for words in _NO_MEMORY)


def tells_of_a_gpu(text: str) -> bool:
    """Return whether the last words of a worker say that its GPU is gone or has failed."""
    said = text.lower()
    return any(re.search(words, said) for words in _GPU_FAILED)


def how_words_tell(text: str) -> How | None:
    """Return the word for an error by what was said of it, None where that is no more than an error. One function for
    all engines, whatever they see of a worker: an exception, a report, the end of a log."""
    if tells_of_no_memory(text):
        return "out of memory"
    if "preemptederror" in text.lower():
        return "preempted"
    return "GPU failed" if tells_of_a_gpu(text) else None


def how_it_failed(error: BaseException) -> How:
    """Return the word for an error: out of memory, GPU failed, preempted (told to stop), or error."""
    if isinstance(error, MemoryError):
        return "out of memory"
    return how_words_tell(f"{type(error).__name__}: {error}") or "error"


def cause_in(report: str) -> str:
    """Return the sentence of a log or a report that says what went wrong: its last exception or refusal (what follows
    one are advice and the names of files), else its last line."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    said = [line for line in lines if _EXCEPTION.match(line)]
    first = [line for line in said if not _FOLLOWS.search(line)]
    found = (first or said or lines or [""])[-1]
    return re.sub(r"^\[rank\d+\]:\s*", "", found).removeprefix("error:").strip()
