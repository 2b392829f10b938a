"""The engine without other processes: a step runs where it is started. For debugging and for tests."""

from __future__ import annotations

from pathlib import Path

from regrow.protocols import SilentWatcher
from regrow.study.engines.engine import Outcome, how_it_failed
from regrow.study.lease import LeaseTakenError
from regrow.study.worker import run_step


class SerialEngine:
    """One step at a time, in this process."""

    slots = 1

    def __init__(self, study: Path) -> None:
        self._study = study
        self._ended: list[Outcome] = []

    def start(self, step_id: str) -> None:
        try:
            run_step(self._study, step_id, SilentWatcher())
            self._ended.append(Outcome(step_id, "done"))
        except LeaseTakenError:
            self._ended.append(Outcome(step_id, "busy"))
        except Exception as error:
            self._ended.append(Outcome(step_id, how_it_failed(error), _said(error)))

    def ended(self, wait_seconds: float) -> list[Outcome]:
        found, self._ended = self._ended, []
        return found

    def stop(self) -> None:
        self._ended = []


def _said(error: Exception) -> str:
    """Return the error in a line; CUDA's are followed by advice."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
