"""SIGTERM, which a scheduler sends before it takes a machine away, works as Ctrl-C: state is saved, leases given up.

Slurm, Kubernetes and clouds signal every process of a job, and a runner then signals its workers again, so SIGTERM
counts once in a process, however often it arrives.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED_CODE = 143
"""Exit code of a process that SIGTERM has stopped in good order: 128 + 15, as shells show it."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM stopped the work. A KeyboardInterrupt, so that whatever tidies up after Ctrl-C does so here too."""


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM do what SIGINT does while the block runs, and raise TerminatedError at its end when it did.

    Only the main thread can catch signals; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def stop(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            return
        asked = True
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # a shell starts what it puts into the background with Ctrl-C ignored
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        if asked:
            raise TerminatedError("the process was told to stop (SIGTERM)") from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
