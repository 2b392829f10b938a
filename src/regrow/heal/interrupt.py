"""Ctrl-C that waits for a place where the state is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopRequest:
    """Whether the user has asked to stop. A second request is not held back: it raises KeyboardInterrupt at once
    (``forced``). A ``patient`` one waits however often it is asked: torchrun passes on what a terminal sends too."""

    def __init__(self, *, patient: bool = False) -> None:
        self.asked = self.forced = False
        self._patient = patient

    def __call__(self, number: int, frame: Any) -> None:
        if self.asked and not self._patient:
            self.forced = True
            raise KeyboardInterrupt
        self.asked = True

    def raise_if_asked(self) -> None:
        """Raise KeyboardInterrupt when a stop was asked for."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def held_interrupts(*, patient: bool = False) -> Iterator[StopRequest]:
    """Yield the stop request that SIGINT sets while the context lasts (only the main thread can catch signals)."""
    request = StopRequest(patient=patient)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = signal.signal(signal.SIGINT, request)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, before)
