"""A worker: runs one step by name, wherever an engine put it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from regrow.models.save import CardWriter
from regrow.protocols import SilentWatcher, Watcher
from regrow.study.execute import execute
from regrow.study.termination import TerminatedError, terminable

PARENT = "REGROW_STUDY_RUNNER"
"""Environment variable with the process id of the runner on this machine; a worker stops when it is gone."""


def run_step(study: Path, step_id: str, watch: Watcher, card: CardWriter | None = None) -> None:
    """Do a step (see :func:`regrow.study.execute.execute`)."""
    _stop_with_the_runner()
    execute(study, step_id, watch=watch, card=card)


class PreemptedError(Exception):
    """A worker of an outside engine was told to stop (SIGTERM) and has ended in good order."""


def run_step_by_name(study: str, step_id: str) -> str:
    """Do a step in a process that an outside engine made. Returns "done" or "busy"; other ends are exceptions, among
    them PreemptedError after SIGTERM."""
    from regrow.study.lease import LeaseTakenError

    try:
        with terminable():
            execute(Path(study), step_id, watch=SilentWatcher())
    except LeaseTakenError:
        return "busy"
    except TerminatedError as error:
        raise PreemptedError(str(error)) from None
    return "done"


def _stop_with_the_runner() -> None:
    runner = os.environ.get(PARENT, "")
    if not runner.isdigit() or int(runner) == os.getpid() or os.name != "posix":
        return

    def look() -> None:
        import _thread

        while os.getppid() == int(runner):
            time.sleep(1.0)
        _thread.interrupt_main()  # as Ctrl-C: the step saves its state and ends

    threading.Thread(target=look, daemon=True).start()
