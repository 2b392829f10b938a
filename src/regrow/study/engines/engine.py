"""What an engine is: it starts steps and says how they ended. Nothing scientific depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from regrow.records.study_spec import EngineSpec

How = Literal["done", "busy", "error", "killed", "out of memory", "preempted", "timeout"]
_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "cannot allocate memory",
    "can't allocate memory",
    "memoryerror",
    "outofmemoryerror",
    "bad_alloc",
)
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


def how_it_failed(error: BaseException) -> How:
    """Return the word for an error: out of memory, preempted (told to stop, or the device went away), or error."""
    text = f"{type(error).__name__}: {error}".lower()
    if isinstance(error, MemoryError) or tells_of_no_memory(text):
        return "out of memory"
    if "preemptederror" in text:
        return "preempted"
    if "device" in text and ("lost" in text or "unavailable" in text or "no cuda" in text):
        return "preempted"
    return "error"
